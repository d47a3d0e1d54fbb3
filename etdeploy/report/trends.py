"""A history as blocks: each series over time with its changes, and a run judged by it."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

from etdeploy.bench.records.record import RunRecord
from etdeploy.core.commands import workflow_command
from etdeploy.core.console import count
from etdeploy.core.layout import sparkline
from etdeploy.history.alerts import Alert
from etdeploy.history.check import OUTPUTS, Check, CheckVerdict, FindingKind, MetricFinding
from etdeploy.history.entry import (
    CHECKOUT,
    DEVICE_STATE,
    CommitLinks,
    HistoryEntry,
    Judgement,
)
from etdeploy.history.nights import DeviceHealth, DeviceWeek
from etdeploy.history.series import distinct_labels, format_metric, metric_title, series_from
from etdeploy.history.trend import (
    LevelChange,
    MetricLevels,
    SeriesTrends,
    Trend,
    TrendPoint,
    describe_environment,
    describe_remark,
)
from etdeploy.report.document import (
    BAD,
    GOOD,
    NOTHING,
    QUIET,
    WARN,
    Block,
    Card,
    Cell,
    Fact,
    Facts,
    Folded,
    Interned,
    LargeTable,
    Page,
    PageSection,
    Table,
    Text,
    Timeline,
    code,
    table,
)
from etdeploy.report.formats import JUnitCase, JUnitResult, junit_text
from etdeploy.report.formatting import percent, utc_text
from etdeploy.report.plots import metric_unit, plot_trend, rounded

# More cards than that are no summary.
_MOST_CARDS = 8
_SHORT_CURVE, _CURVE, _LONG_CURVE = 10, 20, 60
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
        yield _changes({trend.metric: trend.changes})
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
            _changes({trend.metric: trend.changes})
            if trend.changes
            else Text("No change was found.", QUIET),
            Folded(count(len(trend.points), "run"), (_runs(trend, trend.points[::-1]),)),
        )
    return PageSection(f"series-{index}", heading, blocks)


def _changes_or_none(changes: Mapping[str, Sequence[LevelChange]]) -> Table | Text:
    return _changes(changes) if any(changes.values()) else Text("No change was found.", QUIET)


def _changes(changes: Mapping[str, Sequence[LevelChange]]) -> Table:
    """Changes of level, by metric; of several, the latest first."""
    several = len(changes) > 1
    found = [(metric, change) for metric, of in changes.items() for change in of]
    if several:
        found.sort(key=lambda each: each[1].started_at, reverse=True)
    rows: list[list[object]] = []
    for metric, change in found:
        values = [format_metric(metric, value) for value in (change.before, change.after)]
        by = Cell(_by(change), BAD if change.ratio > 1 else GOOD)
        differs = "; ".join(change.differs) or "nothing that the records show"
        rows.append([utc_text(change.started_at)[:16], *([metric_title(metric)] if several else []),
                     *values, by, code(change.run_id), differs])  # fmt: skip
    more = ("number",) if several else ()
    columns = ("since", *more, "before", "after", "change", "first run", "what else changed")
    return table("Changes of level", columns, rows, right=("before", "after", "change"))


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


INDEX, DEVICES = "index.html", "devices.html"
_SERIES_PAGE = "series-{}.html"
_LINKS = (("Series", INDEX), ("Devices", DEVICES))
# As many nights as are worth a curve.
_CURVE_NIGHTS = 60
# Of what changed besides the numbers; the plot marks all.
_MOST_CHANGES = 200


def series_file(key: str) -> str:
    """The name of a series' page."""
    return _SERIES_PAGE.format(key)


def series_page(trends: SeriesTrends, label: str, links: CommitLinks) -> Page:
    """The page of a series: all runs, and two runs, nights or commits side by side.

    Args:
        trends: Its metrics over all nights.
        label: What distinguishes it from others of the recipe and the device.
        links: Where commits are on the web.
    """
    series, nights = trends.series, trends.nights
    changes = {metric: levels.changes for metric, levels in trends.levels.items()}
    entries = [entry for night in nights for entry in night.entries]
    otherwise = f"etdeploy history --series {series.short_key} --json"
    where = f"{series.recipe} on {series.device.label}"
    surroundings = _surrounding_changes(entries)
    sections = (
        PageSection("alerts", "Open alerts", tuple(_open_alerts(trends, links))),
        PageSection("runs", "Runs", (
            Timeline("timeline", _timeline(trends, entries, surroundings, links),
                     f"{where}, by run", otherwise),
        ) if trends.levels else (Text("No run of this series can be compared.", QUIET),)),
        PageSection("changes", "Changes of level", (_changes_or_none(changes),)),
        PageSection("surroundings", "Tools, system and settings",
                    (_surroundings(entries, surroundings),) if surroundings else ()),
    )  # fmt: skip
    open_alerts = sum(alert.state.is_open for alert in trends.alerts)
    return Page(
        title=f"{where}{f', {label}' if label else ''}",
        subtitle=f"series {series.key}; {count(len(entries), 'run')} in "
        f"{count(len(nights), 'night')}" + (f", the latest of {_latest(trends)}" if nights else ""),
        badges=(Cell(count(open_alerts, "open alert"), BAD),) if open_alerts else (),
        cards=(),
        notices=(),
        sections=tuple(section for section in sections if section.blocks),
        links=_LINKS,
    )


def _latest(trends: SeriesTrends) -> str:
    return utc_text(trends.nights[-1].entries[-1].started_at)


def _open_alerts(trends: SeriesTrends, links: CommitLinks) -> Iterator[Table]:
    rows: list[list[object]] = []
    for alert in trends.alerts:
        if alert.state.is_open:
            change = alert.change_percent
            rows.append([
                str(alert.id), str(alert.state), metric_title(alert.metric),
                None if change is None else Cell(f"{change:+.1f} %", BAD), alert.opened_at[:10],
                _commit_range(alert, links), alert.reason, alert.who or None,
            ])  # fmt: skip
    columns = ("alert", "state", "number", "change", "since", "commits", "why", "by")
    if rows:
        yield table("Open alerts", columns, rows, right=("alert", "change"))


def _commit_range(alert: Alert, links: CommitLinks) -> Cell:
    old, new = alert.old_revision or "", alert.new_revision or ""
    known = links.compare and {old, new} <= links.known
    address = links.compare.replace("{old}", old).replace("{new}", new) if known else ""
    return Cell(alert.commits or NOTHING, code=bool(alert.commits), address=address)


def _surrounding_changes(entries: Sequence[HistoryEntry]) -> list[tuple[int, str]]:
    """Before which runs tools, the device's system or its settings changed, and what."""
    return [
        (i, "; ".join(found))
        for i, (before, after) in enumerate(itertools.pairwise(entries), 1)
        # The same value again and again, mostly.
        if before.versions != after.versions
        and (found := tuple(describe_environment(before, after)))
    ]


def _surroundings(entries: Sequence[HistoryEntry], changes: list[tuple[int, str]]) -> Table:
    latest = changes[: -_MOST_CHANGES - 1 : -1]
    rows = [
        [utc_text(entries[i].started_at)[:16], text, code(entries[i].run_id)] for i, text in latest
    ]
    left = len(changes) - len(latest)
    columns = ("since", "what changed", "first run")
    more = f"and {left:,} earlier ones, which the plot marks" if left else ""
    return table("Changes of tools, system and settings", columns, rows, more=more)


def _timeline(
    trends: SeriesTrends,
    entries: Sequence[HistoryEntry],
    surroundings: list[tuple[int, str]],
    links: CommitLinks,
) -> dict[str, Any]:
    """What the page's script draws; what repeats is stored once, since there are many pages."""
    places = {entry.run_id: i for i, entry in enumerate(entries)}
    strings = Interned[str]()
    commits = Interned[tuple[str, bool]]()
    states = Interned[tuple[tuple[str, str], ...]]()
    nights = [n for n, night in enumerate(trends.nights) for _ in night.entries]
    runs = {
        "id": [entry.run_id for entry in entries],
        "at": [_seconds(entry.started_at) for entry in entries],
        "night": nights,
        "used": [int(entry.fit) for entry in entries],
        "worse": [int(entry.judgement is Judgement.REGRESSED) for entry in entries],
        "spread": rounded((entry.spread_percent for entry in entries), 3),
        "commit": [commits.place((e.git_revision or "", bool(e.git_dirty))) for e in entries],
        "program": [strings.place(entry.program[:10]) for entry in entries],
        "surroundings": [states.place(tuple(sorted(e.versions.items()))) for e in entries],
        "remark": [strings.place(describe_remark(entry)) for entry in entries],
    }
    return {
        "metrics": [
            _metric_column(metric, levels, entries, places)
            for metric, levels in trends.levels.items()
        ],
        "runs": runs,
        "strings": strings.all,
        "commits": [
            {"id": revision, "dirty": dirty, "known": revision in links.known}
            for revision, dirty in commits.all
        ],
        "surroundings": [dict(each) for each in states.all],
        "surrounding_changes": surroundings,
        # Of these, one that is not known is no other one.
        "may_be_unknown": [*DEVICE_STATE, CHECKOUT],
        "alerts": [
            {"run": places.get(alert.first_bad_run, -1), "metric": alert.metric,
             "text": f"alert {alert.id}, {alert.state}: {alert.reason}"}
            for alert in trends.alerts if alert.state.is_open
        ],
        "commit": links.commit,
        "compare": links.compare,
    }  # fmt: skip


def _metric_column(
    metric: str, levels: MetricLevels, entries: Sequence[HistoryEntry], places: Mapping[str, int]
) -> dict[str, Any]:
    unit, factor = metric_unit(metric, levels.median)
    scaled = (None if (v := entry.metrics.get(metric)) is None else v * factor for entry in entries)
    changes = [
        {"run": places[change.run_id], "before": before, "after": after}
        for change in levels.changes
        for before, after in [rounded((change.before * factor, change.after * factor))]
    ]
    return {
        "name": metric, "title": metric_title(metric), "unit": unit, "values": rounded(scaled),
        "median": rounded([levels.median * factor])[0], "changes": changes,
    }  # fmt: skip


def _seconds(started_at: str) -> int | str:
    """Since 1970, which is shorter; a record may have any text there."""
    try:
        return round(datetime.fromisoformat(started_at).timestamp())
    except ValueError:
        return started_at


class SeriesIndex:
    """A row for each number of each series, collected while their pages are written.

    Attributes:
        rows: In the payload's form.
    """

    def __init__(self) -> None:
        self.rows: list[list[Any]] = []
        self._strings = Interned[str]()

    def add(self, trends: SeriesTrends, label: str) -> None:
        """Adds the numbers of a series."""
        place, file = self._strings.place, series_file(trends.series.key)
        alerts = Counter(alert.metric for alert in trends.alerts if alert.state.is_open)
        last = trends.nights[-1].entries[-1].started_at[:10] if trends.nights else ""
        for metric, levels in trends.levels.items():
            change = levels.changes[-1] if levels.changes else None
            curve = sparkline(levels.values[-_CURVE_NIGHTS:], _SHORT_CURVE)
            where = ", ".join(filter(None, (trends.series.device.label, label)))
            self.rows.append([
                place(trends.series.recipe), place(metric_title(metric)),
                place(format_metric(metric, levels.latest)),
                None if change is None else round(100 * (change.ratio - 1), 2),
                place(change.started_at[:10] if change else ""),
                rounded([levels.spread_percent], 3)[0],
                alerts[metric] or None, place(last),
                # Only of the number that runs are compared by, since each is long.
                place(curve if metric == trends.series.metric else ""),
                place(trends.series.device.label), place(f"{file}#metric={quote(metric)}"),
                place(where), rounded([levels.latest])[0],
            ])  # fmt: skip

    def page(self, subtitle: str) -> Page:
        """The first page, which leads to the others."""
        text = {"type": "text", "strings": True}
        columns = [
            {"title": "recipe", "type": "link", "address": 10, "where": 11, "strings": True},
            {"title": "number", "width": "8rem", **text},
            {"title": "latest", "width": "7rem", "by": 12, **text},
            {"title": "last change %", "type": "change", "digits": 1, "width": "6.5rem"},
            {"title": "since", "width": "7.5rem", **text},
            {"title": "spread %", "type": "number", "digits": 1, "width": "5.5rem", "wide": True},
            {"title": "open alerts", "type": "number", "digits": 0, "width": "4.5rem"},
            {"title": "last run", "width": "7.5rem", "wide": True, **text},
            {"title": "trend", "width": "8.2rem", "wide": True, **text},
        ]
        # Behind the columns: the device, the address, the device with the settings, the value.
        payload = {
            "columns": columns, "sorted": 4, "filters": [9, 0, 1], "searched": [11],
            "rows": self.rows, "strings": self._strings.all,
        }  # fmt: skip
        listing = LargeTable(
            "series", payload, "Series, scrollable", table("", (), ()),
            searched="recipe, device or setting",
            filters=(("Device", "all"), ("Recipe", "all"), ("Number", "all")),
            otherwise="etdeploy history --json",
        )  # fmt: skip
        alerts = sum(row[6] or 0 for row in self.rows)
        return Page(
            title="Trends",
            subtitle=subtitle,
            badges=(Cell(count(alerts, "open alert"), BAD),) if alerts else (),
            cards=(),
            notices=(),
            sections=(PageSection("series", "Series", (listing,)),),
            links=_LINKS,
        )  # fmt: skip


# As many weeks as the newest are; those before are what they are compared with.
_RECENT = 4
_SHARES = (("failed", "failed", "attempts"), ("disturbed", "disturbed", "runs"),
           ("quarantined", "quarantined_nights", "nights"))  # fmt: skip


# A column for each of these numbers of a week, with its width.
_WEEK = (
    ("attempts", "attempts", "6.2rem"), ("failed", "failed", "5rem"),
    ("device_failures", "by device", "5.2rem"), ("failed_percent", "failed %", "5rem"),
    ("runs", "runs", "4.5rem"), ("disturbed", "disturbed", "6.7rem"),
    ("disturbed_percent", "disturbed %", "6.7rem"),
    ("quarantined_nights", "nights quarantined", "8rem"),
)  # fmt: skip


def device_table(devices: Sequence[DeviceHealth]) -> Table:
    """A row for each device: what failed lately, and before."""
    rows: list[list[object]] = []
    for each in devices:
        recent, before = each.weeks[-_RECENT:], each.weeks[:-_RECENT]
        row: list[object] = [each.device]
        for _, part, whole in _SHARES:
            now, then = _share(recent, part, whole), _share(before, part, whole)
            worse = now is not None and now > 10 and now > 2 * (then or 0.0)
            row += [Cell(percent(now), WARN if worse else ""), percent(then)]
        failed = [week.failed_percent for week in each.weeks if week.failed_percent is not None]
        curve = sparkline(failed, _SHORT_CURVE, 0.0, max([*failed, 10.0]))
        rows.append([*row, curve or None, each.quarantined or None])
    shares = [(name, f"{name} before") for name, _, _ in _SHARES]
    columns = ("device", *itertools.chain(*shares), "failures", "quarantined now")
    more = (
        f"Shares of attempts, runs and nights in the last {_RECENT} weeks with any, and before; "
        "the curve has the failed attempts of each week."
    )
    return table("Devices", columns, rows, right=columns[1:7], more=more if rows else "")


def _share(weeks: Sequence[DeviceWeek], part: str, whole: str) -> float | None:
    total = sum(getattr(week, whole) for week in weeks)
    return 100 * sum(getattr(week, part) for week in weeks) / total if total else None


def devices_page(devices: Sequence[DeviceHealth], subtitle: str) -> Page:
    """What failed, was disturbed or quarantined on each device, week by week."""
    strings = Interned[str]()
    rows = [
        [strings.place(week.week), strings.place(each.device),
         *(getattr(week, name) for name, _, _ in _WEEK)]
        for each in devices for week in each.weeks
    ]  # fmt: skip
    columns: list[dict[str, Any]] = [
        {"title": "week of", "type": "text", "strings": True, "width": "7.5rem"},
        {"title": "device", "type": "text", "strings": True},
        *({"title": title, "type": "number", "digits": int("%" in title), "width": width,
           "wide": "%" not in title} for _, title, width in _WEEK),
    ]  # fmt: skip
    payload = {"columns": columns, "sorted": 0, "filters": [1], "searched": [],
               "rows": rows, "strings": strings.all}  # fmt: skip
    weeks = LargeTable(
        "weeks", payload, "Weeks of devices, scrollable", table("", (), ()), searched="week",
        filters=(("Device", "all"),), otherwise="etdeploy history devices --json",
    )  # fmt: skip
    sections = (
        PageSection("devices", "Devices", (device_table(devices),)),
        PageSection("weeks", "Week by week", (weeks,)),
    )
    return Page(
        title="Health of devices",
        subtitle=subtitle,
        badges=(),
        cards=(),
        notices=() if devices else (Text("There is no device yet.", QUIET),),
        sections=sections if devices else (),
        links=_LINKS,
    )
