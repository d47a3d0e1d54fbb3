"""The graph of all layers, put together from the traced graph of a few."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputKind, InputSpec, OutputSpec
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from etdeploy.core.console import count
from etdeploy.core.values import cached_property
from etdeploy.export.worker.language.layers import (
    LayerTemplate,
    UnlikeLayersError,
    digest,
    tensor_look,
)

Item = TypeVar("Item")
_HANDLE = "debug_handle"


class Expansion:
    """The graph of all layers, from that of the chosen ones.

    A node belongs to a layer, by the place of that in `template.chosen`, or to none. What no layer
    has stays as it is; what follows the layers takes what the last of them gives.
    """

    def __init__(
        self, program: ExportedProgram, template: LayerTemplate, module: torch.nn.Module
    ) -> None:
        self._old, self._template = program, template
        self._count, self._total = len(template.chosen), len(template.copied)
        self._weights = _Weights(module)
        path = re.escape(template.path)
        self._named = re.compile(
            rf"(?P<layer>(?:^|(?<=L__self__)){path}\.)(\d+)(?=[.@]|$)|"
            r"(?P<cache>^cache\.(?:key|value|inputs|state)_)(\d+)(?=_|$)"
        )
        self._specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
        self._place: dict[Node, int | None] = {}
        self._graph, self._made = Graph(), dict[tuple[Node, int | None], Node]()
        self._input_specs: list[InputSpec] = []
        self._state: dict[str, Any] = {}
        self._constants: dict[str, Any] = {}

    def program(self) -> ExportedProgram:
        """The program of all layers.

        Raises:
            UnlikeLayersError: Layers that should be alike differ.
        """
        self._find_places()
        self._check_uses()
        for pair in self._template.twins:
            self._compare(*pair)
        old = self._old
        for node, layer in self._each(self._inputs, self._place.__getitem__):
            self._add_input(node, layer)
        for node, layer in self._each(self._calls, self._place.__getitem__):
            self._add_call(node, layer)
        output_specs = self._add_output()
        self._number_handles()
        self._graph._codegen = copy.deepcopy(old.graph._codegen)
        root = torch.fx.GraphModule(old.graph_module, self._graph)
        root.meta.update(old.graph_module.meta)
        used = {spec.target for spec in self._specs.values()}
        unused = {
            name: value
            for name, value in old.state_dict.items()
            if name not in used and self._place_in(name) is None
        }
        return ExportedProgram(
            root=root,
            graph=root.graph,
            graph_signature=ExportGraphSignature(self._input_specs, output_specs),
            state_dict={**unused, **self._state},
            range_constraints=old.range_constraints,
            module_call_graph=[
                entry if layer is None else replace(entry, fqn=self._named_as(entry.fqn, layer))
                for entry, layer in self._each(
                    old.module_call_graph, lambda entry: self._place_in(entry.fqn)
                )
            ],
            example_inputs=old.example_inputs,
            constants=self._constants,
            verifiers=old.verifiers,
        )

    @cached_property
    def _inputs(self) -> list[Node]:
        return list(self._old.graph.find_nodes(op="placeholder"))

    @cached_property
    def _calls(self) -> list[Node]:
        nodes = [n for n in self._old.graph.nodes if n.op not in ("placeholder", "output")]
        if any(node.op != "call_function" for node in nodes):
            raise UnlikeLayersError("its graph has parts with graphs of their own")
        return nodes

    @cached_property
    def _blocks(self) -> list[list[Node]]:
        """The calls of each chosen layer."""
        found: list[list[Node]] = [[] for _ in range(self._count)]
        for node in self._calls:
            if (place := self._place[node]) is not None:
                found[place].append(node)
        return found

    def _place_in(self, name: str | None) -> int | None:
        """Of the layer that has a module, a weight or a buffer of that name."""
        found = self._named.search(name or "")
        return int(found[2] or found[4]) if found else None

    def _named_as(self, name: str, layer: int) -> str:
        """The same name in another layer."""
        return self._named.sub(lambda found: f"{found[1] or found[3]}{layer}", name, count=1)

    def _find_places(self) -> None:
        place = self._place
        for node in self._inputs:
            place[node] = self._place_in(self._specs[node.name].target)
        for node in self._calls:
            stack = (node.meta.get("nn_module_stack") or {}).values()
            found = [self._place_in(path) for path, _ in reversed(stack)]
            place[node] = next((each for each in found if each is not None), None)
        numbers = [place[node] for node in self._calls]
        known = [i for i, number in enumerate(numbers) if number is not None]
        if not known:
            raise UnlikeLayersError("its graph does not name its layers")
        # What the model computes between two layers goes with the second.
        following = self._count
        for i in range(known[-1], known[0], -1):
            number = numbers[i]
            number = following if number is None else number
            if number > following:
                raise UnlikeLayersError("its layers do not follow each other")
            place[self._calls[i]] = following = number
        self._find_sizes(self._calls[known[0] : known[-1] + 1])
        self._find_ahead(self._calls[: known[0]])
        self._find_writes(self._calls[known[-1] + 1 :])
        for node in self._inputs:
            if self._is_constant(self._specs[node.name]) and node.users:
                of = {place.get(user) for user in node.users}
                place[node] = of.pop() if len(of) == 1 else None

    def _find_sizes(self, layers: Sequence[Node]) -> None:
        """Sizes that all layers use belong to none, though the first of them computes them."""
        place = self._place
        for node in reversed(layers):
            is_size = place[node] == 0 and isinstance(node.meta.get("val"), torch.SymInt)
            if is_size and any(place[user] != 0 for user in node.users if user.op != "output"):
                place[node] = None

    def _find_ahead(self, ahead: Sequence[Node]) -> None:
        """Assign to a layer the nodes ahead of the first that use its weights or state only."""
        place = self._place
        for node in ahead:
            of = {place[each] for each in node.all_input_nodes} - {None}
            place[node] = of.pop() if len(of) == 1 else None
        for node in reversed(ahead):
            # Checks of a tensor, which give nothing, go with it.
            users = {place.get(user) for user in node.users if user.users or user.op == "output"}
            if place[node] is None and len(users) == 1:
                place[node] = users.pop()
        for node in (node for node in ahead if not node.users):
            of = {place[each] for each in node.all_input_nodes}
            place[node] = of.pop() if len(of) == 1 else None

    def _find_writes(self, after: Sequence[Node]) -> None:
        """A layer also has what writes its state, behind all."""
        place, states = self._place, dict[Node, int]()
        outputs = zip(
            self._old.graph.output_node().args[0],
            self._old.graph_signature.output_specs,
            strict=True,
        )
        for node, spec in outputs:
            if (of := self._place_in(spec.target)) is not None:
                states[node] = of
        for node in reversed(after):
            users = {place.get(user, states.get(node)) for user in node.users}
            if node in states and users <= {states[node]}:
                place[node] = states[node]
            elif len(users) == 1 and None not in users:
                place[node] = users.pop()
        for node in after:  # before programs are functional, nothing uses what is written
            of_inputs = {place[each] for each in node.all_input_nodes if each.op == "placeholder"}
            if not node.users and len(of_inputs) == 1:
                place[node] = of_inputs.pop()

    @cached_property
    def _given(self) -> list[Node]:
        """What each chosen layer gives to the next, or to what follows."""
        found = []
        for block in self._blocks:
            given = [
                node for node in block if any(self._is_elsewhere(node, user) for user in node.users)
            ]
            if len(given) != 1:
                raise UnlikeLayersError(f"a layer gives {count(len(given), 'value')} to others")
            found += given
        return found

    def _is_elsewhere(self, node: Node, user: Node) -> bool:
        if user.op == "output":  # also gives buffers that are written
            return node.name in self._old.graph_signature.user_outputs
        return self._place[user] != self._place[node]

    def _check_uses(self) -> None:
        """Require that a layer reads only the layer before it and nodes shared by all layers."""
        for node in self._calls:
            own = self._place[node]
            for taken in node.all_input_nodes:
                place = self._place[taken]
                if place in (None, own):
                    continue
                before = self._count - 1 if own is None else own - 1
                if place != before or taken is not self._given[place]:
                    raise UnlikeLayersError(
                        f"{'what follows them' if own is None else 'a layer'} takes more than "
                        "what the layer before gives"
                    )

    def _compare(self, first: int, second: int) -> None:
        one, other = (list(self._form(place)) for place in (first, second))
        if one == other:
            return
        layers = [self._template.chosen[place] for place in (first, second)]
        what = next((a[0] for a, b in zip(one, other, strict=False) if a != b), "their number")
        raise UnlikeLayersError(
            f"the graphs of layers {layers[0]} and {layers[1]} differ in {what}"
        )

    def _form(self, place: int) -> Iterator[Any]:
        """What a chosen layer computes, in words that are the same for one that is like it."""
        numbers = {node: i for i, node in enumerate(self._blocks[place])}

        def described(value: Any) -> Any:
            if isinstance(value, Node):
                return self._reference(value, place, numbers)
            if isinstance(value, list | tuple):
                return tuple(map(described, value))
            if isinstance(value, dict):
                return tuple((name, described(each)) for name, each in value.items())
            return type(value), repr(value)

        for node in self._blocks[place]:
            modules = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
            inside = [self._named_as(path, 0) for path in modules]
            looks = _value_in_graph(node.meta.get("val"))
            yield str(node.target), described(node.args), described(node.kwargs), looks, inside
        for node in self._inputs:
            if self._place[node] == place:
                yield self._reference(node, place, numbers), _value_in_graph(node.meta.get("val"))

    def _reference(self, node: Node, place: int, numbers: Mapping[Node, int]) -> Any:
        if node in numbers:
            return "own", numbers[node]
        if self._place[node] is None:
            return "outside", node.name
        if self._place[node] != place:
            return "given", _value_in_graph(node.meta.get("val"))
        spec = self._specs[node.name]
        if self._is_constant(spec):
            value = self._stored(spec)
            return "constant", tensor_look(value), digest(value)
        return "weight", spec.kind, self._named_as(spec.target, 0)

    def _each(
        self, items: Iterable[Item], place_of: Callable[[Item], int | None]
    ) -> Iterator[tuple[Item, int | None]]:
        """The items of all layers, each with the number of its layer.

        Between two that belong to no layer, those of chosen layers are in order, and all layers
        take their place.
        """
        run: dict[int, list[Item]] = {}
        for item in items:
            place = place_of(item)
            if place is None or place < max(run, default=0):
                yield from self._copies(run)
                run = {}
            if place is None:
                yield item, None
            else:
                run.setdefault(place, []).append(item)
        yield from self._copies(run)

    def _copies(self, run: Mapping[int, Sequence[Item]]) -> Iterator[tuple[Item, int | None]]:
        for layer, place in enumerate(self._template.copied):
            for item in run.get(place, ()):
                yield item, layer

    def _add_input(self, node: Node, layer: int | None) -> None:
        spec, name = self._specs[node.name], node.name
        target = spec.target
        if target is not None:
            if self._is_constant(spec):
                target = self._numbered(spec)
            elif layer is not None:
                target = self._named_as(target, layer)
            name = name.replace(_as_name(spec.target), _as_name(target))
        made = self._graph.create_node("placeholder", name, (), {}, name=name)
        made.target = made.name
        self._made[node, layer] = made
        made.meta = self._meta(node, layer)
        arg = replace(spec.arg, name=made.name)
        self._input_specs.append(InputSpec(spec.kind, arg, target, spec.persistent))
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            self._keep(spec, str(target), layer)

    def _is_constant(self, spec: InputSpec) -> bool:
        """Whether it is a value in the model's code, which tracing or lowering made an input."""
        if spec.kind is InputKind.BUFFER:
            return self._place_in(spec.target) is None and spec.target not in self._weights
        return spec.kind is InputKind.CONSTANT_TENSOR

    def _numbered(self, spec: InputSpec) -> str:
        """The name of a constant, which has a number among its like, or among all buffers."""
        name = re.sub(r"\d+$", "", str(spec.target))
        kinds = [each for each in self._input_specs if each.kind is spec.kind]
        if spec.kind is InputKind.CONSTANT_TENSOR:
            kinds = [each for each in kinds if re.sub(r"\d+$", "", str(each.target)) == name]
        return f"{name}{len(kinds)}" if name != spec.target else name

    def _stored(self, spec: InputSpec) -> Any:
        in_state = spec.target in self._old.state_dict
        return (self._old.state_dict if in_state else self._old.constants)[spec.target]

    def _keep(self, spec: InputSpec, target: str, layer: int | None) -> None:
        """Adds the value of an input that the program has."""
        value, in_state = self._stored(spec), spec.target in self._old.state_dict
        if layer is not None and not self._is_constant(spec):
            known = self._weights[self._named_as(spec.target, self._chosen_as(spec.target))]
            if not _is_same(known, value):
                raise UnlikeLayersError("a weight is not the model's any more")
            own = self._weights[target]
            if isinstance(value, torch.nn.Parameter) and not isinstance(own, torch.nn.Parameter):
                own = torch.nn.Parameter(own, requires_grad=False)
            value = own
        (self._state if in_state else self._constants)[target] = value

    def _chosen_as(self, name: str) -> int:
        place = self._place_in(name)
        return self._template.chosen[place or 0]

    def _add_call(self, node: Node, layer: int | None) -> None:
        taken = partial(self._taken, own=self._place[node], layer=layer)
        args, kwargs = map_arg(node.args, taken), map_arg(node.kwargs, taken)
        name = re.sub(r"_\d+$", "", node.name)
        made = self._graph.create_node("call_function", node.target, args, kwargs, name=name)
        made.meta = self._meta(node, layer)
        self._made[node, layer] = made

    def _taken(self, node: Node, own: int | None, layer: int | None) -> Node:
        place = self._place[node]
        if place is None:
            return self._made[node, None]
        if place == own:
            return self._made[node, layer]
        before = self._total - 1 if layer is None else layer - 1
        return self._made[self._given[self._template.copied[before]], before]

    def _meta(self, node: Node, layer: int | None) -> dict[str, Any]:
        meta: dict[str, Any] = copy.copy(node.meta)
        if layer is None:
            return meta
        if stack := meta.get("nn_module_stack"):
            few, all_of_them = (f"slice(None_{n}_None)" for n in (self._count, self._total))
            meta["nn_module_stack"] = {
                self._named_as(key, layer).replace(few, all_of_them): (
                    self._named_as(path, layer),
                    kind,
                )
                for key, (path, kind) in stack.items()
            }
        return meta

    def _add_output(self) -> list[OutputSpec]:
        old = self._old.graph.output_node()
        pairs = list(zip(old.args[0], self._old.graph_signature.output_specs, strict=True))
        results, specs = [], []
        for (node, spec), layer in self._each(pairs, lambda pair: self._place_in(pair[1].target)):
            own = None if layer is None else self._template.copied[layer]
            made = self._taken(node, own, layer)
            target = spec.target if layer is None else self._named_as(str(spec.target), layer)
            results.append(made)
            specs.append(OutputSpec(spec.kind, replace(spec.arg, name=made.name), target))
        made = self._graph.output(tuple(results))
        made.meta = copy.copy(old.meta)
        if "val" in made.meta:
            made.meta["val"] = tuple(each.meta["val"] for each in results)
        return specs

    def _number_handles(self) -> None:
        """Numbers the nodes as ExecuTorch's `DebugHandleGeneratorPass` does, in the graph's order.

        Nodes that are of one operator of the traced graph have the same number.
        """
        places: dict[int, set[int | None]] = {}
        for node in self._calls:
            places.setdefault(node.meta.get(_HANDLE, 0), set()).add(self._place[node])
        numbers: dict[Any, int] = {}
        for (node, layer), made in self._made.items():  # in the order of the graph
            if handle := node.meta.get(_HANDLE, 0):
                key = (handle, layer if len(places[handle]) == 1 else None)
                made.meta[_HANDLE] = numbers.setdefault(key, len(numbers) + 1)


class _Weights:
    """The tensors of a module by the names that programs have for them."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._named: dict[str, torch.Tensor] = {
            **dict(module.named_parameters(remove_duplicate=False)),
            **dict(module.named_buffers(remove_duplicate=False)),
        }

    def __contains__(self, name: str) -> bool:
        return name in self._named

    def __getitem__(self, name: str) -> torch.Tensor:
        if name in self._named:
            return self._named[name]
        # torch.export takes quantized weights apart.
        owner, _, part = name.partition(".parametrizations.")
        attribute, _, number = part.partition(".original")
        weight: Any = self._named.get(f"{owner}.{attribute}")
        if weight is None or not number.isdigit() or not hasattr(weight, "__tensor_flatten__"):
            raise UnlikeLayersError("its graph has weights that the model does not have")
        inner: torch.Tensor = getattr(weight, weight.__tensor_flatten__()[0][int(number)])
        return inner


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one is other:
        return True
    if tensor_look(one) != tensor_look(other):
        return False
    return hasattr(one, "__tensor_flatten__") or one.data_ptr() == other.data_ptr()


def _value_in_graph(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return tuple(map(str, value.shape)), tuple(map(str, value.stride())), value.dtype
    if isinstance(value, list | tuple):
        return tuple(map(_value_in_graph, value))
    return str(value)


def _as_name(target: str) -> str:
    """As torch.export makes a name of it."""
    return re.sub(r"\W", "_", target).lower()
