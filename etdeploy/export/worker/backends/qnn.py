"""Lowering to Qualcomm's QNN backend (HTP)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from etdeploy.backends.qnn.diagnostics import QNN_LOWERING_FAILURES
from etdeploy.backends.qnn.facts import IN_BLOCKS, PERFORMANCE_MODES
from etdeploy.backends.qnn.precision import precision_notes
from etdeploy.backends.schemes import FLOAT_SCHEMES
from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.backends.base import Lowering, Traced
from etdeploy.export.worker.backends.qnn_placement import (
    SHARING,
    changing_nodes,
    check_adaptor,
    chipset,
    conversions_by_node,
    explain_partitions,
    placing,
    shares,
)
from etdeploy.export.worker.backends.qnn_quantization import htp_quantizer
from etdeploy.export.worker.failures import WorkerError, fail
from etdeploy.export.worker.loading.source import MethodSource
from etdeploy.export.worker.rewrites.base import Log, Writer
from etdeploy.export.worker.rewrites.constants import (
    depends_on_inputs,
    folded_constants,
    makes_constant,
)
from etdeploy.export.worker.tracing.dims import dynamic_symbols
from etdeploy.export.worker.tracing.structure import ExampleInputs, leaves
from etdeploy.export.worker.tracing.trace import failure_of_node


class QnnLowering(Lowering):
    """ExecuTorch's quantizer and entry point for QNN."""

    apart = True
    fixed_shapes = True
    rotary_tables = True
    failures = QNN_LOWERING_FAILURES
    sharing = f"To store them once: --set export.options.{SHARING}=true"

    def quantizer(self, spec: ExportSpec) -> Any:
        """The PT2E quantizer of the scheme, for the spec's SoC."""
        return htp_quantizer(spec)

    def simplified(self, program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
        """With recurrent layers taken apart, and with constants in place of what gives them."""
        return simplified(program)

    def lower(self, spec: ExportSpec, methods: Mapping[str, Traced]) -> Any:
        """Compiles the model for the spec's SoC; an `EdgeProgramManager` with an ETRecord.

        Several methods are compiled into one context, and share weights there if the option says
        so: two linear layers of 1 MB take 2.2 MB for two methods without, 1.1 MB with it (SM8650,
        QNN 2.49).
        """
        check_adaptor()
        for method in methods.values():
            check_supported(method.source, method.program)
        from executorch.backends.qualcomm.utils.utils import to_edge_transform_and_lower_to_qnn

        specs, splits = compile_specs(spec, methods), splits_heads(spec, methods)
        taken = {n: positional(_lowered(each), each.source.inputs) for n, each in methods.items()}
        # Without gradients, as the model was traced: switching them is an operator, too.
        with placing(), explain_partitions(), conversions_by_node(), torch.no_grad():
            return to_edge_transform_and_lower_to_qnn(
                {name: each.module for name, each in taken.items()},
                {name: each.inputs for name, each in taken.items()},
                specs,
                # In a partition, the delegate keeps a state in memory that nothing initializes, and
                # a context does not share it between methods.
                skip_mutable_buffer=True,
                # The compiler takes linear layers in blocks, too, and their outputs are wrong
                # (QNN 2.49.40: cosine 0.7 for two layers). The pass that splits heads knows
                # projections as convolutions.
                convert_linear_to_conv2d=spec.quantization == IN_BLOCKS or splits,
                passes_job={name: passes_of(spec, each.source) for name, each in methods.items()},
                generate_etrecord=spec.etrecord,
            )

    def shares_weights(self, spec: ExportSpec) -> bool | None:
        """As the option says."""
        return shares(spec)

    def preload(self, scheme: str) -> None:
        """ExecuTorch's part for QNN, whose imports take seconds; nothing of Qualcomm's."""
        check_adaptor()
        import executorch.backends.qualcomm.quantizer.quantizer
        import executorch.backends.qualcomm.utils.utils  # noqa: F401

    def adjust(self, config: Any, spec: ExportSpec) -> None:
        """Aligns segments as the SDK requires of a context binary in the program."""
        from executorch.backends.qualcomm._passes.build_quant_io import BuildQuantIo
        from executorch.backends.qualcomm.utils.utils import get_qnn_context_binary_alignment

        if spec.generation and _quantizes_caches(spec):
            config.passes = [*config.passes, BuildQuantIo()]
        config.segment_alignment = int(get_qnn_context_binary_alignment())

    def notes(self, spec: ExportSpec) -> Iterator[str]:
        """In what the HTP computes floats."""
        yield from precision_notes(spec.quantization, spec.soc)


LOWERING = QnnLowering()

_aten = torch.ops.aten
# ExecuTorch's quantizer for QNN has no rule for them ("No quant config is implemented"), and what
# they consist of stays floats in a quantized model, of which the HTP refuses some operators.
_RECURRENT = (
    *(_aten.lstm, _aten.gru, _aten.rnn_tanh, _aten.rnn_relu),
    *(_aten.lstm_cell, _aten.gru_cell, _aten.rnn_tanh_cell, _aten.rnn_relu_cell),
)


def simplified(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The graph with recurrent layers taken apart, and constants computed; the same if it has none.

    QNN compiles no partition that takes no input, as one may be that only makes a causal mask.
    """
    targets = {node.target for node in program.graph.nodes if node.op == "call_function"}
    known = torch.export.default_decompositions()
    recurrent = {getattr(kind, name) for kind in _RECURRENT for name in kind.overloads()}
    parts = {operator: known[operator] for operator in recurrent & targets}
    if not (parts or _unbound(program) or any(map(makes_constant, program.graph.nodes))):
        return program
    made = program.run_decompositions(parts)
    # Its own: what is folded is taken out, and `program` may be looked at once more.
    made._constants = dict(made.constants)
    for node in _unbound(made):
        source, *dim = node.args
        for user in list(node.users):
            write = Writer(made, user)
            write.replace(write(_aten.select.int, source, *(dim or [0]), user.args[1]))
    folded_constants(made, Log().of("constants"))
    return made


def _unbound(program: torch.export.ExportedProgram) -> list[torch.fx.Node]:
    """Where constants are taken apart by unbind, at which ExecuTorch's AnnotateUnbind fails."""
    changing = changing_nodes(program)
    return [
        node
        for node in program.graph.nodes
        if node.target is _aten.unbind.int and node.args[0] not in changing
    ]


def _lowered(method: Traced) -> torch.nn.Module:
    """The module to compile; what is quantized was simplified before."""
    if method.source.is_text or method.module is not method.source.module:
        return method.module
    program = simplified(method.program)
    return method.module if program is method.program else program.module()


def splits_heads(spec: ExportSpec, methods: Mapping[str, Traced]) -> bool:
    """Whether attention is split into single heads: by itself, if it was written for that.

    Not where nodes are observed: with their values for outputs, the output projections are wrong.
    """
    if spec.observation and spec.observation.nodes != ():
        return False
    wanted = spec.options["mha2sha"]
    return wanted == "always" or (wanted == "auto" and has_static_cache(methods))


def has_static_cache(methods: Mapping[str, Traced]) -> bool:
    """Whether keys and values are inputs and outputs."""
    return any(method.source.caches for method in methods.values())


def _quantizes_caches(spec: ExportSpec) -> bool:
    """Whether keys and values are integers outside of the program, which `etdeploy diff` reads."""
    return spec.quantization not in FLOAT_SCHEMES and spec.observation is None


def passes_of(spec: ExportSpec, source: MethodSource) -> Any:
    """ExecuTorch's passes over a graph that is to be partitioned.

    A quantized model's keys and values stay integers between calls; without that, the HTP would
    quantize the whole cache for each token.
    """
    from executorch.backends.qualcomm._passes import TagQuantIO
    from executorch.backends.qualcomm._passes.qnn_pass_manager import get_qnn_pass_manager_cls
    from executorch.backends.qualcomm.utils.constants import (
        QCOM_DTYPE,
        QCOM_PASS_ACTIVATE_KEY,
        QCOM_PASS_ARGS_KWARGS_DEFAULTS_KEY,
        QCOM_QUANT_ATTRS,
    )

    passes = get_qnn_pass_manager_cls().get_capture_program_passes()
    if not source.caches or not _quantizes_caches(spec):
        return passes

    def dtype(node: torch.fx.Node) -> torch.dtype | None:
        nodes = node.graph.nodes
        caches = [each for each in nodes if each.op == "placeholder"][-source.caches :]
        new = next(iter(reversed(nodes))).args[0][-source.caches :]
        if node in caches or node in new:
            return node.meta[QCOM_QUANT_ATTRS][QCOM_DTYPE]
        return None

    passes[TagQuantIO][QCOM_PASS_ACTIVATE_KEY] = True
    passes[TagQuantIO][QCOM_PASS_ARGS_KWARGS_DEFAULTS_KEY]["get_quant_io_dtype_fn"] = dtype
    return passes


def compile_specs(spec: ExportSpec, methods: Mapping[str, Traced]) -> list[Any]:
    """The compile specs of every partition.

    Floats run as 16-bit floats: the HTP has no 32-bit ones. ExecuTorch takes QNN's profile level
    from the compiled program; the runner lowers it in the passes that trace nothing.
    """
    from executorch.backends.qualcomm.serialization.qc_schema import (
        QnnExecuTorchHtpPerformanceMode,
        QnnExecuTorchProfileLevel,
    )
    from executorch.backends.qualcomm.utils.utils import (
        generate_htp_compiler_spec,
        generate_qnn_executorch_compiler_spec,
    )

    level, mode = QnnExecuTorchProfileLevel, str(spec.options["performance_mode"])
    specs: list[Any] = generate_qnn_executorch_compiler_spec(
        soc_model=chipset(spec),
        backend_options=generate_htp_compiler_spec(
            use_fp16=spec.quantization in ("none", "fp16"),
            use_dlbc=bool(spec.options["dlbc"]),
            htp_performance_mode=QnnExecuTorchHtpPerformanceMode(PERFORMANCE_MODES[mode]),
            use_weight_sharing=len(methods) > 1 and shares(spec),
        ),
        use_mha2sha=splits_heads(spec, methods),
        # No more than a permission: with other memory, as in the simulator, tensors are copied.
        shared_buffer=bool(spec.options["shared_buffer"]) and has_static_cache(methods),
        profile_level=level.kProfileDetailed if spec.profiled else level.kProfileOff,
    )
    wanted_mib = int(spec.options["vtcm_mib"])
    return [_with_vtcm(each, wanted_mib) for each in specs] if wanted_mib else specs


def _with_vtcm(spec: Any, wanted_mib: int) -> Any:
    """The compile spec with another size of VTCM than ExecuTorch's table has for the SoC."""
    from executorch.backends.qualcomm.serialization.qc_schema_serialize import (
        flatbuffer_to_option,
        option_to_flatbuffer,
    )

    options = flatbuffer_to_option(spec.value)
    options.soc_info.htp_info.vtcm_size_in_mb = wanted_mib
    return type(spec)(spec.key, option_to_flatbuffer(options))


_OTHER = "--set export.backend=xnnpack"
_INT32 = torch.iinfo(torch.int32)
# Of torch's operators on graphs, those whose parts run once, often or not at all.
_CONTROL_FLOW = ("cond", "while_loop", "map_impl", "scan", "associative_scan")


@dataclass(frozen=True)
class Positional:
    """A module, with inputs that it takes by position alone."""

    module: torch.nn.Module
    inputs: tuple[Any, ...]


class _ByKeyword(torch.nn.Module):  # type: ignore[misc]
    """Takes by position what the model takes by keyword, behind its other inputs."""

    def __init__(self, module: torch.nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.module = module
        self.names = names

    def forward(self, *values: Any) -> Any:
        first = len(values) - len(self.names)
        keywords = dict(zip(self.names, values[first:], strict=True))
        return self.module(*values[:first], **keywords)


def positional(module: torch.nn.Module, call: ExampleInputs) -> Positional:
    """What ExecuTorch's entry point for QNN takes, which knows no keywords.

    The program's inputs keep the order that torch.export gives them: keywords behind the others, as
    they are given.
    """
    if not call.keywords:
        return Positional(module, call.args)
    wrapped = _ByKeyword(module, tuple(call.keywords))
    # Not eval(), which a module that torch.export made refuses.
    wrapped.training = module.training
    return Positional(wrapped, (*call.args, *call.keywords.values()))


def check_supported(source: MethodSource, traced: torch.export.ExportedProgram) -> None:
    """Ends the export of a model that the HTP cannot run, before it is compiled."""
    if symbols := dynamic_symbols(traced):
        raise _dynamic(source, symbols)
    fed = depends_on_inputs(traced)
    for node in traced.graph.nodes:
        name = getattr(node.target, "__name__", None)
        if isinstance(node.target, torch._ops.HigherOrderOperator) and name in _CONTROL_FLOW:
            raise _control_flow(node, name)
        if node in fed and _divides_integers(node):
            raise _integer_remainder(node)
    for name, value in _stored(source, traced):
        if _is_wide(value):
            raise fail(
                "lowering",
                f"{name} has 64-bit integers beyond 32 bits, and the HTP computes integers in 32 "
                "bits",
                remedy=f"Keep such values out of the exported model; or\n{_OTHER}",
            )


def _dynamic(source: MethodSource, symbols: Iterable[object]) -> WorkerError:
    known = sorted({leaf.__name__ for _, leaf in leaves(source.dynamic_shapes) if _is_dim(leaf)})
    names = ", ".join(known or sorted(map(str, symbols)))
    return fail(
        "dynamic-shapes",
        f"the model has dynamic shapes ({names}), and a QNN program is compiled for one size of "
        "each tensor",
        remedy="Export it with fixed shapes: without dynamic_shapes in what the factory returns, "
        "and without\nbenchmark.sizes. Fill shorter inputs up to that size, and mask what was "
        f"added. Or\n{_OTHER}",
    )


def _is_dim(leaf: Any) -> bool:
    """Whether a leaf of dynamic_shapes is a named dimension, unlike `Dim.AUTO`."""
    return isinstance(leaf, torch.export.Dim) and hasattr(leaf, "__name__")


def _control_flow(node: torch.fx.Node, name: str) -> WorkerError:
    return failure_of_node(
        node,
        "lowering",
        f"the model decides as it runs what it computes ({name}), which a QNN program cannot",
        remedy="Compute both branches, and choose with torch.where; write a loop out. Or\n"
        f"{_OTHER}",
    )


def _divides_integers(node: torch.fx.Node) -> bool:
    overload = getattr(node.target, "overloadpacket", None)
    given = node.meta.get("val")
    return (
        overload is torch.ops.aten.remainder
        and isinstance(given, torch.Tensor)
        and not given.is_floating_point()
    )


def _integer_remainder(node: torch.fx.Node) -> WorkerError:
    """ExecuTorch 1.5.1's pass DecomposeRemainder leaves a constant before its definition."""
    return failure_of_node(
        node,
        "lowering",
        "the model computes a remainder of integers, and ExecuTorch's passes for QNN fail at it",
        remedy="Compute it in floats: torch.remainder(x.float(), y)\nA language model with sliding "
        f"windows needs the static cache: --set export.generation.path=auto\nOr: {_OTHER}",
    )


def _stored(
    source: MethodSource, traced: torch.export.ExportedProgram
) -> Iterator[tuple[str, torch.Tensor]]:
    """The example inputs, and the model's weights and constants, with their names."""
    for index, (_, value) in enumerate(leaves((source.inputs.args, dict(source.inputs.keywords)))):
        if isinstance(value, torch.Tensor):
            yield f"the example input {index}", value
    for name, value in {**traced.state_dict, **traced.constants}.items():
        if isinstance(value, torch.Tensor):
            yield f"the model's {name}", value


def _is_wide(value: torch.Tensor) -> bool:
    if value.dtype != torch.int64 or not value.numel():
        return False
    return bool(value.min() < _INT32.min or value.max() > _INT32.max)
