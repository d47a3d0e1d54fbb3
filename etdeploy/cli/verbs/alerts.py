"""etdeploy alerts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from etdeploy.cli.options import named_farm, options
from etdeploy.core import console
from etdeploy.core.errors import UsageError

if TYPE_CHECKING:
    from etdeploy.history.alerts import Alert, AlertState
    from etdeploy.history.location import HistoryLocation

_CLOSED_AS = ("fixed", "false alarm")

_by = click.option("--by", metavar="NAME", help="Who does it. By default you, on this host.")
_note = click.option("--note", default="", metavar="TEXT", help="Others see it.")
_numbers = click.argument("numbers", nargs=-1, required=True, type=click.IntRange(min=1))


@click.group(invoke_without_command=True)
@click.option("--all", "closed", is_flag=True, help="Closed alerts, too.")
@options("farm", "store", "json")
@click.pass_context
def alerts(
    ctx: click.Context, closed: bool, file: Path | None, store: str | None, as_json: bool
) -> None:
    """Show the alerts of a farm: numbers that became worse, until they return.

    An alert is opened by a night in which a number regressed, and stays open until three nights in
    a row have the level before, or a person closes it. Alerts with one cause are a group.
    """
    ctx.obj = (file, store)
    if ctx.invoked_subcommand is not None:
        return
    from etdeploy.history.alerts import group_alerts

    place, found = _stored(file, store)
    shown = [each for each in found if closed or each.state.is_open]
    groups = group_alerts(shown)
    if as_json:
        console.result_json([group.model_dump(mode="json") for group in groups])
    elif shown:
        from etdeploy.farm.report.forms import alert_group_text

        width = console.width()
        console.result("\n\n".join(alert_group_text(group, width) for group in groups))
    else:
        console.result(f"no open alert in {place.shown}" if not closed else "no alert")


@alerts.command()
@click.argument("number", type=click.IntRange(min=1))
@options("json")
@click.pass_obj
def show(named: tuple[Path | None, str | None], number: int, as_json: bool) -> None:
    """Show everything about one alert."""
    _, found = _stored(*named)
    alert = next((each for each in found if each.id == number), None)
    if alert is None:
        raise _unknown(number)
    if as_json:
        console.result_json(alert.model_dump(mode="json"))
        return
    from etdeploy.history.series import metric_title

    rows = [
        ("state", _state(alert)),
        ("number", f"{metric_title(alert.metric)} of {alert.recipe} on {alert.device}"),
        ("before", _value(alert, alert.before)),
        ("now", _value(alert, alert.after)),
        ("nights", f"{alert.nights}, since {alert.opened_at[:10]} ({alert.night})"),
        ("first bad run", alert.first_bad_run or None),
        ("last good run", alert.before_run or None),
        ("commits", alert.commits or None),
        ("reason", alert.reason),
        ("what to do", alert.remedy or None),
        ("note", alert.note or None),
    ]
    console.result(console.table(("", f"alert {alert.id}"), rows, width=console.width()))


@alerts.command()
@_numbers
@_by
@_note
@click.pass_obj
def ack(named: Any, numbers: tuple[int, ...], by: str | None, note: str) -> None:
    """Say that somebody looks after these alerts; they stay open."""
    from etdeploy.history.alerts import AlertState

    _change(named, numbers, AlertState.ACKNOWLEDGED, by, note)


@alerts.command()
@_numbers
@_by
@_note
@click.pass_obj
def accept(named: Any, numbers: tuple[int, ...], by: str | None, note: str) -> None:
    """Make the new level the baseline: earlier nights no longer count for these numbers."""
    from etdeploy.history.alerts import AlertState

    _change(named, numbers, AlertState.ACCEPTED, by, note)


@alerts.command()
@_numbers
@click.option(
    "--as", "state", type=click.Choice(_CLOSED_AS), required=True, help="Why it is closed."
)
@_by
@_note
@click.pass_obj
def close(named: Any, numbers: tuple[int, ...], state: str, by: str | None, note: str) -> None:
    """Close alerts that were fixed, or were none.

    A fixed number that is worse again opens another alert. After a false alarm, the same level
    opens none.
    """
    from etdeploy.history.alerts import AlertState

    _change(named, numbers, AlertState(state), by, note)


def _stored(file: Path | None, store: str | None) -> tuple[HistoryLocation, list[Alert]]:
    """Return the history and every alert in it; none where there is no history yet."""
    from etdeploy.history.store.alerts import stored_alerts
    from etdeploy.history.store.store import open_store

    farm = named_farm(file, store)
    place = farm.place
    if place.file and not place.file.exists():
        return place, []
    with open_store(place, read_only=True) as opened, opened.transaction() as connection:
        return place, stored_alerts(connection, farm.name)


def _change(
    named: tuple[Path | None, str | None],
    numbers: Sequence[int],
    state: AlertState,
    by: str | None,
    note: str,
) -> None:
    """Change all of the alerts or none."""
    from etdeploy.device_pool import current_user
    from etdeploy.history.store.alerts import find_alert, save_alert
    from etdeploy.history.store.errors import database_now, utc_text
    from etdeploy.history.store.store import open_store

    place, who = named_farm(*named).place, by or current_user()
    if place.file and not place.file.exists():
        raise _unknown(numbers[0])
    with open_store(place) as opened, opened.transaction(writes=True) as connection:
        now = utc_text(database_now(connection))
        changed = []
        for number in dict.fromkeys(numbers):
            alert = find_alert(connection, number, writes=True)
            if alert is None:
                raise _unknown(number)
            if not alert.state.is_open:
                raise UsageError(
                    f"alert {number} is closed: {_state(alert)}",
                    remedy=f"See it: etdeploy alerts show {number}",
                )
            values = {
                "state": state, "who": who, "note": note, "changed_at": now,
                "answered": alert.after,
            }  # fmt: skip
            changed.append(save_alert(connection, alert.model_copy(update=values)))
    for alert in changed:
        console.result(f"alert {alert.id}, {alert.recipe} on {alert.device}: {_state(alert)}")


def _unknown(number: int) -> UsageError:
    return UsageError(
        f"there is no alert {number}", remedy="See which there are: etdeploy alerts --all"
    )


def _state(alert: Alert) -> str:
    when = f", {alert.changed_at[:10]}" if alert.changed_at else ""
    return f"{alert.standing}{when}"


def _value(alert: Alert, value: float | None) -> str | None:
    from etdeploy.history.series import format_metric

    return None if value is None else format_metric(alert.metric, value)
