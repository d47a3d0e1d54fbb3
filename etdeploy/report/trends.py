"""A history as blocks: each series over time with its changes, and a run judged by it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from etdeploy.core.console import count
from etdeploy.core.layout import sparkline
from etdeploy.history.check import OUTPUTS
from etdeploy.history.model import (
    Check,
    CheckVerdict,
    FindingKind,
    LevelChange,
    Trend,
    TrendPoint,
)
from etdeploy.history.series import metric_text, title
from etdeploy.report.document import (
    BAD,
    GOOD,
    NOTHING,
    QUIET,
    Block,
    Card,
    Cell,
    Fact,
    Facts,
    Folded,
    Page,
    PageSection,
    Table,
    Text,
    code,
    table,
)
from etdeploy.report.figures.history import over_time
from etdeploy.report.formatting import moment, percent

# More cards than that are no summary.
_MOST_CARDS = 8
_CURVE, _LONG_CURVE = 20, 60
# Runs of a series in a terminal.
_RUNS = 10


def list_text(trends: Sequence[Trend], more: int) -> Table:
    """Return a row for each series, the one with the latest run first; `more` are not shown."""
    metric = _metric(trends) or "value"
    rows = []
    for trend in trends:
        values = _values(trend)
        rows.append([
            trend.series.recipe, trend.series.device.label, f"{trend.runs:,}",
            trend.points[-1].started_at[:10] if trend.points else None,
            metric_text(trend.metric, values[-1]) if values else None,
            percent(trend.spread_percent), trend.series.label or None,
            sparkline(values, _CURVE) or None,
        ])  # fmt: skip
    columns = ("recipe", "device", "runs", "last", metric, "spread", "backend", "trend")
    below = f"and {more:,} more series: narrow them down with --recipe, --device" if more else ""
    return table("Series", columns, rows, right=("runs", metric, "spread"), more=below)


def trend_text(trend: Trend, width: int | None) -> Iterator[Block]:
    """Return one series for a terminal: its curve, its changes and its latest runs."""
    series, values = trend.series, _values(trend)
    yield Text(f"{series.recipe} on {series.device.label}: {series.label or series.source}")
    facts = [Fact("series", (f"{trend.key}, {count(trend.runs, 'run')} in the history",))]
    if not values:
        facts.append(Fact(title(trend.metric), ("no run has it",)))
    else:
        curve = sparkline(values, min(_LONG_CURVE, (width or 80) - 30))
        latest = metric_text(trend.metric, values[-1])
        facts.append(Fact(title(trend.metric), (f"{curve}  {count(len(values), 'run')}",), latest))
    if trend.median is not None:
        since = "since the last change" if trend.changes else "of all"
        apart = f", spread between runs {percent(trend.spread_percent)}"
        apart = apart if trend.spread_percent is not None else ""
        facts.append(Fact("median", (f"{since}{apart}",), metric_text(trend.metric, trend.median)))
    if values and not trend.changes:
        facts.append(Fact("changes", ("none found",)))
    yield Facts(tuple(facts))
    if trend.changes:
        yield _changes(trend)
    yield _runs(trend, trend.points[-_RUNS:])


def check_text(check: Check, again: str) -> Iterator[Block]:
    """Return what a check found; `again` is the command that measures again."""
    verdict = str(check.verdict)
    if check.verdict is CheckVerdict.REGRESSED:
        yield Text(f"{check.run_id}: {verdict.upper()}")
    else:
        yield Text(f"{check.run_id}: {verdict}: {check.reason}")
    if check.earlier or not check.needed:
        yield Text(f"checked against {check.against}")
    rows = []
    for finding in check.findings:
        name = OUTPUTS if finding.metric == OUTPUTS else title(finding.metric)
        regressed = finding.kind is FindingKind.REGRESSED
        kind = Cell("REGRESSED", BAD) if regressed else str(finding.kind)
        rows.append([name, kind, finding.reason])
    yield table("Findings", ("", "verdict", "why"), rows)
    if check.verdict is CheckVerdict.NOT_ENOUGH_HISTORY:
        yield Text(f"Measure more often, for example: {again}")


def trends_page(trends: Sequence[Trend], more: int = 0) -> Page:
    """Return trends of one metric as a page.

    Args:
        trends: At least one, the one with the latest run first.
        more: How many series are not shown.
    """
    metric = _metric(trends) or "numbers"
    runs = sum(len(trend.points) for trend in trends)
    series = "one series" if len(trends) == 1 else f"{len(trends):,} series"
    times = [point.started_at for trend in trends for point in trend.points]
    changes = sum(len(trend.changes) for trend in trends)
    return Page(
        title=f"{metric[0].upper()}{metric[1:]} over time",
        subtitle=f"{count(runs, 'run')} of {series}, the latest of "
        f"{moment(max(times)) if times else NOTHING}",
        badges=(Cell(count(changes, "change") if changes else "no change found", QUIET),),
        cards=tuple(map(_card, trends)) if len(trends) <= _MOST_CARDS else (),
        notices=(Text(f"{more:,} more series are not shown.", QUIET),) if more else (),
        sections=tuple(_section(i, trend) for i, trend in enumerate(trends)),
    )


def _metric(trends: Sequence[Trend]) -> str:
    """The metric of all trends; empty where there are several."""
    metrics = {trend.metric for trend in trends}
    return title(trends[0].metric) if len(metrics) == 1 else ""


def _values(trend: Trend) -> list[float]:
    return [point.value for point in trend.points if point.used and point.value is not None]


def _card(trend: Trend) -> Card:
    label, values = f"{trend.series.recipe} on {trend.series.device.label}", _values(trend)
    if not values:
        return Card(label, "no value", "", ("no run of it can be compared",), QUIET)
    number, _, unit = metric_text(trend.metric, values[-1]).partition(" ")
    lines = [f"latest of {count(trend.runs, 'run')}"]
    if trend.spread_percent is not None:
        lines.append(f"{percent(trend.spread_percent)} between runs")
    if trend.changes:
        last = trend.changes[-1]
        lines.append(f"{_by(last)} on {last.started_at[:10]}")
    return Card(label, number, unit, tuple(lines), lead=False)


def _section(index: int, trend: Trend) -> PageSection:
    series = trend.series
    of = f", {series.label}" if series.label else ""
    heading = f"{series.recipe} on {series.device.label}{of}"
    if not any(point.value is not None for point in trend.points):
        blocks: tuple[Block, ...] = (Text("No run of this series has this number.", QUIET),)
    else:
        blocks = (
            over_time(f"plot-{index}", trend),
            _changes(trend) if trend.changes else Text("No change was found.", QUIET),
            Folded(count(len(trend.points), "run"), (_runs(trend, trend.points[::-1]),)),
        )
    return PageSection(f"series-{index}", heading, blocks)


def _changes(trend: Trend) -> Table:
    rows = []
    for change in trend.changes:
        values = [metric_text(trend.metric, value) for value in (change.before, change.after)]
        by = Cell(_by(change), BAD if change.ratio > 1 else GOOD)
        differs = "; ".join(change.differs) or "nothing that the records show"
        rows.append([moment(change.started_at)[:16], *values, by, code(change.run_id), differs])
    columns = ("since", "before", "after", "change", "first run", "what else changed")
    return table("Changes of level", columns, rows, right=columns[1:4])


def _by(change: LevelChange) -> str:
    return f"{100 * (change.ratio - 1):+.1f} %"


def _runs(trend: Trend, points: Sequence[TrendPoint]) -> Table:
    rows = []
    for point in points:
        value = None if point.value is None else metric_text(trend.metric, point.value)
        remark = point.remark if point.used else f"not used: {point.remark or 'no such number'}"
        rows.append([
            moment(point.started_at)[:16], value, percent(point.spread_percent),
            code(point.run_id), code((point.git_revision or NOTHING)[:10]), remark,
        ])  # fmt: skip
    columns = ("started", title(trend.metric), "spread", "run", "recipe", "remark")
    return table("Runs", columns, rows, right=columns[1:3])
