"""The line from recipe to run record, as steps; what each does stays in its own package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from etdeploy.bench.bundle import make_bundle
from etdeploy.bench.measure import measure
from etdeploy.bench.record import RunRecord
from etdeploy.core import console
from etdeploy.core.errors import BuildError
from etdeploy.core.hashing import sha256_file
from etdeploy.core.values import Value
from etdeploy.devices.base import Bundle
from etdeploy.export.cache import program_key
from etdeploy.export.needs import check_needs
from etdeploy.export.run import ExportedProgram, export_program
from etdeploy.export.spec import ExportSpec, export_spec
from etdeploy.graph.job import Job
from etdeploy.graph.provision import (
    checkout_for,
    custom_ops_of,
    libraries_problem,
    obtain_libraries,
    plan_for,
)
from etdeploy.graph.qnn import extras_for, missing_sdk, require_soc, sdk_seen, wanted_soc
from etdeploy.graph.steps import Step, StepLog, reasons_to_run
from etdeploy.program.folder import PROGRAM_FILE, PROGRAM_INFO, load_provenance
from etdeploy.program.model import Program
from etdeploy.runtime.build import build_runner
from etdeploy.runtime.check import require_runnable
from etdeploy.runtime.checkout import Checkout, require_readable
from etdeploy.runtime.libraries import Libraries
from etdeploy.runtime.machine import runner_fingerprint
from etdeploy.runtime.missing import Missing, find_missing, require_present
from etdeploy.runtime.plan import require_feasible
from etdeploy.runtime.plan_model import BuiltRunner, RuntimePlan
from etdeploy.targets.platforms import find_target

_THREADS = "runtime.threads"


class Measured(Value):
    """Where the last run record is."""

    record: str
    sha256: str
    run_id: str


class Checked(Value):
    """The program and runner that were found to fit."""

    program_sha256: str
    runner_sha256: str


class Pushed(Value):
    """What is on which device."""

    device: str
    files: tuple[str, ...]


def make_line(job: Job) -> tuple[Step, ...]:
    """Every step of the job in order; push and bench only where there is a device."""
    line = (
        _export(job),
        _plan(job),
        _runtime(job),
        _runner(job),
        _check(job),
        _bundle(job),
    )
    return (*line, _push(job), _bench(job)) if job.device else line


def load_record(job: Job) -> RunRecord:
    """The run record that the bench step made last."""
    measured = Measured.load(_path(job, "bench"))
    return RunRecord.load(Path(measured.record))


def load_program(job: Job) -> tuple[ExportedProgram, Program]:
    """The program that the export step made last."""
    exported = ExportedProgram.load(_path(job, "export"))
    return exported, Program.load(Path(exported.folder) / PROGRAM_INFO)


def load_runner(job: Job) -> BuiltRunner:
    """The runner that the runner step built last."""
    return BuiltRunner.load(_path(job, "runner"))


def load_bundle(job: Job) -> Bundle:
    """The bundle that was listed last."""
    return Bundle.load(_path(job, "bundle"))


def known_plan(job: Job) -> RuntimePlan:
    """The plan from what is known before anything runs: the program, if it is up to date."""
    return plan_for(job, _current_program(job))


def current_program_path(job: Job) -> Path | None:
    """The program file, where it is exported and up to date."""
    folder = _current_folder(job)
    return folder / PROGRAM_FILE if folder else None


def refuse_early(job: Job, *, with_runner: bool = True) -> None:
    """Stops a run that cannot end well before it exports anything.

    Args:
        job: What is to be run.
        with_runner: Whether it builds a runner, too.

    Raises:
        ExportError: The backend needs an SDK, or a package for exporting is missing.
        BuildError: No runner can be built for what the recipe asks, or something for it is missing.
    """
    require_soc(job)
    if not _path(job, "export").is_file():
        check_needs(_spec(job))
    if not with_runner:
        return
    plan = known_plan(job)
    require_feasible(plan)
    checkout = checkout_for(job, plan)
    if isinstance(checkout, BuildError):
        raise checkout
    if not _path(job, "runner").is_file():
        require_present(missing_for(job, plan))


def version_notes(job: Job, plan: RuntimePlan) -> tuple[str, ...]:
    """What to know of the checkout's release beside the one that made the program.

    Raises:
        BuildError: The checkout's runtime cannot read the program.
    """
    checkout = checkout_for(job, plan)
    folder = _current_folder(job)
    if not isinstance(checkout, Checkout) or folder is None:
        return ()
    return require_readable(checkout, load_provenance(folder).versions.get("executorch"))


def missing_for(job: Job, plan: RuntimePlan) -> tuple[Missing, ...]:
    """What this machine lacks for a plan of the job."""
    return (
        *find_missing(plan, job.host, checkout_for(job, plan)),
        *missing_sdk(job, plan),
    )


def _current_program(job: Job) -> Program | None:
    folder = _current_folder(job)
    return Program.load(folder / PROGRAM_INFO) if folder else None


def _current_folder(job: Job) -> Path | None:
    """Where the program is that an export would give now, whichever device it was made for."""
    if not reasons_to_run(_export(job)):
        return Path(load_program(job)[0].folder)
    key = program_key(_spec(job), job.workspace)
    entry = job.workspace.entry("programs", key) if key else None
    return entry.path if entry and entry.is_sound() else None


def _spec(job: Job) -> ExportSpec:
    """What is to be exported; `soc: auto` becomes the SoC that the device names."""
    spec = export_spec(job.loaded.recipe)
    soc = wanted_soc(job) if spec.soc else None
    return spec.model_copy(update={"soc": soc}) if soc else spec


def _path(job: Job, name: str) -> Path:
    return job.state / f"{name}.json"


def _briefly(program: Program) -> str:
    delegates = sum(len(method.delegates) for method in program.methods)
    outside = sum(operator.calls for method in program.methods for operator in method.operators)
    return (
        f"{console.size(program.size_bytes)}, {console.count(delegates, 'delegated partition')}, "
        f"{console.count(outside, 'operator call')} outside"
    )


def _flat(name: str, section: Any) -> Mapping[str, Any]:
    """A recipe section as dotted names, so that a change can be told by its key."""
    content = section.model_dump(mode="json")
    return {f"{name}.{key}": value for key, value in content.items()}


def _export(job: Job) -> Step:
    recipe = job.loaded.recipe
    spec = _spec(job)
    output = _path(job, "export")

    def act(log: StepLog) -> str:
        exported = export_program(spec, job.workspace, log.progress, log.log)
        exported.save(output)
        program = Program.load(Path(exported.folder) / PROGRAM_INFO)
        made = "taken from the cache" if exported.cached else "made"
        return f"program.pte {made}: {_briefly(program)}"

    def sound() -> str | None:
        exported = ExportedProgram.load(output)
        if exported.key != program_key(spec, job.workspace):
            return "the model's code, its weights or the export tools changed"
        entry = job.workspace.entry("programs", exported.key)
        return None if entry.is_sound() else "the cached program is damaged or gone"

    return Step(
        "export",
        "export the model to a program",
        output,
        act,
        inputs={**_flat("model", recipe.model), **_flat("export", recipe.export)},
        sound=sound,
    )


def _plan(job: Job) -> Step:
    recipe = job.loaded.recipe
    output = _path(job, "plan")
    checkout = checkout_for(job, known_plan(job))
    own = custom_ops_of(job)

    def act(log: StepLog) -> str:  # noqa: ARG001 - pure and quick
        _, program = load_program(job)
        plan = plan_for(job, program)
        require_feasible(plan)
        plan.save(output)
        return f"{plan.provider.value}, links {', '.join(c.name for c in plan.components)}"

    keys = {key: v for key, v in _flat("runtime", recipe.runtime).items() if key != _THREADS}
    return Step(
        "plan",
        "derive what the runner needs from the program",
        output,
        act,
        needs=("export",),
        inputs={
            "target": job.target.name,
            **keys,
            "benchmark.profile": recipe.benchmark.profile,
            "export.quantization": recipe.export.quantization,
            "checkout": str(checkout) if checkout else None,
            "kernels": own.digest if own else None,
        },
    )


def _runtime(job: Job) -> Step:
    output = _path(job, "runtime")

    def act(log: StepLog) -> str:
        plan = RuntimePlan.load(_path(job, "plan"))
        exported, _ = load_program(job)
        made_with = load_provenance(Path(exported.folder)).versions.get("executorch")
        libraries = obtain_libraries(job, plan, made_with, log.progress, log.log)
        libraries.save(output)
        told = "".join(f"; {note}" for note in libraries.notes)
        if libraries.wheel:
            wheel = libraries.wheel
            return f"ExecuTorch {wheel.version} for {wheel.target}, {wheel.origin}{told}"
        return f"the sources of ExecuTorch {libraries.version}{told}"

    def sound() -> str | None:
        return libraries_problem(Libraries.load(output), job.workspace)

    return Step(
        "runtime",
        "get ExecuTorch's C++ libraries or sources",
        output,
        act,
        needs=("plan", "export"),
        sound=sound,
    )


def _runner(job: Job) -> Step:
    output = _path(job, "runner")

    def act(log: StepLog) -> str:
        plan = RuntimePlan.load(_path(job, "plan"))
        libraries = Libraries.load(_path(job, "runtime"))
        exported, _ = load_program(job)
        runner = build_runner(
            plan,
            libraries,
            job.workspace,
            log.progress,
            log.log,
            Path(exported.folder) / PROGRAM_FILE,
            custom_ops_of(job),
        )
        runner.save(output)
        kind = "portable runner" if runner.loader else "runner"
        return f"{kind} for {runner.target} with {len(runner.operators)} operators"

    def sound() -> str | None:
        folder = Path(BuiltRunner.load(output).path)
        entry = job.workspace.entry("runners", folder.name)
        return None if entry.is_sound() else "the cached runner is damaged or gone"

    # Which of the two is built for is known when the plan is.
    candidates = {job.target.name, job.target.portable or job.target.name}
    return Step(
        "runner",
        "build the runner",
        output,
        act,
        needs=("plan", "runtime"),
        inputs={
            "runner sources and compiler": {
                name: runner_fingerprint(job.host, find_target(name)) for name in sorted(candidates)
            }
        },
        sound=sound,
    )


def _check(job: Job) -> Step:
    output = _path(job, "check")

    def act(log: StepLog) -> str:  # noqa: ARG001 - pure and quick
        _, program = load_program(job)
        runner = BuiltRunner.load(_path(job, "runner"))
        require_runnable(program, runner)
        checked = Checked(program_sha256=program.sha256, runner_sha256=runner.sha256)
        checked.save(output)
        return "the runner has every operator and backend of the program"

    return Step(
        "check",
        "compare the program's operators and backends with the runner's",
        output,
        act,
        needs=("export", "runner"),
    )


def _bundle(job: Job) -> Step:
    recipe = job.loaded.recipe
    output = _path(job, "bundle")
    inputs_list = job.state / "inputs.txt"

    def act(log: StepLog) -> str:  # noqa: ARG001 - pure and quick
        exported, _ = load_program(job)
        folder = Path(exported.folder)
        runner = BuiltRunner.load(_path(job, "runner"))
        extras = extras_for(job, folder)
        bundle = make_bundle(runner, folder, load_provenance(folder), inputs_list, extras)
        bundle.save(output)
        size_bytes = sum(f.size_bytes for f in bundle.files)
        return f"{console.count(len(bundle.files), 'file')}, {console.size(size_bytes)}"

    return Step(
        "bundle",
        "list the files that go to the device",
        output,
        act,
        needs=("export", "runner", "check"),
        inputs={"SoC": job.facts.soc if job.facts else None, "QNN SDK": sdk_seen(recipe)},
        sound=lambda: None if inputs_list.is_file() else "the list of inputs is gone",
    )


def _push(job: Job) -> Step:
    output = _path(job, "push")

    def act(log: StepLog) -> str:
        bundle = Bundle.load(_path(job, "bundle"))
        with job.device_lock(log.progress) as device:
            report = device.push(bundle, log.progress)
        Pushed(device=job.place, files=tuple(f.sha256 for f in bundle.files)).save(output)
        if not report.pushed_files:
            return f"the device has all {report.kept_files} files"
        return (
            f"{console.count(report.pushed_files, 'file')}, "
            f"{console.size(report.pushed_bytes)}; "
            f"{report.kept_files} were there"
        )

    return Step(
        "push",
        "bring to the device what it does not have",
        output,
        act,
        needs=("bundle",),
        always=True,
    )


def _bench(job: Job) -> Step:
    recipe = job.loaded.recipe
    output = _path(job, "bench")

    def act(log: StepLog) -> str:
        exported, program = load_program(job)
        with job.device_lock(log.progress) as device:
            record = measure(
                device,
                Bundle.load(_path(job, "bundle")),
                job.loaded,
                Path(exported.folder),
                program,
                BuiltRunner.load(_path(job, "runner")),
                job.output,
                log.progress,
            )
        path = Path(record.files["record"])
        Measured(record=str(path), sha256=sha256_file(path), run_id=record.run_id).save(output)
        return (
            f"median {record.latency_ms.median:.3f} ms over {len(record.latency_ms.samples)} runs"
        )

    def sound() -> str | None:
        measured = Measured.load(output)
        path = Path(measured.record)
        if job.measure_again:
            return "a new measurement was asked for"
        if not path.is_file() or sha256_file(path) != measured.sha256:
            return "the last run record is gone or was changed"
        return None

    return Step(
        "bench",
        "run on the device: timing, memory and profile passes",
        output,
        act,
        needs=("bundle", "push", "export", "runner"),
        inputs={
            **_flat("benchmark", recipe.benchmark),
            _THREADS: recipe.runtime.threads,
            "device": job.facts.model_dump(mode="json") if job.facts else None,
            "output folder": str(job.output),
        },
        sound=sound,
    )
