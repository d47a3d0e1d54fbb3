"""Alerts: numbers that became worse, from the first bad night until someone or something ends them.

An alert is open until its number returns to the level before (fixed), or a person accepts the new
level as the baseline (accepted) or says that nothing had changed (false alarm). An acknowledged
alert is open, and somebody looks after it. What is stored is a value for each alert.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime

from etdeploy.core.values import StrEnum, Value
from etdeploy.history.entry import commit_range

# A night may take more than a day, so this alone does not make it late.
_LATE_S = 2 * 86_400.0
# Nights in a row whose number is nearer to the level before.
_NIGHTS_TO_RETURN = 3


class AlertState(StrEnum):
    """What has become of an alert."""

    OPEN = "open"
    ACKNOWLEDGED = "acknowledged"
    ACCEPTED = "accepted"
    FIXED = "fixed"
    FALSE_ALARM = "false alarm"

    @property
    def is_open(self) -> bool:
        """Whether the number is still worse."""
        return self in (AlertState.OPEN, AlertState.ACKNOWLEDGED)


class Alert(Value):
    """A number of a recipe on a device that became worse.

    Attributes:
        id: Counts from 1; 0 before it is stored.
        farm: The farm's name.
        series: Key of the series.
        metric: Name of the number.
        state: What has become of it.
        night: The night that found it.
        opened_at: When that night began, in UTC, ISO 8601.
        recipe: The recipe's label.
        device: The device's label; `identity` is unique.
        first_bad_run: The first run of the new level; `first_bad_at` is when it started.
        before_run: The last run of the level before.
        before: The level before.
        after: The latest value.
        old_revision: Commit of the recipe's folder in `before_run`; null outside a repository.
        new_revision: That in `first_bad_run`.
        reason: As the night's verdict has it.
        remedy: A command that looks for the cause.
        last_night: The last night that judged the number; `last_night_at` is when it began.
        recipes_on_device: How many recipes that night judged on the device.
        nights: How many nights have been worse.
        returned: How many nights in a row have had the level before.
        answered: The latest value when they did; null where it has none.
        who: Who acknowledged, accepted or closed it.
        note: What they wrote.
        changed_at: When they did, or when it was fixed.
    """

    id: int = 0
    farm: str
    series: str
    metric: str
    state: AlertState = AlertState.OPEN
    night: str
    opened_at: str
    recipe: str
    device: str
    identity: str
    first_bad_run: str = ""
    first_bad_at: str = ""
    before_run: str = ""
    before: float | None = None
    after: float | None = None
    old_revision: str | None = None
    new_revision: str | None = None
    reason: str = ""
    remedy: str = ""
    last_night: str = ""
    last_night_at: str = ""
    recipes_on_device: int = 1
    nights: int = 1
    returned: int = 0
    answered: float | None = None
    who: str = ""
    note: str = ""
    changed_at: str = ""

    @property
    def commits(self) -> str:
        """The commits between both levels, for git; see `commit_range`."""
        return commit_range(self.old_revision, self.new_revision)

    @property
    def change_percent(self) -> float | None:
        """From the level before to the latest value."""
        return 100 * (self.after / self.before - 1) if self.before and self.after else None

    @property
    def since(self) -> str:
        """The date of the first bad run, or of the night that found it."""
        return (self.first_bad_at or self.opened_at)[:10]

    @property
    def standing(self) -> str:
        """Its state and whose doing that is: `acknowledged by ann@wolf`."""
        return f"{self.state} by {self.who}" if self.who else str(self.state)

    def is_answered(self, value: float | None, allowed_percent: float) -> bool:
        """Whether a person has answered for a value: theirs was as bad, or nearly so."""
        if self.state in (AlertState.OPEN, AlertState.FIXED):
            return False
        known = self.answered or self.after
        if value is None or known is None:  # wrong outputs are nothing to accept
            return value is known is None and self.state is AlertState.ACKNOWLEDGED
        return value <= known * (1 + allowed_percent / 100)

    def is_ahead_of(self, began: str, now: str) -> bool:
        """Whether the results of a night arrive late, when later nights have been judged.

        A night that began just now is not late: then a clock has been set back.
        """
        later = self.last_night_at or self.opened_at
        return began < later and _seconds_between(began, now) > _LATE_S

    def was_open_in(self, night: str, began: str, ended: str) -> bool:
        """Whether a night found it, or found it open."""
        if night in (self.night, self.last_night):
            return True
        return self.opened_at <= began and (self.state.is_open or self.changed_at > ended)

    def is_away(self, value: float) -> bool:
        """Whether a value is nearer to the new level than to the one before."""
        if not self.before or not self.after:
            return True
        return value > math.sqrt(self.before * self.after)


def _seconds_between(began: str, now: str) -> float:
    try:
        return (datetime.fromisoformat(now) - datetime.fromisoformat(began)).total_seconds()
    except (ValueError, TypeError):  # not a date, or without a zone
        return 0.0


def followed(
    alert: Alert, night: str, value: float | None, now: str, allowed_percent: float = 5.0
) -> Alert:
    """An open alert after another night: fixed once enough nights had the level before.

    One that is worse than when it was acknowledged is open again.

    Args:
        alert: As it was.
        night: Its id; a night that was followed before changes nothing.
        value: Of the number in it; None where nothing was judged.
        now: The time, in UTC.
        allowed_percent: How much worse it may be than when it was acknowledged.
    """
    if value is None or night in (alert.last_night, alert.night):
        return alert
    if alert.is_away(value):
        more = {"after": value, "returned": 0, "nights": alert.nights + 1, "last_night": night}
        if alert.state is AlertState.ACKNOWLEDGED and not alert.is_answered(value, allowed_percent):
            before = f"worse than what {alert.who or 'somebody'} acknowledged"
            reason = "; ".join(filter(None, (before, alert.note)))
            more |= {"state": AlertState.OPEN, "who": "", "note": reason, "changed_at": now}
        return alert.model_copy(update=more)
    returned = alert.returned + 1
    fixed = returned >= _NIGHTS_TO_RETURN
    return alert.model_copy(
        update={
            "returned": returned,
            "last_night": night,
            **({"state": AlertState.FIXED, "changed_at": now} if fixed else {}),
        }
    )


class AlertGroup(Value):
    """Alerts with one cause.

    Attributes:
        cause: What they share: `device NAME`, `commits OLD..NEW`, `recipe NAME`, or one pair.
        alerts: The earliest first.
        remedy: One command for all.
    """

    cause: str
    alerts: tuple[Alert, ...]
    remedy: str


_FEWEST = 3
_NEARLY_ALL = 0.8


def group_alerts(found: Sequence[Alert]) -> tuple[AlertGroup, ...]:
    """Group alerts by their cause.

    If nearly all recipes of a device became slower in one night, the cause is the device. Other
    alerts share the commits between which they became slower, or their recipe.
    """
    groups: dict[str, list[Alert]] = {}
    of_device: dict[tuple[str, str], set[str]] = {}
    for each in found:
        of_device.setdefault((each.identity, each.night), set()).add(each.recipe)
    for each in found:
        many = of_device[each.identity, each.night]
        if len(many) >= max(_FEWEST, _NEARLY_ALL * each.recipes_on_device):
            cause = f"device {each.device}, night {each.night}"
        elif each.commits:
            cause = f"commits {each.commits}"
        else:
            cause = f"recipe {each.recipe}, night {each.night}"
        groups.setdefault(cause, []).append(each)
    return tuple(
        AlertGroup(cause=cause, alerts=tuple(group), remedy=_remedy(cause, group))
        for cause, group in groups.items()
    )


def _remedy(cause: str, group: Sequence[Alert]) -> str:
    if cause.startswith("device "):
        return (
            f"Look at the device: nearly all of its recipes became slower at once. Until it is "
            f"right: etdeploy farm quarantine {group[0].identity}"
        )
    return next((each.remedy for each in group if each.remedy), "")
