"""The events of a run's profile pass: read once by a child process, then kept in the cache."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from etdeploy.bench.records.again import measure_again
from etdeploy.bench.records.generation import TextGeneration
from etdeploy.bench.records.stored import StoredRun
from etdeploy.cache.kinds import CacheKind
from etdeploy.cache.workspace import Workspace
from etdeploy.core.errors import ExportError, RunError, UsageError
from etdeploy.core.files.basic import write_atomic
from etdeploy.core.hashing import digest_json, sha256_bytes
from etdeploy.core.processes import process
from etdeploy.core.progress import Progress, silent
from etdeploy.core.text.shell import quoted
from etdeploy.export.installed import installed_version
from etdeploy.export.needs import INSTALL
from etdeploy.profile.protocol import (
    FAILURE_FILE,
    REQUEST_FILE,
    TRACE_FILE,
    Trace,
    TraceFailure,
    TraceRequest,
)

_HERE = Path(__file__).resolve().parent
_WORKER = (sys.executable, str(_HERE / "worker" / "start.py"))
# What decides what a trace means; etdeploy's own code, as with programs and plans.
_CODE = ("protocol.py", "sources.py", "worker/inspect.py", "worker/record.py")
# A FlatBuffer with its size before it; the identifier follows the root's offset.
_IDENTIFIER, _PREFIX_BYTES = b"ED00", 4


def read_trace(run: StoredRun, workspace: Workspace, progress: Progress = silent) -> Trace:
    """The trace of a run's profile pass.

    Args:
        run: The run, with its files.
        workspace: The cache, in which a trace that was read is kept.
        progress: Called while the trace is read.

    Raises:
        UsageError: The run has no trace, or a file of it is damaged.
        ExportError: ExecuTorch's Inspector is not installed.
        RunError: The Inspector crashed.
        Interrupted: The run was asked to stop.
    """
    etdump, etrecord = _etdump(run), _present(run, "etrecord")
    request = TraceRequest(
        etdump=str(etdump),
        etrecord=str(etrecord) if etrecord else None,
        method=run.record.program.method,
    )
    entry = workspace.entry(CacheKind.TRACES, _key(request, run))
    if not entry.is_sound():
        _require_inspector()
        progress("reading the trace with ExecuTorch's Inspector")
        workspace.obtain(entry, lambda folder: _inspect(request, run, folder), progress)
    return Trace.load(entry.path / TRACE_FILE)


def _etdump(run: StoredRun) -> Path:
    """The trace's file, complete.

    Raises:
        UsageError: There is none, or it was truncated.
    """
    if run.record.simulated:
        raise UsageError(
            "a simulated run has no profile: its times are the simulator's",
            place=str(run.folder),
            remedy="Run the recipe on a device.",
        )
    if isinstance(run.record.workload, TextGeneration):
        raise UsageError(
            "where the time goes is not read yet of programs that generate text",
            place=str(run.folder),
        )
    if "etdump" not in run.record.files:
        raise UsageError(
            "this run has no profile pass",
            place=str(run.folder),
            remedy=f"{_again(run)} --set benchmark.profile=true",
        )
    path = _present(run, "etdump")
    if path is None:
        raise UsageError(
            f"the trace {run.record.files['etdump']} is not in the run's folder",
            place=str(run.folder),
            remedy=f"Copy the whole folder, not the record alone. {_again(run)}",
        )
    _require_whole(path, run)
    return path


def _present(run: StoredRun, role: str) -> Path | None:
    try:
        path = run.path(role)
    except ValueError as error:
        raise UsageError(
            f"the file {run.record.files[role]} is a link out of the run's folder",
            place=str(run.folder),
            remedy="Copy the file to its place.",
        ) from error
    return path if path and path.is_file() else None


def _again(run: StoredRun) -> str:
    return f"Measure again: {measure_again(run)}"


def _require_whole(path: Path, run: StoredRun) -> None:
    data = path.read_bytes()
    told = _PREFIX_BYTES + int.from_bytes(data[:_PREFIX_BYTES], "little")
    if len(data) < 2 * _PREFIX_BYTES + len(_IDENTIFIER) or len(data) < told:
        size = "is empty" if not data else f"is truncated: it has {len(data)} of {told} bytes"
        raise UsageError(f"the trace {size}", place=str(path), remedy=_again(run))
    start = 2 * _PREFIX_BYTES
    if data[start : start + len(_IDENTIFIER)] != _IDENTIFIER:
        raise UsageError("this is not an ETDump", place=str(path), remedy=_again(run))


def _key(request: TraceRequest, run: StoredRun) -> str:
    etrecord = request.etrecord
    return digest_json(
        {
            "etdump": sha256_bytes(Path(request.etdump).read_bytes()),
            "etrecord": _checksums(Path(etrecord), run) if etrecord else None,
            "method": request.method,
            "executorch": installed_version("executorch"),
            "code": [sha256_bytes((_HERE / name).read_bytes()) for name in _CODE],
        }
    )


def _checksums(etrecord: Path, run: StoredRun) -> list[list[object]]:
    """The checksums that the archive itself has: to read it all would take seconds for weights."""
    try:
        with ZipFile(etrecord) as archive:
            return [[each.filename, each.file_size, each.CRC] for each in archive.infolist()]
    except (BadZipFile, OSError) as error:
        raise UsageError(
            f"the ETRecord is damaged: {error}",
            place=str(etrecord),
            remedy=_without(etrecord, run),
        ) from error


def _require_inspector() -> None:
    missing = [name for name in ("torch", "executorch") if installed_version(name) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise ExportError(
            "reading a trace needs ExecuTorch's Inspector; "
            f"{' and '.join(missing)} {verb} not installed for {sys.executable}",
            remedy=INSTALL,
        )


def _without(etrecord: Path, run: StoredRun) -> str:
    away = f"mv {quoted(etrecord)} {quoted(f'{etrecord}.bad')}"
    return f"Move it away to see operators without modules: {away}\n{_again(run)}"


def _inspect(request: TraceRequest, run: StoredRun, folder: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        request.save(work / REQUEST_FILE)
        outcome = process.run(
            process.Request(argv=(*_WORKER, str(work)), env={"PYTHONFAULTHANDLER": "1"})
        )
        if not outcome.ok:
            failure = TraceFailure.load_or_none(work / FAILURE_FILE)
            raise _failure(failure, run) if failure else _crash(outcome)
        write_atomic(folder / TRACE_FILE, (work / TRACE_FILE).read_bytes())


def _failure(failure: TraceFailure, run: StoredRun) -> UsageError:
    is_trace = failure.file.endswith(".etdp")
    remedy = _again(run) if is_trace else _without(Path(failure.file), run)
    return UsageError(failure.message, place=failure.file, remedy=remedy)


def _crash(outcome: process.Outcome) -> RunError:
    end = outcome.signal_name or f"exit code {outcome.exit_code}"
    last = [line for line in (outcome.stderr or outcome.stdout).splitlines() if line.strip()]
    return RunError(
        f"ExecuTorch's Inspector ended early ({end})" + (f": {last[-1].strip()}" if last else ""),
        place=outcome.argv[-1].rstrip(os.sep),
        remedy="Try it again; if memory ran out, close other programs first.",
    )
