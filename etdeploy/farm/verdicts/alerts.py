"""Alerts of a night: opened by regressions, and followed until their numbers return."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from etdeploy.core.layout import cut
from etdeploy.farm.verdicts.pair import NightFinding, PairVerdict, VerdictKind
from etdeploy.history.alerts import Alert, followed

_LONGEST = 300


def with_alert(
    finding: NightFinding, alerts: Sequence[Alert], allowed_percent: float
) -> NightFinding:
    """A number with what is known of it: an open alert, or one that a person has closed.

    Args:
        finding: As the nights before judge it.
        alerts: Of the series, the latest first.
        allowed_percent: A level that a person has answered for may be so much worse.
    """
    of_metric = [alert for alert in alerts if alert.metric == finding.metric]
    opened = next((alert for alert in of_metric if alert.state.is_open), None)
    if opened is None:
        return _answered(finding, of_metric[0], allowed_percent) if of_metric else finding
    found = _still_worse(finding, opened)
    if found.kind is not VerdictKind.REGRESSED:
        return found
    is_answered = opened.is_answered(found.value, allowed_percent)
    return found.model_copy(
        update={"alert": opened.id, "acknowledged": opened.standing if is_answered else ""}
    )


def _answered(finding: NightFinding, closed: Alert, allowed_percent: float) -> NightFinding:
    """A level that was accepted, or was a false alarm, raises no further alert."""
    worse = finding.kind in (VerdictKind.REGRESSED, VerdictKind.SUSPECTED)
    if not worse or not closed.is_answered(finding.value, allowed_percent):
        return finding
    reason = f"{finding.reason}; alert {closed.id}: {closed.standing}"
    return finding.model_copy(update={"kind": VerdictKind.NO_DIFFERENCE, "reason": reason})


def _still_worse(finding: NightFinding, alert: Alert) -> NightFinding:
    """A number that an open alert is about has not become normal by being worse for long."""
    if finding.kind is VerdictKind.REGRESSED or finding.value is None:
        return finding
    if not alert.before or not alert.is_away(finding.value):
        return finding
    percent = 100 * (finding.value / alert.before - 1)
    reason = f"{percent:+.1f} % since {alert.opened_at[:10]}, alert {alert.id}"
    return finding.model_copy(
        update={"kind": VerdictKind.REGRESSED, "expected": alert.before, "reason": reason}
    )


def next_alerts(
    known: Sequence[Alert],
    verdicts: Sequence[PairVerdict],
    *,
    farm: str,
    night: str,
    began: str,
    now: str,
    allowed_percent: float,
) -> list[Alert]:
    """The alerts that a night opens or changes.

    Args:
        known: Every alert of the farm, the latest first.
        verdicts: Of the night.
        farm: Its name.
        night: Its id.
        began: When the night began, in UTC.
        now: The time, in UTC.
        allowed_percent: A level that was accepted, or was a false alarm, may be so much worse.
    """
    latest: dict[tuple[str, str], Alert] = {}
    for alert in known:
        latest.setdefault((alert.series, alert.metric), alert)
    measured = Counter(verdict.identity for verdict in verdicts)
    changed = []
    for verdict in verdicts:
        for finding in verdict.findings:
            last = latest.get((verdict.series, finding.metric))
            if last and last.is_ahead_of(began, now):
                continue  # what is known of later nights counts
            if last and last.state.is_open:
                judged = finding.kind is not VerdictKind.NOT_JUDGED
                value = finding.value if judged else None
                if (new := followed(last, night, value, now, allowed_percent)) != last:
                    changed.append(new.model_copy(update={"last_night_at": began}))
            elif finding.kind is VerdictKind.REGRESSED and not (
                last and _covers(last, finding, night, allowed_percent)
            ):
                recipes = measured[verdict.identity]
                changed.append(_opened(verdict, finding, recipes, farm, night, began))
    return changed


def _covers(last: Alert, finding: NightFinding, night: str, allowed_percent: float) -> bool:
    """Whether a closed alert has answered this already."""
    if last.last_night == night or last.night == night:
        return True
    return last.is_answered(finding.value, allowed_percent)


def _opened(
    verdict: PairVerdict, finding: NightFinding, recipes: int, farm: str, night: str, began: str
) -> Alert:
    since = verdict.since if verdict.since and verdict.since.metric == finding.metric else None
    return Alert(
        farm=farm,
        series=verdict.series,
        metric=finding.metric,
        night=night,
        opened_at=began,
        recipe=verdict.recipe,
        device=verdict.device,
        identity=verdict.identity,
        first_bad_run=since.run_id if since else verdict.run_ids[0],
        first_bad_at=since.started_at if since else began,
        before_run=since.before_run_id if since else "",
        before=finding.expected,
        after=finding.value,
        old_revision=since.old_revision if since else None,
        new_revision=since.new_revision if since else None,
        reason=cut(finding.reason, _LONGEST),
        remedy=verdict.remedy,
        last_night=night,
        last_night_at=began,
        recipes_on_device=recipes,
    )
