"""Quantisation before lowering: PT2E and torchao, as ExecuTorch's backends expect it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from etdeploy.backends.names import DEFAULT
from etdeploy.backends.registry import backend_named
from etdeploy.backends.schemes import STATIC_SCHEMES
from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.backends.base import lowering_of
from etdeploy.export.worker.failures import blaming, described, fail, of_method
from etdeploy.export.worker.loading.returned import as_call
from etdeploy.export.worker.loading.source import Source
from etdeploy.export.worker.lowering.overrides import check_overrides, override_notes
from etdeploy.export.worker.tracing.structure import Call
from etdeploy.export.worker.tracing.tensors import buffers_restored, copied
from etdeploy.export.worker.tracing.trace import trace

_NAMED = 6
# The smallest that XNNPACK takes, and a divisor of all others.
_SMALLEST_GROUP = 32


L = TypeVar("L", bound=torch.nn.Module)


@dataclass(frozen=True)
class Quantized:
    """A quantised model.

    Attributes:
        module: Computes, eagerly, with the quantised weights and activations.
        notes: Sentences for the user.
        samples: How many calibration inputs found the ranges; None where none are needed.
    """

    module: torch.nn.Module
    notes: tuple[str, ...] = ()
    samples: int | None = None


def quantize(spec: ExportSpec, sources: Mapping[str, Source]) -> dict[str, Quantized]:
    """Quantises the methods by the spec's scheme; none where nothing is to do before lowering.

    Raises:
        WorkerError: The model cannot be quantised that way.
    """
    if spec.quantization in (None, "none", "fp16"):
        return {}  # 16-bit floats are the backend's own choice of precision
    if spec.quantization == "8da4w":
        return _grouped_linears(spec, sources)
    traced, found = {}, {}
    for name, source in sources.items():
        with of_method(name, sources):
            traced[name] = _traced(spec, source)
    check_overrides(spec, traced)
    for name, source in sources.items():
        with of_method(name, sources):
            found[name] = _pt2e(spec, source, traced.pop(name))
    return found


def _traced(spec: ExportSpec, source: Source) -> torch.export.ExportedProgram:
    return source.exported or trace(
        source.module, source.inputs, source.dynamic_shapes, strict=spec.strict
    )


def _pt2e(spec: ExportSpec, source: Source, traced: torch.export.ExportedProgram) -> Quantized:
    """Post-training quantisation of the exported graph."""
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    lowering = lowering_of(spec)
    quantizer = lowering.quantizer(spec)  # one each: it may remember the graph that it has seen
    notes = tuple(override_notes(spec, traced))
    with blaming("quantization", "the model cannot be quantised:"):
        prepared = prepare_pt2e(traced.module(), quantizer)
    static = spec.quantization in STATIC_SCHEMES
    samples = _calibrate(prepared, source, static)
    with blaming("quantization", "the model cannot be quantised:"):
        module = convert_pt2e(prepared, fold_quantize=lowering.folds_weights)
    if not static:
        return Quantized(module, notes)
    return Quantized(module, (*notes, *_calibration_notes(spec, source, samples)), samples)


def _calibration_notes(spec: ExportSpec, source: Source, samples: int) -> tuple[str, ...]:
    if spec.calibration:
        return (f"{samples} calibration inputs of {spec.calibration} set the ranges.",)
    if source.calibration:
        return (f"{samples} random inputs of the example set the ranges.",)
    return (
        "The example inputs set the ranges of the quantised values: enough to measure speed, not "
        "accuracy. Name real inputs with export.calibration.",
    )


def _calibrate(prepared: torch.nn.Module, source: Source, static: bool) -> int:
    """Runs the observers; returns how many inputs they saw."""
    count, own = 0, {name for name, _ in source.module.named_buffers()}
    # The model's, which the program starts with; those of the observers are to change.
    state = [buffer for name, buffer in prepared.named_buffers() if name in own]
    inputs = source.calibration() if static and source.calibration else [source.inputs]
    for sample in _checked(inputs):
        with (
            torch.no_grad(),
            buffers_restored(state),
            blaming("calibration", f"the model raised with calibration input {count}:"),
        ):
            copied(sample).on(prepared)
        count += 1
    if count == 0:
        raise fail("calibration", "the calibration function yielded no inputs", remedy="yield (x,)")
    return count


def _checked(samples: Iterable[Any]) -> Iterable[Call]:
    with blaming("calibration", "the calibration function raised"):
        for sample in samples:
            call = sample if isinstance(sample, Call) else as_call(sample)
            if call is None:
                raise fail(
                    "calibration",
                    f"the calibration function yielded {described(sample)}; it yields "
                    "tuples of inputs, or dicts of inputs by keyword",
                    remedy="yield (x,)",
                )
            yield call


def _grouped_linears(spec: ExportSpec, sources: Mapping[str, Source]) -> dict[str, Quantized]:
    """4-bit weights in groups, 8-bit dynamic activations, in every linear layer that fits.

    In place, so that methods share the quantised weights as they share the layers.
    """
    from torchao.quantization.granularity import PerGroup
    from torchao.quantization.quant_api import Int8DynamicActivationIntxWeightConfig, quantize_

    linears = _layers(sources, torch.nn.Linear)
    group_size, outputs = spec.group_size or 32, lowering_of(spec).grouped_outputs
    fitting = [
        name
        for name, layer in linears.items()
        if layer.in_features % group_size == 0 and layer.out_features % outputs == 0
    ]
    if not fitting:
        exported = any(source.exported for source in sources.values())
        raise _nothing_fits(spec, linears, group_size, exported=exported)
    config = Int8DynamicActivationIntxWeightConfig(
        weight_dtype=torch.int4, weight_granularity=PerGroup(group_size)
    )
    chosen = torch.nn.ModuleList([linears[name] for name in fitting])
    with blaming("quantization", "the linear layers cannot be quantised:"):
        quantize_(chosen, config, filter_fn=lambda layer, _: isinstance(layer, torch.nn.Linear))
    left = [name for name in linears if name not in fitting]
    notes = [_left_note(left, group_size, outputs)] if left else []
    convolutions = _layers(sources, torch.nn.modules.conv._ConvNd)
    told = (*notes, _coverage_note(len(fitting), len(convolutions)))
    if spec.generation:
        told = (*told, *_embeddings(sources))
    return {name: Quantized(source.module, told) for name, source in sources.items()}


def _embeddings(sources: Mapping[str, Source]) -> Iterator[str]:
    """8-bit weights, with a scale for each row, in tables of embeddings; in place.

    They are most of a small language model's file, and are only looked up: that costs no time.
    """
    from torchao.quantization.granularity import PerAxis
    from torchao.quantization.quant_api import IntxWeightOnlyConfig, quantize_

    tables = list(_layers(sources, torch.nn.Embedding).values())
    if not tables:
        return
    config = IntxWeightOnlyConfig(weight_dtype=torch.int8, granularity=PerAxis(0))
    with blaming("quantization", "the embeddings cannot be quantised:"):
        quantize_(
            torch.nn.ModuleList(tables),
            config,
            filter_fn=lambda layer, _: isinstance(layer, torch.nn.Embedding),
        )
    yield "The weights of embeddings have 8 bits, with a scale for each token."


def _layers(sources: Mapping[str, Source], kind: type[L]) -> dict[str, L]:
    """The layers of a kind, by name; each once, of however many methods it is a part."""
    found: dict[str, L] = {}
    seen: set[int] = set()
    for method, source in sources.items():
        for name, layer in source.module.named_modules():
            if isinstance(layer, kind) and id(layer) not in seen:
                seen.add(id(layer))
                found[f"{method}.{name}" if name in found else name] = layer
    return found


def _nothing_fits(
    spec: ExportSpec, linears: dict[str, torch.nn.Linear], group_size: int, *, exported: bool
) -> Exception:
    if exported:
        return fail(
            "quantization",
            "8da4w quantises nn.Linear layers, and an exported program has none, only operators",
            remedy="Name the model's factory with model.python, or quantise before torch.export.",
        )
    if not linears:
        return fail(
            "quantization",
            "8da4w quantises nn.Linear layers, and the model has none",
            remedy=_other_scheme(spec, "int8_static", "quantises convolutions, too."),
        )
    return _wrong_sizes(spec, list(linears.values()), group_size)


def _wrong_sizes(spec: ExportSpec, linears: list[torch.nn.Linear], group_size: int) -> Exception:
    if any(layer.in_features % group_size == 0 for layer in linears):
        multiple = lowering_of(spec).grouped_outputs
        return fail(
            "quantization",
            f"no linear layer with an input size for groups of {group_size} has an output size "
            f"that is a multiple of {multiple}, as {spec.backend} needs it",
            remedy=_other_scheme(spec, "int8_dynamic", "takes layers of any size."),
        )
    sizes = ", ".join(str(s) for s in sorted({layer.in_features for layer in linears}))
    fits = any(layer.in_features % _SMALLEST_GROUP == 0 for layer in linears)
    return fail(
        "quantization",
        f"no linear layer's input size ({sizes}) is a multiple of the group size {group_size}",
        remedy=f"--set export.group_size={_SMALLEST_GROUP}"
        if fits
        else _other_scheme(spec, "int8_dynamic", "has no groups."),
    )


def _other_scheme(spec: ExportSpec, scheme: str, what: str) -> str:
    """The remedy that names another scheme, with a backend that has it."""
    offered = scheme in backend_named(str(spec.backend)).quantizations
    other = "" if offered else f"--set export.backend={DEFAULT} "
    return f"{other}--set export.quantization={scheme} {what}"


def _left_note(names: list[str], group_size: int, outputs: int) -> str:
    size = f", or their output size not of {outputs}" if outputs > 1 else ""
    shown = ", ".join(names[:_NAMED]) + (" and others" if len(names) > _NAMED else "")
    return (
        f"Linear layers that stay in floats, since their input size is not a multiple of the group "
        f"size {group_size}{size}: {shown}."
    )


def _coverage_note(quantized: int, convolutions: int) -> str:
    note = f"8da4w quantised {quantized} linear layer{'s' if quantized != 1 else ''}"
    if not convolutions:
        return f"{note}."
    stay = "1 convolution stays" if convolutions == 1 else f"{convolutions} convolutions stay"
    return f"{note}; {stay} in floats."
