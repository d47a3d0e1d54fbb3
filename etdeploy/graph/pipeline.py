"""The pipeline from recipe to run record, as steps; what each does stays in its own package.

Most runs skip most steps, so an action imports what only it needs.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from etdeploy.backends.registry import backend_named
from etdeploy.cache.folder import CacheKind
from etdeploy.cache.workspace import Workspace
from etdeploy.core import cancel, console
from etdeploy.core.errors import Blocker, BuildError, EtdeployError, Interrupted
from etdeploy.core.hashing import digest_json
from etdeploy.core.values import Progress
from etdeploy.export.cache import ExportedProgram
from etdeploy.export.preload import OWN_PROCESSES, Exporter
from etdeploy.export.run import export_program
from etdeploy.export.spec import ExportSpec
from etdeploy.graph.backends import missing_for_bundle
from etdeploy.graph.job import (
    CODE,
    THREADS,
    Checked,
    Job,
    StepName,
    flat,
    load_program,
    stage_path,
)
from etdeploy.graph.on_device import (
    bench_step,
    bundle_step,
    draft_input,
    observe_step,
    push_step,
    require_draft,
)
from etdeploy.graph.resolve import Resolved
from etdeploy.graph.tasks.steps import DedupKey, Load, Step, StepLog
from etdeploy.plan.cmake_options import spelled_for
from etdeploy.plan.components import provided
from etdeploy.plan.derive import require_feasible
from etdeploy.plan.model import Provider, RuntimePlan
from etdeploy.program.folder import PROGRAM_FILE, PROGRAM_INFO, RETRACED, load_provenance
from etdeploy.program.model import Program
from etdeploy.provider.checkout import (
    Checkout,
    Libraries,
    examine,
    read_options,
    require_readable,
)
from etdeploy.provider.wheel import obtain_wheel, wheel_problem
from etdeploy.recipe.rules.remedies import remedies_for
from etdeploy.runner.model import BuiltRunner
from etdeploy.targets.platforms import find_target

_NICE = 10


def make_steps(resolved: Resolved, exporter: Exporter = OWN_PROCESSES) -> tuple[Step, ...]:
    """Every step in order; push and bench only if there is a device. Looks nothing up."""
    job, failed = resolved.job, cancel.Flag()
    steps: tuple[Step, ...] = (_export(resolved, exporter, failed), _plan(resolved))
    if job.app:
        from etdeploy.graph.app_steps import app_steps

        steps = (*steps, *app_steps(resolved))
    else:
        ahead = (_prebuild(resolved, failed),) if _builds_ahead(resolved) else ()
        runner = (_runtime(resolved), _runner(resolved), _check(resolved))
        steps = (*steps, *ahead, *runner, bundle_step(resolved))
    if job.device:
        run = bench_step if job.observation is None else observe_step
        steps = (*steps, push_step(job, job.device), run(job, job.device))
    return tuple(replace(step, action=_with_remedies(step.action, resolved)) for step in steps)


def _with_remedies(
    action: Callable[[StepLog], str], resolved: Resolved
) -> Callable[[StepLog], str]:
    """The same action, whose errors name what this recipe has to change."""

    def act(log: StepLog) -> str:
        with remedies_for(resolved.job.loaded.recipe):
            return action(log)

    return act


def _export(resolved: Resolved, exporter: Exporter, failed: cancel.Flag) -> Step:
    """The step that exports; it raises the flag `failed` if that fails."""
    job, spec = resolved.job, resolved.export_spec
    recipe = job.loaded.recipe
    output = stage_path(job, StepName.EXPORT)

    def act(log: StepLog) -> str:
        try:
            exported = export_program(spec, job.workspace, log.progress, log.log, exporter)
        except BaseException:
            failed.set()
            raise
        # As any later run finds it: that it was not cached before is no change for other steps.
        exported.model_copy(update={"cached": True}).save(output)
        folder = Path(exported.folder)
        program = Program.load(folder / PROGRAM_INFO)
        retraced = load_provenance(folder).details.get(RETRACED)
        suffix = f"; {retraced}" if retraced else ""
        return f"program.pte {origin(spec, exported)}: {_briefly(program)}{suffix}"

    def sound() -> str | None:
        exported = ExportedProgram.load(output)
        if exported.key != resolved.program_key:
            return "the model's code, its weights or the export tools changed"
        entry = job.workspace.entry(CacheKind.PROGRAMS, exported.key)
        return None if entry.is_sound() else "the cached program is damaged or gone"

    return Step(
        StepName.EXPORT,
        "export the model to a program",
        output,
        act,
        inputs={
            **flat("model", recipe.model),
            **flat("export", recipe.export),
            **({"benchmark.profile": spec.profiled} if _profile_counts(spec) else {}),
            "benchmark.sizes": recipe.benchmark.sizes,
            "benchmark.inputs": recipe.benchmark.inputs,
            **({"benchmark.method": spec.method} if spec.method_counts else {}),
            **({"observed": spec.observation.model_dump()} if spec.observation else {}),
        },
        sound=sound,
        value=ExportedProgram,
        load=Load.LIGHT if spec.is_finished else Load.HEAVY,
        same=DedupKey(lambda: export_work(resolved)),
    )


def _profile_counts(spec: ExportSpec) -> bool:
    return spec.backend is not None and backend_named(spec.backend).profile_compiled


def origin(spec: ExportSpec, exported: ExportedProgram) -> str:
    """Where the program comes from; a finished one is never exported."""
    if spec.is_finished:
        return f"taken from {spec.source}"
    return "taken from the cache" if exported.cached else "exported"


def _briefly(program: Program) -> str:
    delegates = sum(len(method.delegates) for method in program.methods)
    outside = sum(operator.calls for method in program.methods for operator in method.operators)
    return (
        f"{console.size(program.size_bytes)}, {console.count(delegates, 'delegated partition')}, "
        f"{console.count(outside, 'operator call')} outside"
    )


def _plan(resolved: Resolved) -> Step:
    job, own = resolved.job, resolved.custom_ops
    recipe = job.loaded.recipe
    output = stage_path(job, StepName.PLAN)

    def act(log: StepLog) -> str:  # noqa: ARG001 - pure and quick
        exported, program = load_program(job)
        folder = Path(exported.folder)
        require_draft(resolved, load_provenance(folder).generation, folder)
        plan = resolved.with_program(program).plan
        require_feasible(plan, job.runs_it)
        plan.save(output)
        return f"{plan.provider.value}, links {', '.join(c.name for c in plan.components)}"

    keys = {key: v for key, v in flat("runtime", recipe.runtime).items() if key != THREADS}
    return Step(
        StepName.PLAN,
        "derive from the program what the runner needs",
        output,
        act,
        needs=(StepName.EXPORT,),
        inputs={
            "target": job.target.name,
            **keys,
            "benchmark.profile": recipe.benchmark.profile,
            "export.quantization": recipe.export.quantization,
            **(flat("app", recipe.app) if job.app else {}),
            "checkout": str(resolved.checkout) if resolved.checkout else None,
            "kernels": own.digest if own else None,
            **draft_input(resolved),
            CODE: resolved.rules,
        },
        value=RuntimePlan,
    )


def _runtime(resolved: Resolved) -> Step:
    job = resolved.job
    output = stage_path(job, StepName.RUNTIME)

    def act(log: StepLog) -> str:
        exported, program = load_program(job)
        made_with = load_provenance(Path(exported.folder)).versions.get("executorch")
        planned = resolved.with_program(program)
        libraries = obtain_libraries(planned, made_with, log.progress, log.log)
        libraries.save(output)
        suffix = "".join(f"; {note}" for note in libraries.notes)
        if libraries.wheel:
            wheel = libraries.wheel
            return f"ExecuTorch {wheel.version} for {wheel.target}, {wheel.origin}{suffix}"
        return f"the sources of ExecuTorch {libraries.version}{suffix}"

    def sound() -> str | None:
        libraries = Libraries.load(output)
        return resolved.lookups.memoize(
            ("libraries", libraries.model_dump_json()),
            lambda: libraries_problem(libraries, job.workspace),
        )

    return Step(
        StepName.RUNTIME,
        "get ExecuTorch's C++ libraries or sources",
        output,
        act,
        needs=(StepName.PLAN, StepName.EXPORT),
        inputs={CODE: resolved.rules},
        sound=sound,
        value=Libraries,
        load=Load.BUSY,
        alone=lambda: checkout_in_use(now_planned(resolved)),
        same=DedupKey(
            lambda: libraries_work(resolved),
            StepName.PLAN,
            lambda: libraries_work(now_planned(resolved)),
            lambda: expected_libraries(resolved),
        ),
    )


def _builds_ahead(resolved: Resolved) -> bool:
    """Whether the runner can be built before its program is known.

    Only for language models does the recipe determine the components: other models may need no
    kernels besides the delegate. A build from source selects the program's operators, and the
    recipe's own kernels are searched for them.
    """
    plan = resolved.plan
    return (
        plan.provisional
        and not plan.blockers
        and resolved.export_spec.generation is not None
        and plan.provider.value == Provider.WHEEL
        and resolved.custom_ops is None
    )


def _prebuild(resolved: Resolved, failed: cancel.Flag) -> Step:
    """The step that builds the expected plan's runner into the cache, unless the export fails."""
    job = resolved.job
    output = stage_path(job, StepName.PREBUILD)

    def act(log: StepLog) -> str:
        from etdeploy.runner.builder import build_runner

        flag = cancel.Flag(cancel.current(), failed)

        def build() -> BuiltRunner:
            with cancel.bound(flag):
                libraries = obtain_libraries(resolved, None, log.progress, log.log)
                return build_runner(resolved.plan, libraries, job.workspace, log.progress, log.log)

        try:
            # A separate thread, since a lowered priority cannot be raised again.
            with ThreadPoolExecutor(1, initializer=_give_way) as pool:
                runner = pool.submit(build).result()
        except EtdeployError as error:
            cancel.checkpoint()
            # The runner step may have another plan; if not, its error is the user's.
            stopped = isinstance(error, Interrupted)
            return "stopped with the export" if stopped else f"not built: {error.message}"
        runner.save(output)
        return f"the runner that the recipe needs, with {_operators(runner)}"

    return Step(
        StepName.PREBUILD,
        "build the runner that the recipe needs, during the export",
        output,
        act,
        inputs={
            "plan": resolved.plan.build_digest,
            "runner sources and compiler": dict(resolved.fingerprints),
            CODE: resolved.rules,
        },
        value=BuiltRunner,
        load=Load.HEAVY,
        same=DedupKey(lambda: expected_runner(resolved)),
    )


def _give_way() -> None:
    """Lower the priority of this thread, and of processes that it starts, below the export's."""
    if sys.platform == "linux":  # elsewhere, only whole processes have a priority
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)


def _operators(runner: BuiltRunner) -> str:
    return console.count(len(runner.operators), "operator")


def _runner(resolved: Resolved) -> Step:
    job = resolved.job
    output = stage_path(job, StepName.RUNNER)

    def act(log: StepLog) -> str:
        from etdeploy.runner.builder import build_runner

        plan = RuntimePlan.load(stage_path(job, StepName.PLAN))
        libraries = Libraries.load(stage_path(job, StepName.RUNTIME))
        exported, _ = load_program(job)
        runner = build_runner(
            plan,
            libraries,
            job.workspace,
            log.progress,
            log.log,
            Path(exported.folder) / PROGRAM_FILE,
            resolved.custom_ops,
        )
        runner.save(output)
        kind = "portable runner" if runner.loader else "runner"
        return f"{kind} for {runner.target} with {_operators(runner)}"

    def sound() -> str | None:
        folder = Path(BuiltRunner.load(output).path)
        entry = job.workspace.entry(CacheKind.RUNNERS, folder.name)
        return None if entry.is_sound() else "the cached runner is damaged or gone"

    return Step(
        StepName.RUNNER,
        "build the runner",
        output,
        act,
        needs=(StepName.PLAN, StepName.RUNTIME),
        after=(StepName.PREBUILD,) if _builds_ahead(resolved) else (),
        inputs={
            "runner sources and compiler": dict(resolved.fingerprints),
            CODE: resolved.rules,
        },
        sound=sound,
        value=BuiltRunner,
        load=Load.HEAVY,
        alone=lambda: checkout_in_use(now_planned(resolved)),
        same=DedupKey(
            lambda: runner_work(resolved),
            StepName.PLAN,
            lambda: runner_work(now_planned(resolved)),
            lambda: expected_runner(resolved),
        ),
    )


def _check(resolved: Resolved) -> Step:
    job = resolved.job
    output = stage_path(job, StepName.CHECK)

    def act(log: StepLog) -> str:  # noqa: ARG001 - pure and quick
        from etdeploy.runner.missing import require_runnable

        _, program = load_program(job)
        runner = BuiltRunner.load(stage_path(job, StepName.RUNNER))
        finished = job.loaded.recipe.model.program is not None
        require_runnable(program, runner, finished=finished)
        if resolved.draft:
            require_runnable(resolved.draft.program, runner, finished=True, noun="the draft")
        checked = Checked(program_sha256=program.sha256, runner_sha256=runner.sha256)
        checked.save(output)
        return "the runner has every operator and backend that the program needs"

    return Step(
        StepName.CHECK,
        "compare the program's operators and backends with the runner's",
        output,
        act,
        needs=(StepName.EXPORT, StepName.RUNNER),
        inputs={**draft_input(resolved), CODE: resolved.rules},
        value=Checked,
    )


def export_work(resolved: Resolved) -> str:
    """Equal for jobs that need the same program.

    By its key in the cache; where only an export can give that, by what is known before one.
    """
    return resolved.program_key or resolved.export_known


def now_planned(resolved: Resolved) -> Resolved:
    """The job with the plan for its program, which an earlier step of this run exported."""
    if not resolved.plan.provisional:
        return resolved
    _, program = load_program(resolved.job)
    return resolved.with_program(program)


def libraries_work(resolved: Resolved) -> str | None:
    """Equal for jobs that need the same libraries or sources of ExecuTorch; None if unknown."""
    return None if resolved.plan.provisional else expected_libraries(resolved)


def runner_work(resolved: Resolved) -> str | None:
    """Equal for jobs that need the same runner; None if unknown."""
    return None if resolved.plan.provisional else expected_runner(resolved)


def expected_libraries(resolved: Resolved) -> str:
    """The same as `libraries_work`, even if the plan is derived from the recipe alone."""
    plan = resolved.plan
    if plan.provider.value != Provider.SOURCE:
        return digest_json([plan.provider.value, plan.build_target])
    from etdeploy.runner.missing import list_submodules

    where = resolved.checkout.path if resolved.checkout else plan.executorch_version
    return digest_json([plan.provider.value, where, *list_submodules(plan)])


def expected_runner(resolved: Resolved) -> str:
    """The same as `runner_work`, even if the plan is derived from the recipe alone."""
    names = () if resolved.plan.provisional else _names_to_find(resolved)
    return digest_json([resolved.plan.build_digest, expected_libraries(resolved), *names])


def checkout_in_use(resolved: Resolved) -> str | None:
    """The checkout that a build works in: builds in one wait for each other anyway."""
    if resolved.plan.provider.value != Provider.SOURCE:
        return None
    where = resolved.checkout.path if resolved.checkout else resolved.plan.executorch_version
    return f"checkout {where}"


def _names_to_find(resolved: Resolved) -> tuple[str, ...]:
    """The operators that are searched for in a runner with the recipe's own kernels."""
    if resolved.custom_ops is None:
        return ()
    from etdeploy.custom_ops.kernels import names_to_find

    return names_to_find(resolved.custom_ops, _program_file(resolved))


def _program_file(resolved: Resolved) -> Path:
    finished = resolved.job.loaded.recipe.model.program
    if resolved.exported:
        return resolved.exported.path
    if finished and Path(finished).is_file():  # else it is on the hub
        return Path(finished)
    exported, _ = load_program(resolved.job)
    return Path(exported.folder) / PROGRAM_FILE


def missing_for(resolved: Resolved) -> tuple[Blocker, ...]:
    """What the plan, and the program if it is known, need and this machine does not have."""
    from etdeploy.runner.missing import find_missing

    job, plan, sources = resolved.job, resolved.plan, resolved.sources
    build: tuple[Blocker, ...] = ()
    if job.app:
        build = _missing_for_app(job, plan)
        if plan.provider.value != Provider.SOURCE or not _builds_app(job):
            return (*build, *missing_for_bundle(job, plan, resolved.program))
    found = (sources.problem or sources.checkout) if sources else None
    return (
        *build,
        *find_missing(plan, job.host, found, job.app is not None),
        *missing_for_bundle(job, plan, resolved.program),
    )


def _missing_for_app(job: Job, plan: RuntimePlan) -> tuple[Blocker, ...]:
    if not _builds_app(job):
        return ()
    from etdeploy.graph.app_plan import platform_of

    return platform_of(job).missing(job.loaded.recipe, plan)


def _builds_app(job: Job) -> bool:
    return bool(job.app and job.app.builds and not job.app.given)


def obtain_libraries(
    resolved: Resolved, exported_with: str | None, progress: Progress, log: Path | None
) -> Libraries:
    """Gets ExecuTorch from the plan's provider."""
    job, plan = resolved.job, resolved.plan
    if plan.provider.value == Provider.SOURCE:
        return _sources(resolved, exported_with, progress, log)
    target = find_target(plan.build_target)
    wheel = obtain_wheel(target, job.host, job.workspace, progress, log)
    absent = sorted(provided(plan.component_names) - set(wheel.components))
    if absent:
        raise BuildError(
            f"the ExecuTorch {wheel.version} libraries in {wheel.root} do not include "
            f"{', '.join(absent)}",
            remedy="Build ExecuTorch from source: --set runtime.provider=source",
        )
    return Libraries(wheel=wheel)


def libraries_problem(libraries: Libraries, workspace: Workspace) -> str | None:
    """Why what was obtained can no longer be used; None if it can."""
    if libraries.wheel:
        return wheel_problem(libraries.wheel, workspace)
    known = libraries.checkout
    if known is None:
        return "the provider of ExecuTorch is not known"
    try:
        now = examine(known.folder, known.origin)
    except BuildError:
        return "the checkout of ExecuTorch is gone"
    return None if now.revision == known.revision else "the checkout of ExecuTorch changed"


def _sources(
    resolved: Resolved, exported_with: str | None, progress: Progress, log: Path | None
) -> Libraries:
    from etdeploy.provider.checkout import require_complete
    from etdeploy.provider.clone import clone, fetch_submodules
    from etdeploy.runner.missing import list_submodules, require_present

    job, plan = resolved.job, resolved.plan
    if resolved.sources:
        resolved.sources.require_usable()
    checkout = resolved.checkout
    if not _is_built(job, plan, checkout):
        # Before the export, nobody could check for what only this program needs.
        require_present(missing_for(resolved))
    if checkout is None:
        checkout = clone(job.workspace, plan.executorch_version, os.environ, progress, log)
    # Without a clone, the plan was derived from the options that this release is known to have.
    spelled_for(plan.options, read_options(checkout.folder))
    needed = list_submodules(plan)
    if checkout.origin == "cache":
        fetch_submodules(checkout, needed, job.workspace, progress, log)
        checkout = examine(checkout.folder, "cache")
    require_complete(checkout, needed)
    return Libraries(checkout=checkout, notes=require_readable(checkout, exported_with))


def _is_built(job: Job, plan: RuntimePlan, checkout: Checkout | None) -> bool:
    """Whether the cache has the plan's runner, so that no tool is needed."""
    from etdeploy.runner.builder import runner_key

    if checkout is None:
        return False
    key = runner_key(plan, Libraries(checkout=checkout), job.host)
    return job.workspace.entry(CacheKind.RUNNERS, key).is_sound()
