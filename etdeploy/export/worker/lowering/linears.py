"""Linear layers: 8-bit dynamic activations, weights of 4 bits in groups or of 8 for each output.

With 8da4w, a language model has the parts of `_FINER` in 8 bits unless an override says otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from etdeploy.backends.registry import backend_named
from etdeploy.backends.schemes import (
    EIGHT_BITS,
    FLOAT_SCHEMES,
    GPTQ,
    GROUPED_SCHEMES,
    SEARCHED_SCHEMES,
)
from etdeploy.core.console import count
from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.backends.base import lowering_of
from etdeploy.export.worker.failures import describe_errors
from etdeploy.export.worker.loading.source import MethodSource
from etdeploy.export.worker.lowering.awq import DeferredFactors, scale_inputs
from etdeploy.export.worker.lowering.linear_notes import (
    attention_notes,
    coverage_note,
    finer_notes,
    left_notes,
    nothing_fits,
    nothing_wanted,
    override_notes,
    rounding_notes,
    scales_note,
)
from etdeploy.export.worker.lowering.mixed_bits import by_role, candidate, choose, divergences
from etdeploy.export.worker.lowering.overrides import first_match
from etdeploy.export.worker.lowering.scales import (
    Activations,
    InputMoments,
    gptq_in_groups,
    on_threads,
    quantized_in_groups,
)
from etdeploy.export.worker.lowering.stored import StoredWeight, stored_notes
from etdeploy.export.worker.lowering.weight_files import WeightFiles, quantized_in_rows

L = TypeVar("L", bound=torch.nn.Module)
DEFAULT_GROUP_SIZE = 32


@dataclass(frozen=True)
class Layer(Generic[L]):
    """A layer, of however many methods it is a part.

    Its paths are those in the model of each method, as `named_modules()` has them.
    """

    module: L
    paths: tuple[str, ...]

    @property
    def name(self) -> str:
        """The path in messages."""
        return self.paths[0]


@dataclass(frozen=True, eq=False)
class RoundedLayer:
    """A linear layer with the recipe's scheme, and the weight that it had before."""

    name: str
    module: torch.nn.Linear
    before: torch.nn.Parameter

    def with_scheme(self, scheme: str) -> torch.nn.Parameter:
        """The weight in another scheme: floats, or 8 bits for each output."""
        if scheme in FLOAT_SCHEMES:
            return self.before
        rows, columns = self.before.shape
        other = torch.nn.Linear(columns, rows, bias=False, device="meta")
        other.weight = self.before
        _apply(
            LayerQuantization(scheme, None), [Layer(other, (self.name,))], Activations(), {}, None
        )
        return other.weight


def layers_of(
    spec: ExportSpec, sources: Mapping[str, MethodSource], kind: type[L]
) -> tuple[Layer[L], ...]:
    """The layers of a kind, each once."""
    found: dict[int, tuple[L, list[str]]] = {}
    names: set[str] = set()
    for method, source in sources.items():
        # A language model is a part of what its methods are traced from.
        root = source.module.model if spec.generation else source.module
        for path, layer in root.named_modules():
            if not isinstance(layer, kind):
                continue
            _, paths = found.setdefault(id(layer), (layer, []))
            if not paths and path in names:
                paths.append(f"{method}.{path}")
            paths.append(path)
            names.add(path)
    return tuple(Layer(layer, tuple(dict.fromkeys(paths))) for layer, paths in found.values())


def apply(
    config: Any, layers: Sequence[Layer[Any]], what: str, files: WeightFiles | None = None
) -> None:
    """Quantizes the weights of layers in place, so that methods that share a layer share them."""
    with describe_errors("quantization", f"{what} cannot be quantized:"):
        for layer in layers:
            weight = quantized_in_rows(config, layer.module, files)
            layer.module.weight = torch.nn.Parameter(weight, requires_grad=False)


Linears = Sequence[Layer[torch.nn.Linear]]


@dataclass(frozen=True)
class LayerQuantization:
    """How a linear layer is to be quantized.

    Attributes:
        scheme: Also one for floats.
        pattern: The override that says so; None where the recipe's scheme holds.
        finer: Which of the parts in 8 bits it belongs to; empty for others.
    """

    scheme: str
    group_size: int | None
    pattern: str | None = None
    finer: str = ""


def _is_output_layer(model: Any, layer: Layer[torch.nn.Linear]) -> bool:
    return layer.module is model.get_output_embeddings()


def _gives_shared_values(model: Any, layer: Layer[torch.nn.Linear]) -> bool:
    """Whether several heads of grouped-query attention share the values that it gives."""
    config = model.config.get_text_config(decoder=True)
    heads = getattr(config, "num_attention_heads", None)
    shared = getattr(config, "num_key_value_heads", None)
    if not (isinstance(heads, int) and isinstance(shared, int) and shared < heads):
        return False
    return layer.name.rpartition(".")[2] == "v_proj"


def _sees_images(model: Any, layer: Layer[torch.nn.Linear]) -> bool:
    """Whether it is a part of the vision tower."""
    if not hasattr(model.config, "vision_config"):
        return False
    return any(module is layer.module for module in model.get_encoder(modality="image").modules())


_SHARED_VALUES = "the values of grouped-query attention"
# Parts that lose more in 4 bits than they gain, by their names in notes. No later layer evens out
# an error of the output layer, and tied to embeddings in 8 bits it is stored once. All heads of a
# group add up the error of the values that they share, and the layer is small: on
# SmolLM2-135M-Instruct, 1.6 % of the file for a third of the KL divergence. A vision tower is small
# beside its language model, which sees the image through it alone; that was not measured.
_FINER: Mapping[str, Callable[[Any, Layer[torch.nn.Linear]], bool]] = {
    "the output layer": _is_output_layer,
    "the vision tower": _sees_images,
    _SHARED_VALUES: _gives_shared_values,
}


def quantize_linears(
    spec: ExportSpec,
    sources: Mapping[str, MethodSource],
    linears: Linears,
    activations: Activations,
    stored: Mapping[int, StoredWeight],
    files: WeightFiles | None = None,
    rounded: list[RoundedLayer] | None = None,
) -> Iterator[str]:
    """Quantizes the linear layers that fit, in place; yields sentences for the user.

    `stored` has the weights that the checkpoint has quantized already, by the layer's `id()`;
    `files` takes the quantized ones. Those that are rounded with the recipe's own scheme are added
    to `rounded`.
    """
    known = {
        layer.name: stored[id(layer.module)] for layer in linears if id(layer.module) in stored
    }
    finer = _finer_parts(spec, sources, linears, known)
    wishes = {layer.name: _wish(spec, layer, finer) for layer in linears}
    wanted = [layer for layer in linears if wishes[layer.name].scheme not in FLOAT_SCHEMES]
    if linears and not wanted:
        raise nothing_wanted(spec)
    outputs = lowering_of(spec).grouped_outputs
    attention = [layer.name for layer in wanted if _is_of_attention(layer.module)]
    wanted = [layer for layer in wanted if layer.name not in attention]
    fitting = [layer for layer in wanted if _fits(layer.module, wishes[layer.name], outputs)]
    if not fitting:
        exported = any(source.exported for source in sources.values())
        sizes = {wishes[layer.name].group_size for layer in wanted}
        modules = [each.module for each in wanted]
        raise nothing_fits(spec, modules, sizes, exported=exported, attention=bool(attention))
    carried = {
        layer.name for layer in fitting if _is_carried(known.get(layer.name), wishes[layer.name])
    }
    for layer in fitting:
        if layer.name in carried:
            tensor = known[layer.name].as_tensor(wishes[layer.name].scheme)
            tensor = files.moved(tensor) if files else tensor
            known[layer.name].give_to(layer.module, tensor)
    again = [layer for layer in fitting if layer.name not in carried]
    # Weights that are read before they are quantized are scaled in place.
    read_again = spec.target_bits is not None or activations.read or rounded is not None
    unscaled = () if read_again else [each for each in again if wishes[each.name].group_size]
    deferred: DeferredFactors = {id(each.module): [] for each in unscaled}
    activations, scaled = _scaled(sources, wishes, again, known, activations, deferred, files)
    yield from scaled
    more, chosen_bits = _more_bits(spec.target_bits, wishes, again, activations)
    wishes |= more
    yield from chosen_bits
    if rounded is not None:
        own = [each for each in again if wishes[each.name].scheme == spec.quantization]
        rounded += (RoundedLayer(each.name, each.module, each.module.weight) for each in own)
    in_turn = [each for each in again if activations.read and wishes[each.name].group_size]
    for wish in dict.fromkeys(wishes[layer.name] for layer in again if layer not in in_turn):
        own = [layer for layer in again if wishes[layer.name] == wish]
        _apply(wish, own, activations, deferred, files)
    # Last, since their inputs are to be those that the quantized layers give.
    nearest = _round_in_turn(wishes, in_turn, activations, files) if in_turn else []
    left = [layer.name for layer in wanted if layer not in fitting]
    yield from left_notes({name: wishes[name].group_size for name in left}, outputs)
    yield from attention_notes(spec, attention)
    stays = {*left, *attention}
    done = {name: wish for name, wish in wishes.items() if name not in stays}
    chosen = Counter(wish.pattern for wish in done.values() if not wish.finer)
    convolutions = _convolutions(sources)
    if chosen[None] or convolutions:
        yield coverage_note(spec, chosen[None], convolutions)
    yield from override_notes(spec, chosen)
    yield from finer_notes(Counter(wish.finer for wish in done.values() if wish.finer))
    schemes = {name: wish.scheme for name, wish in done.items()}
    yield from stored_notes(known, schemes, carried)
    searched = {name for name, scheme in schemes.items() if scheme in SEARCHED_SCHEMES}
    if spec.rounding == GPTQ:
        yield from rounding_notes(spec, activations, len(in_turn), nearest)
    elif spec.generation and searched - carried:
        yield scales_note(activations)


def _scaled(
    sources: Mapping[str, MethodSource],
    wishes: Mapping[str, LayerQuantization],
    layers: Linears,
    known: Mapping[str, StoredWeight],
    activations: Activations,
    deferred: DeferredFactors,
    files: WeightFiles | None,
) -> tuple[Activations, tuple[str, ...]]:
    """What layers are given after AWQ, if anything gives logits, and sentences for the user."""
    if activations.logits is None:
        return activations, ()
    model = next(iter(sources.values())).module.model
    sizes = ((id(each.module), wishes[each.name].group_size) for each in layers)
    names = {name: module for name, module in model.named_modules() if name in known}
    groups = {key: size for key, size in sizes if size}
    if not groups:
        return activations, ()
    if files and not deferred:
        return activations, ("AWQ scaled nothing, since memory does not hold scaled weights.",)
    found, note = scale_inputs(model, groups, list(names.values()), activations, deferred)
    return found, (note,)


_CHOSEN = "the choice of export.target_bits"


def _more_bits(
    target_bits: float | None,
    wishes: Mapping[str, LayerQuantization],
    layers: Linears,
    activations: Activations,
) -> tuple[dict[str, LayerQuantization], tuple[str, ...]]:
    """The layers that get 8 bits of those that match no override, and sentences for the user."""
    if target_bits is None:
        return {}, ()
    groups = {
        each: size
        for each in layers
        if (size := wishes[each.name].group_size) and wishes[each.name].pattern is None
    }
    if not groups:
        return {}, ("export.target_bits has no layer to choose for.",)
    found = divergences({each.module: size for each, size in groups.items()}, activations)
    candidates = [
        candidate(each.name, each.module, size, found.get(each.module, 0.0))
        for each, size in groups.items()
    ]
    chosen = choose(candidates, target_bits)
    finer = by_role(chosen.finer, candidates) or "none"
    note = (
        f"{chosen.mean_bits:.2f} bits per weight, scales included, on average over "
        f"{count(len(candidates), 'linear layer')}: {finer} in 8 bits. By gradients on the "
        "calibration text, rounding these to 4 bits would lose the most for their size."
    )
    more = LayerQuantization(EIGHT_BITS, None, finer=_CHOSEN)
    return dict.fromkeys(chosen.finer, more), (note,)


def _finer_parts(
    spec: ExportSpec,
    sources: Mapping[str, MethodSource],
    linears: Linears,
    stored: Mapping[str, StoredWeight],
) -> dict[str, str]:
    """The parts of layers that have 8 bits where nothing else is said, by the layers' names.

    A layer that the checkpoint has in 4 bits stays so if the kernels compute with its values; if
    not, 4 bits again would lose far more than 8.
    """
    mixed = {str(spec.quantization), EIGHT_BITS} <= {*backend_named(str(spec.backend)).overrides}
    if not (spec.generation and spec.quantization in SEARCHED_SCHEMES and mixed):
        return {}
    model = next(iter(sources.values())).module.model
    fitting = {name for name, weight in stored.items() if weight.fits(str(spec.quantization))}
    parts = {
        layer.name: part
        for part, holds in _FINER.items()
        if spec.target_bits is None or part != _SHARED_VALUES
        for layer in linears
        if layer.name not in fitting and holds(model, layer)
    }
    return parts | {
        name: f"what the checkpoint has in {weight.kind}"
        for name, weight in stored.items()
        if name not in fitting and name not in parts
    }


def _wish(spec: ExportSpec, layer: Layer[Any], finer: Mapping[str, str]) -> LayerQuantization:
    found = first_match(spec, layer.paths)
    if found is None and layer.name in finer:
        return LayerQuantization(EIGHT_BITS, None, finer=finer[layer.name])
    pattern, scheme = found or (None, str(spec.quantization))
    if scheme not in GROUPED_SCHEMES:
        return LayerQuantization(scheme, None, pattern)
    size = spec.group_size or DEFAULT_GROUP_SIZE
    return LayerQuantization(scheme, spec.override_groups.get(pattern or "", size), pattern)


def _is_of_attention(layer: torch.nn.Linear) -> bool:
    """Whether nn.MultiheadAttention takes its weights, and does not call it."""
    return isinstance(layer, torch.nn.modules.linear.NonDynamicallyQuantizableLinear)


def _fits(layer: torch.nn.Linear, wish: LayerQuantization, outputs: int) -> bool:
    if wish.group_size is None:
        return True
    return bool(layer.in_features % wish.group_size == 0 and layer.out_features % outputs == 0)


def _is_carried(stored: StoredWeight | None, wish: LayerQuantization) -> bool:
    """Whether a layer keeps the values of its checkpoint.

    An override with a group size of its own asks for other groups.
    """
    if stored is None or not stored.fits(wish.scheme):
        return False
    return wish.pattern is None or stored.group_size in (None, wish.group_size)


def _apply(
    wish: LayerQuantization,
    layers: Linears,
    activations: Activations,
    deferred: DeferredFactors,
    files: WeightFiles | None,
) -> None:
    """Quantizes the weights of layers in place; those in groups have factors in `deferred`."""
    from torchao.quantization.granularity import PerAxis
    from torchao.quantization.quant_api import Int8DynamicActivationIntxWeightConfig

    size = wish.group_size
    if size is None:
        config = Int8DynamicActivationIntxWeightConfig(
            weight_dtype=torch.int8, weight_granularity=PerAxis(0)
        )
        apply(config, layers, "the linear layers", files)
        return

    def quantize_layer(layer: Layer[torch.nn.Linear]) -> None:
        """Leaves no layer's floats in memory until the others are quantized."""
        module, factors = layer.module, deferred.get(id(layer.module), ())
        squares = activations.mean_squares.get(id(module))
        made = quantized_in_groups(module.weight, size, squares, factors)
        made = files.moved(made) if files else made
        module.weight = torch.nn.Parameter(made, requires_grad=False)

    with describe_errors("quantization", "the linear layers cannot be quantized:"):
        on_threads(quantize_layer, layers)


def _round_in_turn(
    wishes: Mapping[str, LayerQuantization],
    layers: Linears,
    activations: Activations,
    files: WeightFiles | None,
) -> list[str]:
    """Quantizes weights in 4 bits by GPTQ; returns names of layers whose inputs say too little.

    Layers with the same inputs come one after the other, as those of queries and keys do.
    """
    names = {id(layer.module): layer.name for layer in layers}
    nearest: list[str] = []
    given, moments = torch.empty(0), None

    def give(module: torch.nn.Linear, weight: Any) -> None:
        weight = files.moved(weight) if files else weight
        module.weight = torch.nn.Parameter(weight, requires_grad=False)

    def seen(module: torch.nn.Linear, inputs: torch.Tensor) -> None:
        nonlocal given, moments
        name = names.pop(id(module))
        size = wishes[name].group_size or DEFAULT_GROUP_SIZE
        if inputs is not given:
            given, moments = inputs, InputMoments.of(inputs)
        if moments is None:
            nearest.append(name)
            squares = inputs.square().mean(0) if len(inputs) else None
            give(module, quantized_in_groups(module.weight, size, squares))
        else:
            give(module, gptq_in_groups(module.weight, size, moments))

    if activations.read is None:
        raise ValueError("nothing reads a text")
    activations.read([layer.module for layer in layers], seen)
    for layer in layers:
        if id(layer.module) in names:  # an expert that the text does not choose
            nearest.append(layer.name)
            size = wishes[layer.name].group_size or DEFAULT_GROUP_SIZE
            give(layer.module, quantized_in_groups(layer.module.weight, size, None))
    return nearest


def _convolutions(sources: Mapping[str, MethodSource]) -> int:
    modules = (m for source in sources.values() for m in source.module.modules())
    return len({id(m) for m in modules if isinstance(m, torch.nn.modules.conv._ConvNd)})
