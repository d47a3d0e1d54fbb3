"""Parts of tensors as slices, changes of shape as views.

Most run after ExecuTorch has made a graph of its own operators. XNNPACK's partitioner has a rule
for slice_copy of neighbours, and none for select_copy and split_with_sizes_copy. It refuses
squeezes, and unsqueezes of all but the last dimension. A clone that was to make a tensor contiguous
copies one that already is: the operators of this graph give new tensors. An expansion copies what
arithmetic expands by itself, a pad by nothing whatever it gets.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from etdeploy.export.worker.rewrites.base import Program, RewriteLog, Writer, replace_nodes
from etdeploy.export.worker.tracing.structure import fixed_size, fixed_sizes

_aten = torch.ops.aten
# Of a tensor in XNNPACK (XNN_MAX_TENSOR_DIMS).
_RANK = 6
# A node each.
_MOST_FLIPPED = 64
_OTHER_TENSOR = "dynamic shape or non-float32 tensor"


def _edge() -> Any:
    """ATen's operators in ExecuTorch's own graph."""
    from executorch.exir.dialects._ops import ops

    return ops.edge.aten


def rolls_as_slices(program: Program, log: RewriteLog) -> None:
    """Replaces every roll of floats by its two parts, exchanged; in place.

    ExecuTorch's own form looks up each index.
    """
    replace_nodes(program, log, {_aten.roll.default: _roll})


def _roll(write: Writer, given: dict[str, Any]) -> torch.fx.Node | str:
    made, shape = given["self"], fixed_sizes(write.node.meta["val"].shape)
    if not given["dims"] or None in shape or not _is_taken(made):
        return _OTHER_TENSOR
    for shift, dim in zip(given["shifts"], given["dims"], strict=True):
        if first := -shift % shape[dim]:
            head = write(_aten.slice.Tensor, made, dim, 0, first)
            tail = write(_aten.slice.Tensor, made, dim, first, shape[dim])
            made = write(_aten.cat.default, [tail, head], dim)
    return made


def parts_as_slices(program: Program, log: RewriteLog) -> None:
    """Replaces every select_copy, split and short flip of known sizes; in place."""
    edge = _edge()
    replace_nodes(
        program,
        log,
        {
            edge.select_copy.int: _select,
            edge.split_with_sizes_copy.default: _split,
            edge.slice_copy.Tensor: _stride,
            edge.flip.default: _flip,
        },
    )


def _select(write: Writer, given: dict[str, Any]) -> torch.fx.Node | str:
    x, dim, index = given["self"], given["dim"], given["index"]
    size = fixed_size(x.meta["val"].shape[dim])
    shape = fixed_sizes(write.node.meta["val"].shape)
    if size is None or not isinstance(index, int) or None in shape or not _is_taken(x):
        return _OTHER_TENSOR
    start = index % size
    part = write(_edge().slice_copy.Tensor, x, dim, start, start + 1)
    return write(_edge().view_copy.default, part, shape)


def _split(write: Writer, given: dict[str, Any]) -> torch.fx.Node | str:
    x, dim, sizes = given["self"], given["dim"], fixed_sizes(given["split_sizes"])
    if None in sizes or not _is_taken(x):
        return _OTHER_TENSOR
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    for user in list(write.node.users):
        if user.target is operator.getitem:
            number: Any = user.args[1]
            start, end = starts[number], starts[number] + sizes[number]
            write_user = Writer(write.program, user)
            write_user.replace(write_user(_edge().slice_copy.Tensor, x, dim, start, end))
    return write.node


def _stride(write: Writer, given: dict[str, Any]) -> torch.fx.Node | str | None:
    """Every n-th value: of a dimension that is divided into two, one place of the second."""
    x, dim, step = given["self"], given["dim"], given["step"]
    if step == 1:
        return None
    sizes = fixed_sizes(x.meta["val"].shape)
    shape = fixed_sizes(write.node.meta["val"].shape)
    start, dim = given["start"] or 0, dim % len(sizes)
    if None in sizes or not _is_taken(x) or not isinstance(start, int):
        return _OTHER_TENSOR
    size = sizes[dim]
    if size % step or not 0 <= start < step or shape[dim] != size // step or len(sizes) >= _RANK:
        return "it takes no whole number of strides, or its tensor has too many dimensions"
    divided = [*sizes[:dim], size // step, step, *sizes[dim + 1 :]]
    parts = write(_edge().view_copy.default, x, divided)
    one = write(_edge().slice_copy.Tensor, parts, dim + 1, start, start + 1)
    return write(_edge().view_copy.default, one, shape)


def _flip(write: Writer, given: dict[str, Any]) -> torch.fx.Node | str:
    """Of a few values, as of the steps of a recurrent layer that goes both ways."""
    x, dims = given["self"], given["dims"]
    sizes = fixed_sizes(x.meta["val"].shape[dim] for dim in dims)
    if not _is_taken(x) or not all(size and size <= _MOST_FLIPPED for size in sizes):
        return f"its sizes are dynamic or more than {_MOST_FLIPPED}, or its tensor is not float32"
    for dim, size in zip(dims, sizes, strict=True):
        indices = reversed(range(size))
        ones = [write(_edge().slice_copy.Tensor, x, dim, i, i + 1) for i in indices]
        x = write(_edge().cat.default, ones, dim)
    return x


def _is_taken(x: Any) -> bool:
    return bool(x.meta["val"].dtype == torch.float32)


_COPIES = ("clone", "_clone_dim_order", "alias_copy", "detach_copy", "lift_fresh_copy")
_ARITHMETIC = ("add", "sub", "mul", "div")
_VIEWS = ("view_copy", "squeeze_copy", "unsqueeze_copy")


def plain_views(program: Program, log: RewriteLog) -> None:
    """Makes every change of shape a view_copy, with -1 for its symbolic size; in place.

    Two symbolic sizes stay: one -1 cannot stand for both.
    """
    view = _edge().view_copy.default
    for node in list(program.graph.nodes):
        if _is_needless(node):
            node.replace_all_uses_with(_copied(node))
            program.graph.erase_node(node)
            log.applied()
            continue
        sizes = view_sizes(node)
        if sizes is None:
            continue
        if sizes.count(-1) > 1:
            log.skipped(node, "several of its sizes are dynamic")
            continue
        if node.target is view and list(node.args[1]) == sizes:
            continue
        node.target, node.args, node.kwargs = view, (node.args[0], sizes), {}
        log.applied()
    program.graph_module.recompile()


def _is_needless(node: torch.fx.Node) -> bool:
    """Whether all that take a node can take what it copies, which nothing else looks into."""
    x = _copied(node)
    if x is None or x.op != "call_function" or any(user.op == "output" for user in node.users):
        return False
    if _name(node) == "expand_copy":
        return _expands_itself(node)
    return bool(x.meta["val"].dim_order() == node.meta["val"].dim_order())


def _copied(node: torch.fx.Node) -> Any:
    """The node whose values alone another one gives; None if it does more."""
    name, x = _name(node), node.args[0] if node.args else None
    if name == "cat" and isinstance(x, list | tuple) and len(x) == 1:
        return x[0]
    if name == "constant_pad_nd" and not any(node.args[1]):
        return x
    return x if name in (*_COPIES, "expand_copy") else None


def _expands_itself(node: torch.fx.Node) -> bool:
    """Whether arithmetic on what is expanded gives the same."""
    x: Any = node.args[0]
    before, after = x.meta["val"].shape, node.meta["val"].shape
    if len(before) == len(after) and all(map(_is_same, before, after)):
        return True
    for user in node.users:
        others = [each for each in user.all_input_nodes if each is not node]
        if _name(user) not in _ARITHMETIC or len(others) != 1:
            return False
        shapes = [list(each.meta["val"].shape) for each in (x, others[0], user)]
        if any(None in fixed_sizes(shape) for shape in shapes):
            return False
        if list(torch.broadcast_shapes(*shapes[:2])) != shapes[2]:
            return False
    return True


def _is_same(one: int | torch.SymInt, other: int | torch.SymInt) -> bool:
    """For all sizes that the program takes; asking this does not narrow them."""
    return bool(statically_known_true(one == other))


def _name(node: torch.fx.Node) -> str:
    schema = getattr(node.target, "_schema", None)
    return "" if schema is None else str(schema.name).rpartition("::")[2]


def view_sizes(node: torch.fx.Node) -> list[int] | None:
    """The shape that a node gives, with -1 for what is symbolic; None for other than a view."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or schema.name.removeprefix("aten::") not in _VIEWS:
        return None
    shape: Any = node.meta["val"].shape
    fixed = fixed_sizes(shape)
    return [-1 if size is None else size for size in fixed]
