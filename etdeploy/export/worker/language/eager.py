"""The texts that a language model gives, run eagerly: as it was loaded, and quantized.

The weights are quantized in place, so what the original gives is computed first, and only token ids
and logits of it are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import zip_longest
from typing import Any

import torch
from torch.utils import _pytree as pytree

from etdeploy.backends.registry import backend_named
from etdeploy.backends.schemes import FLOAT_SCHEMES
from etdeploy.core.console import count
from etdeploy.export.hf.named_texts import evaluated_text
from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.backends.base import lowering_of
from etdeploy.export.worker.background import Starter, at_once, use_idle_threads
from etdeploy.export.worker.failures import describe_errors, exception_text, fail, is_memory
from etdeploy.export.worker.language.encoder_decoder import EncoderInput, encoder_input
from etdeploy.export.worker.language.forward import (
    Forward,
    MethodsForward,
    Original,
    OwnForward,
    caches_restored,
    evaluate,
    own_attention,
)
from etdeploy.export.worker.language.greedy import (
    UndefinedLogitsError,
    greedy_text,
    logit_noise,
    output_noise,
)
from etdeploy.export.worker.language.load import LoadedModel
from etdeploy.export.worker.language.lora import adapted_model
from etdeploy.export.worker.language.methods import methods_for
from etdeploy.export.worker.language.prompts import Prompt, prompts_for
from etdeploy.export.worker.language.references import References, references
from etdeploy.export.worker.language.static_cache import (
    StaticCalls,
    static_methods,
    with_all_logits,
)
from etdeploy.export.worker.language.texts import TokenizedText, evaluation_parts
from etdeploy.export.worker.language.tokenizer import stop_ids
from etdeploy.export.worker.language.vision_language import ImageInput, image_input
from etdeploy.export.worker.loading.source import MethodSource
from etdeploy.export.worker.lowering.quantize import with_float_weights
from etdeploy.export.worker.tasks.inputs import Processor
from etdeploy.export.worker.tracing.tensors import buffers_restored
from etdeploy.program.generation import (
    Evaluation,
    ExpectedText,
    Generation,
    GenerationMethod,
    GreedyText,
    LogitNoise,
    StaticCache,
    attention_for,
    layout_for,
    verify_tokens_for,
)
from etdeploy.program.quality import OutputLoss
from etdeploy.recipe.sections.export import ExportGeneration
from etdeploy.recipe.tasks import has_cross_attention

Begin = Callable[[], Forward]
_FINEST = "8da8w"
# Weights of a model whose texts take longer than everything else that can be done meanwhile.
_LARGE = 500_000_000
# Of a text that follows from an input: as long as a sentence or two, or the speech of 20 seconds.
_ANSWER = 64
_NOT_EVALUATED = "The quantized model was not evaluated: it has no tokenizer that can read {file}."
_NO_TEXTS = "What a device generates is not compared with the model's text"


@dataclass(frozen=True)
class OriginalTexts:
    """What the original model gave: a text for each prompt, or none.

    Attributes:
        original: What it gave for the text on which the model is evaluated; None for none.
        adapted: The texts of the model with each adapter, by the adapter's name.
    """

    texts: tuple[GreedyText, ...]
    original: Original | None = None
    notes: tuple[str, ...] = ()
    adapted: Mapping[str, tuple[GreedyText, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Eager:
    """How the original model is run.

    Attributes:
        attention: transformers' name of its own attention.
        evaluated: The text on which the model is evaluated; None for none.
        gave: Waits for what the model gave.
        encoder: What the text follows from, of a model with an encoder; None for others.
        static_cache: That of the program; None where keys and values are buffers.
        bits: Of a number in the program's cache.
        exported: transformers' name of an attention that sees what the program's does.
    """

    attention: str
    prompts: tuple[Prompt, ...]
    evaluated: TokenizedText | None
    gave: Callable[[], OriginalTexts]
    encoder: EncoderInput | ImageInput | None = None
    static_cache: StaticCache | None = None
    bits: int = 32
    exported: str | None = None

    def forward(self, model: Any) -> Forward:
        """The model's own forward with the program's cache, at the beginning of a text."""
        return self.encoder.forward(model) if self.encoder else OwnForward(model, bits=self.bits)

    def methods_forward(
        self, methods: Sequence[GenerationMethod], modules: Mapping[str, torch.nn.Module]
    ) -> Forward:
        """The same by the methods of the program."""
        if self.encoder:
            return self.encoder.methods_forward(methods, modules)
        return MethodsForward(methods, modules, static=self.static_calls)

    @property
    def static_calls(self) -> StaticCalls | None:
        """What calls the methods of a static cache, which is empty; None for another one."""
        return StaticCalls(self.static_cache) if self.static_cache else None


@dataclass(frozen=True)
class EvaluatedTexts:
    """The facts of a program with the texts that a device has to give, and notes about them.

    `losses` are those of the logits on the evaluated text.
    """

    generation: Generation
    notes: tuple[str, ...] = ()
    losses: tuple[OutputLoss, ...] = ()


def original_texts(spec: ExportSpec, loaded: LoadedModel, start: Starter = at_once) -> Eager:
    """What a model gives before anything of it is changed, computed as `start` does that."""
    asked = asked_generation(spec)
    if asked.path in ("auto", "static") and backend_named(str(spec.backend)).static_cache:
        methods = static_methods(asked.context, asked.prefill_tokens, asked.methods)
        return run_original(spec, loaded, methods, start)
    methods = methods_for(
        asked.context,
        asked.prefill_tokens,
        attention=attention_for(asked, str(spec.backend))[0],
        fixed=lowering_of(spec).fixed_shapes,
        layout=layout_for(asked),
        verify_tokens=verify_tokens_for(asked, str(spec.backend)),
    )
    return run_original(spec, loaded, methods, start)


def asked_generation(spec: ExportSpec) -> ExportGeneration:
    """What the recipe says of the generation of text."""
    if spec.generation is None:
        raise ValueError("the spec names no language model")
    return spec.generation


def run_original(
    spec: ExportSpec,
    loaded: LoadedModel,
    methods: Sequence[GenerationMethod],
    start: Starter = at_once,
) -> Eager:
    """Runs a model as it was loaded; one with an encoder at once, whatever `start` does."""
    if loaded.processor:
        return _run_encoder_decoder(spec, loaded, loaded.processor)
    evaluated = evaluation_parts(spec, loaded)
    prompts = prompts_for(loaded, methods, asked_generation(spec).context)
    return Eager(
        attention=loaded.model.config._attn_implementation,
        prompts=prompts,
        evaluated=evaluated,
        gave=cache(start(partial(_run_decoder, spec, loaded, prompts, evaluated))),
    )


def _run_decoder(
    spec: ExportSpec,
    loaded: LoadedModel,
    prompts: Sequence[Prompt],
    evaluated: TokenizedText | None,
) -> OriginalTexts:
    known = references(spec, loaded)
    texts, notes = _original_texts(known, loaded, prompts)
    adapted = {}
    for name, adapter in loaded.apart.items():
        model = adapted_model(loaded.model, adapter)
        adapted[name], failure = _texts(partial(OwnForward, model), prompts)
        notes = tuple(dict.fromkeys((*notes, *failure)))
    if evaluated and evaluated.cut_note:
        notes = (*notes, evaluated.cut_note)
    if not evaluated and (text := evaluated_text(spec)):
        notes = (*notes, _NOT_EVALUATED.format(file=text.path.name))
    original = _evaluated(spec, loaded, evaluated, known) if evaluated else None
    return OriginalTexts(texts, original, notes, adapted)


def _run_encoder_decoder(spec: ExportSpec, loaded: LoadedModel, processor: Processor) -> Eager:
    model, context = loaded.model, asked_generation(spec).context
    given: EncoderInput | ImageInput
    if has_cross_attention(spec.task):
        given = encoder_input(spec, model, processor)
    else:
        given = image_input(spec.input, model, processor)
    room = context - len(given.prompt) + 1
    if room < 1:
        raise fail(
            "outputs",
            f"the text begins with {count(len(given.prompt), 'token')}, and the context has "
            f"{context:,}",
            remedy=f"--context {2 * len(given.prompt)}",
            file=spec.place("export", "generation", "context"),
        )
    stop = stop_ids(model, loaded.tokenizer, loaded.vocabulary)
    prompts = (Prompt(given.prompt, min(_ANSWER, room), stop),)
    texts, notes = _texts(lambda: given.forward(model), prompts)
    gave = OriginalTexts(texts, notes=(*notes, *filter(None, (given.note,))))
    return Eager(
        attention=model.config._attn_implementation,
        prompts=prompts,
        evaluated=None,
        gave=lambda: gave,
        encoder=given,
    )


def _texts(
    begin: Begin, prompts: Sequence[Prompt], drafts: Sequence[GreedyText] = ()
) -> tuple[tuple[GreedyText, ...], tuple[str, ...]]:
    """The continuation of each prompt, verified with its draft, or a note why there is none."""
    try:
        pairs = zip_longest(prompts, drafts)
        return tuple(greedy_text(begin, prompt, draft) for prompt, draft in pairs), ()
    except UndefinedLogitsError:
        return (), (f"{_NO_TEXTS}: run eagerly, the model gives logits that are NaN or infinite.",)
    except Exception as error:  # the model's code, called with a cache
        if is_memory(error):
            raise
        return (), (f"{_NO_TEXTS}: run eagerly, the model raised {exception_text(error)}.",)


def _original_texts(
    known: References, loaded: LoadedModel, prompts: Sequence[Prompt]
) -> tuple[tuple[GreedyText, ...], tuple[str, ...]]:
    notes: tuple[str, ...] = ()

    def computed() -> list[Any] | None:
        nonlocal notes
        texts, notes = _texts(lambda: OwnForward(loaded.model), prompts)
        return [text.model_dump() for text in texts] or None

    depends = (prompts, loaded.model.config._attn_implementation)
    found = known.of("texts", depends, computed) or []
    return tuple(GreedyText.model_validate(each) for each in found), notes


def _evaluated(
    spec: ExportSpec, loaded: LoadedModel, text: TokenizedText, known: References
) -> Original:
    keep = changes_logits(spec)

    def computed() -> dict[str, Any]:
        begin = lambda: OwnForward(loaded.model)  # noqa: E731
        found = evaluate(begin, text.parts, keep=keep, files=loaded.files)
        return {"perplexity": found.perplexity, "logits": list(found.logits)}

    depends = (text.parts, loaded.model.config._attn_implementation, keep)
    with describe_errors("evaluation", f"the model raised, when it was evaluated on {text.file}:"):
        found = known.of("evaluation", depends, computed)
        return Original(found["perplexity"], tuple(found["logits"]))


def expected_texts(
    prompts: Sequence[Prompt],
    texts: Sequence[GreedyText],
    quantized: Sequence[GreedyText | None] = (),
    noise: LogitNoise | None = None,
) -> tuple[ExpectedText, ...]:
    """The texts that a device has to give, for each prompt."""
    return tuple(
        ExpectedText(prompt_ids=prompt.ids, original=own, quantized=other, noise=noise)
        for prompt, own, other in zip(
            prompts, texts, quantized or [None] * len(texts), strict=False
        )
    )


def quantized_texts(
    begin: Begin,
    prompts: Sequence[Prompt],
    texts: Sequence[GreedyText],
    owners: Iterable[torch.nn.Module],
) -> tuple[tuple[ExpectedText, ...], tuple[str, ...]]:
    """The texts that the quantized model has to give, and notes where it gives none."""
    quantized, failure = _texts(begin, prompts, texts) if texts else ((), ())
    if not quantized:
        return (), failure
    noise = logit_noise(begin, prompts, quantized, _vectors(owners))
    return expected_texts(prompts, texts, quantized, noise), failure


@contextmanager
def quantized_forward(
    eager: Eager,
    loaded: LoadedModel,
    methods: Sequence[GenerationMethod],
    modules: Mapping[str, torch.nn.Module],
    *,
    in_place: bool,
) -> Iterator[Begin]:
    """Begins texts with the quantized model, in the block."""
    if in_place:
        attention, model = eager.exported or eager.attention, loaded.model
        with own_attention(model, attention), _using_idle_threads(model):
            yield lambda: eager.forward(model)
        return
    with caches_restored(modules):
        if eager.static_cache:
            modules = {n: with_all_logits(with_float_weights(m)) for n, m in modules.items()}
        yield lambda: eager.methods_forward(methods, modules)


@contextmanager
def _using_idle_threads(model: Any) -> Iterator[None]:
    """Lets a large model compute with threads that become idle.

    Another number of threads changes the last digits of logits, and a small model's texts are there
    before the export waits for them.
    """
    if sum(weight.numel() for weight in model.parameters()) < _LARGE:
        yield
        return
    hook = model.register_forward_pre_hook(lambda *_: use_idle_threads())
    try:
        yield
    finally:
        hook.remove()


def call_noise(source: MethodSource, module: torch.nn.Module) -> LogitNoise | None:
    """How far rounding alone moves the logits of the call that a source describes."""

    def run() -> torch.Tensor:
        with buffers_restored(module.buffers()):
            logits: torch.Tensor = pytree.tree_leaves(module(*source.inputs.args))[0]
        return logits

    return output_noise(run, _vectors((module,)))


def _vectors(owners: Iterable[torch.nn.Module]) -> list[torch.Tensor]:
    """Weights of norms and biases, which quantization leaves in floats."""
    found = {
        id(weight): weight
        for owner in owners
        for weight in owner.parameters()
        if weight.ndim == 1 and weight.dtype == torch.float32
    }
    return list(found.values())


def perplexity_notes(spec: ExportSpec, evaluation: Evaluation) -> Iterator[str]:
    """A warning where quantization makes the model much worse, with what to do."""
    if not evaluation.has_large_loss:
        return
    finer = _FINEST in backend_named(str(spec.backend)).quantizations
    remedy = (
        "A cache of floats loses nothing: --set export.generation.cache=float32"
        if not _quantizes_weights(spec)
        else f"Weights in 8 bits lose less: --set export.quantization={_FINEST}"
        if finer and spec.quantization != _FINEST
        else "Without quantization, it stays as it is: --set export.quantization=none"
    )
    before, after = evaluation.perplexity, evaluation.exported_perplexity
    much = "an undefined value" if after is None else f"{after:.4g}"
    yield (
        f"Quantization raises the perplexity on {evaluation.file} from {before:.4g} to {much}. "
        f"{remedy}"
    )


def changes_logits(spec: ExportSpec) -> bool:
    """Whether the program gives other logits: by quantized weights, its cache, or a window."""
    asked = asked_generation(spec)
    return _quantizes_weights(spec) or asked.cache != "float32" or asked.window is not None


def _quantizes_weights(spec: ExportSpec) -> bool:
    """Whether the model is quantized before it is lowered."""
    return bool(spec.embeddings) or spec.quantization not in (None, *FLOAT_SCHEMES)
