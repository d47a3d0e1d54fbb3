"""Quantization before lowering: PT2E and torchao, as ExecuTorch's backends expect it."""

from __future__ import annotations

import copy
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch.nn.utils import parametrize, remove_spectral_norm, remove_weight_norm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from etdeploy.backends.schemes import (
    DEFAULT,
    FLOAT_SCHEMES,
    GROUPED_EMBEDDINGS,
    LINEAR_SCHEMES,
    STATIC_SCHEMES,
)
from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.backends.base import lowering_of, patched
from etdeploy.export.worker.failures import (
    WorkerError,
    describe,
    describe_errors,
    fail,
    name_method,
)
from etdeploy.export.worker.loading.source import MethodSource, as_call
from etdeploy.export.worker.lowering.calibration import Calibration, Range
from etdeploy.export.worker.lowering.linears import (
    DEFAULT_GROUP_SIZE,
    Layer,
    RoundedLayer,
    apply,
    layers_of,
    quantize_linears,
)
from etdeploy.export.worker.lowering.overrides import (
    check_overrides,
    check_patterns,
    first_match,
    override_notes,
)
from etdeploy.export.worker.lowering.rowwise import hold_floats
from etdeploy.export.worker.lowering.scales import Activations
from etdeploy.export.worker.lowering.stored import StoredWeight
from etdeploy.export.worker.lowering.weight_files import WeightFiles
from etdeploy.export.worker.rewrites.base import Log
from etdeploy.export.worker.rewrites.order import rewritten_to_quantize
from etdeploy.export.worker.tracing.structure import ExampleInputs
from etdeploy.export.worker.tracing.tensors import buffers_restored, copied, laid_out
from etdeploy.export.worker.tracing.trace import trace

_OTHERWISE = (
    "Leave the model in floats, --set export.quantization=none, or choose another backend with "
    "this\nscheme, export.backend. The log has the whole traceback."
)
# Files of torchao and PyTorch whose classes stand in a graph that is calibrated.
_OBSERVERS = ("observer.py", "fake_quantize.py")
# Beginnings of the operators whose weights are most of a model.
_LAYERS = ("conv", "linear", "lstm", "gru", "rnn", "matmul", "mm", "bmm", "addmm", "embedding")


@dataclass(frozen=True)
class Quantized:
    """A quantized model, which computes eagerly with the quantized weights and activations.

    Attributes:
        samples: How many calibration inputs found the ranges; None where none are needed.
        ranges: Of the inputs that calibration inputs are unlike the example's in: both.
        unfolded: The same with weights in floats, which the graph quantizes.
        rounded: The layers that were quantized in place, with their weights in floats. Both only if
            the spec asks what the quantization of each module costs.
    """

    module: torch.nn.Module
    notes: tuple[str, ...] = ()
    samples: int | None = None
    ranges: Mapping[str, tuple[Range, Range]] = field(default_factory=dict)
    unfolded: torch.nn.Module | None = None
    rounded: tuple[RoundedLayer, ...] = ()


def quantize(
    spec: ExportSpec,
    sources: Mapping[str, MethodSource],
    log: Log | None = None,
    activations: Activations | None = None,
    stored: Mapping[int, StoredWeight] = MappingProxyType({}),
    files: WeightFiles | None = None,
) -> dict[str, Quantized]:
    """Quantizes the methods by the spec's scheme; none where nothing is to do before lowering.

    `files` takes the quantized weights of layers; without, memory does.
    """
    if spec.quantization in LINEAR_SCHEMES or spec.embeddings:
        measured = spec.observation and spec.observation.sensitivity and files is None
        rounded: list[RoundedLayer] | None = [] if measured else None
        given = activations or Activations()
        notes = quantize_layers(spec, sources, given, stored, files, rounded)
        return {
            name: Quantized(source.module, notes, rounded=tuple(rounded or ()))
            for name, source in sources.items()
        }
    if spec.quantization in (None, *FLOAT_SCHEMES):
        return {}  # 16-bit floats are the backend's own choice of precision
    traced, found = {}, {}
    for name, source in sources.items():
        with name_method(name, sources):
            program = _traced(spec, source)
            if not source.is_text:
                program = lowering_of(spec).simplified(program)
            traced[name] = rewritten_to_quantize(program, log or Log())
    check_overrides(spec, traced)
    observers: dict[str, list[Observer]] = {}
    for name in sorted(sources, key=lambda name: sources[name].ranges_from is not None):
        with name_method(name, sources):
            found[name] = _pt2e(spec, name, sources[name], traced.pop(name), observers)
    if not any(_is_quantized(each.module) for each in found.values()):
        raise _nothing_quantized(spec, [each.module for each in found.values()])
    return found


def _is_quantized(module: Any) -> bool:
    return any("quantize" in str(node.target) for node in module.graph.nodes)


def _layers_in_floats(module: Any) -> Counter[str]:
    """Operators of layers whose weights are still floats: `{"conv1d": 2}`."""
    found: Counter[str] = Counter()
    for node in module.graph.nodes:
        name = getattr(node.target, "__name__", "").partition(".")[0]
        if node.op == "call_function" and name.startswith(_LAYERS):
            found[name] += any(_is_float_weight(module, each) for each in node.all_input_nodes)
    return +found


def _is_float_weight(module: torch.nn.Module, node: torch.fx.Node) -> bool:
    if node.op != "get_attr":
        return False
    value = attrgetter(str(node.target))(module)
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.dim() > 1


def _nothing_quantized(spec: ExportSpec, modules: Iterable[Any]) -> WorkerError:
    scheme, backend = str(spec.quantization), str(spec.backend)
    layers = sum(map(_layers_in_floats, modules), Counter[str]())
    stays = f": {_counted(layers)} would stay in floats" if layers else ", which has no layers"
    changes = [f"--set export.backend={DEFAULT}"] if backend != DEFAULT else []
    changes += ["--set export.quantization=int8_static"] if scheme != "int8_static" else []
    other = f"{' '.join(changes)} quantizes convolutions of every kind; or\n"
    can_change = changes and any(name.startswith("conv") for name in layers)
    none = "--set export.quantization=none"
    if spec.calibration:
        none += " --set export.calibration=null"
    return fail(
        "quantization",
        f"{scheme} with the backend {backend} quantizes nothing of this model{stays}",
        remedy=f"{other if can_change else ''}{none}",
    )


def _counted(layers: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({places} x)" for name, places in layers.items())


def _traced(spec: ExportSpec, source: MethodSource) -> torch.export.ExportedProgram:
    return source.exported or trace(
        source.module, source.inputs, source.dynamic_shapes, strict=spec.strict
    )


@dataclass(frozen=True)
class Observer:
    """A module of torchao that found the range of what an operator gives."""

    operator: str
    module: torch.nn.Module


def _pt2e(
    spec: ExportSpec,
    name: str,
    source: MethodSource,
    traced: torch.export.ExportedProgram,
    observers: dict[str, list[Observer]],
) -> Quantized:
    """Post-training quantization of the exported graph; adds its observers to the others'."""
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    lowering = lowering_of(spec)
    quantizer = lowering.quantizer(spec)  # one each: it may remember the graph that it has seen
    notes = tuple(override_notes(spec, traced))
    at_fault = f"the quantizer of {spec.backend} cannot quantize the model:"
    with describe_errors("quantization", at_fault, _OTHERWISE):
        prepared = prepare_pt2e(traced.module(), quantizer)
    static = spec.quantization in STATIC_SCHEMES
    calibration = Calibration(spec, source, traced)
    samples = 0
    if source.ranges_from:
        _take_ranges(prepared, observers[source.ranges_from])
    else:
        samples = _calibrate(prepared, calibration, static, at_fault)
        observers[name] = list(dict(_observers(prepared)).values())
    unfolded = None
    with describe_errors("quantization", at_fault, _OTHERWISE), _without_training_patterns():
        if spec.observation and spec.observation.sensitivity:
            unfolded = convert_pt2e(_own_graph(prepared), fold_quantize=False)
        module = convert_pt2e(prepared, fold_quantize=lowering.folds_weights)
    if left := _layers_in_floats(module):
        notes = (*notes, f"{spec.quantization} leaves layers in floats: {_counted(left)}.")
    if not static or source.is_text:  # a text is read from an empty cache, not from the example's
        return Quantized(module, notes, unfolded=unfolded)
    notes = (*notes, *_calibration_notes(spec, source, samples))
    return Quantized(module, notes, samples, calibration.misfits, unfolded)


def _own_graph(prepared: Any) -> torch.fx.GraphModule:
    """A copy that shares the weights; annotations of quantizers may hold what cannot be copied."""
    made = torch.fx.GraphModule(prepared, copy.deepcopy(prepared.graph))
    made.meta = dict(prepared.meta)
    return made


# torchao's names of the observers that it inserts.
_OBSERVER = "activation_post_process"


def _observers(prepared: Any) -> Iterator[tuple[str, Observer]]:
    """Those of a graph by their names, in its order."""
    for node in prepared.graph.nodes:
        if node.op == "call_module" and str(node.target).startswith(_OBSERVER):
            source, name = node.args[0], str(node.target)
            operator = str(source.target) if source.op == "call_function" else source.op
            yield name, Observer(operator, prepared.get_submodule(name))


def _take_ranges(prepared: Any, observers: Sequence[Observer]) -> None:
    """Gives a graph the ranges that another one of the same operators has."""
    own = dict(_observers(prepared))
    found, wanted = ([each.operator for each in them] for them in (own.values(), observers))
    if found != wanted:
        at = next((i for i, (a, b) in enumerate(zip(found, wanted, strict=False)) if a != b), None)
        differ = "" if at is None else f"; value {at} is of {found[at]} in one, of {wanted[at]}"
        raise fail(
            "quantization",
            f"the methods cannot share ranges of activations: they quantize {len(found)} and "
            f"{len(wanted)} values{differ}",
            remedy="Export one method alone: --set export.generation.methods=kv",
        )
    for name, observer in zip(own, observers, strict=True):
        prepared.set_submodule(name, observer.module)


def with_float_weights(module: Any) -> Any:
    """A quantized graph whose weights are dequantized already: they are again in each call."""
    found = torch.fx.GraphModule(module, copy.deepcopy(module.graph))
    for node in list(found.graph.nodes):
        source = node.args[0] if node.args else None
        if "dequantize" not in str(node.target) or getattr(source, "op", "") != "get_attr":
            continue
        with torch.no_grad():
            values = node.target(*map(partial(_value, found), node.args), **node.kwargs)
        name = f"_float_{node.name}"
        found.register_buffer(name, values)
        with found.graph.inserting_before(node):
            node.replace_all_uses_with(found.graph.get_attr(name))
        found.graph.erase_node(node)
    found.graph.eliminate_dead_code()
    found.recompile()
    return found


def _value(module: Any, argument: Any) -> Any:
    if isinstance(argument, torch.fx.Node):
        return attrgetter(str(argument.target))(module)
    return argument


def _without_training_patterns() -> AbstractContextManager[None]:
    """Leaves out the search for convolutions of quantization-aware training.

    No graph of `prepare_pt2e` has them, and the patterns are traced again for each model that has a
    batch norm which is not folded: three quarters of such an export.
    """
    from torchao.quantization.pt2e import qat_utils

    return patched(qat_utils, _fold_conv_bn_qat_helper=lambda graph, *_, **__: graph)


def _calibration_notes(spec: ExportSpec, source: MethodSource, samples: int) -> tuple[str, ...]:
    if spec.calibration:
        return (f"{samples} calibration inputs of {spec.calibration} set the ranges.",)
    if source.calibration:
        return (f"{samples} random inputs of the example set the ranges.",)
    return (
        "The example inputs set the ranges of the quantized values: enough to measure speed, not "
        "accuracy. Name real inputs with export.calibration.",
    )


def _calibrate(
    prepared: torch.nn.Module, calibration: Calibration, static: bool, at_fault: str
) -> int:
    """Runs the observers; returns how many inputs they saw."""
    source = calibration.source
    count, own = 0, {name for name, _ in source.module.named_buffers()}
    # The model's, which the program starts with; those of the observers are to change.
    state = [buffer for name, buffer in prepared.named_buffers() if name in own]
    inputs = source.calibration() if static and source.calibration else [source.inputs]
    for sample in _checked(inputs):
        if static:
            calibration.check(sample, count)
        with (
            torch.no_grad(),
            buffers_restored(state),
            describe_errors("calibration", f"the model raised with calibration input {count}:"),
            _blaming_observers(at_fault),
        ):
            copied(laid_out(sample, source.inputs)).on(prepared)
        count += 1
    if count == 0:
        raise fail("calibration", "the calibration function yielded no inputs", remedy="yield (x,)")
    return count


@contextmanager
def _blaming_observers(at_fault: str) -> Iterator[None]:
    """Describes an exception that an observer raised, which the quantizer put into the graph."""
    try:
        yield
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        if not any(Path(frame.filename).name in _OBSERVERS for frame in frames):
            raise
        with describe_errors("quantization", at_fault, _OTHERWISE):
            raise


def _checked(samples: Iterable[Any]) -> Iterable[ExampleInputs]:
    with describe_errors("calibration", "the calibration function raised"):
        for sample in samples:
            call = sample if isinstance(sample, ExampleInputs) else as_call(sample)
            if call is None:
                raise fail(
                    "calibration",
                    f"the calibration function yielded {describe(sample)}; it yields "
                    "tuples of inputs, or dicts of inputs by keyword",
                    remedy="yield (x,)",
                )
            yield call


def quantize_layers(
    spec: ExportSpec,
    sources: Mapping[str, MethodSource],
    activations: Activations,
    stored: Mapping[int, StoredWeight],
    files: WeightFiles | None,
    rounded: list[RoundedLayer] | None = None,
) -> tuple[str, ...]:
    """Quantizes what the spec says; returns sentences for the user."""
    linears = layers_of(spec, sources, torch.nn.Linear)
    for layer in linears:
        _store_computed_weight(layer.module)
    tables = [t for t in layers_of(spec, sources, torch.nn.Embedding) if _looks_up(t.module)]
    _check_overrides(spec, linears, tables)
    notes: list[str] = []
    if spec.quantization in LINEAR_SCHEMES:
        notes += quantize_linears(spec, sources, linears, activations, stored, files, rounded)
    if spec.embeddings:
        notes += quantize_embeddings(spec, tables, files)
    for source in sources.values():
        hold_floats(source.module)  # of what stays in floats
    return tuple(notes)


def _looks_up(table: torch.nn.Embedding) -> bool:
    """Whether its forward is torch's, or calls it: Whisper's positions index the weight."""
    own = type(table).forward
    calls_super = "__class__" in own.__code__.co_freevars
    return own is torch.nn.Embedding.forward or calls_super


def _store_computed_weight(layer: torch.nn.Linear) -> None:
    """Makes a weight that is computed from other parameters at each call, as weight_norm's, one."""
    if parametrize.is_parametrized(layer, "weight"):
        parametrize.remove_parametrizations(layer, "weight", leave_parametrized=True)
    for hook in list(layer._forward_pre_hooks.values()):  # of the older functions of that name
        if isinstance(hook, WeightNorm) and hook.name == "weight":
            remove_weight_norm(layer)
        elif isinstance(hook, SpectralNorm) and hook.name == "weight":
            remove_spectral_norm(layer)


def _check_overrides(
    spec: ExportSpec,
    linears: Sequence[Layer[torch.nn.Linear]],
    tables: Sequence[Layer[torch.nn.Embedding]],
) -> None:
    """A table can stay in floats; the other schemes are those of linear layers."""
    of_linears = [path for layer in linears for path in layer.paths]
    of_tables = [path for layer in tables for path in layer.paths] if spec.embeddings else []
    check_patterns(
        spec,
        lambda scheme: of_linears + of_tables if scheme in FLOAT_SCHEMES else of_linears,
        "no module with a linear layer",
    )


Tables = Sequence[Layer[torch.nn.Embedding]]


def quantize_embeddings(
    spec: ExportSpec, tables: Tables, files: WeightFiles | None
) -> Iterator[str]:
    """Quantizes the tables that no override leaves in floats; yields sentences for the user."""
    chosen = [table for table in tables if not _stays(spec, table)]
    group_size = spec.group_size or DEFAULT_GROUP_SIZE
    grouped = [table for table in chosen if _in_groups(spec, table, group_size)]
    rest = [table for table in chosen if table not in grouped]
    if grouped:
        apply(_config(group_size), grouped, "the embeddings", files)
        yield f"The weights of embeddings have 4 bits, with a scale for each {group_size} of them."
    if rest:
        apply(_config(None), rest, "the embeddings", files)
        yield _rest_note(spec, rest, group_size)
    if not tables:
        yield "The model has no table of embeddings to quantize."


def _stays(spec: ExportSpec, table: Layer[Any]) -> bool:
    found = first_match(spec, table.paths)
    return found is not None and found[1] in FLOAT_SCHEMES


def _in_groups(spec: ExportSpec, table: Layer[torch.nn.Embedding], group_size: int) -> bool:
    grouped = spec.embeddings in GROUPED_EMBEDDINGS
    return grouped and table.module.embedding_dim % group_size == 0


def _config(group_size: int | None) -> Any:
    """4 bits in groups of that size; 8 bits for each token without."""
    from torchao.quantization.granularity import PerAxis, PerGroup
    from torchao.quantization.quant_api import IntxWeightOnlyConfig

    if group_size is None:
        return IntxWeightOnlyConfig(weight_dtype=torch.int8, granularity=PerAxis(0))
    return IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(group_size))


def _rest_note(spec: ExportSpec, rest: Tables, group_size: int) -> str:
    if spec.embeddings not in GROUPED_EMBEDDINGS:
        return "The weights of embeddings have 8 bits, with a scale for each token."
    sizes = ", ".join(f"{t.name} ({t.module.embedding_dim})" for t in rest)
    return (
        "Embeddings that have 8 bits, since their size is not a multiple of the group size "
        f"{group_size}: {sizes}."
    )
