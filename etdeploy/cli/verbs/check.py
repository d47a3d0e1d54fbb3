"""etdeploy check."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from etdeploy.cli.options import json_option, quiet_option, runs_in_option, store_option
from etdeploy.core import console
from etdeploy.core.commands import quoted
from etdeploy.core.errors import EtdeployError, RegressionError

if TYPE_CHECKING:
    from etdeploy.bench.records.stored import StoredRun
    from etdeploy.history.check import Question
    from etdeploy.history.location import HistoryLocation
    from etdeploy.history.model import Check


def _percent(_ctx: click.Context, _param: click.Parameter, value: str) -> float:
    """`5%`, `5 %` or `5`."""
    try:
        number = float(value.removesuffix("%"))
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1000:
        raise click.BadParameter(f"{value!r} is not a percentage from 0 to 1000, like 5%")
    return number


@click.command()
@click.argument("run", default="last")
@click.option(
    "--against",
    metavar="main|last-good|RUN",
    help="Judge by runs whose recipe was committed on the branch main, by runs that no check found "
    "worse, or by one run. By default by all earlier runs that can be compared.",
)
@click.option(
    "--max-slowdown",
    callback=_percent,
    default="5%",
    show_default=True,
    metavar="PERCENT",
    help="How much worse a number may be; also of memory and sizes.",
)
@click.option(
    "--last",
    type=click.IntRange(min=5, max=1000),
    default=20,
    show_default=True,
    metavar="N",
    help="How many earlier runs it is judged by.",
)
@runs_in_option
@store_option
@json_option
@quiet_option
def command(
    run: str,
    against: str | None,
    max_slowdown: float,
    last: int,
    runs_in: Path,
    store: str | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Judge a run by earlier ones, and exit with 1 if a number is worse.

    RUN is `last`, an id or its end, or a path. It is judged by the spread between the last runs in
    the history that measured the same on the same device. The exit code is 0 where nothing can be
    said: too little history, a disturbed run, one that cannot be compared.
    """
    from etdeploy.history.check import LAST_GOOD, MAIN, Question
    from etdeploy.history.entry import find_kept
    from etdeploy.history.location import required_place

    place = required_place(store)
    found = find_kept(run, runs_in, place)
    by_name = against in (None, MAIN, LAST_GOOD)
    other = None if by_name else find_kept(str(against), runs_in, place).record
    question = Question(
        against=against if by_name else None,
        other=other,
        max_slowdown_percent=max_slowdown,
        last=last,
    )
    show(_checked(found, question, place, quiet=quiet), found, store, as_json)


def _checked(found: StoredRun, question: Question, place: HistoryLocation, *, quiet: bool) -> Check:
    """Judges the run, and notes in the history what was found."""
    from etdeploy.history.check import check, judgement_of
    from etdeploy.history.record_sink import bring_in
    from etdeploy.history.store.store import open_store

    trouble = None
    try:
        bring_in(place)
        with open_store(place) as store:
            store.add(found.record)
    except EtdeployError as error:
        trouble = error
    with open_store(place, read_only=True) as store:
        if trouble:  # else opening it for reading has said the same
            console.warn(f"nothing can be noted in the history: {trouble}")
        told = check(store, found.record, question)
    judgement = judgement_of(told)
    if judgement is None or question.other is not None:
        return told
    try:
        with open_store(place) as store:
            store.judge(told.run_id, judgement)
    except EtdeployError as error:
        if not quiet:
            console.warn(f"what was found is not noted in the history: {error}")
    return told


def show(told: Check, run: StoredRun, store: str | None, as_json: bool) -> None:
    """Prints a check."""
    from etdeploy.bench.records.find import measure_again
    from etdeploy.history.model import CheckVerdict
    from etdeploy.report.terminal import render
    from etdeploy.report.trends import check_text

    if as_json:
        console.result_json(told.model_dump(mode="json"))
    else:
        console.result(render(check_text(told, measure_again(run)), console.width()))
    if told.verdict is CheckVerdict.REGRESSED:
        raise RegressionError(
            told.reason,
            place=told.run_id,
            remedy=f"See when it began, and what changed then: {_history(run, store)}\n"
            f"Measure again: {measure_again(run)}",
        )


def _history(run: StoredRun, store: str | None) -> str:
    """The command that shows the run's series."""
    from etdeploy.history.series import DeviceIdentity

    device = DeviceIdentity.of(run.record.device.facts).name
    # The URL of a server may have a password in it.
    named = f" --store {quoted(store)}" if store and "://" not in store else ""
    recipe = quoted(run.record.recipe.name)
    return f"etdeploy history --recipe {recipe} --device {quoted(device)}{named}"
