"""Vision-language models of transformers: text that follows from an image and a question.

The methods have the names and inputs of ExecuTorch's multimodal contract, which
`program/generation.py` describes. What a processor makes of an image may have several parts, like
the tiles of a large one: the encoder takes one, and is called for each.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from transformers.exporters.utils import precompute_export_inputs

from etdeploy.core.console import count
from etdeploy.export.hf.config import FACTORY
from etdeploy.export.worker.failures import UnsupportedModelError, WorkerError, exception_text, fail
from etdeploy.export.worker.language.forward import MethodsForward, OwnForward
from etdeploy.export.worker.language.load import own_forward
from etdeploy.export.worker.language.methods import (
    EmbeddedLanguageModel,
    PositionTable,
    plain_embeddings,
)
from etdeploy.export.worker.language.sources import GenerationSources, generation_sources
from etdeploy.export.worker.loading.source import MethodSource
from etdeploy.export.worker.tasks.inputs import (
    Processor,
    TaskTensors,
    random_input_note,
    task_tensors,
)
from etdeploy.export.worker.tasks.load import use_unmasked_attention
from etdeploy.export.worker.tracing.structure import ExampleInputs
from etdeploy.export.worker.tracing.tensors import buffers_restored
from etdeploy.program.generation import (
    TEXT_DECODER,
    TOKEN_EMBEDDING,
    VISION_ENCODER,
    GenerationEncoder,
    GenerationMethod,
)

# Of embeddings and logits, relative to the largest: float32 sums in another order.
_TOLERANCE = 1e-3
_TOKENS = "input_ids"
# What models call the layers from image features to embeddings.
_PROJECTORS = ("connector", "multi_modal_projector", "modality_projection", "aligner")
_PREFILL = "prefill"
# From a model and pixels to rows of embeddings.
Features = Callable[[Any, torch.Tensor], torch.Tensor]
_WHOLE = (
    "The tokens of an image see all of it, so one call takes the whole prompt, and attention "
    "has stock operators: with etdeploy's kernel, no token sees a later one."
)


@dataclass(frozen=True)
class ImageInput:
    """The user's image and question, as tensors.

    Attributes:
        tensors: All that the processor gives, with the ids of the prompt.
        parts: Of the image: the encoder's input for each of its calls.
        table: Positions of each token of the prompt, of shape (rows, tokens), as
            `EmbeddedLanguageModel.table` says; None for the token's own.
    """

    processor: Processor
    tensors: TaskTensors
    image_id: int
    parts: tuple[torch.Tensor, ...]
    table: torch.Tensor | None = None

    @property
    def prompt(self) -> tuple[int, ...]:
        """The ids of the question, with one for each row of the image."""
        return tuple(map(int, self.tensors.values[_TOKENS][0]))

    @property
    def beside(self) -> dict[str, torch.Tensor]:
        """What the model takes with the prompt."""
        return {k: v for k, v in self.tensors.values.items() if k != _TOKENS}

    def forward(self, model: Any) -> OwnForward:
        """The model's own forward, at the beginning of its text."""
        return OwnForward(model, beside=(self.beside, len(self.prompt)))

    def methods_forward(
        self, methods: Sequence[GenerationMethod], modules: Mapping[str, torch.nn.Module]
    ) -> MethodsForward:
        """The same by the methods of the program."""
        with torch.no_grad():
            rows = torch.cat([modules[VISION_ENCODER](part)[0] for part in self.parts])
        return MethodsForward(methods, modules, (rows,), self.image_id, self.table)

    @property
    def facts(self) -> GenerationEncoder:
        """What the program's description says of it."""
        return GenerationEncoder(
            method=VISION_ENCODER,
            calls=len(self.parts),
            image_id=self.image_id,
            positions=() if self.table is None else tuple(map(tuple, self.table.tolist())),
            prompt_ids=self.prompt,
            is_real=self.tensors.is_real,
            audio_s=None,
            preprocess_ms=round(self.tensors.took_ms, 3),
        )

    @property
    def calls(self) -> tuple[ExampleInputs, ...]:
        """The inputs of each call of the encoder."""
        return tuple(ExampleInputs((part,)) for part in self.parts)

    @property
    def note(self) -> str | None:
        """A sentence where the image is random."""
        return random_input_note(self.processor, self.tensors)


def image_input(given: Any, model: Any, processor: Processor) -> ImageInput:
    """The image and question of a spec's input, for a model."""
    tensors = task_tensors(processor, given, None)
    image_id = getattr(model.config, "image_token_id", None)
    found = ImageInput(processor, tensors, image_id if isinstance(image_id, int) else -1, ())
    pixels = tensors.values.get("pixel_values")
    if pixels is None or found.image_id not in found.prompt:
        raise fail(
            "checkpoint",
            "the model's processor makes no image tokens of an image, so the model is not one that "
            "takes images as embeddings in its text",
            remedy=FACTORY,
            file=str(processor.folder),
        )
    return replace(found, parts=_parts(pixels))


def _parts(pixels: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Pictures of shape (1, channels, height, width), in the order of their embeddings."""
    if pixels.dim() < 4:
        return (pixels,)
    return tuple(pixels.reshape(-1, 1, *pixels.shape[-3:]).contiguous())


class VisionEncoder(torch.nn.Module):  # type: ignore[misc]
    """From a part of an image to rows of embeddings, of shape (1, N, d), in one of some ways."""

    def __init__(self, model: Any, features: Features) -> None:
        super().__init__()
        self.model, self.features = model, features

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """The embeddings of pixels of shape (1, channels, height, width), or as a processor."""
        rows = self.features(self.model, pixels)
        return rows.reshape(1, -1, rows.shape[-1])


def _ways(model: Any, given: ImageInput) -> Iterator[Features]:
    """How a model may compute an image's embeddings.

    Its own function comes after its parts alone: it may look for padding among the images, which
    torch.export cannot trace.
    """
    grid = given.beside.get("image_grid_thw")
    if grid is not None:
        yield partial(_gridded, _known_of_grid(_tower(model), grid))
    if _projector(model) is not None:
        yield lambda model, pixels: _projector(model)(_tower(model)(pixels).last_hidden_state)
    yield lambda model, pixels: _joined(model.get_image_features(pixels).pooler_output)
    yield lambda model, pixels: _joined(model.get_image_features(pixels[None]).pooler_output)


def _tower(model: Any) -> Any:
    return model.get_encoder(modality="image")


def _projector(model: Any) -> Any:
    owners = (model, model.base_model)
    found = (getattr(owner, name, None) for owner in owners for name in _PROJECTORS)
    return next((each for each in found if each is not None), None)


def _known_of_grid(tower: Any, grid: torch.Tensor) -> dict[str, Any]:
    """What a tower computes of the numbers of patches, which are constants here.

    Bounds of sequences become arrays of numpy, whose values torch.export can see.
    """
    inputs: dict[str, Any] = {"grid_thw": grid}
    precompute_export_inputs(tower, inputs)
    return {k: v.numpy() if k.startswith("cu_") else v for k, v in inputs.items()}


def _gridded(known: Mapping[str, Any], model: Any, pixels: torch.Tensor) -> torch.Tensor:
    rows: torch.Tensor = _tower(model)(pixels, **known).pooler_output
    return rows


def _joined(features: Any) -> torch.Tensor:
    """Rows of shape (N, d)."""
    parts = features if isinstance(features, list | tuple) else [features]
    return torch.cat([part.reshape(-1, part.shape[-1]) for part in parts])


class TokenEmbedding(torch.nn.Module):  # type: ignore[misc]
    """From ids of shape (1, S) to embeddings of shape (1, S, d)."""

    def __init__(self, model: EmbeddedLanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = self.model.embeddings(tokens)
        return rows


class _WholeConvolution(torch.nn.Module):  # type: ignore[misc]
    """A convolution over three dimensions whose kernel is as large as its input.

    That is a product with a matrix, and the convolution has no kernel in ExecuTorch.
    """

    def __init__(self, convolution: torch.nn.Conv3d) -> None:
        super().__init__()
        rows = convolution.weight.detach().flatten(1)
        self.linear = torch.nn.Linear(rows.shape[1], rows.shape[0], convolution.bias is not None)
        self.linear.weight, self.linear.bias = torch.nn.Parameter(rows), convolution.bias

    @property
    def weight(self) -> torch.Tensor:
        """Models look at its type."""
        weight: torch.Tensor = self.linear.weight
        return weight

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = self.linear(patches.flatten(1))
        return rows[..., None, None, None]


class _FixedRows(torch.nn.Module):  # type: ignore[misc]
    """The rows of an embedding for indices that are always the same."""

    def __init__(self, rows: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("rows", rows)

    def forward(self, _: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = self.rows
        return rows


def vision_language_sources(
    model: Any, given: ImageInput, *, fixed: bool, **options: Any
) -> tuple[GenerationSources, ImageInput]:
    """The methods of a vision-language model, and the input with what they take of it.

    Their embeddings and logits are those of the model's own forward.

    Args:
        model: Of transformers.
        given: The example input.
        fixed: Whether methods take one number of tokens only.
        options: Further ones, as `generation_sources` takes them.
    """
    with own_forward(model):
        wanted = _own_rows(model, given)
        logits = given.forward(model).last(given.prompt)
    own, reasons = model.get_decoder().config._attn_implementation, []
    try:
        encoder = _encoder(model, given, wanted)
    except UnsupportedModelError as error:
        raise _refused(model, str(error)) from error
    for table in _tables(model, given):
        model.get_decoder().set_attn_implementation(own)
        placed = replace(given, table=table[1]) if table else given
        language = EmbeddedLanguageModel(model, table[0] if table else None).eval()
        wide = _seen_whole(placed, options, fixed) if language.table == "ends" else {}
        try:
            made = generation_sources(language, fixed=fixed, **{**options, **wide})
            made = _with_encoder(made, encoder, language, placed)
            _compare(placed, made, logits)
        except UnsupportedModelError as error:
            reasons.append(str(error))
            continue
        notes = (*made.notes, *((_WHOLE,) if wide else ()))
        return replace(made, notes=notes), placed
    raise _refused(model, reasons[0])


def _refused(model: Any, reason: str) -> WorkerError:
    return fail(
        "outputs",
        f"the model, a {type(model).__name__}, cannot be split into an encoder of images and a "
        f"language model: {reason}",
        remedy=FACTORY,
    )


def _tables(model: Any, given: ImageInput) -> Iterator[tuple[PositionTable, torch.Tensor] | None]:
    """The positions that tokens may have: those of its rope index, or else of the image's ends."""
    of_rope = getattr(model.base_model, "get_rope_index", None)
    if of_rope:
        takes = inspect.signature(of_rope).parameters
        values = {k: v for k, v in given.tensors.values.items() if k in takes}
        yield "rope", of_rope(**values)[0][:, 0]
        return
    yield None
    yield "ends", _ends(given).unsqueeze(0)


def _ends(given: ImageInput) -> torch.Tensor:
    """For each token of the prompt the last position that it sees, where an image is seen whole."""
    ends = list(range(len(given.prompt)))
    for position in reversed(ends[:-1]):
        if given.prompt[position] == given.prompt[position + 1] == given.image_id:
            ends[position] = ends[position + 1]
    return torch.tensor(ends)


def _seen_whole(given: ImageInput, options: Mapping[str, Any], fixed: bool) -> dict[str, Any]:
    """Options with which one call takes the whole prompt, as the mask needs it."""
    tokens = len(given.prompt)
    most = tokens if fixed else max(tokens, options["prefill_tokens"])
    return {"attention": "stock", "prefill_tokens": most}


def _with_encoder(
    made: GenerationSources,
    encoder: VisionEncoder,
    language: EmbeddedLanguageModel,
    given: ImageInput,
) -> GenerationSources:
    methods = tuple(_renamed(method) for method in made.methods)
    sources = {
        VISION_ENCODER: MethodSource(encoder, given.calls[0]),
        TOKEN_EMBEDDING: _embedding(language, methods),
        **{_name(name): source for name, source in made.sources.items()},
    }
    return replace(made, sources=sources, methods=methods)


def _renamed(method: GenerationMethod) -> GenerationMethod:
    return method.model_copy(update={"name": _name(method.name)})


def _name(method: str) -> str:
    return TEXT_DECODER if method == _PREFILL else method


def _own_rows(model: Any, given: ImageInput) -> torch.Tensor:
    """The embeddings of the whole image, as the model computes them itself."""
    pictures = {k: v for k, v in given.beside.items() if k.startswith(("pixel", "image"))}
    return _joined(model.get_image_features(**pictures).pooler_output)


def _encoder(model: Any, given: ImageInput, wanted: torch.Tensor) -> VisionEncoder:
    """The first way to compute an image's embeddings that gives those of the model."""
    plain_embeddings(model)
    if not use_unmasked_attention(_tower(model)):
        raise UnsupportedModelError("its vision tower hard-codes its attention")
    _replace_convolutions(_tower(model))
    reasons = []
    for features in _ways(model, given):
        encoder = VisionEncoder(model, features)
        encoder.eval()
        try:
            with torch.no_grad():
                found = torch.cat([encoder(part)[0] for part in given.parts])
        except MemoryError:
            raise
        except Exception as error:  # the model's code, with inputs that it may not take
            reasons.append(exception_text(error))
            continue
        if found.shape == wanted.shape and _moved(found, wanted) <= _TOLERANCE:
            fix_positions(encoder, given.parts)
            return encoder
        reasons.append("the embeddings differ from the model's own")
    raise UnsupportedModelError(f"for its images, {reasons[-1]}")


def _replace_convolutions(tower: torch.nn.Module) -> None:
    """Those of patches that have a dimension for time: the tower cuts the patches before."""
    for path, module in list(tower.named_modules()):
        if isinstance(module, torch.nn.Conv3d) and module.kernel_size == module.stride:
            parent, _, own = path.rpartition(".")
            setattr(tower.get_submodule(parent), own, _WholeConvolution(module))


def _moved(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest difference, relative to the largest value."""
    return float((found - wanted).abs().max() / wanted.abs().max().clamp(min=1e-6))


def fix_positions(encoder: torch.nn.Module, parts: Sequence[torch.Tensor]) -> None:
    """Replaces embeddings that give the same rows for every image, as those of positions do.

    What computes their indices, with operators that have no kernel, is then not part of the graph.
    """
    tables = [(n, m) for n, m in encoder.named_modules() if isinstance(m, torch.nn.Embedding)]
    rows: dict[str, list[torch.Tensor]] = {name: [] for name, _ in tables}
    hooks = [
        module.register_forward_hook(lambda _, __, out, name=name: rows[name].append(out))
        for name, module in tables
    ]
    try:
        with torch.no_grad():
            for image in (parts[0], torch.flip(parts[0], (-1,)) + 0.5):
                encoder(image)
    finally:
        for hook in hooks:
            hook.remove()
    for name, _ in tables:
        if len(rows[name]) == 2 and torch.equal(*rows[name]):
            parent, _, own = name.rpartition(".")
            setattr(encoder.get_submodule(parent), own, _FixedRows(rows[name][0]))


def _embedding(
    language: EmbeddedLanguageModel, methods: Sequence[GenerationMethod]
) -> MethodSource:
    """For as many tokens as any method takes."""
    most = max(method.max_tokens for method in methods)
    shapes = None
    if any(method.dynamic for method in methods):
        shapes = ({1: torch.export.Dim("tokens", min=2, max=most)},)
    tokens = torch.arange(most).unsqueeze(0) % language.config.vocab_size
    return MethodSource(TokenEmbedding(language).eval(), ExampleInputs((tokens,)), shapes)


def _compare(given: ImageInput, made: GenerationSources, wanted: torch.Tensor) -> None:
    """Refuses methods whose logits after the prompt are not those of the model's own forward."""
    modules = {name: source.module for name, source in made.sources.items()}
    buffers = {id(b): b for m in modules.values() for b in m.buffers()}
    with buffers_restored(buffers.values()):
        found = given.methods_forward(made.methods, modules).last(given.prompt)
    moved = (wanted - found).abs().max().item()
    if not moved <= _TOLERANCE * max(1.0, wanted.abs().max().item()):
        raise UnsupportedModelError(
            f"its logits after {count(len(given.prompt), 'token')} differ by {moved:.2g} from "
            "those of its own forward"
        )
