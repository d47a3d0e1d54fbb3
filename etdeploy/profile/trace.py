"""The events of a run's profile pass: read once by a child process, then kept in the cache."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from etdeploy.bench.records.stored import StoredRun
from etdeploy.cache.kinds import CacheKind
from etdeploy.cache.workspace import Workspace
from etdeploy.core.errors import ExportError, RunError, UsageError
from etdeploy.core.files.basic import write_atomic
from etdeploy.core.hashing import digest_json, sha256_bytes
from etdeploy.core.processes import process
from etdeploy.core.progress import Progress, silent
from etdeploy.core.text.install import pip_command
from etdeploy.export.installed import installed_version
from etdeploy.profile.files import again, checksums, requests_of, without
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
_CODE = ("protocol.py", "sources.py", "worker/inspect.py", "worker/record.py")


def read_traces(
    run: StoredRun, workspace: Workspace, progress: Progress = silent
) -> dict[str, Trace]:
    """The traces of a run's profile pass, by method.

    Args:
        run: The run, with its files.
        workspace: The cache, in which traces that were read are kept.
        progress: Called while they are read.

    Raises:
        UsageError: The run has no trace, or a file of it is damaged.
        ExportError: ExecuTorch's Inspector is not installed.
        RunError: The Inspector crashed.
        Interrupted: The run was asked to stop.
    """
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
