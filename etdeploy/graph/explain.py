"""What `etdeploy plan` shows: each job's runtime plan and tasks, and the graph that jobs share."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from etdeploy.cache.folder import CacheKind
from etdeploy.core.errors import Blocker, BuildError
from etdeploy.core.files.basic import resource_folder
from etdeploy.core.values import ReasonedChoice, Value
from etdeploy.custom_ops.kernels import write_registration
from etdeploy.export.derive import rewrites_of
from etdeploy.graph.backends import bundle_notes, program_blockers
from etdeploy.graph.job import Job, StepName
from etdeploy.graph.jobs import RecipeDevicePair, served
from etdeploy.graph.pipeline import make_steps, missing_for
from etdeploy.graph.preflight import model_notes, version_notes
from etdeploy.graph.resolve import Resolved
from etdeploy.graph.run import Ready
from etdeploy.graph.tasks.steps import Task, TaskStatus, statuses, tasks_of
from etdeploy.plan.language import language_choices, rewrite_choices
from etdeploy.plan.model import Provider, RuntimePlan
from etdeploy.provider.checkout import SOURCE_VARIABLE, Checkout
from etdeploy.provider.wheel import find_installed
from etdeploy.runner.compile import backend_targets, plan_definitions
from etdeploy.runner.fingerprint import toolchain_for
from etdeploy.runner.kernel_sources import aten_operators, needed_sources
from etdeploy.targets.platforms import find_target


class ExplainedTask(Value):
    """A step of the graph: `value` is "run" or "up to date"."""

    name: str
    value: str
    reason: str
    title: str
    needs: tuple[str, ...]


class PlanChange(Value):
    """What the program changed in the plan that was derived from the recipe alone.

    `before` or `now` is None for something that only the other plan has.
    """

    name: str
    before: str | None
    now: str | None
    reason: str


class Explanation(Value):
    """Everything that `etdeploy plan` shows; its JSON form is an interface.

    `blockers` keep the plan from being built anywhere, or the program from running on the device.
    `not_installed` lists what the plan needs and this machine does not have: it stops a run, unless
    the run fetches it.
    """

    recipe: str
    device: str | None
    target: str
    build_target: str
    portable_runner: bool
    provisional: bool
    provider: ReasonedChoice
    executorch_version: str
    toolchain: ReasonedChoice | None
    language_model: tuple[ReasonedChoice, ...] = ()
    rewrites: tuple[ReasonedChoice, ...] = ()
    components: tuple[ReasonedChoice, ...]
    options: tuple[ReasonedChoice, ...]
    changes: tuple[PlanChange, ...]
    tasks: tuple[ExplainedTask, ...]
    blockers: tuple[Blocker, ...]
    not_installed: tuple[Blocker, ...]
    notes: tuple[str, ...]


class Served(Value):
    """A job that needs a task."""

    recipe: str
    device: str


class SharedTask(Value):
    """A task of the graph, done once for all of its jobs; `value` is "run" or "up to date".

    `expected` says that the jobs share it only if their programs are what their recipes let expect:
    they are not exported yet.
    """

    name: str
    step: str
    title: str
    jobs: tuple[Served, ...]
    expected: bool
    value: str
    reason: str
    needs: tuple[str, ...]


class GraphExplanation(Value):
    """Everything that `etdeploy plan` shows of several jobs; its JSON form is an interface."""

    jobs: tuple[Explanation, ...]
    tasks: tuple[SharedTask, ...]


def explain(resolved: Resolved) -> Explanation:
    """Explains what a run would do, from the program if it is known, else from the recipe."""
    job, plan = resolved.job, resolved.plan
    tasks = tasks_of([(make_steps(resolved), job.state)])
    return Explanation(
        recipe=job.loaded.name,
        device=job.device.name if job.device else None,
        target=plan.target,
        build_target=plan.build_target,
        portable_runner=plan.portable_runner,
        provisional=plan.provisional,
        provider=plan.provider,
        executorch_version=plan.executorch_version,
        toolchain=plan.toolchain,
        language_model=language_choices(
            job.loaded.recipe, resolved.exported.generation if resolved.exported else None
        ),
        rewrites=_rewrites(resolved),
        components=plan.components,
        options=plan.options,
        changes=_changes(resolved.provisional_plan(), plan),
        tasks=tuple(
            _task_of(status, resolved.exported is not None)
            for status in statuses(tasks, (tasks[-1].name,))
        ),
        blockers=(*plan.blockers, *program_blockers(job, resolved.program, resolved.export_spec)),
        not_installed=missing_for(resolved),
        notes=(
            *plan.notes,
            *model_notes(resolved),
            *version_notes(resolved),
            *bundle_notes(
                job, resolved.program, resolved.exported.versions if resolved.exported else {}
            ),
        ),
    )


def _rewrites(resolved: Resolved) -> tuple[ReasonedChoice, ...]:
    recipe, made = resolved.job.loaded.recipe, resolved.exported
    found = made.rewrites if made else None
    return rewrite_choices(recipe, rewrites_of(recipe, resolved.job.target.arch), found)


def _changes(before: RuntimePlan, now: RuntimePlan) -> tuple[PlanChange, ...]:
    """The options and the provider that differ, those of the provisional plan first."""
    if now.provisional:
        return ()
    old, new = ({e.name: e for e in (plan.provider, *plan.options)} for plan in (before, now))
    return tuple(
        PlanChange(
            name=name,
            before=old[name].value if name in old else None,
            now=new[name].value if name in new else None,
            reason=new[name].reason if name in new else "the program does not need it",
        )
        for name in dict.fromkeys([*old, *new])
        if (old[name].value if name in old else None) != (new[name].value if name in new else None)
    )


def _task_of(status: TaskStatus, exported: bool) -> ExplainedTask:
    """A task as it is shown; `exported` says whether the program is in the cache."""
    step, reason = status.task.step, "; ".join(status.reasons) or "its inputs did not change"
    if step.name == StepName.EXPORT and status.would_run and exported:
        # A run for another device, or `etdeploy export`, exported it.
        reason = "the program only has to be taken from the cache"
    return ExplainedTask(
        name=step.name,
        value="run" if status.would_run else "up to date",
        reason=reason,
        title=step.title,
        needs=(*step.needs, *step.after),
    )


def explain_graph(ready: Sequence[Ready]) -> GraphExplanation:
    """Explains what one run of all jobs would do."""
    tasks = tasks_of([(make_steps(r.resolved), r.resolved.job.state) for r in ready])
    goals = [[task.name for task in tasks if task.job == i][-1] for i in range(len(ready))]
    leaders = _leaders(tasks)
    members: dict[str, list[TaskStatus]] = {}
    for status in statuses(tasks, goals):
        members.setdefault(leaders[status.task.name], []).append(status)
    everyone = [r.member.pair for r in ready]
    names = {
        leader: " ".join(
            (group[0].task.step.name, served([everyone[s.task.job] for s in group], everyone))
        )
        for leader, group in members.items()
    }
    return GraphExplanation(
        jobs=tuple(explain(r.resolved) for r in ready),
        tasks=tuple(_shared(group, ready, everyone, names, leaders) for group in members.values()),
    )


def _leaders(tasks: Sequence[Task]) -> dict[str, str]:
    """For each task the one that does its work, as far as recipes and programs let expect."""
    first: dict[tuple[str, str], str] = {}
    leaders = {}
    for task in tasks:
        same = task.step.same
        work = same and (same.known() or same.expected())
        leaders[task.name] = (
            first.setdefault((task.step.name, work), task.name) if work else task.name
        )
    return leaders


def _shared(
    group: Sequence[TaskStatus],
    ready: Sequence[Ready],
    everyone: Sequence[RecipeDevicePair],
    names: dict[str, str],
    leaders: dict[str, str],
) -> SharedTask:
    shown = [_task_of(s, ready[s.task.job].resolved.exported is not None) for s in group]
    # Of jobs that have it and one that does not, the one that gives the task something to do.
    telling = next((each for each in shown if each.value == "run"), shown[0])
    first = group[0].task
    return SharedTask(
        name=names[leaders[first.name]],
        step=first.step.name,
        title=first.step.title,
        jobs=tuple(Served(**everyone[s.task.job]._asdict()) for s in group),
        expected=len(group) > 1 and any(s.task.asks_after for s in group),
        value=telling.value,
        reason=telling.reason,
        needs=tuple(dict.fromkeys(names[leaders[n]] for s in group for n in s.task.needs)),
    )


def mermaid(explanation: Explanation) -> str:
    """The tasks as a Mermaid flowchart; those that would run are filled."""
    lines = ["flowchart LR"]
    for task in explanation.tasks:
        state = "would run" if task.value == "run" else "up to date"
        lines.append(f'    {task.name}["{task.name}<br/>{task.title}<br/><i>{state}</i>"]')
    lines += [f"    {need} --> {task.name}" for task in explanation.tasks for need in task.needs]
    return "\n".join([*lines, *_colours([(task.name, task.value) for task in explanation.tasks])])


def graph_mermaid(graph: GraphExplanation) -> str:
    """The shared graph as a Mermaid flowchart; tasks that would run are filled."""
    ids = {task.name: f"t{number}" for number, task in enumerate(graph.tasks)}
    lines = ["flowchart LR"]
    for task in graph.tasks:
        state = "would run" if task.value == "run" else "up to date"
        expected = ", if the programs are as expected" if task.expected else ""
        label = f"{_text(task.name)}<br/>{task.title}<br/><i>{state}{expected}</i>"
        lines.append(f'    {ids[task.name]}["{label}"]')
    lines += [
        f"    {ids[need]} --> {ids[task.name]}" for task in graph.tasks for need in task.needs
    ]
    return "\n".join([*lines, *_colours([(ids[task.name], task.value) for task in graph.tasks])])


def _text(name: str) -> str:
    """A name in a node: quotes would end it, and angle brackets would be markup."""
    return name.replace('"', "'").replace("<", "(").replace(">", ")")


def _colours(nodes: Sequence[tuple[str, str]]) -> list[str]:
    """Lines that colour the nodes of a flowchart, by what a run would do with each."""
    lines = [
        "    classDef run fill:#fde68a,stroke:#b45309;",
        "    classDef done fill:#d1fae5,stroke:#047857;",
    ]
    for name, value in (("run", "run"), ("done", "up to date")):
        members = [node for node, its in nodes if its == value]
        if members:
            lines.append(f"    class {','.join(members)} {name};")
    return lines


# Version 6 of the format: CMake 3.25 and newer.
_FORMAT = 6


def cmake_presets(resolved: Resolved) -> dict[str, Any]:
    """A configure and a build preset called `etdeploy`, for the runner's CMakeLists.txt.

    Paths that do not exist on this machine yet come from the environment variables that etdeploy
    itself reads.

    Raises:
        BuildError: The plan selects operators and the program is not exported yet, or ExecuTorch
            rejects the name of the checkout's folder.
    """
    job, plan = resolved.job, resolved.plan
    variables = {**plan_definitions(plan), **_places(resolved), **_own_kernels(resolved)}
    # What a backend finds on the machine that builds, where plain cmake reads the environment.
    variables |= {n: f"$env{{{n}}}" for n, value in variables.items() if value == f"${n}"}
    reasons = "\n".join(f"{o.name}={o.value}: {o.reason}" for o in plan.options)
    return {
        "version": _FORMAT,
        "cmakeMinimumRequired": {"major": 3, "minor": 28, "patch": 0},
        "configurePresets": [
            {
                "name": "etdeploy",
                "displayName": f"{job.loaded.name} for {plan.target}",
                "description": reasons,
                "generator": "Ninja",
                "binaryDir": "${sourceDir}/build/etdeploy",
                "cacheVariables": variables,
            }
        ],
        "buildPresets": [
            {
                "name": "etdeploy",
                "configurePreset": "etdeploy",
                "targets": ["etdeploy-runner"],
            }
        ],
        "vendor": {
            "etdeploy": {
                "sourceDir": str(resource_folder("templates") / "runner"),
                "provisional": plan.provisional,
            }
        },
    }


def _places(resolved: Resolved) -> dict[str, str]:
    """Where sources, libraries and the program are."""
    job, plan, checkout = resolved.job, resolved.plan, resolved.checkout
    if plan.provider.value == Provider.WHEEL:
        target = find_target(plan.build_target)
        installed = find_installed(target) if target.name == job.host.name else None
        fetched = job.workspace.folder(CacheKind.WHEELS)
        root = installed.root if installed else _fetched_root(fetched, target.wheel_platform)
        return _toolchain_file(plan) | {"CMAKE_PREFIX_PATH": root}
    if checkout and checkout.folder.name != "executorch":
        raise BuildError(
            f"plain cmake needs the checkout in a folder called executorch, but it is in "
            f"{checkout.path}",
            remedy="Name a checkout in a folder of that name: "
            f"export {SOURCE_VARIABLE}=/path/to/executorch",
        )
    found = checkout.path if checkout else f"$env{{{SOURCE_VARIABLE}}}"
    places = _toolchain(job, plan, checkout)
    places |= backend_targets(plan)
    places["ETDEPLOY_EXECUTORCH_SOURCE"] = found
    if plan.option("PYTHON_EXECUTABLE") is None:
        places["PYTHON_EXECUTABLE"] = sys.executable
    if plan.selection:
        if resolved.exported is None:
            raise BuildError("the program whose operators are selected is gone")
        program = resolved.exported.path
        places["EXECUTORCH_SELECT_OPS_MODEL"] = str(program)
        files = checkout and needed_sources(checkout.folder, aten_operators(program))
        if files:
            places["ETDEPLOY_KERNEL_FILES"] = ";".join(files)
    return places


def _own_kernels(resolved: Resolved) -> dict[str, str]:
    job, ops = resolved.job, resolved.custom_ops
    if ops is None:
        return {}
    job.state.mkdir(parents=True, exist_ok=True)
    write_registration(ops, job.state)
    return ops.definitions(job.state)


def _toolchain(job: Job, plan: RuntimePlan, checkout: Checkout | None) -> dict[str, str]:
    """The toolchain found on this machine, else the environment variable that names it."""
    found = toolchain_for(plan, find_target(plan.build_target), job.host, checkout)
    if isinstance(found, Blocker):
        return _toolchain_file(plan)
    return {d.name: d.value or "" for d in found.definitions}


def _toolchain_file(plan: RuntimePlan) -> dict[str, str]:
    if plan.toolchain is None:
        return {}
    file = str(plan.toolchain.value)
    for place, variable in (("<NDK>", "ANDROID_NDK"), ("<checkout>", SOURCE_VARIABLE)):
        if file.startswith(place):
            return {"CMAKE_TOOLCHAIN_FILE": file.replace(place, f"$env{{{variable}}}")}
    return {"CMAKE_TOOLCHAIN_FILE": str(resource_folder("toolchains") / file)}


def _fetched_root(folder: Path, wheel_platform: str | None) -> str:
    found = sorted(folder.glob(f"executorch-*-{wheel_platform}/executorch"))
    return str(found[-1]) if found else "$env{EXECUTORCH_ROOT}"
