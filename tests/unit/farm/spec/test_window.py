"""The window of a night on a clock that jumps."""

from __future__ import annotations

from datetime import datetime, timezone
from zoneinfo import ZoneInfo

import pytest

from etdeploy.farm.spec.conditions import find_opening, parse_time, zone_problem
from etdeploy.farm.spec.model import Window

BERLIN = ZoneInfo("Europe/Berlin")


def window(start: str, end: str) -> Window:
    first, last = parse_time(start), parse_time(end)
    assert first is not None
    assert last is not None
    return Window(from_minute=first, until_minute=last, timezone="Europe/Berlin")


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=BERLIN)


@pytest.mark.parametrize(
    ("times", "now", "start", "end"),
    [
        ("09:00 17:00", "2026-11-23T18:00", "2026-11-24T09:00", "2026-11-24T17:00"),
        ("00:00 24:00", "2026-11-23T18:00", "2026-11-23T00:00", "2026-11-24T00:00"),
        ("22:00 06:00", "2026-11-23T12:00", "2026-11-23T22:00", "2026-11-24T06:00"),
        ("22:00 06:00", "2026-11-23T22:00", "2026-11-23T22:00", "2026-11-24T06:00"),
        ("22:00 06:00", "2026-11-24T01:00", "2026-11-23T22:00", "2026-11-24T06:00"),
        ("22:00 06:00", "2026-11-24T05:59", "2026-11-23T22:00", "2026-11-24T06:00"),
        ("22:00 06:00", "2026-11-24T06:00", "2026-11-24T22:00", "2026-11-25T06:00"),
    ],
)
def test_the_window_that_is_open_or_next(times: str, now: str, start: str, end: str) -> None:
    assert find_opening(window(*times.split()), at(now)) == (at(start), at(end))


@pytest.mark.parametrize(
    ("times", "now", "start", "end"),
    [
        # The clock jumps from 02:00 to 03:00.
        ("22:00 06:00", "2026-03-28T23:00", "2026-03-28T21:00", "2026-03-29T04:00"),
        ("02:00 02:30", "2026-03-29T00:00", "2026-03-29T01:00", "2026-03-29T01:30"),
        # The hour from 02:00 to 03:00 is there twice.
        ("22:00 06:00", "2026-10-24T23:00", "2026-10-24T20:00", "2026-10-25T05:00"),
        ("02:15 02:45", "2026-10-25T00:00", "2026-10-25T00:15", "2026-10-25T01:45"),
    ],
)
def test_a_night_in_which_the_clock_jumps(times: str, now: str, start: str, end: str) -> None:
    found = [
        each.astimezone(timezone.utc) for each in find_opening(window(*times.split()), at(now))
    ]
    assert [f"{each:%Y-%m-%dT%H:%M}" for each in found] == [start, end]


def test_the_time_of_another_zone_is_the_same_moment() -> None:
    tokyo = at("2026-11-24T01:00").astimezone(ZoneInfo("Asia/Tokyo"))
    start, _ = find_opening(window("22:00", "06:00"), tokyo)
    assert start == at("2026-11-23T22:00")
    assert start.tzinfo == BERLIN


def test_without_a_zone_it_is_this_machine_s() -> None:
    now = datetime(2026, 11, 23, 12, tzinfo=timezone.utc)
    start, end = find_opening(Window(from_minute=0, until_minute=1440), now)
    assert start <= now < end
    assert (start.astimezone().hour, start.astimezone().minute) == (0, 0)


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("22:00", 1320), ("6:05", 365), ("00:00", 0), ("24:00", 1440), ("24:01", None),
     ("12:60", None), ("10pm", None), ("", None), ("-1:00", None)],
)  # fmt: skip
def test_times_of_the_day(text: str, minutes: int | None) -> None:
    assert parse_time(text) == minutes


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("Europe/Berln", "did you mean Europe/Berlin?"),
        ("berlin", "did you mean Europe/Berlin?"),
        ("Europe", None),
        ("/etc/passwd", None),
        ("../x", None),
        ("", None),
    ],
)
def test_an_unknown_zone(name: str, hint: str | None) -> None:
    problem = zone_problem(name)
    assert problem
    assert problem[0] == f"there is no time zone {name!r}"
    assert hint is None or problem[1] == hint
