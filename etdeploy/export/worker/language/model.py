"""A language model as the methods of a program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from etdeploy.backends.registry import backend_named
from etdeploy.backends.schemes import (
    EIGHT_BIT_SCHEMES,
    GROUPED_SCHEMES,
    LANGUAGE_RECIPE,
    STATIC_SCHEMES,
)
from etdeploy.core.console import count
from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.backends.base import lowering_of
from etdeploy.export.worker.failures import UnsupportedModelError, describe_errors, fail
from etdeploy.export.worker.language.activations import activations, mean_squares
from etdeploy.export.worker.language.attention import WINDOWED
from etdeploy.export.worker.language.cache_places import TokenWindow
from etdeploy.export.worker.language.eager import (
    Eager,
    EvaluatedTexts,
    asked_generation,
    changes_logits,
    expected_texts,
    perplexity_notes,
    quantized_forward,
    quantized_texts,
)
from etdeploy.export.worker.language.encoder_decoder import EncoderInput, encoder_decoder_sources
from etdeploy.export.worker.language.forward import compare
from etdeploy.export.worker.language.load import LoadedModel
from etdeploy.export.worker.language.lora import adapted_model
from etdeploy.export.worker.language.methods import inputs_at
from etdeploy.export.worker.language.prompts import random_parts
from etdeploy.export.worker.language.sources import GenerationSources, generation_sources
from etdeploy.export.worker.language.static_cache import (
    calibrated_mask,
    static_calibration,
    use_native_layers,
    use_rotary_tables,
    with_mask,
)
from etdeploy.export.worker.language.texts import TokenizedText, calibration_parts
from etdeploy.export.worker.language.tokenizer import TOKENIZER_FOLDER, stop_ids
from etdeploy.export.worker.language.vision_language import ImageInput, vision_language_sources
from etdeploy.export.worker.loading.source import MethodSource
from etdeploy.export.worker.lowering.scales import Activations
from etdeploy.export.worker.tracing.structure import ExampleInputs
from etdeploy.export.worker.tracing.tensors import Values, flat_inputs
from etdeploy.program.generation import (
    CACHE_BITS,
    ENCODED_ONCE,
    Evaluation,
    Generation,
    GenerationAdapter,
    StaticCache,
    attention_for,
    layout_for,
    verify_tokens_for,
)
from etdeploy.program.quality import OutputLoss
from etdeploy.recipe.sections.export import ExportGeneration

# Of a program whose nodes are observed: enough for attention to mix tokens.
_OBSERVED_TOKENS = 32
# Of a text that is computed eagerly, the logits of every so many tokens are compared.
_EVERY = 4
# Of a text that sets ranges: what a longer one has beyond them is cut off.
_FEW_TOKENS = 256


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
        expected = expected_texts(eager.prompts, gave.texts)
        adapters = dict(self.generation.adapters)
        if changes_logits(spec):
            model, methods = self.loaded.model, self.generation.methods
            with quantized_forward(
                eager, self.loaded, methods, modules, in_place=in_place
            ) as begin:
                owners = (model,) if in_place else tuple(modules.values())
                expected, failure = quantized_texts(begin, eager.prompts, gave.texts, owners)
                if eager.evaluated and gave.original:
                    with describe_errors("evaluation", "the quantized model raised"):
                        cost, loss = compare(begin, eager.evaluated.parts, gave.original)
                        losses = (loss,)
            notes = (*notes, *failure)
        for name, adapter in adapters.items():
            texts = expected_texts(eager.prompts, gave.adapted[name])
            if changes_logits(spec):
                own, methods = replace(self.loaded, model=self.adapted[name]), adapter.methods
                with quantized_forward(eager, own, methods, modules, in_place=in_place) as begin:
                    owners = (own.model,) if in_place else tuple(modules[m.name] for m in methods)
                    texts, _ = quantized_texts(begin, eager.prompts, gave.adapted[name], owners)
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


def language_model(spec: ExportSpec, loaded: LoadedModel, eager: Eager) -> LanguageModel:
    """Makes the methods of a model."""
    asked = asked_generation(spec)
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


def _token_window(asked: ExportGeneration) -> TokenWindow | None:
    """The window that limits what tokens see; None where they see the whole context."""
    if asked.window is None or asked.window >= asked.context:
        return None
    return TokenWindow(asked.window, asked.sinks)


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
    context = asked_generation(spec).context
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
