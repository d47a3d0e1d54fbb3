"""A night as a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from etdeploy.core.console import count
from etdeploy.farm.report import words
from etdeploy.farm.report.model import FailureGroup, NightReport
from etdeploy.farm.verdicts.model import PairVerdict, VerdictKind
from etdeploy.history.series import title
from etdeploy.report.html.blocks import (
    BAD,
    GOOD,
    QUIET,
    WARN,
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

TONES = {
    VerdictKind.REGRESSED: BAD,
    VerdictKind.SUSPECTED: WARN,
    VerdictKind.IMPROVED: GOOD,
    VerdictKind.NO_DIFFERENCE: QUIET,
    VerdictKind.NOT_JUDGED: QUIET,
}
# More plots make a page that nobody scrolls through; the worst come first.
_MOST_PLOTS = 24


def night_page(report: NightReport, links: Sequence[tuple[str, str]] = ()) -> Page:
    """The page of a night."""
    sections = (
        PageSection("verdicts", "Verdicts", tuple(_verdicts(report))),
        PageSection("failures", "Failures", tuple(map(_cause, report.failures))),
        PageSection("missed", "Missed", tuple(map(_cause, report.missed))),
        PageSection("devices", "Devices", (device_table(report),) if report.devices else ()),
        PageSection("trends", "Trends", tuple(_trends(report))),
    )
    return Page(
        title=f"{report.night.farm}: night {report.night.id}",
        subtitle=f"{words.when(report)}; {words.measured(report)}",
        badges=(Cell(report.headline, BAD if report.exit_code else GOOD),),
        cards=cards(report),
        notices=(),
        sections=tuple(section for section in sections if section.blocks),
        links=tuple(links),
    )


def cards(report: NightReport) -> tuple[Card, ...]:
    """The night in four figures."""
    told = report.totals
    judged = len(report.verdicts) - told.not_judged
    return (
        Card("regressed", str(told.regressed), "", (f"of {count(judged, 'pair')} judged",),
             BAD if told.regressed else GOOD),
        Card("suspected", str(told.suspected), "", ("the next night decides",),
             WARN if told.suspected else ""),
        Card("failed", str(told.failed), "", (f"of {count(told.visits, 'visit')}",),
             BAD if told.failed else GOOD),
        Card("missed", str(told.missed), "", (f"{told.done:,} measured",),
             WARN if told.missed else ""),
    )  # fmt: skip


def _verdicts(report: NightReport) -> Iterator[Block]:
    if not report.verdicts:
        yield Text("Nothing was measured, so nothing is judged.", QUIET)
        return
    yield verdict_table(report.verdicts)
    for verdict in report.verdicts:
        if verdict.kind in (VerdictKind.REGRESSED, VerdictKind.SUSPECTED):
            yield _why(verdict)
            yield Folded(
                f"Every number of {verdict.recipe} on {verdict.device}", (_every(verdict),)
            )


def verdict_table(verdicts: Sequence[PairVerdict]) -> Table:
    """A row for each recipe on each device."""
    rows = []
    for verdict in verdicts:
        number = words.first_number(verdict)
        rows.append([
            verdict.recipe, verdict.device, Cell(str(verdict.kind), TONES[verdict.kind]),
            words.value_text(number), words.change_text(number), words.spread_text(number),
            len(verdict.run_ids), verdict.reason,
        ])  # fmt: skip
    # On a phone, only the first columns are seen at once.
    columns = ("recipe", "device", "verdict", "value", "change", "between runs", "runs", "why")
    return table("Verdicts, the worst first", columns, rows, right=columns[3:7])


def _why(verdict: PairVerdict) -> Text:
    sentences = [verdict.reason, words.since_text(verdict.since), verdict.remedy]
    text = ". ".join(sentence for sentence in sentences if sentence)
    return Text(text, TONES[verdict.kind], f"{verdict.recipe} on {verdict.device}.")


def _every(verdict: PairVerdict) -> Table:
    rows = [
        [title(each.metric), words.value_text(each), words.change_text(each),
         words.spread_text(each), str(each.nights), Cell(str(each.kind), TONES[each.kind]),
         each.reason]
        for each in verdict.findings
    ]  # fmt: skip
    columns = ("number", "value", "change", "between runs", "earlier nights", "verdict", "why")
    return table("Every number", columns, rows, right=columns[1:5])


def _cause(cause: FailureGroup) -> Block:
    rows = [
        [place.recipe, place.device, place.repeat, place.attempts, code(place.visit)]
        for place in cause.places
    ]
    columns = ("recipe", "device", "repeat", "attempts", "visit")
    blocks: list[Block] = [Text(f"{cause.message}", WARN, f"{cause.kind}.")]
    blocks += [Text(cause.remedy, "", "What to do.")] if cause.remedy else []
    blocks.append(table("Visits", columns, rows, right=columns[2:4]))
    return Folded(
        f"{count(len(cause.places), 'visit')}: {cause.message[:160]} ({words.where(cause)})",
        tuple(blocks),
    )


def device_table(report: NightReport) -> Table:
    """A row for each device of the night."""
    rows = [
        [each.label, each.host, each.done, each.failed, each.missed, each.lost, each.put_off,
         words.health_text(each),
         Cell(f"quarantined: {each.quarantined}", BAD) if each.quarantined else ""]
        for each in report.devices
    ]  # fmt: skip
    columns = ("device", "host", "done", "failed", "missed", "lost", "put off", "health", "remark")
    return table("Devices", columns, rows, right=columns[2:7])


def _trends(report: NightReport) -> Iterator[Block]:
    own = {run_id for verdict in report.verdicts for run_id in verdict.run_ids}
    for i, trend in enumerate(report.trends[:_MOST_PLOTS]):
        yield Text("", "", f"{trend.series.recipe} on {trend.series.device.label}")
        yield over_time(f"trend-{i}", trend, marked=own)
    series = sum(bool(verdict.series) for verdict in report.verdicts)
    more = max(series, len(report.trends)) - _MOST_PLOTS
    if more > 0:
        yield Text(f"{count(more, 'more trend')} left out: etdeploy history shows them.", QUIET)
