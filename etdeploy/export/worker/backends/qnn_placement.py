"""Which nodes of a graph stay on the CPU, and why each does.

ExecuTorch asks Qualcomm's compiler about each node. What both accept and what then fails or gives
other values is refused here, as found by running it in the simulator (QNN 2.49, ExecuTorch 1.5.1).
"""

from __future__ import annotations

import functools
import re
import traceback
from collections.abc import Callable, Iterator, MutableMapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from typing import Any

import torch

from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.backends.base import REASON, patched
from etdeploy.export.worker.failures import WorkerError, exception_text, fail
from etdeploy.export.worker.lowering.lower_failures import capture_output
from etdeploy.export.worker.lowering.overrides import module_path
from etdeploy.export.worker.tracing.trace import failure_of_node

# 64-bit floats have a place in ExecuTorch's table, as 32-bit ones, whose bytes they do not have.
_DTYPES = frozenset(
    {torch.bool, torch.float16, torch.float32, torch.int8, torch.int16, torch.int32, torch.int64}
    | {torch.uint8, torch.uint16, torch.uint32}
)


@contextmanager
def placing() -> Iterator[None]:
    """Refuses more nodes than ExecuTorch does while it lasts; `meta[REASON]` of a node says why."""
    from executorch.backends.qualcomm.partition import qnn_partitioner as module

    asked = module.QnnOperatorSupport.is_node_supported
    parted = module.QnnPartitioner.generate_partitions
    kept_whole = module.filter_fn

    def is_supported(self: Any, submodules: Any, node: torch.fx.Node) -> bool:
        if node.op != "call_function":
            return False
        if failure := norm_failure(node):
            raise failure
        reason = own_reason(node) or _their_reason(
            self, node, lambda: bool(asked(self, submodules, node))
        )
        if reason:
            node.meta[REASON] = reason
        return reason is None

    def partitions(self: Any, program: Any) -> list[Any]:
        found = parted(self, program)
        changing = changing_nodes(program)
        for partition in found:
            leave_out_constants(partition.nodes, changing)
        return [partition for partition in found if partition.nodes]

    def keeps_whole(node: torch.fx.Node) -> bool:
        # The CPU has kernels for the parts only of what QNN takes whole.
        return _dtype_reason(node) is None and bool(kept_whole(node))

    with (
        patched(module.QnnOperatorSupport, is_node_supported=is_supported),
        patched(module.QnnPartitioner, generate_partitions=partitions),
        patched(module, filter_fn=keeps_whole),
    ):
        yield


def own_reason(node: torch.fx.Node) -> str | None:
    """Why a node must not run on the HTP although ExecuTorch would compile it."""
    if reason := _dtype_reason(node):
        return reason
    if any(_is_plain_byte(source) for source in node.all_input_nodes) and not _dequantizes(node):
        return "the HTP reads plain uint8 values as true or false"
    if len(_tensors(node)) > 1 and any(_is_used_index(user) for user in node.users):
        return "its second output is int64, and QNN writes 32 bits for each value"
    return None


# Found with QNN 2.49.40 for SM8750: of an RMS norm in 16-bit floats over at most 32 values, rows
# from the ninth on are zero, or a part of all where a row has 16 or more vectors; norms beside it
# with the same weights are wrong, too. Over 33 and more, and quantized, all were right.
_NARROW, _ROWS, _VECTORS = 32, 8, 15


def norm_failure(node: torch.fx.Node) -> WorkerError | None:
    """The refusal of an RMS norm, of the shape (..., rows, vectors, d), that the HTP gets wrong.

    Not left to the CPU, which has no kernel for it.
    """
    from executorch.backends.qualcomm.utils.constants import QCOM_QUANT_ATTRS

    if "aten.rms_norm" not in str(node.target) or node.meta.get(QCOM_QUANT_ATTRS):
        return None
    shape = tuple(node.meta["val"].shape)
    rows, vectors, values = (1, 1, 1, *shape)[-3:]
    if values > _NARROW or rows == 1 or (rows <= _ROWS and vectors <= _VECTORS):
        return None
    module = module_path(node)
    return failure_of_node(
        node,
        "operator",
        f"the HTP's compiler gets the RMS norm{module and ' '}{module} of the shape {shape} "
        f"wrong in 16-bit floats: over {_NARROW} values or fewer, some of its outputs are zero",
        operator="aten::rms_norm",
        remedy="Quantize the model: --set export.quantization=16a8w\n"
        f"or give the norm three dimensions, x.reshape(1, -1, {values}), and reshape its "
        "output.",
    )


def _dtype_reason(node: torch.fx.Node) -> str | None:
    values = [value for each in (*node.all_input_nodes, node) for value in _tensors(each)]
    dtypes = {value.dtype for value in values}
    if torch.float64 in dtypes:
        return "the HTP has no 64-bit floats"
    foreign = sorted(str(dtype).removeprefix("torch.") for dtype in dtypes - _DTYPES)
    return f"QNN has no {foreign[0]}" if foreign else None


def _dequantizes(node: torch.fx.Node) -> bool:
    """Whether a node gives weights that are stored as bytes: the compiler takes both as one."""
    return "dequantize" in str(node.target)


def _tensors(node: torch.fx.Node) -> list[torch.Tensor]:
    value = node.meta.get("val")
    values = value if isinstance(value, tuple | list) else [value]
    return [each for each in values if isinstance(each, torch.Tensor)]


def _is_plain_byte(node: torch.fx.Node) -> bool:
    """Whether a node gives bytes that stand for no quantized values."""
    from executorch.backends.qualcomm.utils.constants import QCOM_QUANT_ATTRS

    plain = not node.meta.get(QCOM_QUANT_ATTRS)
    return plain and any(value.dtype == torch.uint8 for value in _tensors(node))


def _is_used_index(node: torch.fx.Node) -> bool:
    """Whether a node takes one of several outputs, of 64-bit integers, and something uses it."""
    return bool(node.users) and any(value.dtype == torch.int64 for value in _tensors(node))


def _their_reason(support: Any, node: torch.fx.Node, ask: Callable[[], bool]) -> str | None:
    """Why ExecuTorch or Qualcomm's compiler refuses a node; None if both take it."""
    with capture_output() as said:
        try:
            if ask():
                return None
        except Exception as error:
            # For other backends as well, what cannot be converted is left to the CPU.
            traceback.print_exc()
            support.nodes_to_wrappers.clear()
            return f"ExecuTorch cannot convert it: {type(error).__name__}: {error}"
    if node.target.__name__ not in support.node_visitors:
        return "ExecuTorch's QNN backend has no such operator"
    return validation_reason(said()) or "ExecuTorch's QNN backend leaves it to the CPU"


def changing_nodes(program: torch.export.ExportedProgram) -> set[torch.fx.Node]:
    """The nodes whose values an inference can change: inputs, states, and what depends on them."""
    signature = program.graph_signature
    states = signature.buffers_to_mutate.values()
    fixed = {*signature.inputs_to_parameters, *signature.inputs_to_lifted_tensor_constants}
    fixed |= {node for node, buffer in signature.inputs_to_buffers.items() if buffer not in states}
    found: set[torch.fx.Node] = set()
    for node in program.graph.nodes:
        is_source = node.name not in fixed if node.op == "placeholder" else _is_random(node)
        if is_source or not found.isdisjoint(node.all_input_nodes):
            found.add(node)
    return found


def _is_random(node: torch.fx.Node) -> bool:
    operator = getattr(node.target, "_op", node.target)
    return torch.Tag.nondeterministic_seeded in getattr(operator, "tags", ())


def leave_out_constants(
    nodes: MutableMapping[torch.fx.Node, Any], changing: AbstractSet[torch.fx.Node]
) -> None:
    """Takes out of a partition what depends on no input and what something outside of it uses.

    QNN makes it a constant of the graph and no output, and the run fails since the program expects
    one more (`binds 2 tensors ... but ExecuTorch passed 3`). Of a partition that has no input at
    all, the compiler makes no context binary.
    """
    fixed = [node for node in nodes if node not in changing]
    above = [node for node in fixed if not set(node.users) <= nodes.keys()]
    if len(fixed) == len(nodes):
        above = fixed
    while above:
        node = above.pop()
        if node in nodes:
            del nodes[node]
            node.meta[REASON] = "its values are constant, and no output of a QNN partition may be"
            above += node.all_input_nodes


_ERROR = re.compile(r"^\[ERROR\] \[Qnn ExecuTorch\]: *(?:<E>)? *(.+)$", re.MULTILINE)
# That a node was refused, or where in the compiler, but not why.
_HOLLOW = re.compile(
    r"validateOpConfig|validateNativeOps|Failed to validate op|validation failed|not well formed"
    r"|^Requested I/O|^Supported I/O|^Please refer"
)
# `[4294967295] has incorrect Rank 6.`: the number stands for every tensor.
_PREFIX = re.compile(r"^\[\d+\] (?:has )?")
_LONGEST = 160
# `have mismatching datatypes. 0x232 != 0x408.`: of each its kind, and its bits in decimal digits.
_DATATYPES = re.compile(r"mismatching datatypes\. 0x(\d{3}) != 0x(\d{3})")
# Of a product of two 16-bit integers on SM8350: the generations of the HTP.
_GENERATIONS = re.compile(r"incorrect Value (6[89]|7[359]), expected >= (69|7[359]|81)\b")
_KINDS = {"0": "int", "1": "uint", "2": "float", "3": "sfixed", "4": "ufixed", "5": "bool"}


def validation_reason(text: str) -> str | None:
    """Why the compiler refuses a node: `the HTP's compiler: incorrect Rank 6`; None if unsaid."""
    for found in _ERROR.finditer(text):
        line = _DATATYPES.sub(_named_datatypes, _PREFIX.sub("", found[1].strip()))
        line = _GENERATIONS.sub(r"the operator needs HTP V\2 or newer, and this is V\1", line)
        if not _HOLLOW.search(line):
            sentence = line.partition(". ")[0].rstrip(".")
            return f"the HTP's compiler: {sentence[:_LONGEST]}"
    return None


def _named_datatypes(found: re.Match[str]) -> str:
    names = (f"{_KINDS.get(code[0], '?')}{int(code[1:])}" for code in found.groups())
    return f"mismatching datatypes ({' and '.join(names)})"


@functools.cache
def check_adaptor() -> None:
    """Hands an array to ExecuTorch's adaptor to the SDK, which takes weights as arrays only.

    An adaptor that was built with a pybind11 before 2.12 takes none of numpy 2 (16557). No SDK is
    needed for this.
    """
    import numpy as np

    try:
        from executorch.backends.qualcomm.python import PyQnnManagerAdaptor
    except ImportError as error:
        raise fail(
            "lowering",
            f"the installed ExecuTorch cannot compile for QNN: {error}",
            remedy="Install the wheel for Linux x86_64: pip install executorch",
        ) from error
    try:
        PyQnnManagerAdaptor.TensorWrapper(
            "probe",
            PyQnnManagerAdaptor.Qnn_TensorType_t.QNN_TENSOR_TYPE_STATIC,
            PyQnnManagerAdaptor.Qnn_DataType_t.QNN_DATATYPE_FLOAT_32,
            PyQnnManagerAdaptor.Qnn_QuantizationEncoding_t.QNN_QUANTIZATION_ENCODING_UNDEFINED,
            {},
            1,
            [1],
            [0],
            np.zeros(1, np.float32),
            True,
        )
    except (RuntimeError, TypeError) as error:
        raise fail(
            "lowering",
            f"ExecuTorch's adaptor to the QNN SDK takes no arrays of numpy {np.__version__}: "
            f"{str(error).splitlines()[0]}",
            remedy="pip install 'numpy<2'   or take ExecuTorch's wheel, whose adaptor takes "
            "numpy 2",
        ) from error


def chipset(spec: ExportSpec) -> Any:
    """ExecuTorch's value for the spec's SoC."""
    from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset

    known = {chipset.name: chipset for chipset in QcomChipset}
    if spec.soc not in known:
        raise fail(
            "lowering",
            f"ExecuTorch's QNN backend does not know the SoC {spec.soc!r}; it knows "
            + ", ".join(sorted(known)),
            remedy="Name the nearest one with --set export.soc=SM8650",
        )
    return known[spec.soc]


SHARING = "weight_sharing"


def shares(spec: ExportSpec) -> bool:
    """Whether the recipe requests that weights are stored once."""
    return bool(spec.options.get(SHARING))


@contextmanager
def explain_partitions() -> Iterator[None]:
    """Explains what `QnnBackend.preprocess_multimethod` asserts (ExecuTorch 1.5.1)."""
    try:
        yield
    except AssertionError as error:
        if "the same number of partitions" not in str(error):
            raise
        raise fail(
            "lowering",
            "the methods have different numbers of partitions, and ExecuTorch compiles the first "
            "of all methods into one context, the second into another, and so on",
            remedy="Let every method use operators that the HTP takes, so that each is one "
            "partition; or export\nthe methods as programs of their own.",
        ) from error


_CONVERTED = "etdeploy_converted"


@contextmanager
def conversions_by_node() -> Iterator[None]:
    """Lets values be converted between two quantizations whatever their operators are called.

    ExecuTorch notes at an operator which of its users take its value in another quantization, by
    their names. When a graph is copied, names change: such a user is then refused, or converts
    nothing.
    """
    from executorch.backends.qualcomm._passes import (
        AnnotateQuantAttrs,
        CanonicalizeConv,
        ConvertMhaToSha,
        InsertRequantize,
    )
    from executorch.backends.qualcomm.partition.qnn_partitioner import QnnPartitioner

    note, split, split_one = AnnotateQuantAttrs.call, ConvertMhaToSha.call, ConvertMhaToSha._split
    convert, parted = InsertRequantize.call, QnnPartitioner.generate_partitions
    canonicalize = CanonicalizeConv.call

    def noted(self: Any, graph_module: torch.fx.GraphModule) -> Any:
        found = note(self, graph_module)
        _mark_converted(found.graph_module.graph)
        return found

    def joined(self: Any, graph_module: torch.fx.GraphModule) -> Any:
        _rename_converted(graph_module.graph)
        take_parts(graph_module.graph)
        join_views(graph_module.graph)
        return split(self, graph_module)

    def canonical(self: Any, graph_module: torch.fx.GraphModule) -> Any:
        take_stored_weights(graph_module.graph)
        return canonicalize(self, graph_module)

    def one(self: Any, graph_module: Any, product: torch.fx.Node, *others: Any) -> None:
        try:
            split_one(self, graph_module, product, *others)
        except Exception as error:  # asserted, or indices and attributes that a node lacks
            raise unsplit_heads(product, error) from error

    def converted(self: Any, graph_module: torch.fx.GraphModule) -> Any:
        _rename_converted(graph_module.graph)
        return convert(self, graph_module)

    def partitions(self: Any, program: Any) -> Any:
        _rename_converted(program.graph)
        return parted(self, program)

    with (
        patched(AnnotateQuantAttrs, call=noted),
        patched(CanonicalizeConv, call=canonical),
        patched(ConvertMhaToSha, call=joined, _split=one),
        patched(InsertRequantize, call=converted),
        patched(QnnPartitioner, generate_partitions=partitions),
    ):
        yield


def _mark_converted(graph: torch.fx.Graph) -> None:
    """Gives each user that converts its operand the name that the operand knows it by."""
    from executorch.backends.qualcomm.utils.constants import QCOM_REQUANTIZE

    nodes = {node.name: node for node in graph.nodes}
    for node in nodes.values():
        for name in node.meta.get(QCOM_REQUANTIZE, ()):
            if name in nodes:
                nodes[name].meta[_CONVERTED] = name


def _rename_converted(graph: torch.fx.Graph) -> None:
    from executorch.backends.qualcomm.utils.constants import QCOM_REQUANTIZE

    for node in graph.nodes:
        known = node.meta.get(QCOM_REQUANTIZE)
        if not known:
            continue
        names = {user.meta.get(_CONVERTED): user.name for user in node.users}
        node.meta[QCOM_REQUANTIZE] = {names.get(old, old): each for old, each in known.items()}
    for node in graph.nodes:  # afterwards, since a user may convert several operands
        if _CONVERTED in node.meta:
            node.meta[_CONVERTED] = node.name


def join_views(graph: torch.fx.Graph) -> None:
    """Makes each view of a view one of what that is a view of.

    `ConvertMhaToSha` knows a projection as a convolution, a permutation and a view of four
    dimensions; a linear layer that became a convolution has another view between them.
    """
    from executorch.backends.qualcomm.utils.constants import QCOM_REQUANTIZE
    from executorch.exir.dialects._ops import ops

    view = ops.edge.aten.view_copy.default
    for node in graph.nodes:
        while node.target == view and (between := node.args[0]).target == view:
            source = between.args[0]
            node.replace_input_with(between, source)
            if (changed := between.meta.get(QCOM_REQUANTIZE, {}).pop(node.name, None)) is not None:
                source.meta.setdefault(QCOM_REQUANTIZE, {})[node.name] = changed
    graph.eliminate_dead_code()


def take_stored_weights(graph: torch.fx.Graph) -> None:
    """Lets convolutions take their weights without views that end in the shape they began with.

    `CanonicalizeConv` takes the weights of one-dimensional ones from the program, and fails where a
    node gives them, as in LFM2, whose layers drop and add a dimension.
    """
    from executorch.exir.dialects._ops import ops

    aten = ops.edge.aten
    views = {aten.squeeze_copy.dims, aten.unsqueeze_copy.default, aten.view_copy.default}
    for node in graph.nodes:
        if node.target != aten.convolution.default:
            continue
        source = weight = node.args[1]
        while source.target in views:
            source = source.args[0]
        same = source.meta["val"].shape == weight.meta["val"].shape
        if source is not weight and source.op == "placeholder" and same:
            node.replace_input_with(weight, source)
    graph.eliminate_dead_code()


def take_parts(graph: torch.fx.Graph) -> None:
    """Lets users of a slice of joined values take the one value that it is."""
    from executorch.backends.qualcomm.utils.constants import QCOM_REQUANTIZE
    from executorch.exir.dialects._ops import ops

    aten = ops.edge.aten
    for node in list(graph.nodes):
        if node.target != aten.slice_copy.Tensor or node.args[0].target != aten.cat.default:
            continue
        dim, start = (*node.args[1:3], 0, 0)[:2]
        parts, axis = (*node.args[0].args, 0)[:2]
        rank = node.meta["val"].dim()
        if dim % rank != axis % rank:
            continue
        at = 0
        for part in parts:
            size = part.meta["val"].shape[dim]
            if at == start and node.meta["val"].shape[dim] == size:
                part.meta.setdefault(QCOM_REQUANTIZE, {}).update(node.meta.get(QCOM_REQUANTIZE, {}))
                node.replace_all_uses_with(part)
                break
            at += size
    graph.eliminate_dead_code()


def unsplit_heads(product: torch.fx.Node, error: Exception) -> WorkerError:
    """The failure of `ConvertMhaToSha` at an attention, by the product of its weights and values.

    The pass takes the second dimension for the heads, whatever the product's rank is, and looks for
    the linear layer that each head is a part of.
    """
    module, shape = module_path(product), tuple(product.args[0].meta["val"].shape)
    if len(shape) == _ATTENTION_RANK:
        reason = (
            f"it finds no linear layer whose outputs are the {shape[1]} heads of its queries, keys "
            "or values alone, as where one layer gives all three"
        )
    else:
        reason = (
            f"its products have {len(shape)} dimensions, {shape}, as those of "
            "scaled_dot_product_attention, and the pass takes the second of four for the heads"
        )
    return failure_of_node(
        product,
        "lowering",
        f"ExecuTorch's pass ConvertMhaToSha cannot split the attention{module and ' in '}"
        f"{module} into single heads: {reason} ({exception_text(error)})",
        remedy="Leave its heads together: --set export.options.mha2sha=never",
    )


_ATTENTION_RANK = 4  # batch, heads, tokens, size of a head
