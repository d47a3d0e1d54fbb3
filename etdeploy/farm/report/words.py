"""A night as text, and the texts that all forms of its report share."""

from __future__ import annotations

from collections.abc import Iterator

from etdeploy.core.console import count
from etdeploy.core.layout import table
from etdeploy.farm.report.model import DeviceNight, FailureGroup, NightReport
from etdeploy.farm.verdicts.pair import NightFinding, PairVerdict, Since, VerdictKind
from etdeploy.history.check import OUTPUTS
from etdeploy.history.series import HEADLINES, LATENCY, metric_text, title
from etdeploy.report.document import NOTHING
from etdeploy.report.formatting import moment, percent

_MOST_NAMES = 4


def headline_finding(verdict: PairVerdict) -> NightFinding | None:
    """The finding that a verdict is about: the worst one, else that of the headline metric."""
    same = [each for each in verdict.findings if each.kind is verdict.kind]
    heads = [each for each in verdict.findings if each.metric in HEADLINES]
    bad = verdict.kind not in (VerdictKind.NO_DIFFERENCE, VerdictKind.NOT_JUDGED)
    return next(iter((same if bad else []) + heads + same), None)


def value_text(finding: NightFinding | None) -> str:
    """The night's value with its unit, and its metric if that is not the latency."""
    if finding is None or finding.metric == OUTPUTS or finding.value is None:
        return NOTHING
    what = "" if finding.metric == LATENCY else f" {title(finding.metric)}"
    disturbed = " (disturbed)" if finding.disturbed else ""
    return f"{metric_text(finding.metric, finding.value)}{what}{disturbed}"


def change_text(finding: NightFinding | None) -> str:
    """The change from the level before, in percent."""
    if finding is None or finding.ratio is None:
        return NOTHING
    return f"{100 * (finding.ratio.median - 1):+.1f} %"


def since_text(since: Since | None) -> str:
    """When a number became worse, with the commits; empty without a change."""
    if since is None:
        return ""
    when = f"since {moment(since.started_at)}" if since.dated else "since the last night"
    commits = f", commits {since.commits}" if since.commits else ""
    others = [text for text in since.differs if not text.startswith("recipe ")]
    return f"{when}{commits}" + (f" ({'; '.join(others)})" if others else "")


def spread_text(finding: NightFinding | None) -> str:
    """The spread between repeats of one night."""
    if finding is None or finding.within_percent is None:
        return NOTHING
    return percent(finding.within_percent)


def cause_places(cause: FailureGroup) -> str:
    """Which recipes on which devices, in a few words."""
    recipes = list(dict.fromkeys(place.recipe for place in cause.places))
    devices = list(dict.fromkeys(place.device for place in cause.places))
    return f"{_some(recipes)} on {_some(devices)}"


def health_text(device: DeviceNight) -> str:
    """Battery, temperature and room at the end of its last attempt."""
    return ", ".join(_health(device)) or NOTHING


def _health(device: DeviceNight) -> Iterator[str]:
    from etdeploy.core.console import size

    health = device.health
    if health is None:
        return
    if health.battery_percent is not None:
        yield f"battery {health.battery_percent} %"
    if device.warmest_celsius is not None:
        yield f"at most {device.warmest_celsius:.0f} °C"
    if health.free_bytes is not None:
        yield f"{size(health.free_bytes)} free"
    if health.thermal_status:
        yield f"thermal status {health.thermal_status}"


def when(report: NightReport) -> str:
    night = report.night
    end = f" to {moment(night.finished_at)}" if night.finished_at else ", not finished"
    return f"{moment(night.started_at)}{end}"


def measured(report: NightReport) -> str:
    totals = report.totals
    return f"{totals.done:,} of {count(totals.visits, 'visit')} measured"


def _some(names: list[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


_LOUD = (VerdictKind.REGRESSED,)
_BAD = (VerdictKind.REGRESSED, VerdictKind.SUSPECTED)


def night_text(report: NightReport, width: int | None = None) -> str:
    """The whole report as text, verdicts first, with tables of at most `width` characters."""
    return "\n\n".join(part for part in _parts(report, width) if part)


def _parts(report: NightReport, width: int | None) -> Iterator[str]:
    night = report.night
    yield (f"{night.farm}, night {night.id}: {report.headline}\n{when(report)}; {measured(report)}")
    if report.verdicts:
        yield _verdicts(report, width)
    yield "\n".join(line for each in report.verdicts for line in _why(each))
    yield _causes("failed", report.failures)
    yield _causes("missed", report.missed)
    yield _devices(report, width)


def _verdicts(report: NightReport, width: int | None) -> str:
    rows = []
    for verdict in report.verdicts:
        number = headline_finding(verdict)
        kind = str(verdict.kind)
        rows.append([
            verdict.recipe, verdict.device, str(len(verdict.run_ids)), value_text(number),
            change_text(number), spread_text(number),
            kind.upper() if verdict.kind in _LOUD else kind,
        ])  # fmt: skip
    columns = ("recipe", "device", "runs", "value", "change", "between runs", "verdict")
    return table(columns, rows, right=columns[2:6], width=width)


def _why(verdict: PairVerdict) -> Iterator[str]:
    if verdict.kind not in _BAD and verdict.kind is not VerdictKind.NOT_JUDGED:
        return
    yield f"{verdict.recipe} on {verdict.device}: {verdict.kind}: {verdict.reason}"
    if verdict.since:
        yield f"  {since_text(verdict.since)}"
    if verdict.remedy:
        yield f"  what to do: {verdict.remedy}"


def _causes(what: str, causes: tuple[FailureGroup, ...]) -> str:
    lines = []
    for cause in causes:
        lines.append(f"{count(len(cause.places), 'visit')} {what}: {cause_places(cause)}")
        lines.append(
            f"  {cause.kind}: {cause.message}" if what == "failed" else f"  {cause.message}"
        )
        lines += [f"  what to do: {cause.remedy}"] if cause.remedy else []
    return "\n".join(lines)


def _devices(report: NightReport, width: int | None) -> str:
    rows = [
        [each.label, each.host or None, str(each.done), str(each.failed), str(each.missed),
         f"QUARANTINED: {each.quarantined}" if each.quarantined else health_text(each)]
        for each in report.devices
    ]  # fmt: skip
    columns = ("device", "host", "done", "failed", "missed", "health")
    return table(columns, rows, right=columns[2:5], width=width) if rows else ""
