"""The line from recipe to run record, as steps; what each does stays in its own package."""

from __future__ import annotations

from pathlib import Path

from etdeploy.bench.measure import measure
from etdeploy.bench.records.stored import is_readable
from etdeploy.bench.units import duration
from etdeploy.core import console
from etdeploy.core.hashing import sha256_file
from etdeploy.deploy.bundle import make_bundle
from etdeploy.devices.base import Bundle
from etdeploy.graph.job import Job
from etdeploy.graph.provision import (
    checkout_for,
    custom_ops_of,
    libraries_problem,
    obtain_libraries,
    plan_for,
)
from etdeploy.graph.qnn import extras_for, sdk_seen
from etdeploy.graph.stage_values import Checked, Measured, Pushed, flat, load_program, stage_path
from etdeploy.graph.state import export_step, known_plan
from etdeploy.graph.steps import Step, StepLog
from etdeploy.plan.derive import require_feasible
from etdeploy.plan.model import BuiltRunner, RuntimePlan
from etdeploy.program.folder import PROGRAM_FILE, load_provenance
from etdeploy.provider.libraries import Libraries
from etdeploy.runner.build import build_runner
from etdeploy.runner.check import require_runnable
from etdeploy.runner.fingerprint import rules_digest, runner_fingerprint
from etdeploy.targets.platforms import find_target

_THREADS = "runtime.threads"
# An upgrade may decide otherwise from the same recipe and program.
_CODE = "the code of etdeploy"


def make_line(job: Job) -> tuple[Step, ...]:
    """Every step of the job in order; push and bench only where there is a device."""
    line = (
        export_step(job),
        _plan(job),
        _runtime(job),
        _runner(job),
        _check(job),
        _bundle(job),
    )
    return (*line, _push(job), _bench(job)) if job.device else line


def _plan(job: Job) -> Step:
    recipe = job.loaded.recipe
    output = stage_path(job, "plan")
    checkout = checkout_for(job, known_plan(job))
    own = custom_ops_of(job)

    def act(log: StepLog) -> str:  # noqa: ARG001 - pure and quick
        _, program = load_program(job)
        plan = plan_for(job, program)
        require_feasible(plan)
        plan.save(output)
        return f"{plan.provider.value}, links {', '.join(c.name for c in plan.components)}"

    keys = {key: v for key, v in flat("runtime", recipe.runtime).items() if key != _THREADS}
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
            _CODE: rules_digest(),
        },
        value=RuntimePlan,
    )


def _runtime(job: Job) -> Step:
    output = stage_path(job, "runtime")

    def act(log: StepLog) -> str:
        plan = RuntimePlan.load(stage_path(job, "plan"))
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
        inputs={_CODE: rules_digest()},
        sound=sound,
        value=Libraries,
    )


def _runner(job: Job) -> Step:
    output = stage_path(job, "runner")

    def act(log: StepLog) -> str:
        plan = RuntimePlan.load(stage_path(job, "plan"))
        libraries = Libraries.load(stage_path(job, "runtime"))
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
            },
            _CODE: rules_digest(),
        },
        sound=sound,
        value=BuiltRunner,
    )


def _check(job: Job) -> Step:
    output = stage_path(job, "check")

    def act(log: StepLog) -> str:  # noqa: ARG001 - pure and quick
        _, program = load_program(job)
        runner = BuiltRunner.load(stage_path(job, "runner"))
        finished = job.loaded.recipe.model.program is not None
        require_runnable(program, runner, finished=finished)
        checked = Checked(program_sha256=program.sha256, runner_sha256=runner.sha256)
        checked.save(output)
        return "the runner has every operator and backend of the program"

    return Step(
        "check",
        "compare the program's operators and backends with the runner's",
        output,
        act,
        needs=("export", "runner"),
        inputs={_CODE: rules_digest()},
        value=Checked,
    )


def _bundle(job: Job) -> Step:
    recipe = job.loaded.recipe
    output = stage_path(job, "bundle")
    inputs_list = job.state / "inputs.txt"

    def act(log: StepLog) -> str:  # noqa: ARG001 - pure and quick
        exported, program = load_program(job)
        folder = Path(exported.folder)
        runner = BuiltRunner.load(stage_path(job, "runner"))
        provenance = load_provenance(folder)
        extras = extras_for(job, program, provenance.versions)
        bundle = make_bundle(runner, folder, provenance, inputs_list, extras)
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
        value=Bundle,
    )


def _push(job: Job) -> Step:
    output = stage_path(job, "push")

    def act(log: StepLog) -> str:
        bundle = Bundle.load(stage_path(job, "bundle"))
        with job.device_lock(log.progress) as device:
            report = device.push(bundle, log.progress)
        Pushed(device=job.place, files=tuple(f.sha256 for f in bundle.files)).save(output)
        if not report.pushed_files:
            return f"the device has all {report.kept_files} files"
        removed = f"; removed {console.size(report.removed_bytes)} of what was used longest ago"
        return (
            f"{console.count(report.pushed_files, 'file')}, "
            f"{console.size(report.pushed_bytes)}; "
            f"{report.kept_files} were there{removed if report.removed_bytes else ''}"
        )

    return Step(
        "push",
        "bring to the device what it does not have",
        output,
        act,
        needs=("bundle",),
        always=True,
        value=Pushed,
    )


def _bench(job: Job) -> Step:
    recipe = job.loaded.recipe
    output = stage_path(job, "bench")

    def act(log: StepLog) -> str:
        exported, program = load_program(job)
        with job.device_lock(log.progress) as device:
            run = measure(
                device,
                Bundle.load(stage_path(job, "bundle")),
                job.loaded,
                Path(exported.folder),
                program,
                BuiltRunner.load(stage_path(job, "runner")),
                job.output,
                log.progress,
                RuntimePlan.load(stage_path(job, "plan")),
            )
        path = run.record_path
        Measured(record=str(path), sha256=sha256_file(path), run_id=run.record.run_id).save(output)
        latency = run.record.workload.latency_ms
        return f"median {duration(latency.median)} over {len(latency.samples)} runs"

    def sound() -> str | None:
        measured = Measured.load(output)
        path = Path(measured.record)
        if job.measure_again:
            return "a new measurement was asked for"
        if not path.is_file() or sha256_file(path) != measured.sha256:
            return "the last run record is gone or was changed"
        return (
            None if is_readable(path) else "another release of etdeploy wrote the last run record"
        )

    return Step(
        "bench",
        "run on the device: timing, memory and profile passes",
        output,
        act,
        needs=("bundle", "push", "export", "runner"),
        inputs={
            **flat("benchmark", recipe.benchmark),
            _THREADS: recipe.runtime.threads,
            **(flat("device", job.facts) if job.facts else {}),
            "output folder": str(job.output),
        },
        sound=sound,
        value=Measured,
    )
