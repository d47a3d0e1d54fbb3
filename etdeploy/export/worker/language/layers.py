"""Which layers of a model are alike, so that a few of them stand for all while it is traced."""

from __future__ import annotations

import copy
import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from etdeploy.export.worker.language.methods import CachePrefixMethod

# What a layer of transformers calls its own number.
_NUMBERS = frozenset({"layer_idx", "layer_id", "layer_index", "layer_number", "idx"})
# Modules are looked at one by one; the others are a note of transformers' loading, and what torchao
# prints of a quantized layer.
_NOT_IN_GRAPH = frozenset({"_modules", "_is_hf_initialized", "extra_repr"})
_SIMPLE = (int, float, bool, str, bytes, type(None), torch.dtype, torch.device, type)


class UnlikeLayersError(Exception):
    """Layers cannot be copied; the text is a clause that says why."""


@dataclass(frozen=True)
class LayerTemplate:
    """The layers of a method that are traced.

    Attributes:
        path: Of the list of layers in the method's module.
        chosen: The layers that are traced, by their numbers in the model.
        copied: For each layer of the model, the place in `chosen` of the one that it is like.
        twins: Places in `chosen` of layers that are alike. A layer whose weights are quantized as
            no other's has none, and no copies.
        spare: Those of the twins that are like the first layer but for their weights.
    """

    path: str
    chosen: tuple[int, ...]
    copied: tuple[int, ...]
    twins: tuple[tuple[int, int], ...]
    spare: tuple[tuple[int, int], ...] = ()

    @contextmanager
    def reduced(self, module: CachePrefixMethod) -> Iterator[None]:
        """While the block runs, the module is that of a model with the chosen layers alone."""
        config = module.model.config.get_text_config(decoder=True)
        with ExitStack() as stack:
            owner, _, name = self.path.rpartition(".")
            layers = module.get_submodule(self.path)
            kept = torch.nn.ModuleList([layers[i] for i in self.chosen])
            stack.enter_context(_set(module.get_submodule(owner), **{name: kept}))
            lists = _lists_of_layers(config, len(self.copied))
            wanted = {name: [each[i] for i in self.chosen] for name, each in lists.items()}
            own = {name: each for name, each in wanted.items() if not _is_computed(config, name)}
            stack.enter_context(_set(config, **own, num_hidden_layers=len(self.chosen)))
            if any(list(getattr(config, name)) != each for name, each in wanted.items()):
                raise UnlikeLayersError("its configuration computes the kinds of its layers")
            for place, layer in enumerate(kept):
                for each in layer.modules():
                    for number in _NUMBERS & vars(each).keys():
                        stack.enter_context(_set(each, **{number: place}))
            stack.enter_context(_set(module, cache=self._reduced_cache(module.cache)))
            yield

    def _reduced_cache(self, cache: Any) -> Any:
        """The cache of the chosen layers, with the same tensors."""
        small, places = copy.copy(cache), {layer: i for i, layer in enumerate(self.chosen)}
        small.kinds = tuple(cache.kinds[i] for i in self.chosen)
        buffers = {}
        for name, tensor in cache._buffers.items():
            found = _CACHED.fullmatch(name)
            if found is None:
                buffers[name] = tensor
            elif (layer := int(found[2])) in places:
                buffers[f"{found[1]}{places[layer]}{found[3]}"] = tensor
        vars(small)["_buffers"] = buffers
        return small

    def without_twins(
        self, module: CachePrefixMethod, inputs: Sequence[torch.Tensor]
    ) -> LayerTemplate:
        """The same without second layers of the first layer's kind that call what the first do.

        That is seen from a call of the method with fake tensors, which takes a fraction of what
        it takes to trace and lower a layer. Of other kinds, two layers show what they share.
        """
        found = self._calls(module, inputs) if self.spare else None
        if found is None or any(found.get(a) != found.get(b) for a, b in self.spare):
            return self
        first = {other: one for one, other in self.spare}
        chosen = tuple(n for place, n in enumerate(self.chosen) if place not in first)
        places = {number: place for place, number in enumerate(chosen)}
        copied = tuple(places[self.chosen[first.get(place, place)]] for place in self.copied)
        left = (pair for pair in self.twins if pair not in self.spare)
        twins = tuple((places[self.chosen[a]], places[self.chosen[b]]) for a, b in left)
        return LayerTemplate(self.path, chosen, copied, twins)

    def _calls(
        self, module: CachePrefixMethod, inputs: Sequence[torch.Tensor]
    ) -> dict[int, list[Any]] | None:
        """What each chosen layer calls, by its place; None where that does not work."""
        fake, calls = FakeTensorMode(allow_non_fake_inputs=True), _LayerCalls()
        with self.reduced(module), _attributes_restored(module), ExitStack() as stack:
            for place, layer in enumerate(module.get_submodule(self.path)):
                begin, end = partial(calls.begin, place), calls.end
                stack.callback(layer.register_forward_pre_hook(begin).remove)
                stack.callback(layer.register_forward_hook(end).remove)
            try:
                with torch.no_grad(), fake, calls:
                    module(*(fake.from_tensor(each) for each in inputs))
            except Exception:  # the model's code, which may look at values
                return None
        return calls.of


class _LayerCalls(TorchDispatchMode):  # type: ignore[misc]
    """Records the operators that layers call, with shapes and numbers, by the layers' places."""

    def __init__(self) -> None:
        super().__init__()
        self.of: dict[int, list[Any]] = {}
        self._place: int | None = None

    def begin(self, place: int, *_: Any) -> None:
        self._place = place

    def end(self, *_: Any) -> None:
        self._place = None

    def __torch_dispatch__(
        self, function: Any, _: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if self._place is not None:
            given = pytree.tree_leaves((args, kwargs))
            looks = [tensor_look(v) if isinstance(v, torch.Tensor) else repr(v) for v in given]
            self.of.setdefault(self._place, []).append((str(function), looks))
        return function(*args, **(kwargs or {}))


@contextmanager
def _attributes_restored(module: torch.nn.Module) -> Iterator[None]:
    """After the block, no part of a module has what a call with fake tensors has left in it."""
    before = [(each, {**vars(each)}, {**each._buffers}) for each in module.modules()]
    try:
        yield
    finally:
        for each, attributes, buffers in before:
            vars(each).clear()
            vars(each).update(attributes)
            each._buffers.clear()
            each._buffers.update(buffers)


# The buffers of one layer, see `Buffers`.
_CACHED = re.compile(r"((?:key|value|inputs|state)_)(\d+)((?:_\d+)?)")


def layer_template(module: torch.nn.Module) -> LayerTemplate | None:
    """Which layers of a method's module to trace; None where it has too few of them.

    Raises:
        UnlikeLayersError: Each layer has to be traced.
    """
    if not isinstance(module, CachePrefixMethod):
        return None
    config = module.model.config.get_text_config(decoder=True)
    total = int(getattr(config, "num_hidden_layers", 0))
    if total < 4:  # the first, and two that are alike
        return None
    if module.cache.own is not None:
        raise UnlikeLayersError("its layers keep their states in one tensor")
    path, layers = _list_of_layers(module, total)
    lists = _lists_of_layers(config, total)
    looks = [
        _look(layer)
        | {f"config.{name}": value_look(each[i]) for name, each in lists.items()}
        | {"cache": (module.cache.kinds[i], *_cached_shapes(module.cache, i))}
        for i, layer in enumerate(layers)
    ]
    _require_own_weights(module, path, layers)
    kinds: dict[Any, list[int]] = {}
    for number, look in enumerate(looks[1:], start=1):
        kinds.setdefault(tuple(sorted(look.items(), key=lambda item: item[0])), []).append(number)
    pairs = [of_kind[:2] for of_kind in kinds.values()]
    chosen = tuple(sorted({0, *(number for pair in pairs for number in pair)}))
    usual = max(kinds.values(), key=len)[0]
    for number in (n for n, *others in pairs if not others and n != usual):
        if not _differs_in_weights(layers[number], looks[number], looks[usual]):
            raise UnlikeLayersError(_difference(number, looks[number], usual, looks[usual]))
    if len(chosen) == total:
        return None
    place = {layer: i for i, layer in enumerate(chosen)}
    like = {number: of_kind[0] for of_kind in kinds.values() for number in of_kind}
    copied = tuple(place.get(number, place[like.get(number, 0)]) for number in range(total))
    twins = tuple((place[a], place[b]) for a, *others in pairs for b in others)
    spare = tuple(
        (one, other)
        for one, other in twins
        if _differs_in_weights(layers[0], looks[0], looks[chosen[one]])
    )
    return LayerTemplate(path, chosen, copied, twins, spare)


def _differs_in_weights(
    layer: torch.nn.Module, look: Mapping[str, Any], other: Mapping[str, Any]
) -> bool:
    """Whether two layers differ in nothing but how their weights are quantized."""
    weights = {name for name, _ in layer.named_parameters()}
    return all(name in weights or look.get(name) == other.get(name) for name in {*look, *other})


def _list_of_layers(module: torch.nn.Module, total: int) -> tuple[str, Sequence[Any]]:
    found = [
        (path, each)
        for path, each in module.named_modules()
        if isinstance(each, torch.nn.ModuleList) and len(each) == total
    ]
    outer = [
        (path, each) for path, each in found if not any(path.startswith(f"{p}.") for p, _ in found)
    ]
    if len(outer) != 1:
        raise UnlikeLayersError("its layers are not one list of modules")
    return outer[0]


def _lists_of_layers(config: Any, total: int) -> dict[str, Sequence[Any]]:
    """What the configuration says of each layer."""
    names = {name for name in (*vars(config), *dir(type(config))) if "layer" in name}
    found = {name: getattr(config, name, None) for name in sorted(names) if name[0] != "_"}
    return {n: v for n, v in found.items() if isinstance(v, list | tuple) and len(v) == total}


def _is_computed(config: Any, name: str) -> bool:
    return isinstance(getattr(type(config), name, None), property)


@contextmanager
def _set(owner: Any, **values: Any) -> Iterator[None]:
    """Sets attributes in the block, by the ways of modules and of transformers' configurations."""
    before = {name: getattr(owner, name) for name in values}
    try:
        for name, value in values.items():
            setattr(owner, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


def _look(layer: torch.nn.Module) -> dict[str, Any]:
    """All of a layer that its graph may depend on: classes, attributes, shapes, quantization."""
    found: dict[str, Any] = {}
    for path, module in layer.named_modules():
        found[path] = type(module)
        for name, value in vars(module).items():
            if name in _NUMBERS | _NOT_IN_GRAPH:
                continue
            if name in ("_parameters", "_buffers"):
                tensors = {n: tensor_look(t) for n, t in value.items() if t is not None}
                found |= {f"{path}.{n}".lstrip("."): look for n, look in tensors.items()}
            else:
                found[f"{path}.{name}".lstrip(".")] = value_look(value)
    return found


def value_look(value: Any) -> Any:
    if isinstance(value, _SIMPLE):
        return type(value), repr(value)
    if isinstance(value, torch.Tensor):
        return tensor_look(value), digest(value)
    if isinstance(value, Mapping):
        return type(value), tuple((repr(key), value_look(each)) for key, each in value.items())
    if isinstance(value, list | tuple | set | frozenset):
        return type(value), tuple(map(value_look, value))
    if isinstance(value, MethodType):
        return value_look(value.__func__)
    if isinstance(value, partial):
        return value_look(value.func), value_look(value.args), value_look(value.keywords)
    return value if isinstance(value, FunctionType) else id(value)


def tensor_look(tensor: torch.Tensor) -> Any:
    kind = tensor.data if isinstance(tensor, torch.nn.Parameter) else tensor
    own = (type(kind), tuple(tensor.shape), tensor.stride(), tensor.dtype)
    if not hasattr(tensor, "__tensor_flatten__"):
        return own
    names, context = tensor.__tensor_flatten__()
    return *own, repr(context), tuple(tensor_look(getattr(tensor, name)) for name in names)


def digest(tensor: torch.Tensor) -> str:
    content = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(content).hexdigest()


def _cached_shapes(cache: Any, layer: int) -> Iterator[Any]:
    for name, tensor in cache._buffers.items():
        if (found := _CACHED.fullmatch(name)) and int(found[2]) == layer:
            yield found[1], found[3], tensor_look(tensor)


def _require_own_weights(
    module: torch.nn.Module, path: str, layers: Sequence[torch.nn.Module]
) -> None:
    """Refuses weights that two layers share, or a layer and another part of the model."""
    inside = Counter(id(t) for layer in layers for t in {*layer.parameters(), *layer.buffers()})
    named = (*module.named_parameters(), *module.named_buffers())
    outside = {id(tensor) for name, tensor in named if not name.startswith(f"{path}.")}
    if outside & inside.keys() or any(times > 1 for times in inside.values()):
        raise UnlikeLayersError("its layers share weights")


def _difference(number: int, look: Mapping[str, Any], usual: int, other: Mapping[str, Any]) -> str:
    names = sorted(look.keys() | other.keys(), key=lambda name: ("._" in f".{name}", name))
    name = next(name for name in names if look.get(name) != other.get(name))
    values = [_shown(each.get(name)) for each in (look, other)]
    told = f" ({values[0]}, not {values[1]})" if all(values) else ""
    return f"layer {number} differs from layer {usual} in {name or 'its class'}{told}"


def _shown(value: Any) -> str | None:
    if isinstance(value, type):
        return value.__name__
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], str):
        return value[1]
    return None
