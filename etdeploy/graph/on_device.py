"""The steps for which there is a device: bundle, push and bench.

As in `pipeline.py`, an action imports what only it needs.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from etdeploy.bench.records.record import Workload
from etdeploy.bench.records.stored import StoredRun, is_readable, load_run
from etdeploy.bench.units import duration
from etdeploy.cache.folder import CacheKind
from etdeploy.core import console
from etdeploy.core.errors import UsageError
from etdeploy.core.hashing import sha256_file
from etdeploy.core.values import Progress, Value
from etdeploy.devices.base import Bundle, Device, PushReport
from etdeploy.export.methods import values_of_method
from etdeploy.graph.backends import bundle_notes, extras_for, simulation_for
from etdeploy.graph.job import (
    THREADS,
    Job,
    Pushed,
    StepName,
    flat,
    load_program,
    stage_path,
)
from etdeploy.graph.resolve import Resolved
from etdeploy.graph.tasks.steps import Load, Step, StepLog
from etdeploy.plan.model import RuntimePlan
from etdeploy.program.folder import Provenance, load_provenance
from etdeploy.program.generation import Draft, Generation
from etdeploy.recipe.sections.benchmark import BenchmarkGeneration
from etdeploy.runner.model import BuiltRunner
from etdeploy.runner.protocol import RunnerOutput

if TYPE_CHECKING:
    from etdeploy.bench.measure import PreparedMeasurement


def bundle_step(resolved: Resolved) -> Step:
    """Lists the files that go to the device."""
    job = resolved.job
    output = stage_path(job, StepName.BUNDLE)
    inputs_list = job.state / "inputs.txt"

    def act(log: StepLog) -> str:  # noqa: ARG001 - pure and quick
        from etdeploy.bench.bundle import make_bundle

        exported, program = load_program(job)
        folder = Path(exported.folder)
        runner = BuiltRunner.load(stage_path(job, StepName.RUNNER))
        loaded = job.loaded
        provenance = load_provenance(folder)
        simulated = simulation_for(job, program)
        draft = resolved.draft
        request = request_files(
            job, provenance, folder, simulated=simulated is not None,
            draft=draft.draft if draft else None,
        )  # fmt: skip
        if request is None:
            wanted = loaded.recipe.benchmark.method
            provenance = values_of_method(provenance, wanted, str(loaded.path))
        extras = extras_for(job, program, provenance.versions)
        bundle = make_bundle(
            runner,
            folder,
            provenance,
            inputs_list,
            extras,
            simulated,
            request,
            draft,
            exported.sha256,
        )
        bundle.save(output)
        size_bytes = sum(f.size_bytes for f in bundle.files)
        notes = "".join(f"; {note}" for note in bundle_notes(job, program, provenance.versions))
        return f"{console.count(len(bundle.files), 'file')}, {console.size(size_bytes)}{notes}"

    return Step(
        StepName.BUNDLE,
        "list the files that go to the device",
        output,
        act,
        needs=(StepName.EXPORT, StepName.RUNNER, StepName.CHECK),
        inputs={
            "SoC": job.facts.soc if job.facts else None,
            "benchmark.method": job.loaded.recipe.benchmark.method,
            **generation_inputs(job),
            **draft_input(resolved),
            **resolved.bundle_inputs,
        },
        sound=lambda: _gone(output, job.workspace.folder(CacheKind.KITS)),
        value=Bundle,
    )


def request_files(
    job: Job,
    provenance: Provenance,
    folder: Path,
    *,
    simulated: bool = False,
    draft: Draft | None = None,
) -> Mapping[str, Path] | None:
    """The files that say what a measurement generates; None for a program that generates nothing.

    There are none where that does not fit the program: the measurement tells it, and a text or a
    chat has no need of them.
    """
    if provenance.generation is None:
        return None
    from etdeploy.bench.generation_request import FOLDER, encoder_files, write_request
    from etdeploy.bench.generation_workload import make_workload

    try:
        work = make_workload(
            job.loaded, provenance.generation, folder, simulated=simulated, draft=draft
        )
    except UsageError:
        return {}
    requests = write_request(work, job.state / FOLDER)
    inputs = encoder_files(provenance, folder, job.state / FOLDER)
    return {**requests, **{f"{FOLDER}/{name}": path for name, path in inputs.items()}}


def draft_input(resolved: Resolved) -> dict[str, object]:
    """The draft, as an input of steps; nothing without one."""
    return {"draft": resolved.draft.draft.sha256} if resolved.draft else {}


def require_draft(resolved: Resolved, generation: Generation | None, folder: Path | None) -> None:
    """Raises UsageError if the recipe's draft does not fit the program, as far as that is known.

    `generation` and `folder` are the program's; None before the export.
    """
    if resolved.draft is None:
        return
    from etdeploy.bench.generation_limits import require_fitting_draft, require_speculation

    require_speculation(resolved.job.loaded, generation)
    require_fitting_draft(resolved.draft, resolved.export_spec, generation, folder)


def generation_inputs(job: Job) -> dict[str, object]:
    """The keys of a recipe that decide the generated text and its checks."""
    recipe = job.loaded.recipe
    wanted = recipe.benchmark
    if wanted.generation is None and not recipe.has_other_exporter:
        return {}
    return {
        **flat("benchmark.generation", wanted.generation or BenchmarkGeneration()),
        "benchmark.warmup": wanted.warmup,
        "benchmark.iterations": wanted.iterations,
    }


def _gone(bundle: Path, kits: Path) -> str | None:
    """What of a bundle was made on the way and is gone; the rest belongs to other steps."""
    absent = [Path(f.source) for f in Bundle.load(bundle).files if not Path(f.source).is_file()]
    if any(path.suffix == ".txt" or path.is_relative_to(bundle.parent) for path in absent):
        return "the list of inputs is gone"
    if any(path.is_relative_to(kits) for path in absent):
        return "unpacked libraries are gone"
    return None


def push_step(job: Job, device: Device) -> Step:
    """Sends what the device does not have."""
    output = stage_path(job, StepName.PUSH)

    def act(log: StepLog) -> str:
        bundle = Bundle.load(stage_path(job, StepName.BUNDLE))
        report = device.push(bundle, log.progress)
        Pushed(device=job.device_label, files=tuple(f.sha256 for f in bundle.files)).save(output)
        return pushed_line(report)

    return Step(
        StepName.PUSH,
        "send the device what it does not have",
        output,
        act,
        needs=(StepName.BUNDLE,),
        always=True,
        value=Pushed,
        load=Load.BUSY,
        alone=lambda: f"device {job.identity}",
        holds=lambda progress: device_lock(job, progress),
    )


def pushed_line(report: PushReport) -> str:
    """The line that reports a push."""
    if not report.pushed_files:
        return f"the device already has {console.count(report.kept_files, 'file')}"
    resumed = f" ({console.size(report.resumed_bytes)} were there of an interrupted push)"
    removed = f"; removed {console.size(report.removed_bytes)} of what was used longest ago"
    return (
        f"{console.count(report.pushed_files, 'file')}, "
        f"{console.size(report.pushed_bytes)}{resumed if report.resumed_bytes else ''}; "
        f"{report.kept_files:,} already there{removed if report.removed_bytes else ''}"
    )


def prepared(job: Job) -> PreparedMeasurement:
    """What the steps before the measurement made."""
    from etdeploy.bench.measure import PreparedMeasurement

    exported, program = load_program(job)
    return PreparedMeasurement(
        Bundle.load(stage_path(job, StepName.BUNDLE)),
        job.loaded,
        Path(exported.folder),
        program,
        BuiltRunner.load(stage_path(job, StepName.RUNNER)),
        RuntimePlan.load(stage_path(job, StepName.PLAN)),
    )


def measured_line(workload: Workload) -> str:
    """The median, and over how much."""
    times = workload.timed
    samples = console.count(len(times.samples), workload.sample)
    starts = console.count(len(workload.runs), "start")
    return f"median {duration(times.median)} over {samples} in {starts}"


class Measured(Value):
    """Where the last run record is."""

    record: str
    sha256: str
    run_id: str


def load_last_run(job: Job) -> StoredRun:
    """The last run of the bench step."""
    measured = Measured.load(stage_path(job, StepName.BENCH))
    return load_run(Path(measured.record))


@contextmanager
def device_lock(job: Job, progress: Progress) -> Iterator[None]:
    """Hold the device for this run alone."""
    from etdeploy.device_pool import lock_device

    if job.device is None or job.identity is None:
        raise RuntimeError("a step that needs a device was selected without one")
    lock = job.workspace.lock_path("device", job.identity)
    with lock_device(lock, job.identity, job.device.name, progress):
        yield


def bench_step(job: Job, device: Device) -> Step:
    """Measures, and writes the run record."""
    recipe = job.loaded.recipe
    output = stage_path(job, StepName.BENCH)

    def act(log: StepLog) -> str:
        from etdeploy.bench.measure import measure
        from etdeploy.history.record_sink import save_run

        run = measure(device, prepared(job), job.output, log.progress)
        path = run.record_path
        Measured(record=str(path), sha256=sha256_file(path), run_id=run.record.run_id).save(output)
        save_run(run)
        if run.record.simulated:
            return f"simulated by {run.record.simulated.by}"
        return measured_line(run.record.workload)

    def sound() -> str | None:
        measured = Measured.load(output)
        path = Path(measured.record)
        if job.measure_again:
            return "a new measurement was requested"
        if not path.is_file() or sha256_file(path) != measured.sha256:
            return "the last run record is gone or was changed"
        return (
            None if is_readable(path) else "another release of etdeploy wrote the last run record"
        )

    return Step(
        StepName.BENCH,
        "run on the device: timing, memory and profile passes",
        output,
        act,
        needs=(StepName.BUNDLE, StepName.PUSH, StepName.EXPORT, StepName.RUNNER),
        inputs={
            **flat("benchmark", recipe.benchmark),
            "order of benchmark.sizes": list(recipe.benchmark.sizes),
            THREADS: recipe.runtime.threads,
            **(flat("device", job.facts) if job.facts else {}),
            "output folder": str(job.output),
        },
        sound=sound,
        value=Measured,
        load=Load.MEASURES if job.shares_host_cores else Load.LIGHT,
        alone=lambda: f"device {job.identity}",
        holds=lambda progress: device_lock(job, progress),
    )


class Observed(Value):
    """The outputs of one inference.

    Attributes:
        folder: With their files.
        outputs: As the runner wrote them.
        program_sha256: Of the program that gave them.
    """

    folder: str
    outputs: tuple[RunnerOutput, ...]
    program_sha256: str


def observe_step(job: Job, device: Device) -> Step:
    """Runs the program once, and fetches its outputs."""
    recipe = job.loaded.recipe
    output = stage_path(job, StepName.OBSERVE)
    folder = job.state / "observed"

    def act(log: StepLog) -> str:
        from etdeploy.bench.passes import OUTPUTS, Pass
        from etdeploy.bench.results_folder import run_id
        from etdeploy.bench.run_pass import run_pass
        from etdeploy.bench.threads import choose_threads

        exported, _ = load_program(job)
        provenance = values_of_method(
            load_provenance(Path(exported.folder)), recipe.benchmark.method, str(job.loaded.path)
        )
        threads = choose_threads(recipe.runtime.threads, device.state()).numbers[0]
        size = next(iter(provenance.measured))
        once = Pass(OUTPUTS, 0, 1, True, size=size, method=provenance.method, threads=threads)
        bundle = Bundle.load(stage_path(job, StepName.BUNDLE))
        output.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        log.progress("running the program once")
        device.end_leftovers()
        name = run_id(datetime.now(timezone.utc), job.loaded.name, device.name)
        with device.open_run(bundle, name) as run:
            found = run_pass(run, once, recipe, device.name, folder, device.capabilities)
        outputs = found.results.outputs
        Observed(
            folder=str(folder / once.outputs_folder),
            outputs=outputs,
            program_sha256=exported.sha256,
        ).save(output)
        return f"{console.count(len(outputs), 'output')} of one inference"

    def sound() -> str | None:
        seen = Observed.load(output)
        files = [Path(seen.folder, each.path) for each in seen.outputs if each.path]
        if job.measure_again:
            return "another run was requested"
        return None if all(file.is_file() for file in files) else "its outputs are gone"

    return Step(
        StepName.OBSERVE,
        "run the program once and fetch its outputs",
        output,
        act,
        needs=(StepName.BUNDLE, StepName.PUSH, StepName.EXPORT, StepName.RUNNER),
        inputs={
            THREADS: recipe.runtime.threads,
            "benchmark.method": recipe.benchmark.method,
            "benchmark.timeout_s": recipe.benchmark.timeout_s,
        },
        sound=sound,
        value=Observed,
        load=Load.BUSY,
        alone=lambda: f"device {job.identity}",
        holds=lambda progress: device_lock(job, progress),
    )


def load_observed(job: Job) -> Observed:
    """The last outputs of the observe step."""
    return Observed.load(stage_path(job, StepName.OBSERVE))
