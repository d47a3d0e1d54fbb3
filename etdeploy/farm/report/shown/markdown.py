"""A night as Markdown, short enough for a comment in a pull request."""

from __future__ import annotations

from collections.abc import Sequence

from etdeploy.core.console import count
from etdeploy.core.text.layout import cut
from etdeploy.farm.report.model import Cause, NightReport
from etdeploy.farm.report.shown import words
from etdeploy.farm.verdicts.model import Verdict, VerdictKind
from etdeploy.report.plain.markdown_text import details, name, prose, table

# Tells a later report of the same file from somebody's notes.
MARK = "<!-- etdeploy farm report -->"
# GitHub refuses a comment of 65,536 characters; a bot adds a line or two of its own.
MOST_CHARACTERS = 60_000
_MOST_WORSE = 30
_MOST_CAUSES = 10
_MOST_ROWS = 100
_LONGEST = 600
_SIGNS = {
    VerdictKind.REGRESSED: "🔴",
    VerdictKind.SUSPECTED: "🟠",
    VerdictKind.IMPROVED: "🟢",
    VerdictKind.NO_DIFFERENCE: "⚪",
    VerdictKind.NOT_JUDGED: "⚠️",
}
_BAD = (VerdictKind.REGRESSED, VerdictKind.SUSPECTED)


def markdown(report: NightReport) -> str:
    """The report in fewer than 65,536 characters, the worst first: the rest is left out first."""
    night = report.night
    head = f"### {name(_short(night.farm))}: {prose(report.headline)}"
    told = f"Night {name(night.id)}, {prose(words.when(report))}; {prose(words.measured(report))}."
    worse = [each for each in report.verdicts if each.kind in _BAD]
    others = [each for each in report.verdicts if each.kind not in _BAD]
    blocks = [
        *(_worse(verdict) for verdict in worse[:_MOST_WORSE]),
        _rest(len(worse) - _MOST_WORSE, "worse pair"),
        *(_cause("failed", each) for each in report.failures[:_MOST_CAUSES]),
        _rest(len(report.failures) - _MOST_CAUSES, "cause of failures"),
        *(_cause("missed", each) for each in report.missed[:_MOST_CAUSES]),
        _rest(len(report.missed) - _MOST_CAUSES, "reason of missed visits"),
        details(f"Other verdicts ({len(others)})", _verdicts(others)) if others else "",
        details(f"Devices ({len(report.devices)})", _devices(report)) if report.devices else "",
    ]
    return _bounded([MARK, head, told], [block for block in blocks if block])


def _bounded(always: list[str], blocks: Sequence[str]) -> str:
    """As many blocks as there is room for, in their order."""
    parts, left_out = list(always), 0
    used = sum(len(part) + 2 for part in parts)
    for block in blocks:
        # Once something is left out, what comes behind it is less important.
        if left_out or used + len(block) + 2 > MOST_CHARACTERS:
            left_out += 1
            continue
        parts.append(block)
        used += len(block) + 2
    if left_out:
        parts.append(f"_{count(left_out, 'section')} left out, since a comment has a limit._")
    return "\n\n".join(parts) + "\n"


def _worse(verdict: Verdict) -> str:
    kind = f"{_SIGNS[verdict.kind]} **{verdict.kind}**"
    lines = [f"{kind} {_pair(verdict)}: {prose(cut(verdict.reason, _LONGEST))}"]
    if verdict.since:
        lines.append(prose(cut(words.since_text(verdict.since), _LONGEST)))
    if verdict.remedy:
        lines.append(name(cut(verdict.remedy, _LONGEST)))
    return "<br>\n".join(lines)


def _cause(what: str, cause: Cause) -> str:
    sign = "❌" if what == "failed" else "⏭️"
    number = count(len(cause.places), "visit")
    kind = f"{cause.kind}: " if what == "failed" else ""
    lines = [
        f"{sign} **{number} {what}**: {prose(cut(words.where(cause), _LONGEST))}",
        prose(cut(f"{kind}{cause.message}", _LONGEST)),
    ]
    if cause.remedy:
        lines.append(f"What to do: {name(cut(cause.remedy, _LONGEST))}")
    return "<br>\n".join(lines)


def _verdicts(verdicts: Sequence[Verdict]) -> str:
    rows = []
    for verdict in verdicts[:_MOST_ROWS]:
        number = words.first_number(verdict)
        rows.append((
            name(_short(verdict.recipe)), name(_short(verdict.device)), words.value_text(number),
            words.change_text(number), words.spread_text(number),
            f"{_SIGNS[verdict.kind]} {verdict.kind}",
        ))  # fmt: skip
    columns = ("recipe", "device", "value", "change", "between runs", "verdict")
    text = table(columns, rows, right=columns[2:5])
    more = _rest(len(verdicts) - len(rows), "verdict")
    return text + (f"\n\n{more}" if more else "")


def _devices(report: NightReport) -> str:
    rows = [
        (name(_short(each.label)), name(_short(each.host or "-")), str(each.done),
         str(each.failed), str(each.missed),
         prose(_state(each.quarantined, words.health_text(each))))
        for each in report.devices[:_MOST_ROWS]
    ]  # fmt: skip
    columns = ("device", "host", "done", "failed", "missed", "health")
    more = _rest(len(report.devices) - len(rows), "device")
    return table(columns, rows, right=columns[2:5]) + (f"\n\n{more}" if more else "")


def _state(quarantined: str, health: str) -> str:
    return f"quarantined: {cut(quarantined, _LONGEST)}" if quarantined else health


def _pair(verdict: Verdict) -> str:
    return f"{name(_short(verdict.recipe))} on {name(_short(verdict.device))}"


def _rest(more: int, noun: str) -> str:
    return f"_and {count(more, f'more {noun}')}_" if more > 0 else ""


def _short(text: str) -> str:
    return cut(text, 80)
