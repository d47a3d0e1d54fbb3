"""Patches of PyTorch's and ExecuTorch's lowering, which leave out the work that it repeats.

The program stays the same, byte for byte. Each patch is for the releases that are tested
(`export/needs.py`), and goes when upstream no longer repeats that work:

- `results_remembered`: every pass runs the whole graph again (pytorch/executorch pull request
  18497, open, copies what a pass does not change).
- `rarely_collected`, `code_when_wanted`, `shapes_of_quantization`, `dtypes_checked_once`,
  `origins_shared`, `tensors_shared`, `programs_checked_once`, `messages_short`,
  `hints_read_once`, `merges_checked_by_sets`, `delegates_known`, `sorted_in_place`: no upstream
  report is known.
"""

from __future__ import annotations

import copy
import gc
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache, partial
from operator import add, eq, floordiv, ge, gt, is_, le, lt, mod, mul, ne, sub, truediv
from types import SimpleNamespace
from typing import Any, get_type_hints

import executorch.exir._serialize._dataclass as dataclass_json
import executorch.exir.backend.backend_api as backend_api
import executorch.exir.backend.backend_details as backend_details
import executorch.exir.backend.canonical_partitioners.group_partitioner as group_partitioner
import executorch.exir.lowered_backend_module as lowered_backend_module
import executorch.exir.pass_base as pass_base
import executorch.exir.program._program as program
import executorch.exir.verification.verifier as verifier
import torch
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.dialects.edge._ops import EdgeOpOverload
from executorch.exir.pass_manager import ExportedProgramPassManager
from executorch.exir.verification.arg_validator import EdgeOpArgValidator
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.export.graph_signature import ExportGraphSignature
from torch.fx import GraphModule, Interpreter
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.fx.graph import _FindNodesLookupTable, _Namespace, _PyTreeCodeGen
from torch.fx.passes.utils.fuser_utils import validate_partition
from torch.fx.traceback import NodeSource
from torch.utils import _pytree as pytree

from etdeploy.export.worker.backends.base import patched

_VALUES = (int, float, bool, str, torch.dtype, torch.layout, torch.device, torch.memory_format)
_FAKE = torch._C._TorchDispatchModeKey.FAKE
# The shapes of what they give depend on more than what is asked of fake tensors, or each call gives
# another one.
_UNSURE = (
    torch.Tag.dynamic_output_shape,
    torch.Tag.data_dependent_output,
    torch.Tag.nondeterministic_seeded,
)


@contextmanager
def results_remembered() -> Iterator[None]:
    """While the block runs, passes and checks compute once what an operator gives of a tensor.

    A pass that changes a few operators runs the whole graph again, with the tensors of its
    inputs; what did not change gives what it gave in the pass before.
    """
    remembered, alike = _Remembered(), _RememberedByLook()
    base = pass_base._ExportPassBase
    step, call = base._fx, Interpreter.call_function

    def through(self: Any, *args: Any) -> Any:
        # Each graph gets a new interpreter, which runs the operators alone.
        if not isinstance(self.interpreter, _Runs):
            self.interpreter = _Runs(self.interpreter, remembered)
        return step(self, *args)

    def checked(self: EdgeOpArgValidator, *args: Any) -> Any:
        def remembering(own: Any, *given: Any) -> Any:
            return alike.call(partial(call, own), *given)

        with patched(Interpreter, call_function=remembering):
            return Interpreter.run(self, *args)

    with patched(base, _fx=through), patched(EdgeOpArgValidator, run=checked):
        yield


class _Runs:
    """Stands in for the interpreter with which a pass runs operators."""

    def __init__(self, interpreter: Any, remembered: _Remembered) -> None:
        self._interpreter, self._remembered = interpreter, remembered

    def __getattr__(self, name: str) -> Any:
        return getattr(self._interpreter, name)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        return self._remembered.call(self._interpreter.call_function, target, args, kwargs)


class _UnknownError(Exception):
    """An argument may differ in more than what is looked at here."""


class _Remembered:
    """Results by what they were computed of: the operator, the tensors themselves, the values."""

    def __init__(self) -> None:
        self._results: dict[Any, Any] = {}
        self._sure: dict[Any, bool] = {}
        # What is known by its id has to stay, or something else gets that id.
        self._kept: dict[int, Any] = {}

    def call(self, run: Callable[..., Any], target: Any, args: Any, kwargs: Any) -> Any:
        """The operator's result."""
        if not self._is_sure(target):
            return run(target, args, kwargs)
        try:
            # Without tensors among its arguments, the mode decides of what kind the result is.
            mode = torch._C._get_dispatch_mode(_FAKE)
            key = (_operator(target), self._key(mode), self._key(args), self._key(kwargs))
        except _UnknownError:
            return run(target, args, kwargs)
        if key in self._results:
            return self._results[key]
        result = run(target, args, kwargs)
        if all(_has_no_content(each) for each in pytree.tree_leaves(result)):
            self._results[key] = result
        return result

    def _is_sure(self, target: Any) -> bool:
        known = self._sure.get(target)
        if known is None:
            known = self._sure[target] = _is_function_of_shapes(target)
        return known

    def _key(self, value: Any) -> Any:
        if value is None or type(value) in _VALUES:
            return type(value), value  # 1, 1.0 and True are equal
        if isinstance(value, list | tuple):
            return tuple([self._key(each) for each in value])
        if isinstance(value, dict):
            return tuple([(name, self._key(each)) for name, each in value.items()])
        if isinstance(value, torch.SymInt):
            return "symbolic", value.node.expr, self._identity(value.node.shape_env)
        known = isinstance(value, FakeTensorMode | torch.nn.Module) or _has_no_content(value)
        if not known:
            raise _UnknownError
        return self._identity(value)

    def _identity(self, value: Any) -> int:
        self._kept[id(value)] = value
        return id(value)


class _RememberedByLook(_Remembered):
    """Results by what the tensors look like, for who looks at the results and keeps none of them.

    A model's layers are alike, so that a check of the graph computes one of them. In a graph that
    is made, each operator gives another tensor.
    """

    def _key(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not _has_no_content(value):
            return super()._key(value)
        memory = (tuple(value.shape), value.stride(), value.storage_offset())
        kind = (value.dtype, value.device, value.layout, value.requires_grad)
        views = (value.is_conj(), value.is_neg())
        return *kind, *views, self._key(memory), self._identity(value.fake_mode)


def _has_no_content(value: Any) -> bool:
    """Whether a result is a shape only; of constants, steps compute with the values."""
    if isinstance(value, torch.Tensor):
        return type(value) is FakeTensor and value.constant is None
    return isinstance(value, torch.SymInt | int)


def _operator(target: Any) -> Any:
    """ATen's, where ExecuTorch's dialect has another name for it."""
    return target._op if isinstance(target, EdgeOpOverload) else target


def _is_function_of_shapes(target: Any) -> bool:
    operator = _operator(target)
    if operator is executorch_call_delegate:
        return True
    if not isinstance(operator, torch._ops.OpOverload) or operator._schema.is_mutable:
        return False
    return not any(tag in operator.tags for tag in _UNSURE)


def origins_shared() -> AbstractContextManager[None]:
    """Where a node came from is kept in values that nobody changes, and that every step copied."""
    return patched(NodeSource, __deepcopy__=lambda self, _: self)


@contextmanager
def tensors_shared() -> Iterator[None]:
    """The copies of programs for the ETRecord and for each partition have no tensors of their own.

    Weights and caches would be in memory three times. No step writes into a tensor.
    """
    sharing = SimpleNamespace(copy=copy.copy, deepcopy=_copied)
    with patched(program, copy=sharing), patched(backend_details, copy=sharing):
        yield


def _copied(value: Any, memo: dict[int, Any] | None = None) -> Any:
    known = {id(tensor): tensor for tensor in _tensors(value)}
    return copy.deepcopy(value, known if memo is None else memo)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, program.EdgeProgramManager):
        for name in value.methods:
            yield from _tensors(value.exported_program(name))
    elif isinstance(value, torch.export.ExportedProgram):
        stored = (*value.state_dict.values(), *value.constants.values())
        yield from (each for each in stored if isinstance(each, torch.Tensor))


@contextmanager
def programs_checked_once() -> Iterator[None]:
    """A program is checked when it is made and when all partitions are lowered, not in between."""
    lower = backend_api._partition_and_lower_one_graph_module
    duplicate = backend_api._maybe_duplicate_constant_nodes

    def lower_all(graph: GraphModule, result: Any, owner: Any, *args: Any, **kwargs: Any) -> Any:
        with unchecked(owner):
            made = lower(graph, result, owner, *args, **kwargs)
        owner._validate()
        return made

    def duplicated(owner: Any, *args: Any, **kwargs: Any) -> Any:
        with unchecked(owner):
            return duplicate(owner, *args, **kwargs)

    with (
        patched(
            backend_api,
            _partition_and_lower_one_graph_module=lower_all,
            _maybe_duplicate_constant_nodes=duplicated,
        ),
        # What it checks is a program that is made, and the one that is made of it.
        patched(ExportedProgramPassManager, check=lambda *_: None),
    ):
        yield


@contextmanager
def unchecked(owner: Any) -> Iterator[None]:
    """A program, or those of a class, are not checked while the block runs."""
    with patched(owner, _validate=lambda *_: None):
        yield


@contextmanager
def messages_short() -> Iterator[None]:
    """Graphs are not written down for messages of a level that nobody reads."""
    readable = GraphModule.print_readable

    def printed(self: GraphModule, print_output: bool = True, *args: Any, **kwargs: Any) -> str:
        return readable(self, print_output, *args, **kwargs) if print_output else str(self)

    name = lambda module: type(module).__name__  # noqa: E731
    with patched(GraphModule, __str__=name, print_readable=printed):
        yield


def hints_read_once() -> AbstractContextManager[None]:
    """The types of a dataclass are read once, and not for each field of each object."""
    return patched(dataclass_json, get_type_hints=cache(get_type_hints))


def merges_checked_by_sets() -> AbstractContextManager[None]:
    """Whether two groups of nodes can be one partition, without a look at each node behind them."""

    def can_merge(self: Any, first: int, second: int, partitions: Mapping[int, Any]) -> bool:
        nodes = {*partitions[first].nodes, *partitions[second].nodes}
        users = {user for node in nodes for user in node.users} - nodes
        behind = self.dependency_viewer.downstreams_of
        apart = all(nodes.isdisjoint(behind(user)) for user in users)
        return apart and validate_partition(list(nodes))

    return patched(group_partitioner.GroupBasedPartitioner, _can_merge_partitions=can_merge)


@contextmanager
def delegates_known() -> Iterator[None]:
    """A delegate gives what the outputs of its graph are; no pass runs that graph again."""
    # Of its package, the attribute of that name is the operator.
    module = sys.modules["torch._higher_order_ops.executorch_call_delegate"]
    run = module.call_delegate_cpu

    def known(lowered: Any, *args: Any) -> Any:
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        results = lowered.original_module.graph.output_node().args[0]
        values = [result.meta.get("val") for result in results]
        fake = all(type(each) is FakeTensor for each in (*tensors, *values))
        # Of parameters that can be trained, a value in the graph requires a gradient.
        fake = fake and not any(each.requires_grad for each in values)
        if not fake or len({id(each.fake_mode) for each in (*tensors, *values)}) != 1:
            return run(lowered, *args)
        return values

    with patched(module, call_delegate_cpu=known):
        yield


# What torch.fx sorts to the front as soon as its inputs are there (`legalize_graph`).
_EARLY = frozenset((
    *(add, mul, sub, floordiv, truediv, mod, le, lt, ge, gt, eq, ne),
    torch.ops.aten.sym_constrain_range.default, torch.ops.aten.sym_constrain_range_for_size.default,
    torch.ops.aten._assert_async.msg, torch.ops.aten.scalar_tensor.default,
    torch.ops.aten._assert_scalar.default,
))  # fmt: skip


def sorted_in_place() -> AbstractContextManager[None]:
    """The graph that loses a partition is sorted; torch.fx copies every node for that."""
    copying = lowered_backend_module.legalize_graph

    def sort(module: GraphModule) -> GraphModule:
        order = _dependency_order(module.graph)
        if len(order) < len(module.graph.nodes):
            return copying(module)  # which reports the cycle
        _put_in_order(module.graph, order)
        module.recompile()
        return module

    return patched(lowered_backend_module, legalize_graph=sort)


def _dependency_order(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    """The nodes in the order in which `legalize_graph` of torch.fx visits them."""
    waits_for = {node: len(node.all_input_nodes) for node in graph.nodes}
    ready = deque(node for node, count in waits_for.items() if not count)
    order = []
    while ready:
        node = ready.popleft()
        order.append(node)
        for user in node.users:
            waits_for[user] -= 1
            if not waits_for[user]:
                early = user.op == "call_function" and user.target in _EARLY
                (ready.appendleft if early else ready.append)(user)
    return order


def _put_in_order(graph: torch.fx.Graph, order: Sequence[torch.fx.Node]) -> None:
    """Gives a graph what a new one would have, into which the nodes were copied in this order."""
    names, table = _Namespace(), _FindNodesLookupTable()
    before = root = graph._root
    for place, node in enumerate(order):
        node._prev, before._next, before = before, node, node
        node._sort_key = (place,)
        node.users.clear()
        names.create_name(node.name, node)
        table.insert(node)
        for source in node.all_input_nodes:
            source.users.setdefault(node)
    before._next, root._prev = root, before
    graph._graph_namespace, graph._find_nodes_lookup_table = names, table


@contextmanager
def dtypes_checked_once() -> Iterator[None]:
    """ExecuTorch runs each graph nine times to see whether types of tensors fit operators."""
    name, passed = "_check_tensor_args_matching_op_allowed_dtype", set[str]()
    check = getattr(verifier, name)

    def once(graph: torch.fx.GraphModule) -> None:
        text = "\n".join(_described(node) for node in graph.graph.nodes)
        if text not in passed:
            check(graph)
            passed.add(text)

    with patched(verifier, **{name: once}):
        yield


def _described(node: torch.fx.Node) -> str:
    value = node.meta.get("val") if node.op == "placeholder" else None
    dtype = getattr(value, "dtype", None)
    return f"{node.op} {node.name} {node.target} {node.args} {node.kwargs} {dtype}"


# What GraphModule.recompile makes of the graph, in the class that each of them has for itself or in
# the module.
_FORWARD = "forward"
_KEPT = ("_code", "_lineno_map", "_prologue_start")


@contextmanager
def code_when_wanted() -> Iterator[None]:
    """A module whose graph has changed is compiled when somebody calls it or reads its code.

    Each step of a lowering makes several modules, and torch compiles each at once. A module that
    is left over is compiled when it is called later, or never.
    """
    recompile = GraphModule.recompile
    with patched(GraphModule, recompile=lambda module: _postponed(module, recompile)):
        yield


class _Later:
    """Stands in a module's class for what is made of the graph, and makes it when it is read."""

    def __init__(self, module: GraphModule, recompile: Callable[..., Any], name: str) -> None:
        self._module, self._recompile, self._name = weakref.ref(module), recompile, name

    def __get__(self, instance: Any, owner: type) -> Any:
        module = self._module()
        self._recompile(module)
        made = vars(owner if self._name == _FORWARD else module)[self._name]
        return made if instance is None or self._name != _FORWARD else made.__get__(instance, owner)


class _Code:
    """What `recompile` returns, for the few who read it."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    def __getattr__(self, name: str) -> Any:
        return getattr(self._make(), name)


def _postponed(module: GraphModule, recompile: Callable[..., Any]) -> _Code:
    if isinstance(module._graph._codegen, _PyTreeCodeGen):
        module._in_spec = module._graph._codegen.pytree_info.in_spec
        module._out_spec = module._graph._codegen.pytree_info.out_spec
    for name in _KEPT:
        vars(module).pop(name, None)
        setattr(type(module), name, _Later(module, recompile, name))
    type(module).forward = _Later(module, recompile, _FORWARD)
    module._recompile_submodules()
    return _Code(lambda: recompile(module))


_INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32)
_IMPLICIT = torch._C.DispatchKey.CompositeImplicitAutograd
_FUNCTIONAL = torch._C._TorchDispatchModeKey.FUNCTIONAL

# What an operator gives, of what it was given by the names of its schema; None where that is not
# known here.
_Gives = Callable[[Mapping[str, Any]], Any]


@contextmanager
def shapes_of_quantization() -> Iterator[None]:
    """The operators of torchao give their shapes at once; of fake tensors nothing else is asked.

    There are no fake kernels for them: each is run as the ten operators that it is made of, and
    of a dynamic length with symbolic arithmetic.
    """
    with ExitStack() as stack:
        for each in _affine_operators():
            by_key = _shortened_of_key(each, each._op_dk)
            stack.enter_context(patched(each, _op=_Shortened(each, each._op), _op_dk=by_key))
        yield


def _affine_operators() -> dict[Any, _Gives]:
    import torchao.quantization.quant_primitives  # noqa: F401 - it registers them

    operators = torch.ops.torchao
    return {
        operators.choose_qparams_affine.default: _chosen,
        operators.quantize_affine.default: _quantized,
        operators.dequantize_affine.default: _dequantized,
    }


class _Shortened:
    """Stands in for what an operator runs."""

    def __init__(self, operator: Any, op: Callable[..., Any]) -> None:
        self._operator, self._before = operator, op

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = _given(self._operator, args, kwargs)
        return self._before(*args, **kwargs) if given is None else given

    def __hash__(self) -> int:
        # An operator's hash is that of what it runs, and ExecuTorch has tables of operators that
        # outlive the block.
        return hash(self._before)


def _shortened_of_key(operator: Any, op: Callable[..., Any]) -> Callable[..., Any]:
    """The same for a call that names its dispatch key, as fake tensors make it of the parts."""

    def call(key: Any, *args: Any, **kwargs: Any) -> Any:
        given = _given(operator, args, kwargs) if key == _IMPLICIT else None
        return op(key, *args, **kwargs) if given is None else given

    return call


def _given(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Fake tensors; None where the operator has to be run."""
    # What is being traced would see what is run instead of the operator.
    if get_proxy_mode() is not None or torch._C._get_dispatch_mode(_FUNCTIONAL) is not None:
        return None
    names = (argument.name for argument in operator._schema.arguments)
    values = {**dict(zip(names, args, strict=False)), **kwargs}
    tensors = [value for value in values.values() if isinstance(value, torch.Tensor)]
    # The value of a constant is known, and computed with.
    fake = all(type(t) is FakeTensor and t.constant is None for t in tensors)
    tensor = values["input"]  # of a pattern that is being written down, a torch.fx.Proxy
    if not fake or not isinstance(tensor, FakeTensor) or not tensor.is_contiguous():
        return None
    return _affine_operators()[operator](values)


def _chosen(values: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor] | None:
    from torchao.quantization.quant_primitives import _get_reduction_params

    if values.get("keepdim") or values["mapping_type"] != "ASYMMETRIC":
        return None
    tensor = values["input"]
    sizes, reduced = _get_reduction_params(values["block_size"], tensor.size())
    kept = [size for index, size in enumerate(sizes) if index not in reduced]
    scale = tensor.new_empty(kept, dtype=values.get("scale_dtype") or tensor.dtype)
    return scale, tensor.new_empty(kept, dtype=values.get("zero_point_dtype") or torch.int32)


def _quantized(values: Mapping[str, Any]) -> torch.Tensor | None:
    dtype = values["output_dtype"]  # types of fewer bits are stored in another one
    return torch.empty_like(values["input"], dtype=dtype) if dtype in _INTEGERS else None


def _dequantized(values: Mapping[str, Any]) -> torch.Tensor | None:
    if values["input_dtype"] not in _INTEGERS:
        return None
    return torch.empty_like(values["input"], dtype=values.get("output_dtype") or torch.float32)


# Objects between two looks for garbage. Python's 700 are a small part of one step's graph.
_COLLECTED_AFTER = 50_000


@contextmanager
def signatures_listed_once() -> Iterator[None]:
    """Inputs by parameter and buffer are listed again after a signature has changed only.

    ExecuTorch reads both lists for each input, and each weight that no delegate takes is one: with
    30 layers in kernels, 20 of 34 s of planning memory and writing the program. It is for these
    steps alone: copies of layers change specs in place before.
    """
    listed: dict[tuple[int, str], tuple[tuple[Any, ...], Mapping[str, str]]] = {}
    names = ("inputs_to_parameters", "inputs_to_buffers")
    renaming = ExportGraphSignature.replace_all_uses

    def once(name: str) -> property:
        listing = getattr(ExportGraphSignature, name).fget

        def read(self: ExportGraphSignature) -> Mapping[str, str]:
            specs, found = listed.get((id(self), name), ((), {}))
            same = len(specs) == len(self.input_specs) and all(map(is_, specs, self.input_specs))
            if not same:
                found = listing(self)
                listed[id(self), name] = tuple(self.input_specs), found
            return found

        return property(read)

    def rename(self: ExportGraphSignature, old: str, new: str) -> None:
        """Changes specs in place."""
        for name in names:
            listed.pop((id(self), name), None)
        renaming(self, old, new)

    changes = {name: once(name) for name in names}
    with patched(ExportGraphSignature, **changes, replace_all_uses=rename):
        yield


@contextmanager
def upstream_patches() -> Iterator[None]:
    """Apply all patches while the block runs."""
    with (
        rarely_collected(),
        code_when_wanted(),
        results_remembered(),
        shapes_of_quantization(),
        dtypes_checked_once(),
        origins_shared(),
        tensors_shared(),
        programs_checked_once(),
        messages_short(),
        hints_read_once(),
        merges_checked_by_sets(),
        delegates_known(),
        sorted_in_place(),
    ):
        yield


@contextmanager
def rarely_collected() -> Iterator[None]:
    """Looks for garbage less often, and not among what was there before."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECTED_AFTER, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
