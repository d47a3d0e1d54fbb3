"""In which order XNNPACK's operators take an image's values: by pixel (NHWC), or by channel.

What follows a convolution stays by pixel where ExecuTorch's pass takes the order for indifferent.
That of ExecuTorch 1.5.1 takes it so for a softmax, too, which is then one over channels, whatever
its dimension: outputs are wrong.

Where activations are quantized at run time, the pass looks for what to copy for a convolution by
following first operands, past the quantization and up to the start of the partition. It turns that
round for all who take it: a layer scale has no four dimensions, and the lowering fails; a LayerNorm
by pixel gets another shape, and the program fails when it runs.

XNNPACK packs what it quantizes for a matrix product, also for a convolution of one pixel. A larger
convolution that takes the same tensor reads it as if it were not packed, and outputs are wrong.

A convolution of one dimension that stays in floats beside quantized ones gets quantized inputs and
outputs by ExecuTorch's pass, with weights in floats: the program does not load.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import executorch.backends.xnnpack.xnnpack_preprocess as preprocess
import executorch.exir.backend.backend_api as backend_api
import torch
from executorch.backends.xnnpack._passes import XNNPACKPassManager
from executorch.backends.xnnpack._passes.channels_last_tagged_reshape_pass import (
    ChannelsLastTaggedReshapePass,
)
from executorch.backends.xnnpack._passes.conv1d_unsqueeze_pass import Conv1dUnsqueezePass
from executorch.backends.xnnpack._passes.remove_noop_expand_copy_pass import (
    RemoveNoopExpandCopyPass,
)
from executorch.backends.xnnpack._passes.xnnpack_pass import XNNPACKPass
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.utils.quant_utils import is_dequant, is_dynamic_qdq
from executorch.exir.backend.canonical_partitioners.config_partitioner import format_target_name
from executorch.exir.dialects._ops import ops
from executorch.exir.graph_module import contains_any_call_fn_target_op
from executorch.exir.pass_base import ExportPass
from executorch.exir.program._program import _update_exported_program_graph_module
from torch.export import ExportedProgram
from torch.export.decomp_utils import CustomDecompTable
from torch.export.graph_signature import ExportGraphSignature
from torch.fx.passes.infra.pass_base import PassResult

from etdeploy.export.worker.backends.base import REASON, patched

_NORMALIZED = ("aten.native_batch_norm.", "aten._native_batch_norm_legit_no_training.")
# By the name of the pass: it changes nothing where a partition has no such operator.
_NEEDED_FOR: dict[str, tuple[str, ...]] = {
    "DimOrderOpsRevertPass": ("dim_order_ops.",),
    "ConvertToUpsampleBilinear2d": ("aten.upsample_bilinear2d.", "aten.index.", "aten._unsafe_"),
    # Its pattern scales queries and keys by a number.
    "ConvertToSDPAPass": ("aten.mul.Scalar",),
    "FuseBatchNormPass": _NORMALIZED,
    "DecomposeBatchNorm": _NORMALIZED,
    "DecomposeConcatenate": ("aten.cat.",),
    "InsertPadQDQPass": ("aten.constant_pad_nd.",),
    "Conv1dInItsType": ("aten.convolution.",),
    "PReLUReshapePass": ("aten._prelu_kernel.", "aten.prelu."),
}
# What a graph is made of, as far as a pass can change it: its nodes, and what each is given.
_Shape = list[tuple[torch.fx.Node, Any, Any, Any]]


class NeededPasses(XNNPACKPassManager):  # type: ignore[misc]
    """Without those that look for operators that the partition does not have.

    Every pass runs, as in ExecuTorch, unless it `skips`.
    """

    skips = True

    def transform(self) -> torch.export.ExportedProgram:
        """The program after all passes; it is checked and traced again only where one changed it.

        ExecuTorch checks the program twice for each pass.
        """
        if not self.skips:
            return super().transform()
        program = self.exported_program
        for kind in self.passes:
            graph = program.graph_module
            if not _is_needed(kind, graph.graph):  # asked now: an earlier pass may make operators
                continue
            before = _shape(graph)
            made = _made(kind, program, before)(graph)
            if made.graph_module is not graph or _shape(graph) != before:
                program = _update_exported_program_graph_module(program, made.graph_module)
        return program


class _TracesChanges(ExportPass):  # type: ignore[misc]
    """Stands between a pass and ExportPass, whose `call` traces the graph again."""

    before: _Shape

    def call(self, graph_module: torch.fx.GraphModule) -> PassResult:
        if _shape(graph_module) == self.before:
            return PassResult(graph_module, False)
        return super().call(graph_module)


def _made(kind: type[ExportPass], program: torch.export.ExportedProgram, before: _Shape) -> Any:
    """The pass; one that changes the graph itself does not trace it where it has not.

    One that inherits `call` makes its changes while it traces.
    """
    if kind.call is not ExportPass.call:
        kind = type(kind.__name__, (kind, _TracesChanges), {"before": before})
    return kind(program) if issubclass(kind, XNNPACKPass) else kind()


def _shape(graph: torch.fx.GraphModule) -> _Shape:
    return [(node, node.target, node.args, node.kwargs) for node in graph.graph.nodes]


def _is_needed(kind: type[ExportPass], graph: torch.fx.Graph) -> bool:
    if kind.__name__ == "ConstPropPass":  # which takes no inputs of the graph for constants
        return any(not node.all_input_nodes for node in graph.nodes if node.op != "placeholder")
    wanted = _NEEDED_FOR.get(kind.__name__)
    names = (getattr(n.target, "__name__", "") for n in graph.nodes if n.op == "call_function")
    return wanted is None or any(name.startswith(wanted) for name in names)


_quantized = torch.ops.quantized_decomposed


def own_quantizations(program: torch.export.ExportedProgram) -> None:
    """Gives operators of unlike kinds that share a dynamic quantization one each; in place."""
    for node in list(program.graph.nodes):
        if node.target is _quantized.dequantize_per_tensor.tensor:
            _share_among_alike(program.graph, node)
    program.graph_module.recompile()


def _share_among_alike(graph: torch.fx.Graph, dequantized: torch.fx.Node) -> None:
    kinds: dict[str, list[torch.fx.Node]] = {}
    for user in dequantized.users:
        kinds.setdefault(_kind(user), []).append(user)
    quantized: Any = dequantized.args[0]
    for users in [*kinds.values()][1:]:
        with graph.inserting_after(dequantized):
            own = graph.node_copy(quantized)
        with graph.inserting_after(own):
            copy = graph.node_copy(dequantized)
        copy.replace_input_with(quantized, own)
        for user in users:
            user.replace_input_with(dequantized, copy)


def _kind(node: torch.fx.Node) -> str:
    """Alike are those that XNNPACK computes with one kind of kernel."""
    if "conv" not in str(node.target):
        return str(node.target)
    weight: Any = node.args[1]
    return str((node.target, tuple(weight.meta["val"].shape[2:]), node.args[3:], node.kwargs))


class Conv1dInItsType(Conv1dUnsqueezePass):  # type: ignore[misc]
    """Quantizes around a convolution only if its weights are quantized."""

    def insert_q_dq_pair(
        self, graph: torch.fx.Graph, anchor: torch.fx.Node, q_params: tuple[Any, ...]
    ) -> None:
        is_output = anchor.target is ops.edge.aten.convolution.default
        convolution = anchor if is_output else next(iter(anchor.users))
        if is_dequant(convolution.args[1]):
            super().insert_q_dq_pair(graph, anchor, q_params)


class SoftmaxByChannel(ChannelsLastTaggedReshapePass):  # type: ignore[misc]
    """Gives a softmax, which is over the last dimension, the tensor in the order of its sizes."""

    def requires_nchw_inputs(self, node: torch.fx.Node) -> bool:
        return node.target is ops.edge.aten._softmax.default or bool(
            super().requires_nchw_inputs(node)
        )


class CopiesWhatIsQuantized(SoftmaxByChannel):
    """Copies the tensor whose values are quantized, for that quantization alone."""

    def input_to_nhwc(
        self, graph_module: torch.fx.GraphModule, input_node: torch.fx.Node, target: torch.fx.Node
    ) -> None:
        chain = _chain(input_node)
        if chain is None or not all(map(self.requires_nhwc_input, input_node.users)):
            super().input_to_nhwc(graph_module, input_node, target)
            return
        source, taking = chain
        if self.is_nhwc_node(source):
            return
        copy = source.meta.get(self.PARTNER_NODE)
        if copy is None:
            with graph_module.graph.inserting_after(source):
                copy = self.create_call_function_node(
                    graph_module=graph_module,
                    target=ops.edge.aten._to_copy.default,
                    args=(source,),
                    memory_format=torch.channels_last,
                )
            self.mark_as_nhwc_node(copy)
            self.make_partners(source, copy)
        for node in taking:
            node.replace_input_with(source, copy)


def _chain(node: torch.fx.Node) -> tuple[torch.fx.Node, list[torch.fx.Node]] | None:
    """What a dynamic dequantization's values were, and the nodes of its chain that take them.

    None for any other node, and where several dequantizations share what was quantized.
    """
    quantized: Any = node.args[0] if node.args else None
    if not is_dynamic_qdq(node) or not isinstance(quantized, torch.fx.Node):
        return None
    if not is_dynamic_qdq(quantized) or len(quantized.users) > 1:
        return None
    source: Any = quantized.args[0]
    choices = [each.args[0] for each in quantized.all_input_nodes[1:] if each.args]
    chosen = [each for each in choices if isinstance(each, torch.fx.Node) and source in each.args]
    return source, list(dict.fromkeys([quantized, *chosen]))


class _Passes(NeededPasses):
    layouts: type[SoftmaxByChannel] = SoftmaxByChannel

    def __init__(self, exported_program: Any, passes: Any = None) -> None:
        super().__init__(exported_program, passes)
        other = {
            ChannelsLastTaggedReshapePass: self.layouts,
            Conv1dUnsqueezePass: Conv1dInItsType,
        }
        every: list[Any] = vars(self)["passes"]
        self.passes = [other.get(each, each) for each in every]


def preprocessing_by_layout(
    *, is_dynamic: bool = False, skips: bool = True
) -> AbstractContextManager[None]:
    """While the block runs, ExecuTorch's preprocessing has the passes above."""
    layouts = CopiesWhatIsQuantized if is_dynamic else SoftmaxByChannel
    passes = type("_Passes", (_Passes,), {"layouts": layouts, "skips": skips})
    return patched(preprocess, XNNPACKPassManager=passes)


@contextmanager
def without_idle_work() -> Iterator[None]:
    """While the block runs, ExecuTorch does less for XNNPACK that changes nothing."""
    with decompositions_with_work(), _signatures_read_once(), _copies_removed_if_any():
        yield


# Of `ExportGraphSignature`, which makes each anew whenever it is read.
_READ = (
    "inputs_to_parameters", "inputs_to_buffers", "inputs_to_lifted_tensor_constants",
    "buffers_to_mutate",
)  # fmt: skip
_TAGGED = "_get_node_list_with_same_tag"


@contextmanager
def _signatures_read_once() -> Iterator[None]:
    """What changes no program asks for each of its nodes what the inputs are."""
    with (
        patched(XnnpackPartitioner, partition=_reading_once(XnnpackPartitioner.partition)),
        patched(backend_api, **{_TAGGED: _reading_once(getattr(backend_api, _TAGGED))}),
    ):
        yield


def _reading_once(run: Callable[..., Any]) -> Callable[..., Any]:
    def read_once(*args: Any) -> Any:
        known: dict[tuple[str, int], tuple[Any, Any]] = {}

        def remembered(name: str) -> property:
            read = vars(ExportGraphSignature)[name].fget

            def get(signature: ExportGraphSignature) -> Any:
                key = name, id(signature)
                if key not in known:
                    known[key] = signature, read(signature)
                return known[key][1]

            return property(get)

        with patched(ExportGraphSignature, **{name: remembered(name) for name in _READ}):
            return run(*args)

    return read_once


def _copies_removed_if_any() -> AbstractContextManager[None]:
    """A pass that has nothing to remove traces the whole graph again."""
    remove = RemoveNoopExpandCopyPass.call

    def call(self: RemoveNoopExpandCopyPass, graph: torch.fx.GraphModule) -> PassResult:
        if any(self._is_noop_expand_copy(node) for node in graph.graph.nodes):
            return remove(self, graph)
        return PassResult(graph, False)

    return patched(RemoveNoopExpandCopyPass, call=call)


@contextmanager
def decompositions_with_work() -> Iterator[None]:
    """While the block runs, a program is traced to decompose something, and for nothing else.

    Asked to make a program functional, it waits for the decomposition that always follows where a
    partitioner looks at each node: of the program, that one's `ops_to_not_decompose` reads nothing
    (exir/backend/canonical_partitioners/config_partitioner.py). A program that is decomposed
    already is functional, and stays so. ExecuTorch leaves out the same for backends that are asked
    about operators only (exir/program/_program.py).
    """
    before = ExportedProgram.run_decompositions
    decomposed: list[ExportedProgram] = []

    def run(self: ExportedProgram, table: Any = None, *args: Any, **kwargs: Any) -> ExportedProgram:
        if _is_empty(table):
            return self
        known = any(each is self for each in decomposed)
        if known and table is not None and not _has_work(self, table):
            return self
        made = before(self, table, *args, **kwargs)
        decomposed.append(made)
        return made

    with patched(ExportedProgram, run_decompositions=run):
        yield


def _is_empty(table: Any) -> bool:
    # PyTorch's own table is an empty dict, too, until somebody reads it.
    return type(table) is dict and not table


def _has_work(program: ExportedProgram, table: Any) -> bool:
    operators = table.materialize() if isinstance(table, CustomDecompTable) else table
    return bool(contains_any_call_fn_target_op(program.graph_module, operators))


_LOGGER = "executorch.backends.xnnpack.partition.config"
_WRONG_TYPE = "invalid dtype"
_PAD = "constant_pad_nd.default"
_PAD_REASON = "XNNPACK does not load a pad from 8 bits to floats"
_NO_RULE = "XNNPACK's partitioner has no rule for the operator"
_OWN_KERNEL = "etdeploy's own kernel computes it"


class ExplainedPartitioner(XnnpackPartitioner):  # type: ignore[misc]
    """The same, which leaves its reason in `meta[REASON]` of each node that it does not take."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if pad := self.target_partitioner_configs.get(_PAD):
            takes = pad.check_constraints
            pad.check_constraints = lambda node, ep: not _changes_type(node) and takes(node, ep)

    def generate_partitions(self, ep: Any) -> Any:
        with _logged_reasons() as reasons:
            partitions = super().generate_partitions(ep)
        taken = {node for partition in partitions for node in partition.nodes}
        for node in ep.graph.nodes:
            left = node.op == "call_function" and node not in taken
            if left and (reason := self._reason(node, reasons)):
                node.meta[REASON] = reason
        return partitions

    def _reason(self, node: torch.fx.Node, reasons: dict[torch.fx.Node, str]) -> str | None:
        target = getattr(node.target, "__name__", str(node.target))
        if target.startswith("etdeploy."):
            return _OWN_KERNEL
        if format_target_name(target) not in self.target_partitioner_configs:
            return _NO_RULE
        if format_target_name(target) == _PAD and _changes_type(node):
            return _PAD_REASON
        reason = reasons.get(node)
        return _type_reason(node) if reason == _WRONG_TYPE else reason


def _changes_type(node: torch.fx.Node) -> bool:
    """Whether a node has quantized values, and not all that take its own quantize them."""
    given: Any = node.args[0]
    return _is_a("dequantize", given) and not all(_is_a("quantize", u) for u in node.users)


def _is_a(kind: str, node: torch.fx.Node) -> bool:
    name = getattr(node.target, "__name__", "").rpartition("::")[2]
    return name.removeprefix("quantized_decomposed.").startswith(f"{kind}_per")


def _type_reason(node: torch.fx.Node) -> str:
    values = [each.meta.get("val") for each in (*node.all_input_nodes, node)]
    dtypes = {str(v.dtype).removeprefix("torch.") for v in values if isinstance(v, torch.Tensor)}
    others = sorted(dtypes - {"float32", "float16"})
    if not others:
        return "XNNPACK does not take a shape or type of its tensors"
    return f"it has {' and '.join(others)} tensors, and XNNPACK takes floats here"


@contextmanager
def _logged_reasons() -> Iterator[dict[torch.fx.Node, str]]:
    """Collects the first reason that is logged for each node in the block."""
    reasons: dict[torch.fx.Node, str] = {}

    class Listening(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            # The message is the same object each time, so it is read at once.
            node, reason = getattr(record.msg, "node", None), getattr(record.msg, "reason", "")
            if isinstance(node, torch.fx.Node):
                reasons.setdefault(node, reason)

    logger, handler = logging.getLogger(_LOGGER), Listening()
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    try:
        yield reasons
    finally:
        logger.level, logger.propagate = before
        logger.removeHandler(handler)
