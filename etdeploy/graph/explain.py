"""What `etdeploy plan` shows: the runtime plan, the tasks, and what prevents a run."""

from __future__ import annotations

from collections.abc import Sequence

from etdeploy.core.errors import Blocker
from etdeploy.core.values import Explained, Value
from etdeploy.export.spec import rewrites_of
from etdeploy.graph.backends import bundle_notes, program_blockers
from etdeploy.graph.job import StepName
from etdeploy.graph.obtain import missing_for
from etdeploy.graph.pipeline import make_steps
from etdeploy.graph.preflight import model_notes, version_notes
from etdeploy.graph.resolve import Resolved
from etdeploy.graph.tasks.steps import TaskStatus, statuses, tasks_of
from etdeploy.plan.language import language_choices, rewrite_choices
from etdeploy.plan.model import RuntimePlan


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
    provider: Explained
    executorch_version: str
    toolchain: Explained | None
    language_model: tuple[Explained, ...] = ()
    rewrites: tuple[Explained, ...] = ()
    components: tuple[Explained, ...]
    options: tuple[Explained, ...]
    changes: tuple[PlanChange, ...]
    tasks: tuple[ExplainedTask, ...]
    blockers: tuple[Blocker, ...]
    not_installed: tuple[Blocker, ...]
    notes: tuple[str, ...]


def explain(resolved: Resolved) -> Explanation:
    """Explains what a run would do, from the program if it is known, else from the recipe.

    Raises:
        ExportError: The language model cannot be exported, so there is nothing to explain.
    """
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
            task_of(status, resolved.exported is not None)
            for status in statuses(tasks, (tasks[-1].name,))
        ),
        blockers=(*plan.blockers, *program_blockers(job, resolved.program)),
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


def _rewrites(resolved: Resolved) -> tuple[Explained, ...]:
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


def task_of(status: TaskStatus, exported: bool) -> ExplainedTask:
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
        needs=step.needs,
    )


def mermaid(explanation: Explanation) -> str:
    """The tasks as a Mermaid flowchart; those that would run are filled."""
    lines = ["flowchart LR"]
    for task in explanation.tasks:
        state = "would run" if task.value == "run" else "up to date"
        lines.append(f'    {task.name}["{task.name}<br/>{task.title}<br/><i>{state}</i>"]')
    lines += [f"    {need} --> {task.name}" for task in explanation.tasks for need in task.needs]
    return "\n".join([*lines, *colours([(task.name, task.value) for task in explanation.tasks])])


def colours(nodes: Sequence[tuple[str, str]]) -> list[str]:
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
