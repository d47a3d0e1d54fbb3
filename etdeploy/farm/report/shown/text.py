"""A night's report for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from etdeploy.core.console import count
from etdeploy.core.text.layout import table
from etdeploy.farm.report.model import Cause, NightReport
from etdeploy.farm.report.shown import words
from etdeploy.farm.verdicts.model import Verdict, VerdictKind

_LOUD = (VerdictKind.REGRESSED,)
_BAD = (VerdictKind.REGRESSED, VerdictKind.SUSPECTED)


def night_text(report: NightReport, width: int | None = None) -> str:
    """The whole report, verdicts first.

    Args:
        report: The night.
        width: The maximum line length of tables; None for lines of any length.
    """
    return "\n\n".join(part for part in _parts(report, width) if part)


def _parts(report: NightReport, width: int | None) -> Iterator[str]:
    night = report.night
    yield (
        f"{night.farm}, night {night.id}: {report.headline}\n"
        f"{words.when(report)}; {words.measured(report)}"
    )
    if report.verdicts:
        yield _verdicts(report, width)
    yield "\n".join(line for each in report.verdicts for line in _why(each))
    yield _causes("failed", report.failures)
    yield _causes("missed", report.missed)
    yield _devices(report, width)


def _verdicts(report: NightReport, width: int | None) -> str:
    rows = []
    for verdict in report.verdicts:
        number = words.first_number(verdict)
        kind = str(verdict.kind)
        rows.append([
            verdict.recipe, verdict.device, str(len(verdict.run_ids)), words.value_text(number),
            words.change_text(number), words.spread_text(number),
            kind.upper() if verdict.kind in _LOUD else kind,
        ])  # fmt: skip
    columns = ("recipe", "device", "runs", "value", "change", "between runs", "verdict")
    return table(columns, rows, right=columns[2:6], width=width)


def _why(verdict: Verdict) -> Iterator[str]:
    if verdict.kind not in _BAD and verdict.kind is not VerdictKind.NOT_JUDGED:
        return
    yield f"{verdict.recipe} on {verdict.device}: {verdict.kind}: {verdict.reason}"
    if verdict.since:
        yield f"  {words.since_text(verdict.since)}"
    if verdict.remedy:
        yield f"  what to do: {verdict.remedy}"


def _causes(what: str, causes: tuple[Cause, ...]) -> str:
    lines = []
    for cause in causes:
        lines.append(f"{count(len(cause.places), 'visit')} {what}: {words.where(cause)}")
        lines.append(
            f"  {cause.kind}: {cause.message}" if what == "failed" else f"  {cause.message}"
        )
        lines += [f"  what to do: {cause.remedy}"] if cause.remedy else []
    return "\n".join(lines)


def _devices(report: NightReport, width: int | None) -> str:
    rows = [
        [each.label, each.host or None, str(each.done), str(each.failed), str(each.missed),
         f"QUARANTINED: {each.quarantined}" if each.quarantined else words.health_text(each)]
        for each in report.devices
    ]  # fmt: skip
    columns = ("device", "host", "done", "failed", "missed", "health")
    return table(columns, rows, right=columns[2:5], width=width) if rows else ""
