"""The steps of an export: load, quantise, trace, lower, write."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from etdeploy.export.installed import backend_versions, installed_version
from etdeploy.export.protocol import Sources
from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.backends.base import lowering_of
from etdeploy.export.worker.loading.recorder import FileRecorder
from etdeploy.export.worker.loading.source import Source, load_source
from etdeploy.export.worker.lowering.delegation import delegation, delegation_notes
from etdeploy.export.worker.lowering.lower import emit, lower
from etdeploy.export.worker.lowering.lower_failures import explaining
from etdeploy.export.worker.lowering.output_steps import output_quantization
from etdeploy.export.worker.lowering.quantize import quantize
from etdeploy.export.worker.tracing.dims import check_numbers, constant_notes, fixed_notes
from etdeploy.export.worker.tracing.modes import in_either_mode
from etdeploy.export.worker.tracing.sizes import SizedCall, sized_calls, write_sets
from etdeploy.export.worker.tracing.tensors import (
    Values,
    distances,
    flat_inputs,
    run_eagerly,
    write_values,
)
from etdeploy.export.worker.tracing.trace import trace
from etdeploy.program.folder import (
    ETRECORD_FILE,
    EXPORT_INFO,
    PROGRAM_FILE,
    RETRACED,
    Provenance,
)

Tell = Callable[[str, float], None]
_VERSIONS = ("torch", "torchao", "executorch")


@dataclass
class Steps:
    """Times each step and reports the progress of the export."""

    tell: Tell
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def step(self, name: str, text: str, fraction: float) -> Iterator[None]:
        """One step, which begins when `fraction` of the work is done."""
        self.tell(text, fraction)
        started = time.monotonic()
        try:
            yield
        finally:
            total = self.seconds.get(name, 0.0) + time.monotonic() - started
            self.seconds[name] = round(total, 3)


@dataclass(frozen=True)
class Model:
    """What is lowered, with its outputs.

    Attributes:
        module: Quantised where the scheme quantises before lowering.
        outputs: Of that module, run eagerly.
        details: How far quantisation moved the outputs.
        notes: Sentences for the user.
    """

    module: torch.nn.Module
    outputs: Values
    details: dict[str, Any]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Lowered:
    """A lowered model: where it is from, its inputs, graphs, delegation, and program.

    `inputs` are the example's, `sets` those of the recipe's sizes; `outputs` is what the model gave
    for each set.
    """

    source: Source
    model: Model
    inputs: Values
    sets: Sequence[SizedCall]
    outputs: Sequence[Values]
    traced: torch.export.ExportedProgram
    edge: Any
    counts: dict[str, Any]
    program: Any


def run(spec: ExportSpec, folder: Path, tell: Tell, recorder: FileRecorder) -> Sources:
    """Fills the program folder, except for `program.json`.

    Args:
        spec: What is to be exported.
        folder: The empty folder.
        tell: Called for each step.
        recorder: Knows what has been read so far.

    Returns:
        The files that the model was made from.

    Raises:
        WorkerError: The export cannot continue.
    """
    steps = Steps(tell)
    if spec.exported:
        _import_executorch(steps)  # the file may hold operators that ExecuTorch registers
    lowered, retraced = _in_a_mode_that_works(spec, steps, recorder)
    model, counts = lowered.model, lowered.counts
    with steps.step("write", "writing the program", 0.95):
        written = (
            write_values(folder, "inputs", lowered.inputs),
            write_values(folder, "expected", model.outputs),
        )
        sets = write_sets(folder, lowered.source.module, lowered.sets, lowered.outputs)
        with explaining("writing the program failed:", lowered.traced, spared=OSError):
            _write_program(lowered.program, folder)
    sources = recorder.sources()
    Provenance(
        source=spec.source,
        backend=spec.backend,
        quantization=spec.quantization,
        inputs=written[0],
        expected=written[1],
        sets=sets,
        output_quantization=output_quantization(lowered.traced),
        etrecord=True,
        versions=_versions(spec),
        code_files=sources.files,
        seconds=steps.seconds,
        details={
            "delegation": counts,
            **model.details,
            "bytes": _sizes(folder),
            **({RETRACED: retraced} if retraced else {}),
        },
        notes=(
            *((retraced,) if retraced else ()),
            *model.notes,
            *fixed_notes(lowered.source, lowered.traced),
            *constant_notes(lowered.inputs),
            *_notes(spec, lowered.edge.exported_program(), counts),
        ),
    ).save(folder / EXPORT_INFO)
    return sources


def _in_a_mode_that_works(
    spec: ExportSpec, steps: Steps, recorder: FileRecorder
) -> tuple[Lowered, str | None]:
    """The lowered model, and a sentence where that took torch.export's other mode."""
    if spec.exported:  # its file says how it was traced
        return _lowered(spec, steps, recorder), None
    return in_either_mode(
        spec,
        # Loaded again each time: a failed trace may leave its stand-ins for tensors in objects of
        # the model.
        lambda chosen: _lowered(chosen, steps, recorder),
        lambda text: steps.tell(text, 0.1),
    )


def _lowered(spec: ExportSpec, steps: Steps, recorder: FileRecorder) -> Lowered:
    with steps.step("load", f"loading {spec.source}", 0.1), recorder.recording():
        source = load_source(spec)
        inputs = flat_inputs(source.module, source.inputs)
    _import_executorch(steps)  # after the factory, so that its mistakes show sooner
    with steps.step("quantize", _quantize_text(spec), 0.4), recorder.recording():
        model = _quantized(spec, source)
    with steps.step("export", "tracing with torch.export", 0.6):
        traced = _traced(spec, source, model)
        check_numbers(source, traced)
    with recorder.recording():
        sets, outputs = _at_sizes(spec, source, traced, model, steps)
    with steps.step("lower", f"lowering to {spec.backend}", 0.7):
        edge = lower(spec, model.module, source, traced)
        counts = delegation(edge)
        program = emit(spec, edge, traced)
    return Lowered(source, model, inputs, sets, outputs, traced, edge, counts, program)


def _import_executorch(steps: Steps) -> None:
    """Takes seconds, which are not the model's."""
    if "executorch.exir" in sys.modules:
        return
    with steps.step("import", "importing ExecuTorch", 0.2):
        import executorch.exir  # noqa: F401


def _quantize_text(spec: ExportSpec) -> str:
    if spec.quantization in (None, "none", "fp16"):
        return "running the model eagerly"
    return f"quantising: {spec.quantization}"


def _quantized(spec: ExportSpec, source: Source) -> Model:
    """The model to lower. Expected outputs are those of the quantised model.

    Only then can a device's outputs be held to a narrow tolerance; how far quantisation itself
    moves the outputs is reported separately.
    """
    before = run_eagerly(source.module, source.inputs, "the model")
    quantized = quantize(spec, source)
    if quantized is None:
        return Model(source.module, before, {}, ())
    after = run_eagerly(quantized.module, source.inputs, "the quantised model")
    moved = distances([v.value for v in before], [v.value for v in after])
    details: dict[str, Any] = {"quantization_error": moved}
    if quantized.samples is not None:
        details["calibration_samples"] = quantized.samples
    return Model(quantized.module, after, details, quantized.notes)


def _traced(spec: ExportSpec, source: Source, model: Model) -> torch.export.ExportedProgram:
    if source.exported and model.module is source.module:
        return source.exported
    return trace(model.module, source.inputs, source.dynamic_shapes, strict=spec.strict)


def _at_sizes(
    spec: ExportSpec,
    source: Source,
    traced: torch.export.ExportedProgram,
    model: Model,
    steps: Steps,
) -> tuple[list[SizedCall], list[Values]]:
    """The inputs of every size that the recipe names, and the model's outputs for them."""
    if not spec.sizes:
        return [], []
    with steps.step("sizes", "running the model at each size", 0.65):
        sets = list(sized_calls(spec, source, traced))
        return sets, [run_eagerly(model.module, s.call, "the model", s.given) for s in sets]


def _write_program(program: Any, folder: Path) -> None:
    with (folder / PROGRAM_FILE).open("wb") as stream:
        program.write_to_file(stream)
    program.get_etrecord().save(str(folder / ETRECORD_FILE))


def _sizes(folder: Path) -> dict[str, int]:
    return {name: (folder / name).stat().st_size for name in (PROGRAM_FILE, ETRECORD_FILE)}


def _versions(spec: ExportSpec) -> dict[str, str]:
    found = {name: installed_version(name) for name in _VERSIONS} | backend_versions(spec)
    return {"python": platform.python_version()} | {n: v for n, v in found.items() if v}


def _notes(
    spec: ExportSpec, lowered: torch.export.ExportedProgram, counts: dict[str, Any]
) -> Iterator[str]:
    for name, wanted in spec.wanted_versions.items():
        installed = (installed_version(name) or "").partition("+")[0]
        if installed != wanted:
            yield f"Exported with {name} {installed}; {wanted} is the version that is tested."
    if state := lowered.graph_signature.buffers_to_mutate:
        yield (
            f"The model keeps state between calls ({', '.join(state.values())}); the expected "
            "outputs are those of its first call."
        )
    lowering = lowering_of(spec)
    yield from lowering.notes(spec)
    yield from delegation_notes(spec.backend, counts, lowering.apart)
