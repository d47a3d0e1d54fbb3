"""What a run is judged by."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from etdeploy.bench.records.performance import Disturbance, DisturbanceKind
from etdeploy.bench.records.record import RunRecord
from etdeploy.core.errors import UsageError
from etdeploy.history.check import Check, CheckOptions, CheckVerdict, check, to_judgement
from etdeploy.history.entry import Judgement
from etdeploy.history.location import HistoryLocation
from etdeploy.history.store.store import Store, open_store
from tests.support.bench_values import SIMULATED, make_check, make_device, make_loss, make_program
from tests.support.histories import fill, recipe_named, run_at

HOT = Disturbance(kind=DisturbanceKind.THROTTLED, text="the cores slowed down")


@pytest.fixture
def store(place: HistoryLocation) -> Iterator[Store]:
    with open_store(place) as opened:
        yield opened


def around(level_ms: float, count: int, seed: int = 1) -> list[float]:
    draw = random.Random(seed)
    return [draw.gauss(level_ms, 0.01 * level_ms) for _ in range(count)]


def judged(store: Store, record: RunRecord, **question: Any) -> Check:
    return check(store, record, CheckOptions(**question))


def test_a_higher_loss_of_quantization_regresses(store: Store) -> None:
    fill(store, [1.0] * 8, program=make_program(quantization_loss=(make_loss(sqnr_db=30.0),)))
    worse = make_program(quantization_loss=(make_loss(sqnr_db=12.0),))
    found = judged(store, run_at(99, 1.0, program=worse))
    assert found.verdict is CheckVerdict.REGRESSED
    assert "at scores is 25.1 %" in found.reason
    assert to_judgement(found) is Judgement.REGRESSED
    better = make_program(quantization_loss=(make_loss(sqnr_db=31.0),))
    found = judged(store, run_at(99, 1.0, program=better))
    assert (found.verdict, to_judgement(found)) == (CheckVerdict.PASSED, Judgement.PASSED)


def test_only_runs_before_it_count(store: Store) -> None:
    fill(store, around(1.0, 10))
    assert judged(store, run_at(3, 5.0)).verdict is CheckVerdict.NOT_ENOUGH_HISTORY
    last = run_at(99, 1.0)
    store.add(last)
    assert last.run_id not in judged(store, last).earlier


@pytest.mark.parametrize(
    "other",
    [
        {"recipe": recipe_named("other")},
        {"device": make_device(model="Other CPU")},
        {"disturbances": (HOT,)},
        {"simulated": SIMULATED},
    ],
    ids=["recipe", "device", "disturbed", "simulated"],
)
def test_what_cannot_be_compared_does_not_count(store: Store, other: dict[str, Any]) -> None:
    fill(store, around(1.0, 10), **other)
    assert judged(store, run_at(99, 5.0)).verdict is CheckVerdict.NOT_ENOUGH_HISTORY


@pytest.mark.parametrize(
    ("before_ms", "now_ms", "why"),
    [(0.0, 0.0, "it is 0"), (1.0, 0.0, "it is 0"), (0.0, 1.0, "0 earlier runs have it")],
)
def test_a_latency_of_zero_is_no_verdict(
    store: Store, before_ms: float, now_ms: float, why: str
) -> None:
    fill(store, [before_ms] * 8)
    found = judged(store, run_at(99, now_ms))
    assert (found.verdict, found.is_judged) == (CheckVerdict.NOT_JUDGED, False)
    assert found.reason.startswith(f"latency: {why}")


def test_a_disturbed_run_is_not_judged(store: Store) -> None:
    fill(store, around(1.0, 10))
    found = judged(store, run_at(99, 5.0, disturbances=(HOT,)))
    assert found.verdict is CheckVerdict.NOT_JUDGED
    assert found.reason.endswith(f": {HOT.text}")
    simulated = judged(store, run_at(99, 5.0, simulated=SIMULATED))
    assert simulated.verdict is CheckVerdict.NOT_JUDGED
    assert "Simulator 1.2.3" in simulated.reason


@pytest.mark.parametrize("unfit", [{"disturbances": (HOT,)}, {"simulated": SIMULATED}])
def test_wrong_outputs_regress_where_times_say_nothing(store: Store, unfit: dict[str, Any]) -> None:
    fill(store, [1.0, 1.0], **unfit)
    wrong = run_at(99).workload.model_copy(
        update={"outputs": (make_check(within_tolerance=False),)}
    )
    for changes in (unfit, {}):
        found = judged(store, run_at(99, **{"workload": wrong} | changes))
        assert (found.verdict, len(found.earlier)) == (CheckVerdict.REGRESSED, 2)
        assert found.reason.startswith("outputs are wrong")


def test_the_last_good_ones(store: Store) -> None:
    fill(store, around(1.0, 10))
    for record in (run_at(50 + i, ms) for i, ms in enumerate(around(1.3, 10))):
        store.add(record)
        store.judge([record.run_id], Judgement.REGRESSED)
    again = run_at(99, 1.3)
    assert judged(store, again).verdict is CheckVerdict.PASSED
    found = judged(store, again, against="last-good")
    assert found.verdict is CheckVerdict.REGRESSED
    assert len(found.earlier) == 10
    assert "10 comparable runs" in found.against


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"device": make_device(model="Other CPU")}, "another device: host (Test CPU) and host"),
        ({"disturbances": (HOT,)}, "of the other run: it was disturbed"),
        ({"run_id": run_at(99).run_id}, "it is the same run"),
    ],
)
def test_a_run_that_is_not_comparable(store: Store, other: dict[str, Any], why: str) -> None:
    found = judged(store, run_at(99, 9.0), other=run_at(0, **other))
    assert found.verdict is CheckVerdict.NOT_COMPARABLE
    assert found.reason.startswith(why)
    assert to_judgement(found) is None


def test_the_branch_main(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(_folder: Path, verb: str, *words: str) -> str | None:
        if verb == "rev-parse":
            return "" if words[-1] == "origin/main^{commit}" else None
        return "" if words[1].startswith("aaa") else None

    monkeypatch.setattr("etdeploy.history.check.run_git", ask)
    for i, ms in enumerate(around(1.0, 12)):
        on_main = recipe_named("mlp", git_revision="aaa1111", git_dirty=i >= 6)
        store.add(run_at(i, ms, recipe=on_main))
    for i, revision in enumerate(["bbb1111", "--all", None] * 4):
        store.add(run_at(50 + i, 1.4, recipe=recipe_named("mlp", git_revision=revision)))
    found = judged(store, run_at(99, 1.4), against="main")
    assert found.verdict is CheckVerdict.REGRESSED
    assert len(found.earlier) == 6
    assert found.against.endswith("branch main")


def test_a_branch_main_without_runs_is_said(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("etdeploy.history.check.run_git", lambda _, verb, *__: (
        "" if verb == "rev-parse" else None
    ))  # fmt: skip
    fill(store, around(1.0, 8))
    found = judged(store, run_at(99, 1.4), against="main")
    assert found.verdict is CheckVerdict.NOT_ENOUGH_HISTORY
    assert found.reason == (
        "0 comparable runs before it are in the history, and 5 are needed; 8 of 8 are left out, "
        "since their recipes were not committed on the branch main"
    )


def test_no_branch_main(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("etdeploy.history.check.run_git", lambda *_: None)
    with pytest.raises(UsageError, match="main, origin/main"):
        judged(store, run_at(0), against="main")
