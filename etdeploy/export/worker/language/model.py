"""A language model as the methods of a program, with the texts that it gives.

The model is run eagerly as it was loaded, and again when it is quantized. The weights are quantized
in place, so what the original gives is computed first, and only token ids and logits of it are
kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import zip_longest
from typing import Any

import torch
from torch.utils import _pytree as pytree

from etdeploy.backends.registry import backend_named
from etdeploy.backends.schemes import (
    EIGHT_BIT_SCHEMES,
    FLOAT_SCHEMES,
    GROUPED_SCHEMES,
    LANGUAGE_RECIPE,
    STATIC_SCHEMES,
)
from etdeploy.core.console import count
from etdeploy.export.hf.named_texts import evaluated_text
from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.backends.base import lowering_of
from etdeploy.export.worker.background import Starter, at_once, use_idle_threads
from etdeploy.export.worker.failures import (
    UnsupportedModelError,
    describe_errors,
    exception_text,
    fail,
    is_memory,
)
from etdeploy.export.worker.language.attention import WINDOWED
from etdeploy.export.worker.language.cache_places import TokenWindow
from etdeploy.export.worker.language.encoder_decoder import (
    EncoderInput,
    encoder_decoder_sources,
    encoder_input,
)
from etdeploy.export.worker.language.forward import (
    Forward,
    MethodsForward,
    Original,
    OwnForward,
    caches_restored,
    compare,
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
from etdeploy.export.worker.language.methods import inputs_at, methods_for
from etdeploy.export.worker.language.sources import GenerationSources, generation_sources
from etdeploy.export.worker.language.static_cache import (
    StaticCalls,
    calibrated_mask,
    static_calibration,
    static_methods,
    use_native_layers,
    use_rotary_tables,
    with_all_logits,
    with_mask,
)
from etdeploy.export.worker.language.texts import (
    Prompt,
    References,
    TokenizedText,
    activations,
    calibration_parts,
    evaluation_parts,
    mean_squares,
    prompts_for,
    random_parts,
    references,
)
from etdeploy.export.worker.language.tokenizer import TOKENIZER_FOLDER, stop_ids
from etdeploy.export.worker.language.vision_language import (
    ImageInput,
    image_input,
    vision_language_sources,
)
from etdeploy.export.worker.loading.source import MethodSource
from etdeploy.export.worker.lowering.quantize import with_float_weights
from etdeploy.export.worker.lowering.scales import Activations
from etdeploy.export.worker.tasks.inputs import Processor
from etdeploy.export.worker.tracing.structure import ExampleInputs
from etdeploy.export.worker.tracing.tensors import Values, buffers_restored, flat_inputs
from etdeploy.program.generation import (
    CACHE_BITS,
    ENCODED_ONCE,
    Evaluation,
    ExpectedText,
    Generation,
    GenerationAdapter,
    GenerationMethod,
    GreedyText,
    LogitNoise,
    StaticCache,
    attention_for,
    layout_for,
    verify_tokens_for,
)
from etdeploy.program.quality import OutputLoss
from etdeploy.recipe.model import ExportGeneration
from etdeploy.recipe.tasks import has_cross_attention

Begin = Callable[[], Forward]
_FINEST = "8da8w"
# Weights of a model whose texts take longer than everything else that can be done meanwhile.
_LARGE = 500_000_000
# Of a program whose nodes are observed: enough for attention to mix tokens.
_OBSERVED_TOKENS = 32
# Of a text that is computed eagerly, the logits of every so many tokens are compared.
_EVERY = 4
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


@dataclass(frozen=True)
class LanguageModel:
    """A language model, ready to be exported.

    `eager` is how it was run before anything of it was changed; None as soon as its texts are in
    `generation`. `adapted` is the model with each adapter, by the adapter's name.
    """

    sources: dict[str, MethodSource]
    generation: Generation
    loaded: LoadedModel
    eager: Eager | None = None
    adapted: Mapping[str, Any] = field(default_factory=dict)

    @property
    def longest(self) -> str:
        """The first of the methods that take the most tokens.

        All of them have the same layers, and a device is judged by its texts: it is enough to run
        this one, to see how far quantization moves logits.
        """
        return max(self.generation.methods, key=lambda method: method.max_tokens).name

    @property
    def evaluates(self) -> bool:
        """Whether its logits are compared on a text, once it is quantized."""
        return self.eager is not None and self.eager.evaluated is not None

    def observed(self, spec: ExportSpec) -> dict[str, MethodSource]:
        """The longest method, given the beginning of a prompt: a program that answers in one call.

        Raises:
            WorkerError: The model has an encoder, from whose outputs the text follows.
        """
        eager, name = self.eager, self.longest
        if eager is None or eager.encoder:
            raise fail(
                "outputs",
                f"the text of {spec.source} follows from an image or a recording: nodes of such a "
                "model cannot be compared",
                remedy="`etdeploy run` compares its text token by token.",
            )
        method = next(each for each in self.generation.methods if each.name == name)
        source, prompt = self.sources[name], list(eager.prompts[0].ids)
        if static := eager.static_calls:
            given = static.inputs(prompt[: method.max_tokens], 0, method.max_tokens)
            return {name: replace(source, inputs=ExampleInputs(given))}
        length = method.max_tokens
        length = min(length, _OBSERVED_TOKENS) if method.dynamic else length
        repeated = prompt * -(-length // len(prompt))

        def call(ids: Sequence[int], rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
            given = inputs_at(self.loaded.model, torch.tensor([list(ids)]), 0)
            return (*given, rows) if method.verify_tokens else given

        def texts() -> Iterator[tuple[torch.Tensor, ...]]:
            """What is computed eagerly alone: it may have more tokens."""
            most, text = method.max_tokens, calibration_parts(spec, self.loaded)
            rows = torch.arange(_EVERY - 1, most, _EVERY)
            for part in text.parts if text else ():
                for at in range(0, len(part) - most + 1, most):
                    yield call(part[at : at + most], rows)

        last = torch.arange(length)[-max(1, method.verify_tokens) :]
        inputs = ExampleInputs(call(repeated[:length], last))
        return {name: replace(source, inputs=inputs, calibration=texts)}

    def encoder_inputs(self) -> Values:
        """Those of all calls of its encoder; none without one."""
        encoder = self.eager.encoder if self.eager else None
        if encoder is None or self.generation.encoder is None:
            return []
        module = self.sources[self.generation.encoder.method].module
        return [value for call in encoder.calls for value in flat_inputs(module, call)]

    def activations(self, spec: ExportSpec) -> Activations:
        """What its linear layers are given on the text that calibrates it."""
        if self.eager is None or spec.quantization in STATIC_SCHEMES:
            return Activations()
        if self.eager.encoder:
            return self._encoder_activations(spec, self.eager, self.eager.encoder)
        return activations(spec, self.loaded, self.eager.attention)

    def _encoder_activations(
        self, spec: ExportSpec, eager: Eager, encoder: EncoderInput | ImageInput
    ) -> Activations:
        if not spec.reads_calibration:
            return Activations(origin="export.calibration is none")
        texts = eager.gave().texts
        if not encoder.tensors.is_real or not texts:
            return Activations(origin="the input is random")
        ids = (*encoder.prompt, *texts[0].token_ids[:-1])
        text = TokenizedText("the input", "", (ids,), whole=True)
        squares = mean_squares(self.loaded.model, eager.attention, text, eager.forward)
        return Activations(squares, f"the input and {count(len(ids), 'token')} of its text")

    def evaluated(
        self, spec: ExportSpec, modules: Mapping[str, torch.nn.Module], *, in_place: bool
    ) -> EvaluatedTexts:
        """Runs the methods that are exported; may be called in a fork."""
        if self.eager is None:
            return EvaluatedTexts(self.generation)
        eager, gave = self.eager, self.eager.gave()
        notes, cost = gave.notes, None
        losses: tuple[OutputLoss, ...] = ()
        expected = _expected(eager.prompts, gave.texts)
        adapters = dict(self.generation.adapters)
        if _quantizes(spec):
            model, methods = self.loaded.model, self.generation.methods
            with _quantized_texts(eager, self.loaded, methods, modules, in_place=in_place) as begin:
                owners = (model,) if in_place else tuple(modules.values())
                expected, failure = _quantized(begin, eager.prompts, gave.texts, owners)
                if eager.evaluated and gave.original:
                    with describe_errors("evaluation", "the quantized model raised"):
                        cost, loss = compare(begin, eager.evaluated.parts, gave.original)
                        losses = (loss,)
            notes = (*notes, *failure)
        for name, adapter in adapters.items():
            texts = _expected(eager.prompts, gave.adapted[name])
            if _quantizes(spec):
                own, methods = replace(self.loaded, model=self.adapted[name]), adapter.methods
                with _quantized_texts(eager, own, methods, modules, in_place=in_place) as begin:
                    owners = (own.model,) if in_place else tuple(modules[m.name] for m in methods)
                    texts, _ = _quantized(begin, eager.prompts, gave.adapted[name], owners)
            adapters[name] = adapter.model_copy(update={"expected": texts})
        evaluation = None
        if (text := eager.evaluated) and gave.original:
            evaluation = Evaluation(
                file=text.file,
                sha256=text.sha256,
                tokens=text.predicted,
                whole=text.whole,
                perplexity=gave.original.perplexity,
                quantized=cost,
            )
            notes = (*notes, *perplexity_notes(spec, evaluation))
        update = {"expected": expected, "evaluation": evaluation, "adapters": adapters}
        return EvaluatedTexts(self.generation.model_copy(update=update), notes, losses)

    def with_texts(self, found: EvaluatedTexts) -> LanguageModel:
        """The same with what `evaluated` gave."""
        loaded = replace(self.loaded, notes=(*self.loaded.notes, *found.notes))
        return LanguageModel(self.sources, found.generation, loaded)


def original_texts(spec: ExportSpec, loaded: LoadedModel, start: Starter = at_once) -> Eager:
    """What a model gives before anything of it is changed, computed as `start` does that."""
    asked = _asked(spec)
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


def _token_window(asked: ExportGeneration) -> TokenWindow | None:
    """The window that limits what tokens see; None where they see the whole context."""
    if asked.window is None or asked.window >= asked.context:
        return None
    return TokenWindow(asked.window, asked.sinks)


def _asked(spec: ExportSpec) -> ExportGeneration:
    if spec.generation is None:
        raise ValueError("the spec names no language model")
    return spec.generation


def language_model(spec: ExportSpec, loaded: LoadedModel, eager: Eager) -> LanguageModel:
    """Makes the methods of a model."""
    asked = _asked(spec)
    if isinstance(eager.encoder, EncoderInput):
        return _encoder_decoder(spec, loaded, eager, eager.encoder)
    options: dict[str, Any] = {
        "context": asked.context,
        "prefill_tokens": asked.prefill_tokens,
        "path": asked.path,
        "attention": attention_for(asked, str(spec.backend))[0],
        "fixed": lowering_of(spec).fixed_shapes,
        "conditional": lowering_of(spec).conditional,
    }
    if eager.encoder:
        made, placed = vision_language_sources(loaded.model, eager.encoder, **options)
        eager = replace(eager, encoder=placed)
    else:
        mode = asked.methods if backend_named(str(spec.backend)).static_cache else None
        options |= {
            "mode": mode,
            "layout": layout_for(asked),
            "bits": CACHE_BITS[asked.cache],
            "window": _token_window(asked),
            "verify_tokens": verify_tokens_for(asked, str(spec.backend)),
        }
        with _fits_cache(spec, loaded, asked):
            made = generation_sources(loaded.model, **options)
        exported = WINDOWED if options["window"] else None
        eager = replace(
            eager, static_cache=made.static_cache, bits=options["bits"], exported=exported
        )
    _require_ranges(spec, loaded, made)
    models = {name: adapted_model(loaded.model, each) for name, each in loaded.apart.items()}
    adapted = {name: made.adapted(name, model) for name, model in models.items()}
    if made.static_cache:
        read = Activations()
        if spec.quantization in GROUPED_SCHEMES:
            read = activations(spec, loaded, eager.attention)
        for model in (loaded.model, *models.values()):
            use_native_layers(model, made.static_cache, read)
    elif lowering_of(spec).rotary_tables and not eager.encoder:
        for model in (loaded.model, *models.values()):
            use_rotary_tables(model, asked.context)
    sources = {**made.sources}
    for each in adapted.values():
        sources |= each.sources
    calibrated: tuple[str, ...] = ()
    static_cache = made.static_cache
    if static_cache and spec.quantization in STATIC_SCHEMES:
        sources, static_cache, calibrated = _calibrated(spec, loaded, static_cache, sources)
        eager = replace(eager, static_cache=static_cache)
    tokenizer, vocabulary = loaded.tokenizer, loaded.vocabulary
    generation = Generation(
        methods=made.methods,
        vocabulary=vocabulary,
        context=asked.context,
        stop_ids=stop_ids(loaded.model, tokenizer, vocabulary),
        bos_id=tokenizer.bos_id,
        tokenizer=TOKENIZER_FOLDER if tokenizer.folder else None,
        model=spec.source,
        revision=loaded.checkpoint.commit,
        path=made.path,
        path_reason=made.path_reason,
        attention=made.attention,
        cache=asked.cache,
        layout=layout_for(asked),
        rewind=made.rewind,
        adapters={name: GenerationAdapter(methods=each.methods) for name, each in adapted.items()},
        encoder=eager.encoder.facts if eager.encoder else None,
        static_cache=static_cache,
    )
    with_notes = replace(loaded, notes=(*loaded.notes, *made.notes, *calibrated))
    return LanguageModel(sources, generation, with_notes, eager, models)


@contextmanager
def _fits_cache(spec: ExportSpec, loaded: LoadedModel, asked: ExportGeneration) -> Iterator[None]:
    try:
        yield
    except UnsupportedModelError as error:
        if asked.window and asked.cache == "float32":
            raise fail(
                "outputs",
                f"the model, a {type(loaded.model).__name__}, takes no window: {error}",
                remedy="Let its tokens see what they see in the model: leave out "
                "export.generation.window",
                file=spec.place("export", "generation", "window"),
            ) from error
        raise fail(
            "outputs",
            f"the model, a {type(loaded.model).__name__}, does not fit a cache of {asked.cache}, "
            f"which etdeploy's attention kernel reads: {error}",
            remedy="Leave its cache in floats: --set export.generation.cache=float32",
            file=spec.place("export", "generation", "cache"),
        ) from error


def _require_ranges(spec: ExportSpec, loaded: LoadedModel, made: GenerationSources) -> None:
    """Refuses a scheme with ranges of activations where a text cannot set those of all methods."""
    if spec.quantization not in STATIC_SCHEMES or (made.static_cache and not loaded.apart):
        return
    reason = (
        "the methods of an adapter have further layers, and all methods share their ranges"
        if made.static_cache
        else f"the path {made.path} sets none. {made.path_reason.rstrip('.')}"
    )
    merged = (
        "Merge the adapters: --set model.merge=true\nor leave" if made.static_cache else "Leave"
    )
    raise fail(
        "quantization",
        f"{spec.quantization} needs ranges of activations from a text: {reason}",
        remedy=f"{merged} the model in floats: --set export.quantization=fp16\n"
        f"or choose another backend: --recipe {LANGUAGE_RECIPE}",
    )


# Of a text that sets ranges: what a longer one has beyond them is cut off.
_FEW_TOKENS = 256


def _calibrated(
    spec: ExportSpec, loaded: LoadedModel, facts: StaticCache, sources: Mapping[str, MethodSource]
) -> tuple[dict[str, MethodSource], StaticCache, tuple[str, ...]]:
    """The methods with ranges of activations that they share, and a sentence about these.

    Keys and values of one method are inputs of the other, as integers. The method that takes the
    most tokens reads a text in the fewest calls.
    """
    first = max(sources, key=lambda name: sources[name].inputs.args[0].shape[1])
    length = int(sources[first].inputs.args[0].shape[1])
    text = calibration_parts(spec, loaded)
    parts = text.parts if text else random_parts(loaded, facts.places + 1)
    note = _ranges_note(text.file if text else None, sum(map(len, parts)))
    calibration = static_calibration(sources[first], facts, length, parts)
    if spec.quantization in EIGHT_BIT_SCHEMES:
        masked = calibrated_mask(calibration())
        facts = facts.model_copy(update={"masked": masked})
        sources = {name: with_mask(source, masked) for name, source in sources.items()}
        calibration = static_calibration(sources[first], facts, length, parts)
    found = {
        name: replace(source, calibration=calibration)
        if name == first
        else replace(source, ranges_from=first)
        for name, source in sources.items()
    }
    return found, facts, (note,)


def _ranges_note(file: str | None, tokens: int) -> str:
    """What set the ranges of activations: the beginning of a file, or tokens at random."""
    number = count(tokens, "token")
    if file is None:
        return (
            f"{number} at random set the ranges of activations: enough to measure speed, not "
            "accuracy. The model has no tokenizer that reads the calibration text, or "
            "export.calibration is none."
        )
    note = f"{number} of {file} set the ranges of activations"
    if tokens >= _FEW_TOKENS:
        return f"{note}."
    return f"{note}: too few for accuracy. Name a file with some hundred words."


def _encoder_decoder(
    spec: ExportSpec, loaded: LoadedModel, eager: Eager, given: EncoderInput
) -> LanguageModel:
    context = _asked(spec).context
    fixed = lowering_of(spec).fixed_shapes
    sources, methods = encoder_decoder_sources(loaded.model, given, context=context, fixed=fixed)
    tokenizer, vocabulary = loaded.tokenizer, loaded.vocabulary
    generation = Generation(
        methods=methods,
        vocabulary=vocabulary,
        context=context,
        stop_ids=stop_ids(loaded.model, tokenizer, vocabulary),
        tokenizer=TOKENIZER_FOLDER if tokenizer.folder else None,
        model=spec.source,
        revision=loaded.checkpoint.commit,
        path="fast",
        path_reason=f"{ENCODED_ONCE.capitalize()}.",
        encoder=given.facts,
    )
    return LanguageModel(sources, generation, loaded, eager)


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
    prompts = prompts_for(loaded, methods, _asked(spec).context)
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
    model, context = loaded.model, _asked(spec).context
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


def _expected(
    prompts: Sequence[Prompt],
    texts: Sequence[GreedyText],
    quantized: Sequence[GreedyText | None] = (),
    noise: LogitNoise | None = None,
) -> tuple[ExpectedText, ...]:
    return tuple(
        ExpectedText(prompt_ids=prompt.ids, original=own, quantized=other, noise=noise)
        for prompt, own, other in zip(
            prompts, texts, quantized or [None] * len(texts), strict=False
        )
    )


def _quantized(
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
    return _expected(prompts, texts, quantized, noise), failure


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


@contextmanager
def _quantized_texts(
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


def _quantizes(spec: ExportSpec) -> bool:
    """Whether the program gives other logits: by quantized weights, its cache, or a window."""
    asked = _asked(spec)
    return _quantizes_weights(spec) or asked.cache != "float32" or asked.window is not None


def _quantizes_weights(spec: ExportSpec) -> bool:
    """Whether the model is quantized before it is lowered."""
    return bool(spec.embeddings) or spec.quantization not in (None, *FLOAT_SCHEMES)


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
    keep = _quantizes(spec)

    def computed() -> dict[str, Any]:
        begin = lambda: OwnForward(loaded.model)  # noqa: E731
        found = evaluate(begin, text.parts, keep=keep, files=loaded.files)
        return {"perplexity": found.perplexity, "logits": list(found.logits)}

    depends = (text.parts, loaded.model.config._attn_implementation, keep)
    with describe_errors("evaluation", f"the model raised, when it was evaluated on {text.file}:"):
        found = known.of("evaluation", depends, computed)
        return Original(found["perplexity"], tuple(found["logits"]))
