"""Trends and checks for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from etdeploy.core.console import count, table
from etdeploy.core.text.sparkline import sparkline
from etdeploy.history.judge import OUTPUTS
from etdeploy.history.metrics import shown, title
from etdeploy.history.model import Check, CheckVerdict, Finding, FindingKind, Point, Trend

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


def _point_row(metric: str, point: Point) -> tuple[object, ...]:
    value = None if point.value is None else shown(metric, point.value)
    remark = point.remark if point.used else f"not used: {point.remark or 'no such number'}"
    spread = _percent(point.spread_percent)
    return (_time(point.started_at), value, spread, point.run_id, remark)


def _headline(check: Check) -> str:
    loud = check.verdict is CheckVerdict.REGRESSED
    verdict = str(check.verdict).upper() if loud else str(check.verdict)
    return verdict if loud else f"{verdict}: {check.reason}"


def _finding_row(finding: Finding) -> tuple[str, str, str]:
    name = OUTPUTS if finding.metric == OUTPUTS else title(finding.metric)
    return (name, _MARK.get(finding.kind, str(finding.kind)), finding.reason)


def _percent(value: float | None) -> str | None:
    return None if value is None else f"{value:.1f} %"


def _time(started_at: str) -> str:
    return started_at[:16].replace("T", " ")
