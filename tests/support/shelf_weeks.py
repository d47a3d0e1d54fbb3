"""Nights of two phones over two weeks, for the health of devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from etdeploy.bench.records.performance import Disturbance, DisturbanceKind
from etdeploy.farm.model import Fate, Standing
from etdeploy.history.nights import KeptAttempt, KeptNight, KeptVisit
from etdeploy.history.store import nights
from etdeploy.history.store.store import Store
from tests.support.bench_values import make_device
from tests.support.histories import run_at
from tests.support.nights import make_visit

_HOT = Disturbance(kind=DisturbanceKind.THROTTLED, text="It was hot.")
_PHONE = make_device("android", name="android:S1", serial="S1")


def _attempt(number: int, day: str, fate: Fate, **more: Any) -> KeptAttempt:
    kind = more.pop("kind", None)
    return KeptAttempt(
        attempt=number, token=f"t{number}", identity="android-S1", device="android:S1",
        host="wolf", started_at=f"{day}T02:00:00+00:00", ended_at=f"{day}T02:10:00+00:00",
        fate=str(fate), content={"failure": {"kind": kind} if kind else None}, **more,
    )  # fmt: skip


def _keep(
    store: Store, day: str, attempts: Sequence[KeptAttempt], missed: str, away: bool = True
) -> None:
    night = KeptNight(id=day, farm="shelf", digest="d", started_at=f"{day}T01:00:00+00:00")
    mine = make_visit(day, 1, device="android-S1")
    other = make_visit(day, 2, device="android-S2", name="android:S2")
    floating = make_visit(day, 3, device=None)
    visits = [
        KeptVisit(id=each.id, content=each.model_dump(mode="json"), standing=standing,
                  reason=reason, attempts=tuple(tried))
        for each, standing, reason, tried in (
            (mine, Standing.DONE, "", attempts), (other, Standing.MISSED, missed, ()),
            (floating, Standing.MISSED, "no device matches", ()),
        )
        if away or each is not other
    ]  # fmt: skip
    with store.transaction(writes=True) as connection:
        nights.add_night(connection, night)
        nights.add_visits(connection, night.id, visits)


def keep_weeks(store: Store) -> None:
    """Two nights from Monday, 2 November 2026 on, and one in the week after."""
    for number in range(3):
        disturbed = (_HOT,) if number == 1 else ()
        store.add(
            run_at(0, run_id=f"r{number}", device=_PHONE, disturbances=disturbed,
                   started_at=f"2026-11-0{2 + number}T02:00:00+00:00")
        )  # fmt: skip
    _keep(store, "2026-11-02", [
        _attempt(1, "2026-11-02", Fate.DONE, run_id="r0", counts=True),
        _attempt(2, "2026-11-02", Fate.FAILED, kind="device"),
    ], "quarantined: it is hot")  # fmt: skip
    _keep(store, "2026-11-08", [
        _attempt(3, "2026-11-08", Fate.FAILED, kind="run"),
        _attempt(4, "2026-11-08", Fate.DONE, run_id="r1", counts=True),
    ], "unplugged since 02:13")  # fmt: skip
    _keep(store, "2026-11-09", [
        _attempt(5, "2026-11-09", Fate.LOST), _attempt(6, "2026-11-09", Fate.PUT_OFF),
    ], "", away=False)  # fmt: skip
