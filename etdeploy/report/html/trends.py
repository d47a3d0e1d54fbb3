"""The page of a history: each series over time, with its changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from etdeploy.core.console import count
from etdeploy.history.model import LevelChange, Trend, TrendPoint
from etdeploy.history.series import shown as value_text
from etdeploy.history.series import title
from etdeploy.report import formatting
from etdeploy.report.html.blocks import (
    BAD,
    GOOD,
    QUIET,
    Block,
    Card,
    Cell,
    Folded,
    Page,
    PageSection,
    Table,
    Text,
    code,
    table,
)
from etdeploy.report.html.figures.history import over_time

# More cards than that are no summary.
_MOST_CARDS = 8


def trends_page(trends: Sequence[Trend], more: int = 0) -> Page:
    """Trends of one metric as a page.

    Args:
        trends: At least one, the one with the latest run first.
        more: How many series are not shown.
    """
    metrics = {trend.metric for trend in trends}
    metric = title(trends[0].metric) if len(metrics) == 1 else "numbers"
    notices = [Text(f"{more:,} more series are not shown.", QUIET)] if more else []
    return Page(
        title=f"{metric[0].upper()}{metric[1:]} over time",
        subtitle=f"{count(sum(len(trend.points) for trend in trends), 'run')} of "
        f"{_series(len(trends))}, the latest of {_latest(trends)}",
        badges=tuple(_badges(trends)),
        cards=tuple(map(_card, trends)) if len(trends) <= _MOST_CARDS else (),
        notices=tuple(notices),
        sections=tuple(_section(i, trend) for i, trend in enumerate(trends)),
    )


def _series(number: int) -> str:
    return "one series" if number == 1 else f"{number:,} series"


def _latest(trends: Sequence[Trend]) -> str:
    times = [point.started_at for trend in trends for point in trend.points]
    return formatting.moment(max(times)) if times else formatting.NOTHING


def _badges(trends: Sequence[Trend]) -> Iterator[Cell]:
    changes = sum(len(trend.changes) for trend in trends)
    yield Cell(count(changes, "change") if changes else "no change found", QUIET)


def _card(trend: Trend) -> Card:
    series = trend.series
    label = f"{series.recipe} on {series.device.label}"
    values = [point.value for point in trend.points if point.used and point.value is not None]
    if not values:
        return Card(label, "no value", "", ("no run of it can be compared",), QUIET)
    number, _, unit = value_text(trend.metric, values[-1]).partition(" ")
    lines = [f"latest of {count(trend.runs, 'run')}"]
    if trend.spread_percent is not None:
        lines.append(f"{formatting.percent(trend.spread_percent)} between runs")
    if trend.changes:
        last = trend.changes[-1]
        lines.append(f"{_percent(last)} on {last.started_at[:10]}")
    return Card(label, number, unit, tuple(lines), lead=False)


def _section(index: int, trend: Trend) -> PageSection:
    series = trend.series
    what = f", {series.label}" if series.label else ""
    heading = f"{series.recipe} on {series.device.label}{what}"
    return PageSection(f"series-{index}", heading, tuple(_blocks(index, trend)))


def _blocks(index: int, trend: Trend) -> Iterator[Block]:
    if not any(point.value is not None for point in trend.points):
        yield Text("No run of this series has this number.", QUIET)
        return
    yield over_time(f"plot-{index}", trend)
    yield _changes(trend) if trend.changes else Text("No change was found.", QUIET)
    yield Folded(count(len(trend.points), "run"), (_runs(trend),))


def _changes(trend: Trend) -> Table:
    rows = [
        [
            formatting.moment(change.started_at),
            value_text(trend.metric, change.before), value_text(trend.metric, change.after),
            Cell(_percent(change), BAD if change.ratio > 1 else GOOD),
            code(change.run_id), "; ".join(change.differs) or "nothing that the records show",
        ]
        for change in trend.changes
    ]  # fmt: skip
    columns = ("since", "before", "after", "change", "first run", "what else changed")
    return table("Changes of level", columns, rows, right=columns[1:4])


def _runs(trend: Trend) -> Table:
    rows = [_row(trend.metric, point) for point in reversed(trend.points)]
    columns = ("started", title(trend.metric), "between starts", "run", "recipe", "remark")
    return table("Runs, the latest first", columns, rows, right=columns[1:3])


def _row(metric: str, point: TrendPoint) -> list[object]:
    value = formatting.NOTHING if point.value is None else value_text(metric, point.value)
    remark = point.remark if point.used else f"not used: {point.remark or 'no such number'}"
    return [
        formatting.moment(point.started_at), value, formatting.percent(point.spread_percent),
        code(point.run_id), code((point.git_revision or formatting.NOTHING)[:10]), remark,
    ]  # fmt: skip


def _percent(change: LevelChange) -> str:
    return f"{100 * (change.ratio - 1):+.1f} %"
