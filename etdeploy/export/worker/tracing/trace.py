"""torch.export, with its failures described at the user's own line.

Complex numbers of a traced program become pairs of real ones: ExecuTorch has no complex tensors,
and models that rotate queries and keys by complex factors, as DeepSeek V2 does, need a few of their
operators.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from functools import partial
from types import BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType
from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import map_arg

from etdeploy.export.protocol import ExportFailure, FailureKind
from etdeploy.export.worker.failures import (
    SourceLine,
    WorkerError,
    causes,
    failure_at,
    first_line,
    is_user_file,
    user_line,
    user_remedy,
)
from etdeploy.export.worker.tracing.structure import ExampleInputs
from etdeploy.export.worker.tracing.tensors import is_by_pixel, with_strides

_STRICT_REMEDY = "Rewrite that line with tensor operators, or try --set export.strict=true"
_VALUES_REMEDY = (
    "Keep values of tensors out of Python's control flow: torch.where or torch.cond for a branch,\n"
    "torch._check for the bounds of a size that is read with item()."
)
_SHAPES_REMEDY = (
    "Compare the dynamic_shapes that the factory returns with the example inputs, and give each\n"
    "dimension that changes a range: torch.export.Dim(name, min=1, max=512)"
)
_aten = torch.ops.aten
# ExecuTorch has kernels for these, although they are not in the core ATen set.
SHIFTS = {
    torch.ops.aten.__lshift__.Scalar: torch.ops.aten.bitwise_left_shift.Tensor_Scalar,
    torch.ops.aten.__lshift__.Tensor: torch.ops.aten.bitwise_left_shift.Tensor,
    torch.ops.aten.__rshift__.Scalar: torch.ops.aten.bitwise_right_shift.Tensor_Scalar,
    torch.ops.aten.__rshift__.Tensor: torch.ops.aten.bitwise_right_shift.Tensor,
}
_LONGEST = 400
_IN_STACK = re.compile(r'File "([^"]+)", line (\d+)')


def trace(
    module: torch.nn.Module, call: ExampleInputs, dynamic_shapes: Any, *, strict: bool
) -> torch.export.ExportedProgram:
    """Traces the module with torch.export."""
    try:
        with torch.no_grad():
            program = torch.export.export(
                module,
                call.args,
                dict(call.keywords),
                dynamic_shapes=dynamic_shapes,
                strict=strict,
            )
    except MemoryError:
        raise
    except Exception as error:
        raise WorkerError(trace_failure(error, strict=strict)) from error
    real_numbers(program)
    name_modules_of_slices(program, module)
    return program


_SLICE = re.compile(r"\.slice\(([^)]*)\)")
_SLICES = re.compile(rf"((?:{_SLICE.pattern})+)(?:\.(\d+))?")
_MODULES = "nn_module_stack"


def name_modules_of_slices(program: torch.export.ExportedProgram, module: torch.nn.Module) -> None:
    """Give modules in slices of a list, as in `self.layers[:2]`, the paths of `named_modules()`.

    Of a model that has a module under two names, torch.export writes `layers.slice(None, 2, None)`.
    """

    def named(path: str) -> str:
        while found := _SLICES.search(path):
            before, after = path[: found.start()], path[found.end() :]
            container, index = module.get_submodule(before), found[3]
            if index and isinstance(container, torch.nn.ModuleList):  # whose slices count from 0
                places = range(len(container))
                for bounds in _SLICE.findall(found[1]):
                    numbers = (None if n == "None" else int(n) for n in bounds.split(", "))
                    places = places[slice(*numbers)]
                index = places[int(index)]
            path = f"{before}{'' if index is None else f'.{index}'}{after}"
        return path

    for graph in program.graph_module.modules():
        for node in graph.graph.nodes if isinstance(graph, torch.fx.GraphModule) else ():
            stack = node.meta.get(_MODULES) or {}
            if any(".slice(" in path for path, _ in stack.values()):
                # An ETRecord separates keys by commas.
                node.meta[_MODULES] = {
                    key.replace(", ", "_"): (named(path), kind)
                    for key, (path, kind) in stack.items()
                }


_ORDER = "memory_format"


def use_known_operators(program: torch.export.ExportedProgram) -> None:
    """Replace operators that ExecuTorch does not have by equal ones that it has; in place.

    Copies and casts of permuted tensors are in the order of their shapes. By default they have the
    strides of what they copy, and ExecuTorch has no operator for a copy in another order than by
    channel or by pixel ("Failed to map a given dim_order"). Python's shifts get their other name.
    """
    _write_rows_of_buffers(program)
    _concatenate_parts(program.graph)
    for node in program.graph.nodes:
        node.target = SHIFTS.get(node.target, node.target)
        value, schema = node.meta.get("val"), getattr(node.target, "_schema", None)
        names = [each.name for each in schema.arguments] if schema else []
        # Strides of sizes that depend on values cannot be compared.
        if not isinstance(value, torch.Tensor) or _ORDER not in names or _has_dynamic_size(value):
            continue
        ordered = with_strides(value)
        if ordered is not value and not is_by_pixel(value):
            index = names.index(_ORDER)
            if index < len(node.args):
                node.update_arg(index, torch.contiguous_format)
            else:
                node.update_kwarg(_ORDER, torch.contiguous_format)
            node.meta["val"] = ordered
    program.graph_module.recompile()


def _write_rows_of_buffers(program: torch.export.ExportedProgram) -> None:
    """Writes to buffers by Python's index, `cache[:, place] = values`, as `index_copy_` does it.

    Python takes the first dimensions of the values away where they are 1, and places may count from
    the end. ExecuTorch's kernel that writes in place has neither.
    """
    graph, counted = program.graph, dict[tuple[Node, int], Node]()
    for writing in graph.find_nodes(op="call_function", target=_aten.index_put_.default):
        buffer, indices, values = writing.args[:3]
        dims = [dim for dim, index in enumerate(indices) if index is not None]
        if buffer.target not in program.graph_signature.inputs_to_buffers or len(dims) != 1:
            continue
        index, size = indices[dims[0]], buffer.meta["val"].shape[dims[0]]
        if index.meta["val"].dim() != 1 or index.meta["val"].dtype != torch.int64:
            continue
        call = partial(_call, writing)
        with graph.inserting_before(writing):
            if (index, size) not in counted:
                negative = call(_aten.lt.Scalar, index, 0)
                from_end = call(_aten.add.Scalar, index, size)
                counted[index, size] = call(_aten.where.self, negative, from_end, index)
            for _ in range(buffer.meta["val"].dim() - values.meta["val"].dim()):
                values = call(_aten.unsqueeze.default, values, 0)
        places = [*indices[: dims[0]], counted[index, size], *indices[dims[0] + 1 :]]
        writing.args = (buffer, places, values, *writing.args[3:])


def _call(like: Node, operator: Any, *args: Any) -> Node:
    """A new node, which is described like another one."""
    node = like.graph.call_function(operator, args)
    values = map_arg(args, lambda each: each.meta["val"])
    node.meta = {**like.meta, "val": operator(*values)}
    return node


_EMPTY = (_aten.empty.memory_format, _aten.new_empty.default, _aten.empty_like.default)


def _concatenate_parts(graph: torch.fx.Graph) -> None:
    """Concatenates what a model writes to all parts of an empty tensor, `x[..., :n] = a`.

    ExecuTorch stores the empty tensor as a constant, with whatever its memory has.
    """
    for target in _EMPTY:
        for empty in graph.find_nodes(op="call_function", target=target):
            if written := _written_parts(empty):
                _concatenate(graph, empty, written)


def _written_parts(empty: Node) -> list[Node]:
    """The slices of a tensor that one copy each is written to, in order; none if others read it.

    They make up the whole tensor, along one dimension, before anything else reads it.
    """
    place = {node: index for index, node in enumerate(empty.graph.nodes)}
    slices = [node for node in empty.users if _is_written_once(node)]
    readers = [node for node in empty.users if node not in slices]
    slices.sort(key=lambda node: int(node.args[2]))
    dims = {node.args[1] for node in slices}
    if not slices or len(dims) > 1 or _has_dynamic_size(empty.meta["val"]):
        return []
    size = empty.meta["val"].shape[dims.pop()]
    ends = [min(int(node.args[3]), size) for node in slices]
    if [int(node.args[2]) for node in slices] != [0, *ends[:-1]] or ends[-1] != size:
        return []
    last = max(place[next(iter(node.users))] for node in slices)
    return slices if all(place[reader] > last for reader in readers) else []


def _is_written_once(node: Node) -> bool:
    if node.target is not _aten.slice.Tensor or len(node.args) != 4 or len(node.users) != 1:
        return False
    [writing] = node.users
    copies = writing.target is _aten.copy_.default and writing.args[0] is node
    ints = all(isinstance(each, int) and each >= 0 for each in node.args[2:])
    return copies and ints and not writing.users and _dtype(writing.args[1]) == _dtype(node)


def _dtype(value: Any) -> Any:
    return value.meta["val"].dtype if isinstance(value, Node) else None


def _concatenate(graph: torch.fx.Graph, empty: Node, slices: list[Node]) -> None:
    copies = [next(iter(node.users)) for node in slices]
    last = max(copies, key=list(graph.nodes).index)
    with graph.inserting_before(last.next):
        parts = []
        for node, copy in zip(slices, copies, strict=True):
            part, shape = copy.args[1], list(node.meta["val"].shape)
            same = list(part.meta["val"].shape) == shape
            parts.append(part if same else _call(last, _aten.expand.default, part, shape))
        whole = _call(last, _aten.cat.default, parts, slices[0].args[1])
    empty.replace_all_uses_with(whole, lambda user: user not in slices)
    for node in (*copies, *slices, empty):
        graph.erase_node(node)


def _has_dynamic_size(value: torch.Tensor) -> bool:
    return any(isinstance(size, torch.SymInt) for size in value.shape)


def trace_failure(error: BaseException, *, strict: bool) -> ExportFailure:
    """What torch.export's exception means for the user."""
    place, operator = _place(error), failing_operator(error)
    if _is_about_values(error):
        message = (
            "torch.export cannot trace the model: what it does, or a shape in it, depends on the "
            "values of a tensor, which are not known at export"
        )
        return failure_at(
            place, "data-dependent", message, operator=operator, remedy=_VALUES_REMEDY
        )
    if _is_about_shapes(error):
        message = f"the dynamic shapes do not fit the model: {_brief(error)}"
        return failure_at(place, "dynamic-shapes", message, remedy=_SHAPES_REMEDY)
    message = f"torch.export cannot trace the model: {_brief(error)}"
    remedy = user_remedy(error, "trace") or (None if strict else _STRICT_REMEDY)
    return failure_at(place, "trace", message, operator=operator, remedy=remedy)


def failing_operator(error: BaseException) -> str | None:
    """The operator that torch was working on, from the exception or the frames of its traceback."""
    for current in causes(error):
        if name := _operator_name(getattr(current, "func", None)):
            return name
        frames = list(traceback.walk_tb(current.__traceback__))
        for frame, _ in reversed(frames):
            if is_user_file(frame.f_code.co_filename):
                break  # further out are the operators that called the user's code
            if name := _operator_name(frame.f_locals.get("func")):
                return name
    return None


def stack_line(stack: str | None) -> SourceLine:
    """The innermost line of the user's code in a graph node's `stack_trace`."""
    return _line_in_text(stack or "")


def failure_of_node(
    node: Node,
    kind: FailureKind,
    message: str,
    *,
    operator: str | None = None,
    remedy: str | None = None,
) -> WorkerError:
    """A failure at the line of the user's code that a graph's node is of."""
    place = stack_line(node.meta.get("stack_trace"))
    return WorkerError(failure_at(place, kind, message, operator=operator, remedy=remedy))


def _place(error: BaseException) -> SourceLine:
    """The user's line: from the traceback, or as TorchDynamo tells it."""
    place = user_line(error)
    for current in causes(error):
        # TorchDynamo follows the user's code without running it, and keeps the stack apart.
        stack = getattr(current, "real_stack", None) or ()
        text = "".join(f'File "{f.filename}", line {f.lineno}\n' for f in stack)
        place = place if place[0] else _line_in_text(text or str(current))
    return place


def _operator_name(function: object) -> str | None:
    if isinstance(function, torch._ops.OpOverload):
        return str(function.name())
    if isinstance(function, BuiltinFunctionType):
        return f"torch.{function.__name__}"
    if isinstance(function, MethodDescriptorType | WrapperDescriptorType):
        return f"Tensor.{function.__name__}"
    return None


def _line_in_text(text: str) -> SourceLine:
    """TorchDynamo and graph nodes tell their stack as text, innermost last."""
    import linecache

    for file, number in reversed(_IN_STACK.findall(text)):
        if is_user_file(file):
            return file, int(number), linecache.getline(file, int(number)).strip() or None
    return None, None, None


def _is_about_values(error: BaseException) -> bool:
    from torch._subclasses.fake_tensor import DataDependentOutputException
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    kinds = (GuardOnDataDependentSymNode, DataDependentOutputException)
    texts = ("data-dependent", "Data-dependent")
    return any(isinstance(e, kinds) or any(t in str(e)[:200] for t in texts) for e in causes(error))


def _is_about_shapes(error: BaseException) -> bool:
    from torch.fx.experimental.symbolic_shapes import ConstraintViolationError

    texts = ("dynamic_shapes", "Constraints violated", "marked as dynamic", "not in range [")
    return isinstance(error, ConstraintViolationError) or any(t in str(error) for t in texts)


def _brief(error: BaseException) -> str:
    """The exception's first line, and what explains it in the lines that follow."""
    lines = [line.strip() for line in str(error).splitlines()]
    points = [_point(line) for line in lines[1:] if line.startswith(("- ", "Explanation:"))][:3]
    # The documentation's address and hints on logging follow in the same line.
    head = re.split(r" For more (?:information|about)", first_line(error))[0]
    return ": ".join([head or type(error).__name__, *points])


def _point(line: str) -> str:
    text = line.removeprefix("Explanation:").removeprefix("-").strip()
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def node_place(program: torch.export.ExportedProgram, operator: str) -> SourceLine:
    """The user's line that calls an operator, from the graph of a traced program."""
    for node in program.graph.nodes:
        if node.op == "call_function" and schema_name(node.target) == operator:
            return stack_line(node.meta.get("stack_trace"))
    return None, None, None


def schema_name(target: object) -> str | None:
    """`aten::add`, without the overload, of an ATen or edge operator."""
    schema = getattr(target, "_schema", None) or getattr(
        getattr(target, "_op", None), "_schema", None
    )
    return str(schema.name) if schema is not None else None


aten = torch.ops.aten
Pair = tuple[Node, Node]
Call = Callable[..., Node]
# Move or repeat values, and look at none: each part goes through them by itself.
_MOVING = frozenset({
    aten.unsqueeze.default, aten.squeeze.dim, aten.slice.Tensor, aten.select.int,
    aten.transpose.int, aten.permute.default, aten.expand.default, aten.clone.default,
    aten.alias.default, aten.detach.default,
})  # fmt: skip
# Of these, a copy to the same type changes nothing.
_COPYING = frozenset({
    aten.to.device, aten.to.dtype, aten.to.dtype_layout, aten._to_copy.default,
})  # fmt: skip
_CHECK = aten._assert_tensor_metadata.default


def real_numbers(program: torch.export.ExportedProgram) -> None:
    """Computes with pairs in place of complex numbers; in place.

    Nothing is changed where an operator is not known here: lowering reports it.
    """
    nodes = [node for node in program.graph.nodes if _meets_complex(node)]
    if not nodes or not all(_is_known(node) for node in nodes):
        return
    pairs: dict[Node, Pair] = {}
    for node in nodes:
        with program.graph.inserting_before(node):
            _rewrite(node, pairs)
    for node in reversed(nodes):
        program.graph.erase_node(node)
    program.graph_module.recompile()


def _meets_complex(node: Node) -> bool:
    return any(_is_complex(each) for each in (node, *node.all_input_nodes))


def _is_complex(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_complex()


def _is_known(node: Node) -> bool:
    if node.target in _COPYING:
        return bool(node.meta["val"].dtype == node.all_input_nodes[0].meta["val"].dtype)
    if node.target in _HANDLERS:
        return not node.kwargs
    return node.target in _MOVING or node.target is _CHECK


def _rewrite(node: Node, pairs: dict[Node, Pair]) -> None:
    """Adds what takes the node's place: a pair, or a real value for those that use it."""

    def call(operator: Any, *args: Any, **kwargs: Any) -> Node:
        made = node.graph.call_function(operator, args, kwargs)
        made.meta = dict(node.meta)
        given = map_arg(args, lambda each: each.meta["val"])
        made.meta["val"] = operator(*given, **kwargs)
        return made

    parts = [pairs.get(each, each) if isinstance(each, Node) else each for each in node.args]
    if node.target is _CHECK:
        return
    if node.target in _COPYING:
        pairs[node] = parts[0]
    elif node.target in _MOVING:
        real, imaginary = (call(node.target, p, *node.args[1:], **node.kwargs) for p in parts[0])
        pairs[node] = (real, imaginary)
    else:
        made = _HANDLERS[node.target](call, *parts)
        if isinstance(made, Node):
            node.replace_all_uses_with(made)
        else:
            pairs[node] = made


def _polar(call: Call, length: Node, angle: Node) -> Pair:
    return (
        call(aten.mul.Tensor, length, call(aten.cos.default, angle)),
        call(aten.mul.Tensor, length, call(aten.sin.default, angle)),
    )


def _as_complex(call: Call, values: Node) -> Pair:
    return call(aten.select.int, values, -1, 0), call(aten.select.int, values, -1, 1)


def _as_real(call: Call, pair: Pair) -> Node:
    return call(aten.stack.default, list(pair), -1)


def _product(call: Call, a: Any, b: Any) -> Pair:
    mul = aten.mul.Tensor
    if not isinstance(a, tuple):
        a, b = b, a
    if not isinstance(b, tuple):
        return call(mul, a[0], b), call(mul, a[1], b)
    return (
        call(aten.sub.Tensor, call(mul, a[0], b[0]), call(mul, a[1], b[1])),
        call(aten.add.Tensor, call(mul, a[0], b[1]), call(mul, a[1], b[0])),
    )


_HANDLERS: dict[Any, Callable[..., Pair | Node]] = {
    aten.polar.default: _polar,
    aten.view_as_complex.default: _as_complex,
    aten.view_as_real.default: _as_real,
    aten.mul.Tensor: _product,
}
