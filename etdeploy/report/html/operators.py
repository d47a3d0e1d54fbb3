"""The table of operators as the page's script takes it: thousands of rows in few bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from etdeploy.profile.model import OperatorTime, Profile
from etdeploy.report.html.blocks import Operators
from etdeploy.report.html.figures.modules import KERNELS
from etdeploy.report.shown import in_unit, is_number, unit_of

# Of a column with text, the cells are places in `strings`.
_TEXT = {"strings": True}
# Such a column is hidden where the page is narrow.
_WIDE = {"wide": True}


class Strings:
    """Texts that occur in many rows, each stored once."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}

    def place(self, text: str) -> int:
        """The place of a text in `all`."""
        return self._places.setdefault(text, len(self._places))

    @property
    def all(self) -> list[str]:
        return list(self._places)


def operators_table(key: str, profile: Profile) -> Operators:
    """Every operator and delegate node, with module, source line and reason."""
    strings = Strings()
    unit = unit_of(max((each.self_ms for each in profile.operators), default=0.0))
    rows = [_row(each, strings, unit.per_ms) for each in profile.operators]
    time = {"type": "number", "digits": _digits(profile.operators), "width": "7.5rem"}
    payload = {
        "columns": [
            {"title": "operator", "type": "name", "where": [6, 7], **_TEXT},
            {"title": "runs on", "type": "text", "note": 8, "width": "13rem", **_WIDE, **_TEXT},
            {"title": "calls", "type": "number", "digits": 0, "width": "5rem", **_WIDE},
            {"title": f"total {unit.name}", **time, **_WIDE},
            {"title": f"self {unit.name}", **time},
            {"title": "share", "type": "share", "width": "6.5rem"},
        ],
        "sorted": 4,
        "place": 1,
        "searched": [6, 7, 8],
        # The bars of the shares are as long as they are by the largest.
        "largest": max((row[5] or 0.0 for row in rows), default=0.0) or 1.0,
        "rows": rows,
        "strings": strings.all,
    }
    return Operators(key, payload, "Operators, scrollable")


def compared_table(key: str, names: Sequence[str], profiles: Sequence[Profile]) -> Operators:
    """The self time of each operator in every run; the change is from the first run to the last.

    Rows with the same name, module and backend are one.
    """
    sums = [_by_identity(profile) for profile in profiles]
    identities = list(dict.fromkeys(identity for each in sums for identity in each))
    unit = unit_of(max((ms for each in sums for ms in each.values()), default=0.0))
    strings = Strings()
    last = len(profiles) - 1
    rows = []
    for identity in identities:
        name, module, delegate = identity
        times = [_scaled(each.get(identity), unit.per_ms) for each in sums]
        first, final = times[0], times[last]
        change = None if first is None or final is None else _six(final - first)
        places = (strings.place(delegate or KERNELS), *times, change)
        rows.append([strings.place(name), *places, strings.place(module)])
    number = {"digits": _digits_of(sums, unit.per_ms), "width": "8rem"}
    columns: list[dict[str, Any]] = [
        {"title": "operator", "type": "name", "where": [len(names) + 3], **_TEXT},
        {"title": "runs on", "type": "text", "width": "10rem", **_WIDE, **_TEXT},
        *({"title": f"{name} {unit.name}", "type": "number", "wide": 0 < i < last, **number}
          for i, name in enumerate(names)),
        {"title": f"change {unit.name}", "type": "change", **number},
    ]  # fmt: skip
    payload = {"columns": columns, "sorted": 2, "place": 1, "searched": [len(names) + 3],
               "rows": rows, "strings": strings.all}  # fmt: skip
    return Operators(key, payload, "Operators of all runs, scrollable")


def _row(each: OperatorTime, strings: Strings, per_ms: float) -> list[Any]:
    return [
        strings.place(each.name),
        strings.place(each.delegate or KERNELS),
        each.calls,
        _scaled(each.total_ms, per_ms),
        _scaled(each.self_ms, per_ms),
        round(each.share, 6) if is_number(each.share) else None,
        strings.place(each.module),
        strings.place(each.source),
        strings.place(each.not_delegated),
    ]


def _by_identity(profile: Profile) -> dict[tuple[str, str, str], float]:
    sums: dict[tuple[str, str, str], float] = {}
    for each in profile.operators:
        identity = (each.name, each.module, each.delegate)
        sums[identity] = sums.get(identity, 0.0) + each.self_ms
    return sums


def _scaled(value_ms: float | None, per_ms: float) -> float | None:
    return None if value_ms is None or not is_number(value_ms) else _six(value_ms * per_ms)


def _six(value: float) -> float:
    return float(f"{value:.6g}")


def _digits(operators: Sequence[OperatorTime]) -> int:
    longest = max((each.self_ms for each in operators), default=0.0)
    unit = unit_of(longest)
    return len(in_unit(unit, longest).partition(".")[2])


def _digits_of(sums: Sequence[dict[tuple[str, str, str], float]], per_ms: float) -> int:
    longest = max((ms for each in sums for ms in each.values()), default=0.0)
    return len(f"{longest * per_ms:#.4g}".partition(".")[2])
