"""Vision-language models of transformers: text that follows from an image and a question.

The methods have the names and inputs of ExecuTorch's multimodal contract, which
`program/generation.py` describes. What a processor makes of an image may have several parts, such as
the tiles of a large one: the encoder takes one, and is called for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from etdeploy.core.console import count
from etdeploy.export.hf.config import FACTORY
from etdeploy.export.worker.failures import fail
from etdeploy.export.worker.language.cache import (
    EmbeddedLanguageModel,
    UnsupportedModelError,
    plain_embeddings,
)
from etdeploy.export.worker.language.forward import MethodsForward, OwnForward
from etdeploy.export.worker.language.load import own_forward
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


@dataclass(frozen=True)
class ImageInput:
    """The user's image and question, as tensors.

    Attributes:
        tensors: All that the processor gives, with the ids of the prompt.
        parts: Of the image: the encoder's input for each of its calls.
    """

    processor: Processor
    tensors: TaskTensors
    image_id: int
    parts: tuple[torch.Tensor, ...]

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
        return OwnForward(model, beside=self.beside)

    def methods_forward(
        self, methods: Sequence[GenerationMethod], modules: Mapping[str, torch.nn.Module]
    ) -> MethodsForward:
        """The same by the methods of the program."""
        with torch.no_grad():
            rows = torch.cat([modules[VISION_ENCODER](part)[0] for part in self.parts])
        return MethodsForward(methods, modules, (rows,), self.image_id)

    @property
    def facts(self) -> GenerationEncoder:
        """What the program's description says of it."""
        return GenerationEncoder(
            method=VISION_ENCODER,
            calls=len(self.parts),
            image_id=self.image_id,
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
    """From a part of an image to rows of embeddings, of shape (1, N, d).

    `whole` calls the model's own function for image features, which may do more than a tower and a
    projector; where it does not, that function's handling of padding is left out.
    """

    def __init__(self, model: Any, whole: bool, dimensions: int) -> None:
        super().__init__()
        self.whole, self.dimensions = whole, dimensions
        self.tower, self.projector, self.model = None, None, None
        if whole:
            self.model = model
            return
        self.tower = model.get_encoder(modality="image")
        owners = (model, model.base_model)
        self.projector = next(
            (p for o in owners for n in _PROJECTORS if (p := getattr(o, n, None)) is not None), None
        )
        if self.projector is None:
            raise UnsupportedModelError("it has no projector")

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """The embeddings of pixels of shape (1, channels, height, width)."""
        if self.tower is not None and self.projector is not None:
            rows = self.projector(self.tower(pixels).last_hidden_state)
        else:
            pixels = pixels.reshape((1,) * (self.dimensions - pixels.dim()) + pixels.shape)
            rows = _joined(self.model.get_image_features(pixels).pooler_output)
        return rows.reshape(1, -1, rows.shape[-1])


def _joined(features: Any) -> torch.Tensor:
    """Rows of shape (N, d)."""
    parts = features if isinstance(features, list | tuple) else [features]
    return torch.cat([part.reshape(-1, part.shape[-1]) for part in parts])


class TokenEmbedding(torch.nn.Module):  # type: ignore[misc]
    """From ids of shape (1, S) to embeddings of shape (1, S, d)."""

    def __init__(self, embeddings: torch.nn.Module) -> None:
        super().__init__()
        self.embeddings = embeddings

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = self.embeddings(tokens)
        return rows


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
) -> GenerationSources:
    """The methods of a vision-language model.

    Their embeddings and logits are those of the model's own forward.

    Args:
        model: Of transformers.
        given: The example input.
        fixed: Whether methods take one number of tokens only.
        options: As `generation_sources` takes them.
    """
    with own_forward(model):
        wanted = _own_rows(model, given)
        logits = given.forward(model).last(given.prompt)
    try:
        encoder = _encoder(model, given, wanted)
        language = EmbeddedLanguageModel(model).eval()
        made = generation_sources(language, fixed=fixed, **options)
        methods = tuple(_renamed(method) for method in made.methods)
        sources = {_name(name): source for name, source in made.sources.items()}
        embedding = _embedding(language.embeddings, methods)
        vision = MethodSource(encoder, given.calls[0])
        sources = {VISION_ENCODER: vision, TOKEN_EMBEDDING: embedding, **sources}
        _compare(given, methods, sources, logits)
    except UnsupportedModelError as error:
        raise fail(
            "outputs",
            f"the model, a {type(model).__name__}, cannot be split into an encoder of images and a "
            f"language model: {error}",
            remedy=FACTORY,
        ) from error
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
    tower = model.get_encoder(modality="image")
    if not use_unmasked_attention(tower):
        raise UnsupportedModelError("its vision tower hard-codes its attention")
    reasons = []
    for whole, dimensions in ((False, 4), (True, 4), (True, 5)):
        try:
            encoder = VisionEncoder(model, whole, dimensions).eval()
            with torch.no_grad():
                found = torch.cat([encoder(part)[0] for part in given.parts])
        except MemoryError:
            raise
        except Exception as error:  # the model's code, with inputs that it may not take
            reasons.append(str(error))
            continue
        if found.shape == wanted.shape and _moved(found, wanted) <= _TOLERANCE:
            fix_positions(encoder, given.parts)
            return encoder
        reasons.append("the embeddings differ from the model's own")
    raise UnsupportedModelError(f"for its images, {reasons[0]}")


def _moved(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest difference, relative to the largest value."""
    return float((found - wanted).abs().max() / wanted.abs().max().clamp(min=1e-6))


def fix_positions(encoder: torch.nn.Module, parts: Sequence[torch.Tensor]) -> None:
    """Replaces embeddings that give the same rows for every image, such as those of positions.

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
    embeddings: torch.nn.Module, methods: Sequence[GenerationMethod]
) -> MethodSource:
    """For as many tokens as any method takes."""
    most = max(method.max_tokens for method in methods)
    shapes = None
    if any(method.dynamic for method in methods):
        shapes = ({1: torch.export.Dim("tokens", min=2, max=most)},)
    tokens = torch.arange(most).unsqueeze(0) % embeddings.weight.shape[0]
    return MethodSource(TokenEmbedding(embeddings).eval(), ExampleInputs((tokens,)), shapes)


def _compare(
    given: ImageInput,
    methods: Sequence[GenerationMethod],
    sources: Mapping[str, MethodSource],
    wanted: torch.Tensor,
) -> None:
    """Refuses methods whose logits after the prompt are not those of the model's own forward."""
    modules = {name: source.module for name, source in sources.items()}
    buffers = {id(b): b for m in modules.values() for b in m.buffers()}
    with buffers_restored(buffers.values()):
        found = given.methods_forward(methods, modules).last(given.prompt)
    moved = (wanted - found).abs().max().item()
    if not moved <= _TOLERANCE * max(1.0, wanted.abs().max().item()):
        raise UnsupportedModelError(
            f"its logits after {count(len(given.prompt), 'token')} differ by {moved:.2g} from those "
            "of its own forward"
        )
