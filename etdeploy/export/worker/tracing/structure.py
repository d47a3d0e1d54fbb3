"""Nested inputs and outputs: what their tensors are called, in the order of a program's values."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree


@dataclass(frozen=True)
class ExampleInputs:
    """Example inputs, positional and by keyword."""

    args: tuple[Any, ...]
    keywords: Mapping[str, Any] = field(default_factory=dict)

    def on(self, module: torch.nn.Module) -> Any:
        """What the module gives for them."""
        return module(*self.args, **self.keywords)


# A leaf's keys from the outside in; a whole number is a place in a sequence.
KeyPath = tuple[Any, ...]


def children(tree: object) -> list[tuple[Any, Any]] | None:
    """Keys and values of a container, in the order in which torch.export flattens it."""
    node = pytree.SUPPORTED_NODES.get(pytree._get_node_type(tree))
    if node is None:
        return None
    if node.flatten_with_keys_fn is not None:
        return [(_key(key), value) for key, value in node.flatten_with_keys_fn(tree)[0]]
    # Registered without names, as Hugging Face's outputs are: their context is the list of keys.
    values, context = node.flatten_fn(tree)
    named = isinstance(context, list) and len(context) == len(values)
    return list(zip(context if named else range(len(values)), values, strict=True))


def _key(entry: Any) -> Any:
    """Of a `MappingKey`, a `SequenceKey` or a `GetAttrKey`."""
    for name in ("key", "idx", "name"):
        if hasattr(entry, name):
            return getattr(entry, name)
    return str(entry)


def leaves(tree: object, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Every leaf with its keys, as torch.export flattens the structure; None is a leaf."""
    below = children(tree)
    if below is None:
        yield path, tree
        return
    for key, value in below:
        yield from leaves(value, (*path, key))


def dotted(path: KeyPath, prefix: str) -> str:
    """`logits`, `hidden.0`; a path that starts with a number gets the prefix: `output_0`."""
    if not path or isinstance(path[0], int):
        return ".".join([f"{prefix}_{path[0] if path else 0}", *map(str, path[1:])])
    return ".".join(map(str, path))


def by_parameter(module: torch.nn.Module, call: ExampleInputs) -> dict[str, Any]:
    """The inputs by the names of forward's parameters, in the order of the program's inputs.

    torch.export takes keyword inputs behind the others, in the order in which they are given.
    """
    try:
        positional = dict(inspect.signature(module.forward).bind_partial(*call.args).arguments)
    except (TypeError, ValueError):  # too many, or a forward that is written in C
        positional = {f"input_{index}": value for index, value in enumerate(call.args)}
    return {**positional, **call.keywords}


def shapes_by_parameter(
    module: torch.nn.Module, call: ExampleInputs, shapes: Any
) -> dict[str, Any]:
    """dynamic_shapes in any form that torch.export takes, by the names of forward's parameters."""
    if hasattr(shapes, "dynamic_shapes"):  # a ShapesCollection or AdditionalInputs
        shapes = shapes.dynamic_shapes(module, call.args, dict(call.keywords))
    signature = inspect.signature(module.forward)
    if not isinstance(shapes, Mapping):
        names = signature.bind(*call.args, **call.keywords).arguments
        shapes = dict(zip(names, shapes or (), strict=False))
    rest = [p.name for p in signature.parameters.values() if p.kind == p.VAR_KEYWORD]
    # What a parameter like **more collects has its own names.
    collected = {k: v for name in rest for k, v in (shapes.get(name) or {}).items()}
    return {**shapes, **collected}


def shapes_of_graph(module: torch.nn.Module, call: ExampleInputs, shapes: Any) -> Any:
    """dynamic_shapes of a module for its graph, which takes what `*inputs` collects one by one."""
    kinds = {p.name: p.kind for p in inspect.signature(module.forward).parameters.values()}
    if shapes is None or inspect.Parameter.VAR_POSITIONAL not in kinds.values() or call.keywords:
        return shapes
    flat: list[Any] = []
    for name, each in shapes_by_parameter(module, call, shapes).items():
        flat += each if each and kinds[name] == inspect.Parameter.VAR_POSITIONAL else [each]
    return tuple(flat)


def input_values(traced: torch.export.ExportedProgram) -> list[Any]:
    """What stands for each input in a traced program: a fake tensor, or the value itself."""
    # By their order: a copy of the graph calls `input`, which is a name of Python's, `input_1`.
    nodes = [node for node in traced.graph.nodes if node.op == "placeholder"]
    specs = traced.graph_signature.input_specs
    return [
        node.meta.get("val")
        for node, spec in zip(nodes, specs, strict=True)
        if spec.kind == InputKind.USER_INPUT
    ]


def fixed_size(size: int | torch.SymInt) -> int | None:
    """A dimension's size where a traced program takes only one; None where it is dynamic."""
    if isinstance(size, torch.SymInt):
        expression = size.node.expr
        return int(expression) if expression.is_number else None
    return size


def fixed_sizes(sizes: Iterable[int | torch.SymInt]) -> list[Any]:
    """`fixed_size` of each."""
    return [fixed_size(size) for size in sizes]
