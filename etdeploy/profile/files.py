"""The files of a run's profile pass, checked before they are read."""

from __future__ import annotations

from pathlib import Path
from zipfile import BadZipFile, ZipFile

from etdeploy.bench.records.again import measure_again
from etdeploy.bench.records.stored import StoredRun
from etdeploy.core.errors import UsageError
from etdeploy.core.text.shell import quoted
from etdeploy.profile.protocol import TraceRequest

# A FlatBuffer with its size before it; the identifier follows the root's offset.
_IDENTIFIER, _PREFIX_BYTES = b"ED00", 4


def requests_of(run: StoredRun) -> tuple[TraceRequest, ...]:
    """What the worker is to read: the trace of each method.

    Raises:
        UsageError: The run has no trace, or one of them is not whole.
    """
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
    """The checksums that the archive itself has: to read it all would take seconds for weights.

    Raises:
        UsageError: It is damaged.
    """
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
