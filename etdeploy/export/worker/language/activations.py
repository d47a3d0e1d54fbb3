"""What the linear layers of a model read on the text that calibrates it: inputs and gradients."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from etdeploy.backends.schemes import AUTO_SCALED, AWQ, GPTQ, NEAREST, UNSCALED
from etdeploy.core.console import count
from etdeploy.export.hf.named_texts import MOST_READ, calibration_text
from etdeploy.export.spec import BUNDLED_TEXTS, ExportSpec
from etdeploy.export.worker.failures import WorkerError, describe_errors, fail
from etdeploy.export.worker.language.experts import experts_routed
from etdeploy.export.worker.language.forward import Forward, OwnForward, own_attention
from etdeploy.export.worker.language.load import LoadedModel
from etdeploy.export.worker.language.methods import takes_last_only
from etdeploy.export.worker.language.own_states import own_state
from etdeploy.export.worker.language.references import references
from etdeploy.export.worker.language.texts import Parts, TokenizedText, calibration_parts
from etdeploy.export.worker.lowering.scales import FEWEST_TOKENS, Activations, Seen, SeenGradients

# Tokens whose logits tell whether a model computes as before.
_TRIED_TOKENS = 8
# Whose gradients tell how much each layer counts.
_DIFFERENTIATED_TOKENS = 1024
# Of the tokens that are drawn for gradients.
_SEED = 0

_UNREADABLE = "the model has no tokenizer that reads the calibration text"


def activations(spec: ExportSpec, loaded: LoadedModel, attention: str) -> Activations:
    """Mean squared inputs of the linear layers, on the text that calibrates the model."""
    if not spec.reads_calibration:
        return Activations(origin="export.calibration is none")
    text = calibration_parts(spec, loaded)
    found = _read(spec, loaded, attention, text)
    if spec.target_bits is None:
        return found
    text = _enough(spec, text, "target_bits", "target_bits", "null")
    text = replace(text, parts=_at_once(loaded.model, text.parts, _DIFFERENTIATED_TOKENS))
    return replace(found, gradients=partial(read_for_gradients, loaded.model, attention, text))


def _read(
    spec: ExportSpec, loaded: LoadedModel, attention: str, text: TokenizedText | None
) -> Activations:
    """What searching scales, AWQ and GPTQ need of the text."""
    if _scales(spec, loaded, text):
        text = _enough(spec, text, "scaling", AWQ, UNSCALED)
        found = _measured(spec, loaded, attention, text)
        if not found.mean_squares:
            return found
        found = replace(found, logits=partial(_logits, loaded.model, attention, text))
        if spec.rounding != GPTQ:
            return found
        later = _read_later(spec, loaded, attention, text)
        return replace(later, mean_squares=found.mean_squares, logits=found.logits)
    if spec.rounding == GPTQ:
        return _read_later(spec, loaded, attention, text)
    if text is None:
        return Activations(origin=_UNREADABLE)
    return _measured(spec, loaded, attention, text)


def _scales(spec: ExportSpec, loaded: LoadedModel, text: TokenizedText | None) -> bool:
    """Whether inputs are scaled; `auto` scales them unless that raises an error or memory use."""
    if spec.scaling != AUTO_SCALED:
        return spec.scaling == AWQ
    readable = text is not None and text.tokens >= FEWEST_TOKENS
    # Weights that are read again are scaled in memory.
    read_again = spec.rounding == GPTQ or spec.target_bits is not None
    return readable and not ((loaded.files and read_again) or loaded.apart)


def _measured(
    spec: ExportSpec, loaded: LoadedModel, attention: str, text: TokenizedText
) -> Activations:
    linears = [n for n, m in loaded.model.named_modules() if isinstance(m, torch.nn.Linear)]
    layers = {n: loaded.model.get_submodule(n) for n in linears}

    def computed() -> dict[str, torch.Tensor]:
        found = mean_squares(loaded.model, attention, text)
        return {name: found[id(layer)] for name, layer in layers.items() if id(layer) in found}

    depends = (text.parts, attention, linears)
    try:
        known = references(spec, loaded).of("activations", depends, computed)
        squares = {id(layers[name]): each for name, each in known.items()}
    except WorkerError as error:
        if spec.calibration_text not in BUNDLED_TEXTS:
            raise
        return Activations(origin=error.failure.message)
    return Activations(squares, f"{count(text.tokens, 'token')} of {text.file}")


def _read_later(
    spec: ExportSpec, loaded: LoadedModel, attention: str, text: TokenizedText | None
) -> Activations:
    """What reads the text when the layers are quantized, for GPTQ."""
    text = _enough(spec, text, "rounding", GPTQ, NEAREST)
    text = replace(text, parts=_at_once(loaded.model, text.parts))
    read = partial(read_at_once, loaded.model, attention, text)
    return Activations(origin=f"{count(text.tokens, 'token')} of {text.file}", read=read)


def _enough(
    spec: ExportSpec, text: TokenizedText | None, key: str, method: str, other: str
) -> TokenizedText:
    """The text; raises WorkerError if there is none, or if it is too short for a method."""
    if text and text.tokens >= FEWEST_TOKENS:
        return text
    problem = f"{method} needs a text, and {_UNREADABLE}"
    remedy = "Put the model's tokenizer into its folder"
    if text and (named := calibration_text(spec)):
        few = f"{count(text.tokens, 'token')} of {text.file} are too few for {method}"
        problem = f"{few}, which needs at least {FEWEST_TOKENS}, better {named.tokens:,}"
        remedy = "Name a longer text with export.calibration"
    raise fail(
        "calibration",
        problem,
        remedy=f"{remedy}, or --set export.{key}={other}",
        file=spec.place("export", key),
    )


@contextmanager
def _reading(
    model: Any, attention: str, text: TokenizedText, *, gradients: bool = False
) -> Iterator[None]:
    """For one call of the model with tokens of a text, whose states are dropped afterwards."""
    raised = describe_errors("calibration", f"the model raised when it read {text.file}:")
    try:
        with torch.set_grad_enabled(gradients), own_attention(model, attention), raised:
            yield
    finally:
        if (own := own_state(model)) and own.kinds:
            own.after(model, None)  # takes its states out of the model's attributes


def _logits(model: Any, attention: str, text: TokenizedText) -> torch.Tensor:
    """The logits at the beginning of a text."""
    ids = torch.tensor([text.parts[0][:_TRIED_TOKENS]])
    with _reading(model, attention, text):
        logits: torch.Tensor = model(input_ids=ids, use_cache=False).logits
    return logits


def _at_once(model: Any, parts: Parts, most: int = MOST_READ) -> Parts:
    """What of a text is read in one call; in one part by a model with the states of one text."""
    if own_state(model):
        return (tuple(token for part in parts for token in part)[:most],)
    return parts[: max(1, most // max(map(len, parts)))]


class _AllSeen(Exception):  # noqa: N818 - it ends a call that has done its work
    """No further layer is wanted."""


def read_at_once(
    model: Any,
    attention: str,
    text: TokenizedText,
    wanted: Collection[torch.nn.Linear],
    seen: Seen,
) -> None:
    """Has a model read all parts of a text in one call, as far as the last of the wanted layers.

    `seen` is called once for each layer, with its inputs for all tokens, and may change the layer
    before it computes: later layers then get the outputs of the changed one. Shorter parts are
    padded with their own tokens, which are left out of those inputs.
    """
    length = max(map(len, text.parts))
    ids = torch.tensor([[part[i % len(part)] for i in range(length)] for part in text.parts])
    filled = torch.arange(length) < torch.tensor([[len(part)] for part in text.parts])
    waiting, last = {id(layer) for layer in wanted}, (torch.empty(0), torch.empty(0))

    def hook(layer: torch.nn.Linear, inputs: tuple[torch.Tensor, ...]) -> None:
        nonlocal last
        if id(layer) not in waiting:
            return
        waiting.remove(id(layer))
        if inputs[0] is not last[0]:
            rows = inputs[0].detach().float().reshape(-1, layer.in_features)
            last = inputs[0], rows[filled.flatten()] if len(rows) == ids.numel() else rows
        seen(layer, last[1])
        if not waiting:
            raise _AllSeen

    # Where a layer is never called, the call goes on to the end.
    options: dict[str, Any] = {}
    if model.get_output_embeddings() not in wanted and takes_last_only(model):
        options = {"logits_to_keep": 1}
    hooks = [layer.register_forward_pre_hook(hook) for layer in wanted]
    try:
        with _reading(model, attention, text), experts_routed(model), suppress(_AllSeen):
            model(input_ids=ids, use_cache=False, **options)
    finally:
        for each in hooks:
            each.remove()


def read_for_gradients(
    model: Any,
    attention: str,
    text: TokenizedText,
    wanted: Collection[torch.nn.Linear],
    seen: SeenGradients,
) -> int:
    """Differentiates what a model predicts of a text; returns the number of its tokens.

    `seen` is called for each call of the wanted layers that changes the logits, with the inputs,
    and the gradients of its outputs: of the sum of -ln(probability) of tokens drawn from the
    model's own distributions.
    """
    roots: list[torch.Tensor] = []
    hooks = [_root_of_gradients(model.get_input_embeddings(), roots)]

    def hook(
        layer: torch.nn.Linear, inputs: tuple[torch.Tensor, ...], output: torch.Tensor
    ) -> None:
        if output.requires_grad:
            output.register_hook(
                lambda gradient: seen(
                    layer,
                    inputs[0].detach().float().reshape(-1, layer.in_features),
                    gradient.float().reshape(-1, layer.out_features),
                )
            )

    hooks += [layer.register_forward_hook(hook) for layer in wanted]
    generator = torch.Generator().manual_seed(_SEED)
    try:
        for part in text.parts:
            with _reading(model, attention, text, gradients=True), experts_routed(model):
                logits = model(input_ids=torch.tensor([part]), use_cache=False).logits[0].float()
                drawn = logits.detach().softmax(-1).multinomial(1, generator=generator).flatten()
                loss = torch.nn.functional.cross_entropy(logits, drawn, reduction="sum")
                torch.autograd.grad(loss, roots, allow_unused=True)
            roots.clear()
    finally:
        for each in hooks:
            each.remove()
    return text.tokens


def _root_of_gradients(table: torch.nn.Module, roots: list[torch.Tensor]) -> Any:
    """Make what a table returns require gradients, whether or not its weight does."""

    def hook(_: torch.nn.Module, __: object, output: torch.Tensor) -> torch.Tensor:
        roots.append(output.detach().requires_grad_())
        return roots[-1].clone()  # which may be changed in place

    return table.register_forward_hook(hook)


def mean_squares(
    model: Any,
    attention: str,
    text: TokenizedText,
    begin: Callable[[Any], Forward] = OwnForward,
) -> dict[int, torch.Tensor]:
    """The mean squared inputs of each linear layer that is called, by its `id()`."""
    raised = describe_errors("calibration", f"the model raised when it read {text.file}:")
    with _summing(model) as sums, own_attention(model, attention), raised:
        for part in text.parts:
            begin(model).last(part)
    return {layer: each.squares / each.count for layer, each in sums.items()}


@dataclass
class _Sum:
    squares: torch.Tensor
    count: int = 0


@contextmanager
def _summing(model: Any) -> Iterator[dict[int, _Sum]]:
    """Sums the squared inputs of each linear layer that is called in the block, by its `id()`."""
    sums: dict[int, _Sum] = {}

    def add(layer: torch.nn.Linear, inputs: tuple[torch.Tensor, ...]) -> None:
        rows = inputs[0].detach().float().reshape(-1, layer.in_features)
        each = sums.setdefault(id(layer), _Sum(torch.zeros(layer.in_features)))
        each.squares += rows.square().sum(0)
        each.count += len(rows)

    linears = [layer for layer in model.modules() if isinstance(layer, torch.nn.Linear)]
    hooks = [layer.register_forward_pre_hook(add) for layer in linears]
    try:
        yield sums
    finally:
        for hook in hooks:
            hook.remove()
