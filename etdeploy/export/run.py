"""Ensures that a program is in the cache; exports it in a child process if it is not."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from etdeploy.backends.registry import backend_named
from etdeploy.backends.rewrites import as_everywhere, with_idle
from etdeploy.backends.values import Workstation
from etdeploy.cache.kinds import CacheKind
from etdeploy.cache.workspace import Entry, Workspace
from etdeploy.core.files.basic import folder_files
from etdeploy.core.files.disk import no_room_told
from etdeploy.core.files.leftovers import working_folder
from etdeploy.core.files.locks import exclusive
from etdeploy.core.processes import process
from etdeploy.core.progress import Progress
from etdeploy.core.values import Value
from etdeploy.export.cache import Situation
from etdeploy.export.failure import crash_error, failure_error
from etdeploy.export.finished import write_finished
from etdeploy.export.needs import check_needs
from etdeploy.export.preload import OWN_PROCESSES, WORKER, Exporter, worker_environment
from etdeploy.export.protocol import (
    FAILURE_FILE,
    SOURCES_FILE,
    SPEC_FILE,
    Failure,
    Sources,
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

KIND = CacheKind.PROGRAMS


class ExportedProgram(Value):
    """A program folder in the cache.

    Attributes:
        folder: Its path.
        key: Its key in the cache.
        cached: Whether it was there before.
        sha256: Of the `.pte`.
    """

    folder: str
    key: str
    cached: bool
    sha256: str


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
    situation = Situation.now(spec, workspace)
    # One at a time of all that may give the same program.
    family = Situation.now(_rewritten(spec, as_everywhere(spec.rewrites)), workspace)
    lock = workspace.lock_path("export", family.memory_path.stem)
    with exclusive(lock, f"the export of {spec.source}", progress):
        key = situation.known_key()
        if key and workspace.entry(KIND, key).is_sound():
            return _result(workspace.entry(KIND, key), cached=True)
        with _staging(workspace) as staging:
            folder = staging / "program"
            folder.mkdir()
            sources = _make(spec, staging, folder, progress, log, exporter)
            entry = workspace.entry(KIND, situation.key(sources))
            workspace.obtain(entry, lambda work: _move_files(folder, work))
        situation.remember(entry.key, sources)
        for names in with_idle(spec.rewrites, _idle(entry.path)):
            Situation.now(_rewritten(spec, names), workspace).remember_other(entry.key, sources)
        return _result(entry, cached=False)


def _rewritten(spec: ExportSpec, names: Sequence[str]) -> ExportSpec:
    return spec.model_copy(update={"rewrites": tuple(names)})


def _idle(folder: Path) -> Sequence[str]:
    """Rewrites without which the program would be the same, or with which."""
    made = Provenance.load_or_none(folder / EXPORT_INFO)
    found: Sequence[str] = made.details.get(REWRITES, {}).get(IDLE, ()) if made else ()
    return found


def _result(entry: Entry, cached: bool) -> ExportedProgram:
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
) -> Sources:
    from etdeploy.program.inspect import inspect_file

    if spec.program:
        program = inspect_file(Path(spec.program))
        write_finished(spec, program, folder)
        program.save(folder / PROGRAM_INFO)
        return Sources()
    _run_worker(spec, staging, folder, progress, log, exporter)
    program = inspect_file(folder / PROGRAM_FILE)
    program.save(folder / PROGRAM_INFO)
    return Sources.load(staging / SOURCES_FILE)


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
    backend_named(str(spec.backend)).prepare_export(spec.request, Workstation.this())
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
    if full := no_room_told(outcome.stdout, staging, Path(tempfile.gettempdir())):
        raise full
    failure_path = staging / FAILURE_FILE
    failure = Failure.load(failure_path) if failure_path.is_file() else None
    cause = None
    if failure is None or failure.kind == "lowering":
        cause = backend_named(str(spec.backend)).export_failure(outcome.stdout)
    raise failure_error(failure, log, cause) if failure else crash_error(outcome, log, cause)


def _clear(staging: Path, folder: Path) -> None:
    """Leaves of an attempt only the spec."""
    shutil.rmtree(folder)
    folder.mkdir()
    for name in (SOURCES_FILE, FAILURE_FILE):
        (staging / name).unlink(missing_ok=True)


def _pass_on(line: str, progress: Progress) -> None:
    if step := parse_progress(line):
        progress(*step)


def _move_files(source: Path, target: Path) -> None:
    for name in folder_files(source):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.move(source / name, target / name)
