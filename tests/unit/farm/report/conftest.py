"""A night with something of everything."""

from __future__ import annotations

import pytest

from etdeploy.farm.report.model import NightInfo, NightReport, assemble_report, load_trends
from etdeploy.farm.verdicts.night import judge_night
from etdeploy.history.store.store import open_store
from tests.support.judged_nights import (
    OTHER,
    PHONE,
    failed,
    farm,
    keep_nights,
    missed,
    night_id,
    place_in,
    quiet,
    states_of,
)

NIGHT = NightInfo(
    id=night_id(10), farm="shelf", started_at="2026-11-11T02:00:00+00:00",
    finished_at="2026-11-11T06:00:00+00:00",
)  # fmt: skip
EVIL = "]]><script>alert(1)</script> | `@team` & \x07\ud83d <!-- -->"


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> NightReport:
    with open_store(place_in(tmp_path_factory.mktemp("night"))) as store:
        made = keep_nights(store, [*quiet(10), 1.2])
        states = [
            *states_of(10, made[-1]),
            failed(10, 4, "crashed at 0xdeadbeef", recipe="conv"),
            failed(10, 5, "crashed at 0xcafecafe", device=OTHER, recipe="conv"),
            failed(10, 6, "no room", device=OTHER, recipe="big"),
            missed(10, 7, "it was unplugged"),
        ]
        verdicts = judge_night(store, night_id(10), states, farm())
        return assemble_report(
            NIGHT, states, verdicts, {OTHER: "it is hot"}, load_trends(store, verdicts),
            {PHONE: "Pixel", OTHER: "Old phone"},
        )  # fmt: skip


@pytest.fixture
def evil() -> NightReport:
    """Names that want to be more than names."""
    states = [
        failed(10, 1, EVIL, device=EVIL, recipe=EVIL),
        missed(10, 2, EVIL, device=EVIL),
    ]
    return assemble_report(
        NIGHT.model_copy(update={"farm": EVIL}), states, quarantined={EVIL: EVIL}
    )
