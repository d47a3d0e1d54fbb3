"""The traces of a run's profile pass, read by a child process with ExecuTorch's Inspector."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from etdeploy.bench.records.stored import StoredRun, measure_again
from etdeploy.cache.folder import CacheKind
from etdeploy.cache.workspace import Workspace
from etdeploy.core.commands import pip_command, quoted
from etdeploy.core.errors import ExportError, RunError, UsageError
from etdeploy.core.files.basic import write_atomic
from etdeploy.core.hashing import digest_json, sha256_bytes
from etdeploy.core.processes import process
from etdeploy.core.values import Progress, silent
from etdeploy.export.cache import installed_version
from etdeploy.profile.protocol import (
    FAILURE_FILE,
    REQUEST_FILE,
    Trace,
    TraceFailure,
    TraceRequest,
    TraceRequests,
    trace_file,
)

_HERE = Path(__file__).resolve().parent
_WORKER = (sys.executable, str(_HERE / "worker" / "start.py"))
# What decides what a trace means; etdeploy's own code, as with programs and plans.
_CODE = ("protocol.py", "worker/__main__.py")


def read_traces(
    run: StoredRun, workspace: Workspace, progress: Progress = silent
) -> dict[str, Trace]:
    """The traces of a run's profile pass, by method."""
    requests = requests_of(run)
    entry = workspace.entry(CacheKind.TRACES, _key(requests, run))
    if not entry.is_sound():
        _require_inspector()
        one = len(requests) == 1
        progress(f"reading the {'trace' if one else 'traces'} with ExecuTorch's Inspector")
        workspace.obtain(entry, lambda folder: _inspect(requests, run, folder), progress)
    return {
        each.method: Trace.load(entry.path / trace_file(number))
        for number, each in enumerate(requests)
    }


def _key(requests: Sequence[TraceRequest], run: StoredRun) -> str:
    etrecord = requests[0].etrecord
    return digest_json(
        {
            "etdumps": [
                [each.method, sha256_bytes(Path(each.etdump).read_bytes())] for each in requests
            ],
            "etrecord": checksums(Path(etrecord), run) if etrecord else None,
            "executorch": installed_version("executorch"),
            "code": [sha256_bytes((_HERE / name).read_bytes()) for name in _CODE],
        }
    )


def _require_inspector() -> None:
    missing = [name for name in ("torch", "executorch") if installed_version(name) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise ExportError(
            "reading a trace needs ExecuTorch's Inspector; "
            f"{' and '.join(missing)} {verb} not installed for {sys.executable}",
            remedy=pip_command("etdeploy[export]"),
        )


def _inspect(requests: Sequence[TraceRequest], run: StoredRun, folder: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        TraceRequests(requests=tuple(requests)).save(work / REQUEST_FILE)
        outcome = process.run(
            process.Request(argv=(*_WORKER, str(work)), env={"PYTHONFAULTHANDLER": "1"})
        )
        if not outcome.ok:
            failure = TraceFailure.load_or_none(work / FAILURE_FILE)
            raise _failure(failure, requests, run) if failure else _crash(outcome)
        for number in range(len(requests)):
            write_atomic(folder / trace_file(number), (work / trace_file(number)).read_bytes())


def _failure(failure: TraceFailure, requests: Sequence[TraceRequest], run: StoredRun) -> UsageError:
    is_record = failure.file in {each.etrecord for each in requests}
    remedy = without(Path(failure.file), run) if is_record else again(run)
    return UsageError(failure.message, place=failure.file, remedy=remedy)


def _crash(outcome: process.Outcome) -> RunError:
    end = outcome.signal_name or f"exit code {outcome.exit_code}"
    last = [line for line in (outcome.stderr or outcome.stdout).splitlines() if line.strip()]
    return RunError(
        f"ExecuTorch's Inspector ended early ({end})" + (f": {last[-1].strip()}" if last else ""),
        place=outcome.argv[-1].rstrip(os.sep),
        remedy="Try it again; if memory ran out, close other programs first.",
    )


# A FlatBuffer with its size before it; the identifier follows the root's offset.
_IDENTIFIER, _PREFIX_BYTES = b"ED00", 4


def requests_of(run: StoredRun) -> tuple[TraceRequest, ...]:
    """What the worker is to read: the trace of each method."""
    if run.record.simulated:
        raise UsageError(
            "a simulated run has no profile: its times are the simulator's",
            place=str(run.folder),
            remedy="Run the recipe on a device.",
        )
    traces = run.record.traces
    if not traces:
        raise UsageError(
            "this run has no profile pass",
            place=str(run.folder),
            remedy=f"{again(run)} --set benchmark.profile=true",
        )
    etrecord = _present(run, "etrecord")
    return tuple(
        TraceRequest(
            etdump=str(_whole(run, role)),
            etrecord=str(etrecord) if etrecord else None,
            method=method,
        )
        for method, role in traces.items()
    )


def again(run: StoredRun) -> str:
    """The sentence that says how to measure again."""
    return f"Measure again: {measure_again(run)}"


def without(etrecord: Path, run: StoredRun) -> str:
    """What to do about an ETRecord that cannot be read."""
    away = f"mv {quoted(etrecord)} {quoted(f'{etrecord}.bad')}"
    return f"Move it away to see operators without modules: {away}\n{again(run)}"


def checksums(etrecord: Path, run: StoredRun) -> list[list[object]]:
    """The checksums that the archive itself has: to read it all would take seconds for weights."""
    try:
        with ZipFile(etrecord) as archive:
            return [[each.filename, each.file_size, each.CRC] for each in archive.infolist()]
    except (BadZipFile, OSError) as error:
        raise UsageError(
            f"the ETRecord is damaged: {error}",
            place=str(etrecord),
            remedy=without(etrecord, run),
        ) from error


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


def _whole(run: StoredRun, role: str) -> Path:
    """A trace's file, complete."""
    path = _present(run, role)
    if path is None:
        raise UsageError(
            f"the trace {run.record.files[role]} is not in the run's folder",
            place=str(run.folder),
            remedy=f"Copy the whole folder, not the record alone. {again(run)}",
        )
    data = path.read_bytes()
    told = _PREFIX_BYTES + int.from_bytes(data[:_PREFIX_BYTES], "little")
    if len(data) < 2 * _PREFIX_BYTES + len(_IDENTIFIER) or len(data) < told:
        size = "is empty" if not data else f"is truncated: it has {len(data)} of {told} bytes"
        raise UsageError(f"the trace {size}", place=str(path), remedy=again(run))
    start = 2 * _PREFIX_BYTES
    if data[start : start + len(_IDENTIFIER)] != _IDENTIFIER:
        raise UsageError("this is not an ETDump", place=str(path), remedy=again(run))
    return path
