"""When measurements may begin: read from farm.yaml, and found on the clock.

The clock of a time zone jumps twice a year. A window begins at the first moment that its clock
shows the time, or would have shown it, and ends at the last.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone, tzinfo
from difflib import get_close_matches
from zoneinfo import ZoneInfo, available_timezones

from etdeploy.farm.spec.model import Window

_TIME = re.compile(r"(\d{1,2}):(\d{2})", re.ASCII)
_DAY = 24 * 60


def minutes_of(text: str) -> int | None:
    """Minutes after midnight of a time like `22:00`, up to `24:00`; None for anything else."""
    match = _TIME.fullmatch(text.strip())
    if match is None or int(match[2]) > 59:
        return None
    minutes = int(match[1]) * 60 + int(match[2])
    return minutes if minutes <= _DAY else None


def zone_problem(name: str) -> tuple[str, str | None] | None:
    """What is wrong with the name of a time zone, and what is meant; None for a good one."""
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        known = sorted(available_timezones())
        by_city = {zone.rpartition("/")[2]: zone for zone in known}
        near = get_close_matches(name, known, n=1) or [
            by_city[city] for city in get_close_matches(name, by_city, n=1)
        ]
        hint = f"did you mean {near[0]}?" if near else "e.g. Europe/Berlin"
        return f"there is no time zone {name!r}", hint
    return None


def opens(window: Window, now: datetime) -> tuple[datetime, datetime]:
    """The current opening of a window, else the next: its beginning and its end.

    Args:
        window: Of a farm.
        now: With a time zone.

    Returns:
        Both in the window's time zone.
    """
    zone = ZoneInfo(window.timezone) if window.timezone else None
    today = now.astimezone(zone).replace(tzinfo=None, hour=0, minute=0, second=0, microsecond=0)
    for day in range(-1, 3):
        midnight = today + timedelta(days=day)
        start = _moments(midnight + timedelta(minutes=window.from_minute), zone)[0]
        end = max(_moments(midnight + timedelta(minutes=_end(window)), zone))
        if now < end and start < end:
            return start.astimezone(zone), end.astimezone(zone)
    # Only where a clock jumps by more than a day.
    raise ValueError(f"the window {window} does not open")


def _end(window: Window) -> int:
    """Minutes after the midnight before the beginning."""
    later = window.until_minute > window.from_minute
    return window.until_minute if later else window.until_minute + _DAY


def _moments(clock: datetime, zone: tzinfo | None) -> tuple[datetime, datetime]:
    """The moments at which a clock shows a time: two different ones where it is set back."""
    first, second = (
        clock.replace(tzinfo=zone, fold=fold).astimezone(timezone.utc) for fold in (0, 1)
    )
    return first, second
