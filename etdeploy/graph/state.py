"""What is known of a job before anything runs: its program, if that is up to date, and its plan."""

from __future__ import annotations

from pathlib import Path

from etdeploy.core import console
from etdeploy.export.cache import program_key
from etdeploy.export.run import ExportedProgram, export_program
from etdeploy.export.spec import ExportSpec, export_spec
from etdeploy.graph.job import Job
from etdeploy.graph.provision import plan_for
from etdeploy.graph.qnn import wanted_soc
from etdeploy.graph.stage_values import flat, load_program, stage_path
from etdeploy.graph.steps import Step, StepLog, reasons_to_run
from etdeploy.plan.model import RuntimePlan
from etdeploy.program.folder import PROGRAM_FILE, PROGRAM_INFO, RETRACED, load_provenance
from etdeploy.program.inspect import inspect_file
from etdeploy.program.model import Program


def known_plan(job: Job) -> RuntimePlan:
    """The plan from what is known before anything runs: the program, if it is up to date."""
    return plan_for(job, known_program(job))


def current_program_path(job: Job) -> Path | None:
    """The program file, where it is exported and up to date."""
    folder = current_folder(job)
    return folder / PROGRAM_FILE if folder else None


def known_program(job: Job) -> Program | None:
    """The program, where it is up to date, or finished already: that one needs no export.

    Raises:
        UsageError: The finished program is damaged, or none.
    """
    folder = current_folder(job)
    if folder:
        return Program.load(folder / PROGRAM_INFO)
    finished = job.loaded.recipe.model.program
    # One that is not there is the export's to tell.
    return inspect_file(Path(finished)) if finished and Path(finished).is_file() else None


def current_folder(job: Job) -> Path | None:
    """Where the program is that an export would give now, whichever device it was made for."""
    if not reasons_to_run(export_step(job)):
        return Path(load_program(job)[0].folder)
    key = program_key(export_spec_of(job), job.workspace)
    entry = job.workspace.entry("programs", key) if key else None
    return entry.path if entry and entry.is_sound() else None


def export_spec_of(job: Job) -> ExportSpec:
    """What is to be exported; `soc: auto` becomes the SoC that the device names."""
    spec = export_spec(job.loaded.recipe)
    soc = wanted_soc(job) if spec.soc else None
    return spec.model_copy(update={"soc": soc}) if soc else spec


def export_step(job: Job) -> Step:
    """The first step of the line; here, because its state tells what is known."""
    recipe = job.loaded.recipe
    spec = export_spec_of(job)
    output = stage_path(job, "export")

    def act(log: StepLog) -> str:
        exported = export_program(spec, job.workspace, log.progress, log.log)
        exported.save(output)
        folder = Path(exported.folder)
        program = Program.load(folder / PROGRAM_INFO)
        retraced = load_provenance(folder).details.get(RETRACED)
        told = f"; {retraced}" if retraced else ""
        return f"program.pte {origin(spec, exported)}: {_briefly(program)}{told}"

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
        inputs={
            **flat("model", recipe.model),
            **flat("export", recipe.export),
            **({"benchmark.profile": spec.profiled} if spec.backend == "qnn" else {}),
        },
        sound=sound,
        value=ExportedProgram,
    )


def origin(spec: ExportSpec, exported: ExportedProgram) -> str:
    """Where the program comes from; a finished one is never made here."""
    if spec.program:
        return f"taken from {Path(spec.program).name}"
    return "taken from the cache" if exported.cached else "made"


def _briefly(program: Program) -> str:
    delegates = sum(len(method.delegates) for method in program.methods)
    outside = sum(operator.calls for method in program.methods for operator in method.operators)
    return (
        f"{console.size(program.size_bytes)}, {console.count(delegates, 'delegated partition')}, "
        f"{console.count(outside, 'operator call')} outside"
    )
