"""One measured run: passes on the device, outputs compared, everything in a run record."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

from etdeploy.bench.assemble import Subject
from etdeploy.bench.measurement import Measurement, OnDevice
from etdeploy.bench.outputs.verdict import require_match
from etdeploy.bench.records.record import DeviceRecord
from etdeploy.bench.records.stored import StoredRun
from etdeploy.bench.results_folder import results_folder
from etdeploy.bench.revision import Revision
from etdeploy.bench.timing.emulated import emulated_defaults
from etdeploy.core.progress import Progress, silent
from etdeploy.devices.base import Bundle, Device, DeviceState
from etdeploy.plan.model import RuntimePlan
from etdeploy.program.model import Program
from etdeploy.recipe.load import LoadedRecipe
from etdeploy.runner.model import BuiltRunner

__all__ = ["Measurement", "Prepared", "begin", "measure", "require_match"]


@dataclass(frozen=True)
class Prepared:
    """What is measured, ready to run.

    Attributes:
        bundle: As `make_bundle` gave it; it was pushed to the device.
        loaded: The recipe.
        program_folder: Holds the program, its expected outputs and its provenance.
        program: The result of its inspection.
        runner: What is in the bundle.
        plan: Of the runner; kept beside the record.
        revision: Of the recipe's folder, where that is on another host; None to ask git.
    """

    bundle: Bundle
    loaded: LoadedRecipe
    program_folder: Path
    program: Program
    runner: BuiltRunner
    plan: RuntimePlan | None = None
    revision: Revision | None = None


@contextmanager
def begin(
    device: Device, prepared: Prepared, output: Path, progress: Progress = silent
) -> Iterator[Measurement]:
    """Opens a measurement: a folder here, and one on the device.

    When the block fails, only the runner's log stays; after an interruption nothing does.

    Args:
        device: Locked for this run.
        prepared: What is measured.
        output: The folder that gets a folder for this run.
        progress: Called for each pass.

    Raises:
        UsageError: The program does not have the recipe's method, or `output` cannot be written to.
        DeviceError: The device went away.
    """
    bundle, loaded = prepared.bundle, prepared.loaded
    if device.capabilities.emulated:
        loaded = emulated_defaults(loaded)
    subject = Subject.of(
        loaded,
        prepared.program_folder,
        prepared.program,
        prepared.runner,
        bundle.simulated,
    )
    if bundle.app:
        subject = replace(subject, app_files=tuple(file.path for file in bundle.files))
    started = datetime.now(timezone.utc)
    name = loaded.name
    with (
        results_folder(output.absolute(), started, name, device.name) as here,
        ExitStack() as opened,
    ):
        ended = device.end_leftovers()
        before = DeviceRecord(
            facts=device.facts(), before=device.state(), after=DeviceState(), ended=ended
        )
        folder = opened.enter_context(device.open_run(prepared.bundle, here.name))
        there = OnDevice(device, folder, opened.close, before)
        yield Measurement(subject, there, here, started, prepared.plan, progress, prepared.revision)


def measure(
    device: Device, prepared: Prepared, output: Path, progress: Progress = silent
) -> StoredRun:
    """Runs every pass on the device and writes a folder with the record and all results.

    Outputs that differ are part of the record: see `require_match`.

    Args:
        device: Locked for this run.
        prepared: What is measured.
        output: The folder that gets a folder for this run.
        progress: Called for each pass.

    Raises:
        UsageError: The program does not have the recipe's method, or `output` cannot be written to.
        RunError: The runner failed; its log stays in `output`.
        DeviceError: The device went away.
        Interrupted: The run was stopped; nothing of it stays.
    """
    with begin(device, prepared, output, progress) as measurement:
        for number in range(1, measurement.starts + 1):
            measurement.start(number)
        return measurement.finish()
