"""Trends and checks for a terminal."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO

from etdeploy.bench.records.stored import RECORD_FILE, parse_record
from etdeploy.core.cancel import checkpoint
from etdeploy.core.console import count, table
from etdeploy.core.errors import UsageError
from etdeploy.core.files.basic import naming, no_room_in, open_regular
from etdeploy.core.files.results import ResultFile
from etdeploy.core.layout import sparkline
from etdeploy.history.check import OUTPUTS
from etdeploy.history.model import (
    Check,
    CheckVerdict,
    FindingKind,
    MetricFinding,
    Trend,
    TrendPoint,
)
from etdeploy.history.series import shown, title

if TYPE_CHECKING:
    from etdeploy.history.store.store import Store


_CURVE, _LONG_CURVE = 20, 60
_RUNS = 10
_MARK = {FindingKind.REGRESSED: "REGRESSED", FindingKind.NO_DIFFERENCE: "no difference"}


def list_text(trends: Sequence[Trend], more: int, width: int | None) -> str:
    """A line for each series.

    Args:
        trends: The series, the one with the latest run first.
        more: How many are not shown.
        width: The longest line.
    """
    rows = [_row(trend) for trend in trends]
    metrics = {trend.metric for trend in trends}
    metric = title(trends[0].metric) if len(metrics) == 1 else "value"
    columns = ("recipe", "device", "runs", "last", metric, "spread", "what", "trend")
    lines = [table(columns, rows, right=("runs", metric, "spread"), width=width)]
    if more:
        lines.append(f"\nand {more:,} more series: narrow them down with --recipe, --device")
    return "\n".join(lines)


def trend_text(trend: Trend, width: int | None) -> str:
    """One series: its curve, its changes and its latest runs."""
    return "\n".join(_trend_lines(trend, width))


def check_text(check: Check, width: int | None, again: str) -> str:
    """What a check found.

    Args:
        check: What was found.
        width: The longest line.
        again: The command that measures again.
    """
    lines = [f"{check.run_id}: {_headline(check)}"]
    lines += [f"checked against {check.against}"] if check.earlier or not check.needed else []
    if check.findings:
        rows = [_finding_row(finding) for finding in check.findings]
        lines += ["", table(("", "verdict", "why"), rows, width=width)]
    if check.verdict is CheckVerdict.NOT_ENOUGH_HISTORY:
        lines += ["", f"Measure more often, for example: {again}"]
    return "\n".join(lines)


def _row(trend: Trend) -> tuple[object, ...]:
    used = [point for point in trend.points if point.used]
    values = [point.value for point in used if point.value is not None]
    return (
        trend.series.recipe,
        trend.series.device.label,
        f"{trend.runs:,}",
        trend.points[-1].started_at[:10] if trend.points else None,
        shown(trend.metric, values[-1]) if values else None,
        _percent(trend.spread_percent),
        trend.series.label or None,
        sparkline(values, _CURVE) or None,
    )


def _trend_lines(trend: Trend, width: int | None) -> Iterator[str]:
    series, used = trend.series, [point for point in trend.points if point.used]
    yield f"{series.recipe} on {series.device.label}: {series.label or series.source}"
    yield f"  series      {trend.key}, {count(trend.runs, 'run')} in the history"
    if not used:
        yield f"  {title(trend.metric)}     no run has it"
        yield from _latest(trend)
        return
    values = [point.value for point in used if point.value is not None]
    curve = sparkline(values, min(_LONG_CURVE, (width or 80) - 20))
    yield f"  {title(trend.metric)}"
    yield f"    curve     {curve}  {count(len(values), 'run')}"
    yield f"    latest    {shown(trend.metric, values[-1])}"
    if trend.median is not None:
        since = " since the last change" if trend.changes else ""
        spread = _percent(trend.spread_percent)
        apart = f", spread between runs {spread}" if spread else ""
        yield f"    median    {shown(trend.metric, trend.median)}{since}{apart}"
    yield from _changes(trend)
    yield from _latest(trend)


def _changes(trend: Trend) -> Iterator[str]:
    if not trend.changes:
        yield "    changes   none found"
    for change in trend.changes:
        percent = f"{100 * (change.ratio - 1):+.1f} %"
        yield (
            f"    change    {_time(change.started_at)}  {shown(trend.metric, change.before)} -> "
            f"{shown(trend.metric, change.after)}, {percent}"
        )
        yield f"              first in {change.run_id}"
        for text in change.differs:
            yield f"              {text}"


def _latest(trend: Trend) -> Iterator[str]:
    if not trend.points:
        return
    rows = [_point_row(trend.metric, point) for point in trend.points[-_RUNS:]]
    columns = ("started", title(trend.metric), "spread", "run", "remark")
    text = table(columns, rows, right=(title(trend.metric), "spread"))
    yield ""
    yield from (f"  {line}" for line in text.splitlines())


def _point_row(metric: str, point: TrendPoint) -> tuple[object, ...]:
    value = None if point.value is None else shown(metric, point.value)
    remark = point.remark if point.used else f"not used: {point.remark or 'no such number'}"
    spread = _percent(point.spread_percent)
    return (_time(point.started_at), value, spread, point.run_id, remark)


def _headline(check: Check) -> str:
    loud = check.verdict is CheckVerdict.REGRESSED
    verdict = str(check.verdict).upper() if loud else str(check.verdict)
    return verdict if loud else f"{verdict}: {check.reason}"


def _finding_row(finding: MetricFinding) -> tuple[str, str, str]:
    name = OUTPUTS if finding.metric == OUTPUTS else title(finding.metric)
    return (name, _MARK.get(finding.kind, str(finding.kind)), finding.reason)


def _percent(value: float | None) -> str | None:
    return None if value is None else f"{value:.1f} %"


def _time(started_at: str) -> str:
    return started_at[:16].replace("T", " ")


STANDARD = "-"
# Of a record in a file that an export may replace, in bytes.
_LONGEST_LINE = 1 << 26


@dataclass
class Imported:
    """What became of the lines.

    Attributes:
        new: Records that were not there.
        known: Records that were.
        bad: Why a line is none, each with its place.
    """

    new: int = 0
    known: int = 0
    bad: list[str] = field(default_factory=list)


def lines_of(contents: Iterable[dict[str, Any]]) -> Iterator[str]:
    """A line for each record."""
    for content in contents:
        yield json.dumps(content, ensure_ascii=False, separators=(",", ":"))


def write_lines(file: Path, lines: Iterable[str]) -> int:
    """Writes lines to a file, all or none, and returns how many there are.

    Raises:
        UsageError: It cannot be written, or is there and has something else in it.
        OSError: The disk is full.
        Interrupted: The export was stopped.
    """
    count = 0
    _FILE.require_free(file)
    final = file.resolve()
    work = final.with_name(f".{final.name}.{secrets.token_hex(6)}")
    try:
        with naming(final), work.open("x", encoding="utf-8") as stream:
            for line in lines:
                checkpoint()
                stream.write(f"{line}\n")
                count += 1
        work.replace(final)
    except OSError as error:
        if no_room_in(error):
            raise
        raise _FILE.unwritable(file, error) from error
    finally:
        work.unlink(missing_ok=True)
    return count


def _has_records(stream: BinaryIO) -> bool:
    """Whether a file begins with a record in a line, as an earlier export does."""
    try:
        content = json.loads(stream.readline(_LONGEST_LINE))
    except (ValueError, RecursionError):
        return False
    return isinstance(content, dict) and {"schema_version", "run_id"} <= set(content)


_FILE = ResultFile(
    "list of records",
    "a list of records",
    _has_records,
    "records.jsonl",
    option="etdeploy history export",
    standard="etdeploy history export -",
)


def import_all(store: Store, names: Iterable[str], standard_input: IO[bytes]) -> Imported:
    """Imports records; those that are there already are left as they are.

    Args:
        store: Where they go.
        names: Files of JSON lines, runs' folders or records, or `-`.
        standard_input: For `-`.

    Raises:
        StoreError: The history cannot be used; what was imported before stays.
        Interrupted: The same.
    """
    done = Imported()
    for name in names:
        try:
            for place, text in _records_in(name, standard_input):
                checkpoint()
                _import(store, place, text, done)
        except UsageError as error:
            done.bad.append(f"{error.place}: {error.message}")
    return done


def _import(store: Store, place: str, text: bytes, done: Imported) -> None:
    try:
        record = parse_record(text, place)
    except UsageError as error:
        done.bad.append(f"{error.place}: {error.message}")
        return
    if store.add(record):
        done.new += 1
    else:
        done.known += 1


def _records_in(name: str, standard_input: IO[bytes]) -> Iterator[tuple[str, bytes]]:
    """The texts of the records that a file has, each with its place; UsageError without one."""
    if name == STANDARD:
        yield from _lines("standard input", standard_input)
        return
    path = Path(name)
    try:
        path = path / RECORD_FILE if path.is_dir() else path
        with open_regular(path) as stream:
            first = stream.readline()
            stream.seek(0)
            if _is_json(first):
                yield from _lines(str(path), stream)
            else:  # a record is written over many lines
                yield str(path), stream.read()
    except (OSError, ValueError) as error:
        what = (error.strerror if isinstance(error, OSError) else None) or error
        raise UsageError(f"this cannot be imported: {what}", place=name) from error


def _lines(name: str, stream: IO[bytes]) -> Iterator[tuple[str, bytes]]:
    for number, line in enumerate(stream, 1):
        if line.strip():
            yield f"{name}:{number}", line


def _is_json(line: bytes) -> bool:
    """Whether a line is complete; a file that begins with a broken one has lines, too."""
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return len(line.strip()) > 1
    return True
