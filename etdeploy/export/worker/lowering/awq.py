"""AWQ (https://arxiv.org/abs/2306.00978): inputs of 4-bit layers are scaled before rounding.

What a norm gives is divided by a scale for each column, and the columns of the layers that read it
are multiplied by the same, so the model computes what it did, and the columns with large inputs are
rounded more finely. In the same way, the rows of `up_proj` are divided for `down_proj`.

Hooks record which layers read a norm while the model runs. A trial with scales of two tells
whether anything else reads it, and how the norm multiplies: the logits must not change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from etdeploy.core.console import count
from etdeploy.export.worker.lowering.rowwise import hold_floats
from etdeploy.export.worker.lowering.scales import Activations, on_threads, rounding_error

# Powers of the inputs' size that are tried as scales.
_POWERS = (0.0, 0.15, 0.3, 0.5)
# Of the mean size: inputs that the text leaves at zero are scaled as if they had so much.
_LEAST_SIZE = 1e-4
# What a norm may add to its weight: Gemma's multiply by 1 + weight.
_OFFSETS = (0.0, 1.0)
_TOLERANCE = 1e-4
DeferredFactors = Mapping[int, list[torch.Tensor]]
"""Factors of weights, by the layer's `id()`, for `quantized_in_groups`.

A weight that is changed in place is copied, where a fork of the process still has it.
"""


@dataclass(frozen=True)
class Place:
    """Linear layers that read the same, and what gives it: a norm, or `up_proj`.

    `role` is the name of that in every layer of the model.
    """

    role: str
    giver: torch.nn.Module
    readers: tuple[torch.nn.Linear, ...]

    def scale(self, scales: torch.Tensor, deferred: DeferredFactors) -> bool:
        """Divides what is given, and multiplies what reads it; False if the giver cannot."""
        with torch.no_grad():
            if isinstance(self.giver, torch.nn.Linear):
                _multiply(self.giver, (1 / scales).unsqueeze(1), deferred)
                if self.giver.bias is not None:
                    self.giver.bias.div_(scales)
            elif not _divide_norm(self.giver, scales):
                return False
            for reader in self.readers:
                _multiply(reader, scales.unsqueeze(0), deferred)
        return True


def _multiply(layer: torch.nn.Linear, factor: torch.Tensor, deferred: DeferredFactors) -> None:
    if id(layer) in deferred:
        deferred[id(layer)].append(factor)
    else:
        hold_floats(layer)
        layer.weight.mul_(factor)


def scale_inputs(
    model: torch.nn.Module,
    groups: Mapping[int, int],
    fixed: Sequence[torch.nn.Module],
    activations: Activations,
    deferred: DeferredFactors,
) -> tuple[Activations, str]:
    """Scales inputs of layers in place; what their inputs are then, and a sentence for the user.

    Args:
        model: The language model.
        groups: The group size of each 4-bit layer, by its `id()`.
        fixed: Layers whose weights may not be changed.
        activations: With the logits that tell whether the model still computes the same.
        deferred: Collects the factors of its layers, whose weights are not changed.
    """
    if activations.logits is None:
        raise ValueError("nothing gives logits")
    mean_squares = dict(activations.mean_squares)
    readers, before = _readers_of_norms(model, activations.logits)
    found = list(_places(model, readers, {id(layer) for layer in fixed}))
    found = [p for p in found if any(id(r) in groups and id(r) in mean_squares for r in p.readers)]
    apart = _read_elsewhere(found, activations.logits, before)
    scaled = 0
    for place in found:
        if place.role in apart:
            continue
        squares = next(mean_squares[id(r)] for r in place.readers if id(r) in mean_squares)
        scales = _best(place, groups, squares)
        if scales is None or not place.scale(scales, deferred):
            continue
        for reader in place.readers:
            if id(reader) in mean_squares:
                mean_squares[id(reader)] = mean_squares[id(reader)] / scales.square()
        scaled += sum(id(reader) in groups for reader in place.readers)
    note = (
        f"AWQ scaled the inputs of {count(scaled, 'linear layer')} for the least error on "
        f"{activations.origin}."
    )
    if apart:
        note += f" Something else also reads what {' and '.join(sorted(apart))} gives."
    return replace(activations, mean_squares=mean_squares), note


def _places(
    model: torch.nn.Module,
    readers_of_norms: Mapping[torch.nn.Module, list[torch.nn.Linear]],
    fixed: set[int],
) -> Iterator[Place]:
    names = {module: name for name, module in model.named_modules()}
    readers = dict(readers_of_norms)
    for parent in model.modules():
        up, down, gate = (getattr(parent, f"{name}_proj", None) for name in ("up", "down", "gate"))
        if all(type(layer) is torch.nn.Linear for layer in (up, down, gate)):
            readers[up] = [down]
    shared = Counter(id(p) for _, p in model.named_parameters(remove_duplicate=False))
    for giver, layers in readers.items():
        changed = (giver, *layers)
        weights = [p for module in changed for p in module.parameters(recurse=False)]
        if any(shared[id(p)] > 1 for p in weights) or any(id(m) in fixed for m in changed):
            continue
        yield Place(names[giver].rpartition(".")[2], giver, tuple(layers))


def _readers_of_norms(
    model: torch.nn.Module, logits: Callable[[], torch.Tensor]
) -> tuple[dict[torch.nn.Module, list[torch.nn.Linear]], torch.Tensor]:
    """The linear layers that are called once, with what a norm gives that is called once.

    Also returns the logits.
    """
    given: dict[int, tuple[torch.nn.Module, torch.Tensor]] = {}
    calls: Counter[torch.nn.Module] = Counter()
    found: dict[torch.nn.Module, list[torch.nn.Linear]] = {}

    def gives(norm: torch.nn.Module, _: object, output: object) -> None:
        calls[norm] += 1
        if isinstance(output, torch.Tensor):
            given[id(output)] = norm, output  # which keeps its id

    def reads(layer: torch.nn.Linear, inputs: tuple[torch.Tensor, ...]) -> None:
        calls[layer] += 1
        if inputs and id(inputs[0]) in given:
            found.setdefault(given[id(inputs[0])][0], []).append(layer)

    hooks = [m.register_forward_hook(gives) for m in model.modules() if _is_norm(m)]
    linears = [m for m in model.modules() if type(m) is torch.nn.Linear]
    hooks += [layer.register_forward_pre_hook(reads) for layer in linears]
    try:
        given_logits = logits()
    finally:
        for hook in hooks:
            hook.remove()
    once = {module for module, number in calls.items() if number == 1}
    found = {n: layers for n, layers in found.items() if n in once and once.issuperset(layers)}
    return found, given_logits


def _is_norm(module: torch.nn.Module) -> bool:
    """Whether all it has is a vector that multiplies, and maybe one that is added."""
    own = dict(module.named_parameters())
    return {"weight"} <= {*own} <= {"weight", "bias"} and all(p.ndim == 1 for p in own.values())


def _read_elsewhere(
    places: Sequence[Place], logits: Callable[[], torch.Tensor], before: torch.Tensor
) -> set[str]:
    """The roles of givers that cannot be scaled, since the logits are other than before."""
    if not _moves(places, logits, before):
        return set()
    roles = dict.fromkeys(place.role for place in places)
    return {r for r in roles if _moves([p for p in places if p.role == r], logits, before)}


def _moves(
    places: Sequence[Place], logits: Callable[[], torch.Tensor], before: torch.Tensor
) -> bool:
    """Whether scales of two change the logits; products with them are exact."""
    with ExitStack() as stack:
        for place in places:
            stack.enter_context(_scaled_by_two(place))
        after = logits()
    return not torch.allclose(after, before, _TOLERANCE, _TOLERANCE * float(before.abs().max()))


@contextmanager
def _scaled_by_two(place: Place) -> Iterator[None]:
    """Makes the model compute as with scales of two, without a pass over all weights.

    Doubling the input of a linear layer gives the same output as doubling its weight.
    """
    giver, hooks = place.giver, []
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []
    if isinstance(giver, torch.nn.Linear):
        hooks.append(giver.register_forward_hook(lambda _, __, output: output / 2))
        halved = True
    else:
        kept = [(own, own.detach().clone()) for own in giver.parameters()]
        with torch.no_grad():
            halved = _divide_norm(giver, torch.full_like(giver.weight, 2.0))
    if halved:
        hooks += [reader.register_forward_pre_hook(_doubled) for reader in place.readers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        with torch.no_grad():
            for own, before in kept:
                own.copy_(before)


def _doubled(_: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> Any:
    """Doubles positional inputs; a layer that takes a keyword changes the logits, so it is seen."""
    return tuple(each * 2 for each in inputs)


def _divide_norm(norm: torch.nn.Module, scales: torch.Tensor) -> bool:
    weight, bias = norm.weight, getattr(norm, "bias", None)
    if weight.shape != scales.shape:
        return False
    sample = torch.linspace(-1, 1, 2 * len(scales)).reshape(2, -1)
    wanted, kept = _applied(norm, sample), weight.detach().clone()
    if wanted is None:
        return False
    if bias is not None:
        bias.div_(scales)
    for offset in _OFFSETS:
        weight.copy_((kept + offset).div_(scales).sub_(offset))
        if torch.allclose(_applied(norm, sample) * scales, wanted, _TOLERANCE, _TOLERANCE):
            return True
    weight.copy_(kept)
    if bias is not None:
        bias.mul_(scales)
    return False


def _applied(norm: torch.nn.Module, sample: torch.Tensor) -> torch.Tensor | None:
    """What a norm gives; None for one that takes something beside its input."""
    try:
        output = norm(sample)
    except (TypeError, RuntimeError):
        return None
    return output if isinstance(output, torch.Tensor) else None


def _best(
    place: Place, groups: Mapping[int, int], mean_squares: torch.Tensor
) -> torch.Tensor | None:
    """The scales with the least error of the 4-bit layers; None for those that change nothing."""
    layers = [layer for layer in place.readers if id(layer) in groups]
    tried = [_scales(mean_squares, power) for power in _POWERS]

    def error(scales: torch.Tensor) -> float:
        importance = mean_squares / scales.square()
        return sum(
            rounding_error(layer.weight, groups[id(layer)], importance, scales) for layer in layers
        )

    errors = on_threads(error, tried)
    best = errors.index(min(errors))
    return tried[best] if best else None


def _scales(mean_squares: torch.Tensor, power: float) -> torch.Tensor:
    size = mean_squares.sqrt()
    scales = size.clamp(min=_LEAST_SIZE * float(size.mean())) ** power
    return scales / (scales.max() * scales.min()).sqrt()
