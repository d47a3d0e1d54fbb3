"""Ensures that a program is in the cache; exports it in a child process if it is not."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from etdeploy.backends.registry import backend_named
from etdeploy.backends.rewrites import as_everywhere, with_idle
from etdeploy.backends.values import Workstation
from etdeploy.cache.folder import CacheKind
from etdeploy.cache.workspace import CacheEntry, Workspace
from etdeploy.core.diagnostics import Diagnosis
from etdeploy.core.errors import EtdeployError, ExportError, UsageError
from etdeploy.core.files.basic import find_disk_full_in_output, folder_files, working_folder
from etdeploy.core.files.locks import exclusive
from etdeploy.core.processes import process
from etdeploy.core.values import Progress
from etdeploy.export.cache import ExportContext, ExportedProgram
from etdeploy.export.diagnostics import CRASH_FAILURES
from etdeploy.export.finished import (
    describe_exported,
    has_meta_tokenizer,
    write_finished,
)
from etdeploy.export.needs import check_needs, short_path
from etdeploy.export.preload import (
    OWN_PROCESSES,
    WORKER,
    Exporter,
    task_command,
    worker_environment,
)
from etdeploy.export.protocol import (
    FAILURE_FILE,
    SOURCES_FILE,
    SPEC_FILE,
    ExportFailure,
    ModelSources,
    TaskAnswer,
    TaskRequest,
    parse_progress,
)
from etdeploy.export.spec import ExportSpec
from etdeploy.program.folder import (
    EXPORT_INFO,
    IDLE,
    PROGRAM_FILE,
    PROGRAM_INFO,
    REWRITES,
    Provenance,
)
from etdeploy.program.model import Program
from etdeploy.program.task import TaskResult

KIND = CacheKind.PROGRAMS


def export_program(
    spec: ExportSpec,
    workspace: Workspace,
    progress: Progress,
    log: Path,
    exporter: Exporter = OWN_PROCESSES,
) -> ExportedProgram:
    """Returns the program folder of a spec, from the cache or by exporting.

    Args:
        spec: What is to be exported.
        workspace: The cache.
        progress: Called for each step.
        log: Gets everything that the worker process prints, with full tracebacks.
        exporter: Runs the worker process; `preloaded_exports` gives one that several exports share.

    Raises:
        ExportError: Something that the export needs is missing, or the export failed.
        OSError: The disk is full; the error names the file.
        Interrupted: The run was stopped; nothing is left behind.
    """
    check_needs(spec)
    situation = ExportContext.now(spec, workspace)
    # One at a time of all that may give the same program.
    family = ExportContext.now(_rewritten(spec, as_everywhere(spec.rewrites)), workspace)
    lock = workspace.lock_path("export", family.memory_path.stem)
    with exclusive(lock, f"the export of {spec.source}", progress):
        key = situation.known_key()
        if key and workspace.entry(KIND, key).is_sound():
            return _result(workspace.entry(KIND, key), cached=True)
        spec = _with_references(spec, situation, workspace)
        with _staging(workspace) as staging:
            folder = staging / "program"
            folder.mkdir()
            sources = _make(spec, staging, folder, progress, log, exporter)
            if spec.hf:
                _add_digests(folder, situation.model_digests())
            digests = {PROGRAM_FILE: Program.load(folder / PROGRAM_INFO).sha256}
            entry = workspace.entry(KIND, situation.key(sources))
            workspace.obtain(entry, lambda work: _move_files(folder, work), digests=digests)
        situation.remember(entry.key, sources)
        for names in with_idle(spec.rewrites, _idle(entry.path)):
            ExportContext.now(_rewritten(spec, names), workspace).remember_other(entry.key, sources)
        return _result(entry, cached=False)


def _with_references(
    spec: ExportSpec, situation: ExportContext, workspace: Workspace
) -> ExportSpec:
    """With the folder of what the model gives, whatever it is quantized to."""
    if spec.generation is None or spec.adapters or spec.is_finished:
        return spec
    key = situation.references_key()
    workspace.uses.mark(CacheKind.REFERENCES, key)
    folder = workspace.folder(CacheKind.REFERENCES) / key
    return spec.model_copy(update={"references": str(folder)})


def _rewritten(spec: ExportSpec, names: Sequence[str]) -> ExportSpec:
    return spec.model_copy(update={"rewrites": tuple(names)})


def _idle(folder: Path) -> Sequence[str]:
    """Rewrites without which the program would be the same, or with which."""
    made = Provenance.load_or_none(folder / EXPORT_INFO)
    found: Sequence[str] = made.details.get(REWRITES, {}).get(IDLE, ()) if made else ()
    return found


def _result(entry: CacheEntry, cached: bool) -> ExportedProgram:
    return ExportedProgram(
        folder=str(entry.path), key=entry.key, cached=cached, sha256=entry.digests()[PROGRAM_FILE]
    )


@contextmanager
def _staging(workspace: Workspace) -> Iterator[Path]:
    """A folder in the cache's own file system that is gone afterwards.

    The key of a program depends on the files that its code read, so it is known only after the
    export: the folder cannot have its final name before.
    """
    parent = workspace.root / KIND
    parent.mkdir(parents=True, exist_ok=True)
    with working_folder(parent, ".staging-") as folder:
        yield folder


def _make(
    spec: ExportSpec,
    staging: Path,
    folder: Path,
    progress: Progress,
    log: Path,
    exporter: Exporter,
) -> ModelSources:
    from etdeploy.program.inspect import inspect_file

    if spec.program and not has_meta_tokenizer(Path(spec.program)):
        program = inspect_file(Path(spec.program))
        write_finished(spec, program, folder)
        program.save(folder / PROGRAM_INFO)
        return ModelSources()
    _run_worker(spec, staging, folder, progress, log, exporter)
    if spec.is_finished:
        sources = ModelSources.load(staging / SOURCES_FILE)
        program = inspect_file(Path(str(sources.program)))
        write_finished(spec, program, folder, sources)
        program.save(folder / PROGRAM_INFO)
        return sources
    if not (folder / PROGRAM_INFO).is_file():  # ExecuTorch's own exporter writes none
        program = inspect_file(folder / PROGRAM_FILE)
        if spec.llm_config is not None:
            describe_exported(spec, program, folder)
        program.save(folder / PROGRAM_INFO)
    return ModelSources.load(staging / SOURCES_FILE)


def _run_worker(
    spec: ExportSpec,
    staging: Path,
    folder: Path,
    progress: Progress,
    log: Path,
    exporter: Exporter,
) -> None:
    spec_path = staging / SPEC_FILE
    spec.save(spec_path)
    backend = backend_named(spec.backend) if spec.backend else None
    if backend:
        backend.prepare_export(spec.request, Workstation.this())
    outcome = exporter.run(
        process.Request(
            argv=(*WORKER, str(spec_path), str(folder)),
            env=worker_environment(spec),
            log=log,
            on_line=lambda line: _pass_on(line, progress),
        ),
        undo=lambda: _clear(staging, folder),
    )
    if outcome.ok:
        return
    # A full disk keeps the worker from describing its failure.
    if full := find_disk_full_in_output(outcome.stdout, staging, Path(tempfile.gettempdir())):
        raise full
    failure_path = staging / FAILURE_FILE
    failure = ExportFailure.load(failure_path) if failure_path.is_file() else None
    cause = None
    if backend and (failure is None or failure.kind == "lowering"):
        cause = backend.export_failure(outcome.stdout)
    raise failure_error(failure, log, cause) if failure else crash_error(outcome, log, cause)


def read_task_result(request: TaskRequest, log: Path) -> TaskResult:
    """Reads the result from a task's outputs, with the model's own processor.

    A problem is part of the result: the outputs have been measured and compared by then.
    """
    with tempfile.TemporaryDirectory(prefix="etdeploy-task-") as temporary:
        asked, answered = (Path(temporary, name) for name in ("request.json", "answer.json"))
        request.save(asked)
        outcome = process.run(replace(task_command(asked, answered), log=log))
        if not answered.is_file():
            end = outcome.signal_name or f"exit code {outcome.exit_code}"
            return TaskResult(problem=f"the model's processor ended with {end}; see {log.name}")
        answer = TaskAnswer.load(answered)
    if answer.result is None:
        why = answer.failure.message if answer.failure else "unknown"
        return TaskResult(problem=f"the model's processor failed: {why}; see {log.name}")
    return answer.result


def failure_error(
    failure: ExportFailure, log: Path, cause: Diagnosis | None = None
) -> EtdeployError:
    """The error for a failure that the worker described."""
    if cause:
        failure = failure.model_copy(update={"message": cause.cause, "remedy": cause.remedy})
    message = failure.message
    if failure.method:
        message += f" (method {failure.method})"
    if failure.operator and failure.operator not in message:
        message += f" (operator {failure.operator})"
    if failure.code:
        message += f"\n    {failure.code}"
    # What is asked of the model does not fit it, however late that is found.
    kind = UsageError if failure.kind == "speech" else ExportError
    return kind(message, place=_place(failure), remedy=failure.remedy, log=log)


def crash_error(outcome: process.Outcome, log: Path, cause: Diagnosis | None = None) -> ExportError:
    """The error for a worker that ended without a description; see `failure_error`."""
    end = outcome.signal_name or f"exit code {outcome.exit_code}"
    found = cause or CRASH_FAILURES.diagnose(end)
    if found is None:
        raise ValueError(end)
    return ExportError(found.cause, remedy=found.remedy, log=log)


def _place(failure: ExportFailure) -> str | None:
    if failure.file is None:
        return None
    path = short_path(failure.file)
    return path if failure.line is None else f"{path}:{failure.line}"


def _clear(staging: Path, folder: Path) -> None:
    """Leaves of an attempt only the spec."""
    shutil.rmtree(folder)
    folder.mkdir()
    for name in (SOURCES_FILE, FAILURE_FILE):
        (staging / name).unlink(missing_ok=True)


def _pass_on(line: str, progress: Progress) -> None:
    if step := parse_progress(line):
        progress(*step)


def _add_digests(folder: Path, digests: Mapping[str, str]) -> None:
    """Adds files of the model, by their paths, to those that the worker names."""
    made = Provenance.load(folder / EXPORT_INFO)
    files = {**made.code_files, **digests}
    made.model_copy(update={"code_files": files}).save(folder / EXPORT_INFO)


def _move_files(source: Path, target: Path) -> None:
    for name in folder_files(source):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.move(source / name, target / name)
