"""Checks before a run what would stop it, and what to know before it starts."""

from __future__ import annotations

from etdeploy.core.errors import Blocker, CheckError, ExportError
from etdeploy.export.hf.check import context_note, prequantized_notes
from etdeploy.export.hf.memory import device_refusal, memory_notes
from etdeploy.export.methods import EXPORTED_METHODS, require_method
from etdeploy.export.needs import check_language_model, check_needs
from etdeploy.export.spec import ExportSpec
from etdeploy.graph.backends import extras_for, program_blockers, require_device
from etdeploy.graph.job import Job, StepName
from etdeploy.graph.on_device import require_draft
from etdeploy.graph.pipeline import make_steps, missing_for
from etdeploy.graph.resolve import CachedProgram, Resolved
from etdeploy.graph.tasks.steps import own_reasons
from etdeploy.plan.derive import require_feasible
from etdeploy.program.model import EMPTY_PROGRAM
from etdeploy.program.tokenizer import require_speech, tokenizer_folder
from etdeploy.provider.checkout import require_readable
from etdeploy.recipe.rules.remedies import remedies_for


def refuse_early(resolved: Resolved, *, with_runner: bool = True, measures: bool = False) -> None:
    """Stops a run that cannot succeed before it exports anything.

    Args:
        resolved: What to run.
        with_runner: Whether the run also builds a runner.
        measures: Whether it also writes a run record, unless that is there already.
    """
    with remedies_for(resolved.job.loaded.recipe):
        _refuse_early(resolved, with_runner=with_runner, measures=measures)


def _refuse_early(resolved: Resolved, *, with_runner: bool, measures: bool) -> None:
    job, spec = resolved.job, resolved.export_spec
    if with_runner and spec.method and not spec.is_finished:  # that is checked when it is read
        require_method(spec.method, _methods(resolved) or (spec.method,), str(job.loaded.path))
    if measures:
        _require_output(resolved)
        _require_measurable(resolved)
    # First: an SDK need not be fetched for a device or a target that cannot use it.
    require_device(job)
    if with_runner:
        known = resolved.exported
        generation, folder = (known.generation, known.folder) if known else (None, None)
        require_draft(resolved, generation, folder)
        require_feasible(resolved.plan, job.runs_it)
    if resolved.exported is None:
        check_needs(spec)
    else:
        _require_speech(job, resolved.exported)
    if not with_runner:
        return
    _require_memory(job, spec)
    for blocker in program_blockers(job, resolved.program, spec):
        raise CheckError(blocker.why, remedy=blocker.remedy)
    if resolved.sources:
        resolved.sources.require_usable()
    if _builds(resolved):
        from etdeploy.runner.missing import require_present

        require_present(certainly_missing(resolved))
    if resolved.program:
        # Raises now what would stop the bundle after the build.
        extras_for(job, resolved.program, resolved.exported.versions if resolved.exported else {})


def _require_output(resolved: Resolved) -> None:
    """Raises UsageError if a record has to be written where it cannot be."""
    bench = next((s for s in make_steps(resolved) if s.name == StepName.BENCH), None)
    if bench and own_reasons(bench):
        from etdeploy.bench.results_folder import require_output

        require_output(resolved.job.output, resolved.job.workspace.root)


def _require_measurable(resolved: Resolved) -> None:
    """Raises UsageError if what a language model is to generate cannot be measured."""
    generation = resolved.export_spec.generation
    if generation is not None:
        from etdeploy.bench.generation_limits import require_measurable

        require_measurable(resolved.job.loaded, generation.context)


def _require_memory(job: Job, spec: ExportSpec) -> None:
    """Raises ExportError if the device has no room for the cache of a language model."""
    if job.facts is None or job.facts.memory_bytes is None:
        return
    if refusal := device_refusal(spec, job.facts.name, job.facts.memory_bytes):
        place = refusal.place or spec.place(*refusal.key)
        raise ExportError(refusal.message, place=place, remedy=refusal.remedy)


def _require_speech(job: Job, exported: CachedProgram) -> None:
    """Raises UsageError if the model of a finished export cannot be talked with."""
    if job.speech and exported.generation:
        require_speech(tokenizer_folder(exported.generation, exported.folder), job.speech)


def _methods(resolved: Resolved) -> tuple[str, ...]:
    """The methods of the program; empty where only an export can tell."""
    if resolved.program:
        return tuple(method.name for method in resolved.program.methods)
    return () if resolved.export_spec.python else EXPORTED_METHODS


def _builds(resolved: Resolved) -> bool:
    """Whether this run has to build the runner.

    A changed program is not a reason yet: the plan derived from it may be the same.
    """
    steps = {step.name: step for step in make_steps(resolved)}
    making = (StepName.PLAN, StepName.RUNTIME, StepName.PROJECT, StepName.RUNNER)
    return any(own_reasons(steps[name]) for name in making if name in steps)


def certainly_missing(resolved: Resolved) -> tuple[Blocker, ...]:
    """What is not installed, and needed for this plan and any that the program may lead to.

    A program that is not exported yet may need less than its recipe suggests, but never less than
    one that calls no operator and delegates nothing.
    """
    missing = missing_for(resolved)
    if not resolved.plan.provisional:
        return missing
    expected = {m.what for m in missing}
    least = missing_for(resolved.with_program(EMPTY_PROGRAM))
    return tuple(m for m in least if m.what in expected)


def model_notes(resolved: Resolved) -> tuple[str, ...]:
    """What to know about a language model that is still to be exported."""
    spec = resolved.export_spec
    if resolved.exported:
        return tuple(filter(None, (context_note(spec),)))
    note = check_language_model(spec)
    known = () if note else (*prequantized_notes(spec), *memory_notes(spec))
    return tuple(filter(None, (note, context_note(spec), *known)))


def version_notes(resolved: Resolved) -> tuple[str, ...]:
    """What to know if the checkout's release is not the one that exported the program."""
    if resolved.checkout is None or resolved.exported is None:
        return ()
    return require_readable(resolved.checkout, resolved.exported.versions.get("executorch"))
