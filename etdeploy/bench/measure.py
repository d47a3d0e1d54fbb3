"""One measured run: passes on the device, outputs compared, everything in a run record."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from etdeploy.bench.assemble import Subject, assemble
from etdeploy.bench.kept import keep_files
from etdeploy.bench.outputs.verdict import require_match
from etdeploy.bench.passes import Pass, PassResult, passes, run_pass
from etdeploy.bench.records.record import DeviceRecord
from etdeploy.bench.records.stored import RECORD_FILE, StoredRun
from etdeploy.bench.results_folder import results_folder
from etdeploy.bench.revision import revision_of
from etdeploy.bench.sizes import Checks, compare_sizes
from etdeploy.core.console import count
from etdeploy.core.errors import DeviceError
from etdeploy.core.progress import Progress, silent
from etdeploy.devices.base import Bundle, Device, DeviceState
from etdeploy.plan.model import RuntimePlan
from etdeploy.program.model import Program
from etdeploy.recipe.load import LoadedRecipe
from etdeploy.runner.model import BuiltRunner

__all__ = ["measure", "require_match"]


def measure(
    device: Device,
    bundle: Bundle,
    loaded: LoadedRecipe,
    program_folder: Path,
    program: Program,
    runner: BuiltRunner,
    output: Path,
    progress: Progress = silent,
    plan: RuntimePlan | None = None,
) -> StoredRun:
    """Runs every pass on the device and writes a folder with the record and all results.

    Outputs that differ are part of the record: see `require_match`.

    Args:
        device: Locked for this run; the bundle was pushed to it.
        bundle: As `make_bundle` gave it.
        loaded: The recipe.
        program_folder: Holds the program, its expected outputs and its provenance.
        program: The result of its inspection.
        runner: What is in the bundle.
        output: The folder that gets a folder for this run.
        progress: Called for each pass.
        plan: Of the runner; kept beside the record.

    Raises:
        UsageError: The program does not have the recipe's method, or `output` cannot be written to.
        RunError: The runner failed; its log stays in `output`.
        DeviceError: The device went away.
        Interrupted: The run was stopped; nothing of it stays.
    """
    subject = Subject.of(loaded, program_folder, program, runner, bundle.simulated)
    steps = passes(loaded.recipe, subject.method.name, simulated=subject.simulated is not None)
    started = datetime.now(timezone.utc)
    with results_folder(output.absolute(), started, loaded.name, device.name) as here:
        ended = device.end_leftovers()
        facts, before = device.facts(), device.state()
        results = _run_passes(device, bundle, loaded, steps, here, progress)
        states = DeviceRecord(facts=facts, before=before, after=_state_after(device), ended=ended)
        progress("comparing outputs")
        checks = _compare(subject, steps, results, here)
        record = assemble(
            subject, states, results, checks, revision_of(loaded.path), started, here.name,
            keep_files(here, results, program_folder, plan),
        )  # fmt: skip
        record.save(here / RECORD_FILE)
        return StoredRun(here, record)


def _compare(
    subject: Subject, steps: Sequence[Pass], results: dict[str, PassResult], here: Path
) -> Checks:
    return compare_sizes(
        steps,
        results,
        here,
        subject.program_folder,
        subject.provenance,
        subject.loaded.recipe.benchmark.tolerance,
    )


def _run_passes(
    device: Device,
    bundle: Bundle,
    loaded: LoadedRecipe,
    steps: Sequence[Pass],
    here: Path,
    progress: Progress,
) -> dict[str, PassResult]:
    results = {}
    with device.open_run(bundle, here.name) as folder:
        for step in steps:
            at = f" at {step.size}" if step.size else ""
            progress(f"{step.name} pass{at}: {count(step.iterations, 'inference')}")
            results[step.key] = run_pass(
                folder, step, loaded.recipe, device.name, here, device.capabilities
            )
    return results


def _state_after(device: Device) -> DeviceState:
    """The device's state; empty when the device has gone, since the measurement is complete."""
    try:
        return device.state()
    except DeviceError:
        return DeviceState()
