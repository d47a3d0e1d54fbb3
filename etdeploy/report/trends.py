"""A history as blocks: each series over time with its changes, and a run judged by it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from etdeploy.bench.records.record import RunRecord
from etdeploy.bench.units import unit_for
from etdeploy.core.commands import workflow_command
from etdeploy.core.console import count
from etdeploy.core.layout import sparkline
from etdeploy.history.check import OUTPUTS, Check, CheckVerdict, FindingKind, MetricFinding
from etdeploy.history.series import (
    NOISE,
    PERPLEXITY,
    base_metric,
    distinct_labels,
    format_metric,
    metric_title,
    series_from,
)
from etdeploy.history.trend import LevelChange, Trend, TrendPoint
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
    Figure,
    Folded,
    Page,
    PageSection,
    Table,
    Text,
    code,
    table,
)
from etdeploy.report.formats import JUnitCase, JUnitResult, junit_text
from etdeploy.report.formatting import percent, utc_text
from etdeploy.report.plots import (
    Values,
    axis,
    count_above,
    escape,
    rounded,
    vertical_line,
    visible_range,
)

# More cards than that are no summary.
_MOST_CARDS = 8
_CURVE, _LONG_CURVE = 20, 60
# Runs of a series in a terminal.
_RUNS = 10


def list_text(trends: Sequence[Trend], more: int) -> Table:
    """Return a row for each series, the one with the latest run first; `more` are not shown."""
    metric = _metric(trends) or "value"
    rows = []
    for trend, label in zip(trends, _labels(trends), strict=True):
        series, values = trend.series, _values(trend)
        rows.append([
            series.short_key, series.recipe, series.device.label, f"{trend.runs:,}",
            trend.points[-1].started_at[:10] if trend.points else None,
            format_metric(trend.metric, values[-1]) if values else None,
            percent(trend.spread_percent), label or None,
            sparkline(values, _CURVE) or None,
        ])  # fmt: skip
    columns = ("series", "recipe", "device", "runs", "last", metric, "spread", "backend", "trend")
    below = (
        f"and {more:,} more series: narrow them down with --recipe, --device, --since"
        if more
        else ""
    )
    return table("Series", columns, rows, right=("runs", metric, "spread"), more=below)


def trend_text(trend: Trend, width: int | None) -> Iterator[Block]:
    """Return one series for a terminal: its curve, its changes and its latest runs."""
    series, values = trend.series, _values(trend)
    yield Text(f"{series.recipe} on {series.device.label}: {series.label or series.source}")
    facts = [Fact("series", (f"{trend.key}, {count(trend.runs, 'run')} in the history",))]
    if not values:
        facts.append(Fact(metric_title(trend.metric), ("no run has it",)))
    else:
        curve = sparkline(values, min(_LONG_CURVE, (width or 80) - 30))
        latest = format_metric(trend.metric, values[-1])
        facts.append(
            Fact(metric_title(trend.metric), (f"{curve}  {count(len(values), 'run')}",), latest)
        )
    if trend.median is not None:
        since = "since the last change" if trend.changes else "of all"
        apart = f", spread between runs {percent(trend.spread_percent)}"
        apart = apart if trend.spread_percent is not None else ""
        facts.append(
            Fact("median", (f"{since}{apart}",), format_metric(trend.metric, trend.median))
        )
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
    yield _findings(check)
    if check.verdict is CheckVerdict.NOT_ENOUGH_HISTORY:
        yield Text(f"Measure more often, for example: {again}")


def check_page(check: Check, record: RunRecord, again: str) -> Page:
    """Return the same for a pull request."""
    series = series_from(record)
    against = f", checked against {check.against}" if check.earlier or not check.needed else ""
    remedy = () if check.verdict is CheckVerdict.PASSED else (Text(again, title="Measure again:"),)
    return Page(
        title=f"{series.recipe} on {series.device.label}: {check.verdict}",
        subtitle=f"{check.reason.rstrip('.')}. Run {check.run_id}{against}.",
        badges=(),
        cards=(),
        notices=remedy,
        sections=(PageSection("numbers", "Numbers", (_findings(check),), is_open=True),),
    )


def _findings(check: Check) -> Table:
    rows = []
    for finding in check.findings:
        regressed = finding.kind is FindingKind.REGRESSED
        kind = Cell("REGRESSED", BAD) if regressed else str(finding.kind)
        rows.append([_number(finding), kind, finding.reason])
    return table("Findings", ("", "verdict", "why"), rows)


def _number(finding: MetricFinding) -> str:
    return OUTPUTS if finding.metric == OUTPUTS else metric_title(finding.metric)


def check_junit(check: Check, record: RunRecord, *, requires_verdict: bool) -> str:
    """Return a check as JUnit XML: a case for each number, and one for a verdict that is missing.

    Args:
        check: What was found.
        record: Of the run.
        requires_verdict: Whether a missing verdict is a failure; else its case is skipped.
    """
    series = series_from(record)
    device, recipe = series.device.label, series.recipe
    cases = [
        JUnitCase(device, f"{recipe}: {_number(each)}", (_case_result(each),))
        for each in check.findings
    ]
    if not check.is_judged:
        tag = "failure" if requires_verdict else "skipped"
        missing = JUnitResult(tag, check.reason, f"{check.verdict}: {check.reason}", "no verdict")
        cases.append(JUnitCase(device, f"{recipe}: verdict", (missing,)))
    return junit_text(f"etdeploy check {recipe}", cases, record.started_at)


def _case_result(finding: MetricFinding) -> JUnitResult:
    if finding.kind is FindingKind.REGRESSED:
        return JUnitResult("failure", finding.reason, finding.reason, "regression")
    if finding.kind is FindingKind.NOT_JUDGED:
        return JUnitResult("skipped", message=finding.reason)
    return JUnitResult("system-out", f"{finding.kind}\n{finding.reason}")


# GitHub shows so many errors of a step.
_MOST_ANNOTATIONS = 10


def check_annotations(check: Check, record: RunRecord, *, requires_verdict: bool) -> list[str]:
    """Return what was found as workflow commands of GitHub Actions; none for a run that passed."""
    series = series_from(record)
    where = f"{series.recipe} on {series.device.label}"
    if not check.is_judged:
        name = "error" if requires_verdict else "warning"
        text = f"{where}: {check.reason}"
        return [workflow_command(name, text, title=f"etdeploy check: {check.verdict}")]
    worse = [each for each in check.findings if each.kind is FindingKind.REGRESSED]
    shown = worse[:_MOST_ANNOTATIONS]
    if len(worse) > len(shown):
        shown = worse[: _MOST_ANNOTATIONS - 1]
    commands = [
        workflow_command(
            "error", f"{where}: {each.reason}", title=f"etdeploy check: {_number(each)} regressed"
        )
        for each in shown
    ]
    if more := len(worse) - len(shown):
        text = f"{where}: {count(more, 'more number')} regressed"
        commands.append(workflow_command("error", text, title="etdeploy check"))
    return commands


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
        f"{utc_text(max(times)) if times else NOTHING}",
        badges=(Cell(count(changes, "change") if changes else "no change found", QUIET),),
        cards=tuple(map(_card, trends)) if len(trends) <= _MOST_CARDS else (),
        notices=(Text(f"{more:,} more series are not shown.", QUIET),) if more else (),
        sections=tuple(map(_section, range(len(trends)), trends, _labels(trends))),
    )


def _metric(trends: Sequence[Trend]) -> str:
    """The metric of all trends; empty where there are several."""
    metrics = {trend.metric for trend in trends}
    return metric_title(trends[0].metric) if len(metrics) == 1 else ""


def _values(trend: Trend) -> list[float]:
    return [point.value for point in trend.points if point.used and point.value is not None]


def _card(trend: Trend) -> Card:
    label, values = f"{trend.series.recipe} on {trend.series.device.label}", _values(trend)
    if not values:
        return Card(label, "no value", "", ("no run of it can be compared",), QUIET)
    number, _, unit = format_metric(trend.metric, values[-1]).partition(" ")
    lines = [f"latest of {count(trend.runs, 'run')}"]
    if trend.spread_percent is not None:
        lines.append(f"{percent(trend.spread_percent)} between runs")
    if trend.changes:
        last = trend.changes[-1]
        lines.append(f"{_by(last)} on {last.started_at[:10]}")
    return Card(label, number, unit, tuple(lines), lead=False)


def _labels(trends: Sequence[Trend]) -> list[str]:
    return distinct_labels([trend.series for trend in trends])


def _section(index: int, trend: Trend, label: str) -> PageSection:
    series = trend.series
    of = f", {label}" if label else ""
    heading = f"{series.recipe} on {series.device.label}{of}"
    if not any(point.value is not None for point in trend.points):
        blocks: tuple[Block, ...] = (Text("No run of this series has this number.", QUIET),)
    else:
        blocks = (
            plot_trend(f"plot-{index}", trend),
            _changes(trend) if trend.changes else Text("No change was found.", QUIET),
            Folded(count(len(trend.points), "run"), (_runs(trend, trend.points[::-1]),)),
        )
    return PageSection(f"series-{index}", heading, blocks)


def _changes(trend: Trend) -> Table:
    rows = []
    for change in trend.changes:
        values = [format_metric(trend.metric, value) for value in (change.before, change.after)]
        by = Cell(_by(change), BAD if change.ratio > 1 else GOOD)
        differs = "; ".join(change.differs) or "nothing that the records show"
        rows.append([utc_text(change.started_at)[:16], *values, by, code(change.run_id), differs])
    columns = ("since", "before", "after", "change", "first run", "what else changed")
    return table("Changes of level", columns, rows, right=columns[1:4])


def _by(change: LevelChange) -> str:
    return f"{100 * (change.ratio - 1):+.1f} %"


def _runs(trend: Trend, points: Sequence[TrendPoint]) -> Table:
    rows = []
    for point in points:
        value = None if point.value is None else format_metric(trend.metric, point.value)
        remark = point.remark if point.used else f"not used: {point.remark or 'no such number'}"
        rows.append([
            utc_text(point.started_at)[:16], value, percent(point.spread_percent),
            code(point.run_id), code((point.git_revision or NOTHING)[:10]), remark,
        ])  # fmt: skip
    columns = ("started", metric_title(trend.metric), "spread", "run", "recipe", "remark")
    return table("Runs", columns, rows, right=columns[1:3])


_TICKS = 6
_BYTES_PER_MB = 1e6


def plot_trend(key: str, trend: Trend, marked: Collection[str] = ()) -> Figure:
    """The values of a metric run by run, the level between changes, and the changes.

    Runs stand beside each other at the same distance: those of one evening would be a single line
    on an axis of dates.

    Args:
        key: Of the figure.
        trend: What is shown.
        marked: Ids of runs that stand out, like those of the last night.
    """
    unit, factor = _unit(trend)
    numbered = list(enumerate(trend.points))
    used = [(i, p) for i, p in numbered if p.used]
    other = [(i, p) for i, p in numbered if not p.used and p.value is not None]
    traces = [_markers("runs", used, factor, unit, "@blue", "circle")]
    if other:
        traces.append(_markers("not used", other, factor, unit, "@grey", "x"))
    if ringed := [(i, p) for i, p in numbered if p.run_id in marked and p.value is not None]:
        traces.append(_rings(ringed, factor))
    traces.append(_levels(trend, factor))
    values = [p.value * factor for _, p in used if p.value is not None]
    window = visible_range(values)
    lines, texts = _change_marks(trend)
    layout = {
        "xaxis": axis("", **_ticks(trend), range=[-0.7, max(len(numbered) - 0.3, 1)]),
        "yaxis": axis(metric_title(trend.metric) + (f" ({unit})" if unit else ""), window),
        "shapes": lines,
        "annotations": texts,
        "showlegend": bool(other or ringed),
        "margin": {"t": 36},
    }  # fmt: skip
    more = count_above(values, window[1]) if window else 0
    caption = "In the order of time; the line is the median between two changes."
    caption += f" {more} values lie above this range." if more else ""
    where = f"{trend.series.recipe} on {trend.series.device.label}"
    label = f"{metric_title(trend.metric)} of {where}, by run"
    return Figure(key, traces, layout, label, caption, height=360)


def _unit(trend: Trend) -> tuple[str, float]:
    """The unit of the values, and by what they are multiplied."""
    if "bytes" in trend.metric:
        return "MB", 1 / _BYTES_PER_MB
    if base_metric(trend.metric) == PERPLEXITY:
        return "", 1.0
    if base_metric(trend.metric) == NOISE:
        return "% of the signal", 100.0
    unit = unit_for(trend.median or 0.0)
    return unit.name, unit.per_ms


def _markers(
    name: str,
    points: list[tuple[int, TrendPoint]],
    factor: float,
    unit: str,
    tone: str,
    symbol: str,
) -> Values:
    worse = ["@red" if point.judgement == "regressed" else tone for _, point in points]
    return {
        "type": "scatter", "mode": "markers", "name": name,
        "x": [i for i, _ in points],
        "y": rounded([(point.value or 0.0) * factor for _, point in points]),
        "text": [_hover(point) for _, point in points],
        "marker": {"size": 8, "color": worse, "symbol": symbol},
        "hovertemplate": f"%{{y:.4g}} {unit}<br>%{{text}}<extra></extra>",
    }  # fmt: skip


def _rings(points: list[tuple[int, TrendPoint]], factor: float) -> Values:
    return {
        "type": "scatter", "mode": "markers", "name": "this night",
        "x": [i for i, _ in points],
        "y": rounded([(point.value or 0.0) * factor for _, point in points]),
        "marker": {"size": 15, "color": "@orange", "symbol": "circle-open", "line": {"width": 2}},
        "hoverinfo": "skip",
    }  # fmt: skip


def _hover(point: TrendPoint) -> str:
    lines = [utc_text(point.started_at), point.run_id]
    if point.git_revision:
        lines.append(f"recipe {point.git_revision[:10]}")
    if point.spread_percent is not None:
        lines.append(f"{point.spread_percent:.1f} % between its starts")
    return "<br>".join(escape(line) for line in [*lines, *([point.remark] if point.remark else [])])


def _levels(trend: Trend, factor: float) -> Values:
    """A line for each level, with a gap at each change."""
    places = {point.run_id: i for i, point in enumerate(trend.points)}
    starts = [0, *(places[change.run_id] for change in trend.changes), len(trend.points)]
    medians = [change.before for change in trend.changes]
    medians += [trend.median] if trend.median is not None else []
    x: list[float | None] = []
    y: list[float | None] = []
    for i, median in enumerate(medians):
        x += [starts[i] - 0.4, starts[i + 1] - 0.6, None]
        y += [median * factor, median * factor, None]
    return {
        "type": "scatter", "mode": "lines", "x": x, "y": rounded(y), "name": "median",
        "line": {"color": "@orange", "width": 2}, "hoverinfo": "skip", "showlegend": False,
    }  # fmt: skip


def _change_marks(trend: Trend) -> tuple[list[Values], list[Values]]:
    places = {point.run_id: i for i, point in enumerate(trend.points)}
    lines, texts = [], []
    for change in trend.changes:
        tone = "@red" if change.ratio > 1 else "@green"
        text = f"{100 * (change.ratio - 1):+.1f} %"
        line, words = vertical_line(places[change.run_id] - 0.5, text, tone)
        lines.append(line)
        texts.append(words)
    return lines, texts


def _ticks(trend: Trend) -> Values:
    """A few dates, evenly picked."""
    count = len(trend.points)
    step = max(1, -(-count // _TICKS))
    places = list(range(0, count, step))
    times = [trend.points[i].started_at for i in places]
    # Dates, or of runs of one day their times.
    part = slice(11, 16) if len({time[:10] for time in times}) == 1 < count else slice(10)
    texts = [escape(time[part]) for time in times]
    return {"tickvals": places, "ticktext": texts, "showgrid": False, "zeroline": False}
