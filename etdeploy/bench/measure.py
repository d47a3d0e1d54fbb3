"""One measured run: passes on the device, outputs compared, everything in a run record."""

from __future__ import annotations

import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

from etdeploy.bench.assemble import RECORD_FILE, Subject, assemble
from etdeploy.bench.compare import Expectation, compare_outputs
from etdeploy.bench.passes import OUTPUTS, RUNNER_LOG, PassResult, passes, run_pass
from etdeploy.bench.record import DeviceRecord, RunRecord
from etdeploy.bench.revision import revision_of
from etdeploy.bench.verdict import require_match
from etdeploy.core.disk import no_room_in
from etdeploy.core.errors import DeviceError, Interrupted, UsageError
from etdeploy.core.leftovers import claimed, sweep_empty
from etdeploy.core.progress import Progress, silent
from etdeploy.devices.base import Bundle, Device, DeviceState
from etdeploy.program.folder import load_provenance
from etdeploy.program.model import Program
from etdeploy.recipe.load import LoadedRecipe
from etdeploy.runtime.plan_model import BuiltRunner

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
) -> RunRecord:
    """Runs every pass on the device and writes a folder with the record and all results.

    Outputs that differ are part of the record: see `require_match`.

    Args:
        device: Locked for this run; the bundle was pushed to it.
        bundle: As `make_bundle` gave it.
        loaded: The recipe.
        program_folder: Holds the program, its expected outputs and its provenance.
        program: What inspection said of it.
        runner: What is in the bundle.
        output: The folder that gets a folder for this run; its path is in the record's `files`.
        progress: Told each pass.

    Raises:
        UsageError: The program lacks the recipe's method, or `output` cannot be written to.
        RunError: The runner failed; what it said stays in `output`.
        DeviceError: The device went away.
        Interrupted: The run was stopped; nothing of it stays.
    """
    subject = Subject(loaded, program_folder, program, load_provenance(program_folder), runner)
    subject.require_method()
    started = datetime.now(timezone.utc)
    run_id = _run_id(started, loaded.name, device.name)
    with _results_folder(output.absolute() / run_id) as here:
        facts, before = device.facts(), device.state()
        results = _run_passes(device, bundle, run_id, loaded, here, progress)
        states = DeviceRecord(facts=facts, before=before, after=_state_after(device))
        progress("comparing outputs")
        checks = compare_outputs(
            results["timing"].results.outputs, here / OUTPUTS, _expectation(subject)
        )
        record = assemble(subject, states, results, checks, revision_of(loaded.path), started, here)
        record.save(here / RECORD_FILE)
        return record


def _expectation(subject: Subject) -> Expectation:
    provenance = subject.provenance
    return Expectation(
        provenance.expected,
        subject.program_folder,
        provenance.quantization,
        subject.loaded.recipe.benchmark.tolerance,
        tuple(known.scale if known else None for known in provenance.output_quantization),
    )


def _run_passes(
    device: Device,
    bundle: Bundle,
    run_id: str,
    loaded: LoadedRecipe,
    here: Path,
    progress: Progress,
) -> dict[str, PassResult]:
    steps = passes(loaded.recipe)
    results = {}
    with device.open_run(bundle, run_id) as folder:
        for step in steps:
            progress(f"{step.name} pass: {step.iterations} inferences")
            results[step.name] = run_pass(folder, step, loaded.recipe, device.name, here)
    return results


def _state_after(device: Device) -> DeviceState:
    """The device's state; an empty one when it has gone, since the measurement is complete."""
    try:
        return device.state()
    except DeviceError:
        return DeviceState()


def _run_id(started: datetime, recipe: str, device: str) -> str:
    """Sorts by time, says what ran where, and is unique."""
    words = [re.sub(r"[^A-Za-z0-9._-]+", "_", word)[:48] for word in (recipe, device)]
    return "-".join([started.strftime("%Y%m%dT%H%M%SZ"), *words, secrets.token_hex(2)])


# What `_run_id` gives.
_RUN_ID = re.compile(r"\d{8}T\d{6}Z-[A-Za-z0-9._-]+-[0-9a-f]{4}")


@contextmanager
def _results_folder(folder: Path) -> Iterator[Path]:
    """A folder for results; when the block fails, only what the runner said stays in it."""
    log = folder / RUNNER_LOG
    try:
        sweep_empty(folder.parent, _RUN_ID)
        folder.mkdir(parents=True)
        with claimed(folder):
            yield folder
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        if no_room_in(error):
            raise
        raise UsageError(
            f"results cannot be written: {error.strerror or error}",
            place=str(error.filename or folder),
            remedy="Name a folder that can be written to: --output FOLDER",
        ) from error
    except BaseException as error:
        said = log.read_bytes() if log.is_file() and not isinstance(error, Interrupted) else b""
        shutil.rmtree(folder, ignore_errors=True)
        if said:
            folder.mkdir()
            log.write_bytes(said)
        raise
