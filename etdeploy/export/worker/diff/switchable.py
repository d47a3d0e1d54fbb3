"""Quantized models with quantizations that can be left out: graphs of PT2E, and linear layers."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Protocol

import torch
from torch.fx import Node
from torch.utils import _pytree as pytree

from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.diff.instrument import (
    is_dequantization,
    is_of_quantization,
    operator_of,
)
from etdeploy.export.worker.lowering.linears import RoundedLayer
from etdeploy.export.worker.lowering.overrides import path_in_model
from etdeploy.export.worker.tracing.tensors import buffers_restored

_ANNOTATION = "quantization_annotation"


class Switchable(Protocol):
    """A quantized model with quantizations that can be left out.

    Attributes:
        exact_scheme: What modules have whose quantization is left out, as with an override; None if
            an override would need another quantization.
        paths: The modules of its quantized operators.
    """

    @property
    def exact_scheme(self) -> str | None: ...

    @property
    def paths(self) -> Mapping[Any, str]: ...

    def reference(self, inputs: Sequence[Any]) -> list[Any]:
        """What the model gives in floats."""
        ...

    def outputs(self, inputs: Sequence[Any], exact: Callable[[str], bool]) -> list[Any]:
        """What the model gives if some modules compute more exactly."""
        ...

    def weights(self, operator: Any) -> int:
        """Numbers in the weights that an operator takes quantized."""
        ...


@dataclass(frozen=True)
class QuantizedLinears:
    """A model whose linear layers are quantized in place, with their weights of each kind.

    Attributes:
        rounded: The weights of the recipe's scheme.
        exact: Those of `exact_scheme`.
    """

    module: torch.nn.Module
    paths: Mapping[RoundedLayer, str]
    rounded: Mapping[RoundedLayer, torch.nn.Parameter]
    exact: Mapping[RoundedLayer, torch.nn.Parameter]
    exact_scheme: str

    @classmethod
    def of(
        cls, module: torch.nn.Module, layers: Iterable[RoundedLayer], other: str
    ) -> QuantizedLinears:
        """The model, as it is now, of these layers, which may have another scheme instead."""
        layers = tuple(layers)
        rounded = {each: each.module.weight for each in layers}
        exact = {each: each.with_scheme(other) for each in layers}
        return cls(module, {each: each.name for each in layers}, rounded, exact, other)

    def reference(self, inputs: Sequence[Any]) -> list[Any]:
        """What the model gives with weights and activations of these layers in floats."""
        return self._outputs(inputs, {each: each.before for each in self.rounded})

    def outputs(self, inputs: Sequence[Any], exact: Callable[[str], bool]) -> list[Any]:
        """What the model gives if some layers have the other scheme."""
        chosen = {each: self.exact[each] for each, name in self.paths.items() if exact(name)}
        return self._outputs(inputs, {**self.rounded, **chosen})

    def _outputs(
        self, inputs: Sequence[Any], weights: Mapping[RoundedLayer, torch.nn.Parameter]
    ) -> list[Any]:
        try:
            for each, weight in weights.items():
                each.module.weight = weight
            with buffers_restored(self.module.buffers()):
                return list(pytree.tree_leaves(self.module(*inputs)))
        finally:
            for each, weight in self.rounded.items():
                each.module.weight = weight

    def weights(self, operator: RoundedLayer) -> int:
        """Numbers in the weight of a layer."""
        count: int = operator.before.numel()
        return count


@dataclass(frozen=True)
class QuantizedGraph:
    """A graph with quantizations of weights and activations that can be left out.

    Attributes:
        module: Of PT2E, whose weights are floats that the graph quantizes.
        operators: Every operator, with the path of its module.
        paths: Of those, the ones with quantized inputs.
    """

    module: Any
    operators: Mapping[Node, str]
    paths: Mapping[Node, str]
    exact_scheme: None = None

    @classmethod
    def of(cls, spec: ExportSpec, module: Any) -> QuantizedGraph:
        """The graph of a quantized module."""
        operators = {
            node: path_in_model(spec, node)
            for node in module.graph.nodes
            if node.op == "call_function" and not is_of_quantization(node)
        }
        paths = {
            node: path
            for node, path in operators.items()
            if any(is_dequantization(each) for each in node.all_input_nodes)
        }
        return cls(module, operators, paths)

    def reference(self, inputs: Sequence[Any]) -> list[Any]:
        """What the graph gives in floats."""
        return self.outputs(inputs, lambda _: True)

    def outputs(self, inputs: Sequence[Any], exact: Callable[[str], bool]) -> list[Any]:
        """What the graph gives if some modules compute in floats."""
        values: dict[Node, Any] = {}
        given = iter(inputs)
        floats = {node for node, path in self.operators.items() if exact(path)}

        def value(of: Node, user: Node) -> Any:
            source = unquantized(of)
            stays = source is None or _asks(user, source, floats)
            return values[of if stays or source is None else source]

        for node in self.module.graph.nodes:
            if node.op == "placeholder":
                values[node] = next(given)
                continue
            if node.op == "get_attr":
                values[node] = attrgetter(str(node.target))(self.module)
                continue
            args, kwargs = torch.fx.map_arg(
                (node.args, node.kwargs), lambda n, user=node: value(n, user)
            )
            if node.op == "output":
                return list(pytree.tree_leaves(args[0]))
            call = node.target
            if node.op == "call_module":
                call = self.module.get_submodule(str(node.target))
            values[node] = call(*args, **kwargs)
        return []

    def weights(self, node: Node) -> int:
        """Numbers in the weights that a node takes quantized."""
        sources = (unquantized(each) for each in node.all_input_nodes)
        tensors = (
            attrgetter(str(s.target))(self.module) for s in sources if s and s.op == "get_attr"
        )
        return sum(t.numel() for t in tensors if t.dim() > 1)


def _asks(user: Node, source: Node, floats: Container[Node]) -> bool:
    """Whether a value is quantized on its way, by the annotations of the quantizer.

    What takes it asks for that, or what gives it; neither does in floats.
    """
    takes = user.meta.get(_ANNOTATION)
    gives = source.meta.get(_ANNOTATION)
    if takes is None and gives is None:
        return user not in floats
    wanted = {node.name for node in takes.input_qspec_map} if takes else set()
    by_user = user not in floats and source.name in wanted
    return by_user or (source not in floats and gives is not None and bool(gives.output_qspec))


def unquantized(node: Node) -> Node | None:
    """What was quantized and dequantized again; None for any other node."""
    source = node.args[0] if is_dequantization(node) else None
    if isinstance(source, Node) and operator_of(source).startswith("quantize_"):
        found = source.args[0]
        return found if isinstance(found, Node) else None
    return None
