"""The modules to lower, quantized where the scheme does that before, and what they give."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from etdeploy.backends.registry import backend_named
from etdeploy.backends.schemes import DYNAMIC_SCHEMES, FLOAT_SCHEMES
from etdeploy.export.diff import LOGIT_NOISE, SENSITIVITY, more_exact_scheme
from etdeploy.export.methods import first_method
from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.background import Starter, at_once
from etdeploy.export.worker.loading.source import MethodSource
from etdeploy.export.worker.lowering.calibration import loss_notes
from etdeploy.export.worker.lowering.quantize import Quantized, quantize
from etdeploy.export.worker.lowering.rowwise import dequantized_by_rows
from etdeploy.export.worker.lowering.scales import Activations
from etdeploy.export.worker.lowering.stored import StoredWeight
from etdeploy.export.worker.lowering.weight_files import WeightFiles
from etdeploy.export.worker.rewrites.base import Log
from etdeploy.export.worker.steps import Steps, for_each
from etdeploy.export.worker.tracing.tensors import Values, losses, run_eagerly
from etdeploy.program.quality import OutputLoss

if TYPE_CHECKING:  # imports transformers
    from etdeploy.export.worker.diff.switchable import Switchable


@dataclass(frozen=True)
class Outputs:
    """What a method gives eagerly, if it was run, and how far quantization has moved that."""

    values: Values | None = None
    losses: tuple[OutputLoss, ...] = ()


@dataclass(frozen=True)
class EvaluatedModule:
    """A method's module, quantized where the scheme quantizes before lowering.

    `outputs` gives, or computes, what it gives eagerly; to be called once. `switchable` is the same
    module with quantizations that can be left out, to measure what they cost.
    """

    module: torch.nn.Module
    outputs: Callable[[], Outputs]
    details: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    switchable: Switchable | None = None


@dataclass(frozen=True)
class LayerFacts:
    """What is known of a language model's linear layers, beside their weights, by their `id()`.

    `files` stores the quantized weights; None if they fit in memory.
    """

    activations: Activations = field(default_factory=Activations)
    stored: Mapping[int, StoredWeight] = field(default_factory=dict)
    files: WeightFiles | None = None


def quantization_text(spec: ExportSpec) -> str:
    """What the step of `quantized_modules` does, for its progress."""
    if spec.quantization in (None, *FLOAT_SCHEMES):
        tables = f"quantizing embeddings: {spec.embeddings}"
        return tables if spec.embeddings else "running the model eagerly"
    return f"quantizing: {spec.quantization}"


def quantized_modules(
    spec: ExportSpec,
    sources: Mapping[str, MethodSource],
    run: Container[str],
    log: Log,
    weights: LayerFacts,
    start: Starter = at_once,
    *,
    compares: bool = True,
) -> dict[str, EvaluatedModule]:
    """Quantizes the modules to lower, and runs those of the methods in `run`.

    Expected outputs are those of the quantized ones. Only then can a device's outputs be held to a
    narrow tolerance; how far quantization itself moves the outputs is reported separately, here if
    it `compares` them.
    """

    def run_now(name: str) -> Callable[[], Outputs]:
        compute = partial(_run_module, sources[name])
        return start(compute) if compares else compute

    # All before any is quantized: methods may share the layers.
    before = for_each(sources, lambda name: run_now(name) if name in run else None)
    quantized = quantize(spec, sources, log, weights.activations, weights.stored, weights.files)
    if not quantized:
        return {
            name: EvaluatedModule(source.module, before[name] or Outputs)
            for name, source in sources.items()
        }
    return for_each(
        sources,
        lambda name: _compared(
            spec,
            quantized[name],
            sources[name],
            before[name] if compares else None,
            run=name in run,
        ),
    )


def _run_module(source: MethodSource) -> Outputs:
    return Outputs(run_eagerly(source.module, source.inputs, "the model"))


def _compared(
    spec: ExportSpec,
    quantized: Quantized,
    source: MethodSource,
    before: Callable[[], Outputs] | None,
    *,
    run: bool,
) -> EvaluatedModule:
    def moved() -> Outputs:
        first = before().values if before else None
        after = run_eagerly(quantized.module, source.inputs, "the quantized model")
        return Outputs(after, losses(first, after) if first is not None else ())

    outputs, notes = moved if run else Outputs, quantized.notes
    if not spec.generation:  # a language model is judged by its perplexity and texts
        outputs = at_once(outputs)
        notes = (*notes, *loss_notes(spec, outputs().losses, quantized.ranges))
    samples = quantized.samples
    details = {} if samples is None else {"calibration_samples": samples}
    return EvaluatedModule(quantized.module, outputs, details, notes, _switchable(spec, quantized))


def _switchable(spec: ExportSpec, quantized: Quantized) -> Switchable | None:
    if quantized.unfolded is None and not quantized.rounded:
        return None
    from etdeploy.export.worker.diff.switchable import QuantizedGraph, QuantizedLinears

    if quantized.unfolded is None:
        other = more_exact_scheme(backend_named(str(spec.backend)), spec.quantization)
        return QuantizedLinears.of(quantized.module, quantized.rounded, other or "none")
    return QuantizedGraph.of(spec, quantized.unfolded)


def with_noise(
    spec: ExportSpec, models: dict[str, EvaluatedModule], sources: Mapping[str, MethodSource]
) -> dict[str, EvaluatedModule]:
    """Measures how far rounding moves logits, where nodes are compared and no texts."""
    if not (spec.observation and spec.generation and spec.quantization in DYNAMIC_SCHEMES):
        return models
    from etdeploy.export.worker.language.eager import call_noise

    def with_noise(name: str) -> EvaluatedModule:
        noise = call_noise(sources[name], models[name].module)
        found = {LOGIT_NOISE: noise.model_dump(mode="json")} if noise else {}
        return replace(models[name], details={**models[name].details, **found})

    return for_each(sources, with_noise)


def with_sensitivity(
    spec: ExportSpec,
    models: dict[str, EvaluatedModule],
    sources: Mapping[str, MethodSource],
    steps: Steps,
) -> dict[str, EvaluatedModule]:
    """Measures what the quantization of each module costs, in the method that is observed."""
    name = spec.method or first_method(tuple(models))
    switchable = models[name].switchable
    if switchable is None:
        return models
    from etdeploy.export.worker.diff.sensitivity import measure_sensitivity

    source = sources[name]
    other = more_exact_scheme(backend_named(str(spec.backend)), spec.quantization)

    def requantize(modules: Sequence[str]) -> torch.nn.Module:
        own = tuple((module, str(other)) for module in modules)
        changed = {"overrides": (*own, *spec.overrides), "observation": None}
        return quantize(spec.model_copy(update=changed), {name: source})[name].module

    measuring = steps.step("sensitivity", "measuring what the quantization costs", 0.45)
    with measuring, dequantized_by_rows():
        found = measure_sensitivity(
            switchable,
            source,
            requantize if other else None,
            lambda text, _: steps.tell(text, 0.45),
        )
    details = {**models[name].details, SENSITIVITY: found.model_dump(mode="json")}
    return {**models, name: replace(models[name], details=details, switchable=None)}
