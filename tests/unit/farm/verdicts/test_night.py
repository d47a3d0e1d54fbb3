"""What a night is called, by the nights before it in a real history."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from etdeploy.bench.records.performance import Disturbance, DisturbanceKind
from etdeploy.bench.records.record import RunRecord
from etdeploy.farm.report.forms import headline_finding, value_text
from etdeploy.farm.spec.model import Baseline
from etdeploy.farm.verdicts.night import judge_night
from etdeploy.farm.verdicts.pair import Gap, PairVerdict, VerdictKind
from etdeploy.history.entry import Judgement
from etdeploy.history.store.store import Store, open_store
from tests.support.bench_values import SIMULATED, make_check
from tests.support.judged_nights import (
    PHONE,
    farm,
    keep_nights,
    missed,
    night_id,
    place_in,
    quiet,
    revision,
    run_of,
    states_of,
)

HOT = Disturbance(kind=DisturbanceKind.THROTTLED, text="The cores slowed down.")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(place_in(tmp_path)) as opened:
        yield opened


def judge(store: Store, day: int, runs: Sequence[RunRecord], **changes: Any) -> PairVerdict:
    """The verdict on the only pair of a night."""
    files = changes.pop("files", None)
    [found] = judge_night(store, night_id(day), states_of(day, runs), farm(**changes), files)
    return found


def judge_last(store: Store, levels_ms: list[float], **more: Any) -> PairVerdict:
    """The verdict on the last of these nights."""
    return judge(store, len(levels_ms) - 1, keep_nights(store, levels_ms, **more)[-1])


def judge_new(store: Store, *runs: RunRecord) -> PairVerdict:
    """The verdict on runs of a ninth night."""
    for run in runs:
        store.add(run)
    return judge(store, 8, runs)


def test_a_slower_night_regressed(store: Store) -> None:
    verdict = judge_last(store, [*quiet(10), 1.2])
    assert (verdict.kind, verdict.device) == (VerdictKind.REGRESSED, "android:S1 (Test CPU)")
    assert all(fact in verdict.reason for fact in ("latency", "1.205 ms", "0.998"))
    latency = verdict.finding("latency_ms")
    assert latency is not None
    assert (len(latency.values), latency.nights) == (3, 10)
    assert latency.within_percent == pytest.approx(0.5, rel=0.6)


def test_the_same_is_no_difference_and_faster_an_improvement(store: Store) -> None:
    assert judge_last(store, [*quiet(10), 1.0]).kind is VerdictKind.NO_DIFFERENCE
    [later] = keep_nights(store, [0.8], first=11)
    assert judge(store, 11, later).kind is VerdictKind.IMPROVED


def test_the_change_is_dated_with_its_commits_and_a_bisection(store: Store) -> None:
    made = keep_nights(store, [*quiet(8), *quiet(5, 1.3, seed=2)])
    for run in (run for night in made[8:] for run in night):
        store.judge([run.run_id], Judgement.REGRESSED)
    files = {"mlp": Path("/shelf/mlp.yaml")}
    verdict = judge(store, 12, made[-1], baseline=Baseline.LAST_GOOD, files=files)
    assert verdict.kind is VerdictKind.REGRESSED
    assert verdict.since is not None
    assert verdict.since.dated
    assert verdict.since.commits == f"{revision(7)[:12]}..{revision(8)[:12]}"
    assert verdict.since.run_id == made[8][0].run_id
    assert verdict.remedy == (
        "etdeploy farm bisect --recipe /shelf/mlp.yaml --device android:S1 "
        f"--good {revision(7)[:12]} --bad {revision(8)[:12]}"
    )


def test_without_commits_the_remedy_compares_runs(store: Store) -> None:
    made = keep_nights(store, [*quiet(8), 1.3], revision="a" * 40)
    remedy = judge(store, 8, made[-1]).remedy
    assert remedy == f"etdeploy compare {made[7][-1].run_id} {made[8][0].run_id}"


def test_a_disturbed_run_is_left_out_of_the_repeats(store: Store) -> None:
    keep_nights(store, quiet(8))
    hot = run_of(8, 2, 5.0, disturbances=(HOT,))
    verdict = judge_new(store, run_of(8, 1, 1.0), hot, run_of(8, 3, 1.0))
    assert verdict.kind is VerdictKind.NO_DIFFERENCE
    assert "1 of 3 runs" in verdict.reason
    assert HOT.text.rstrip(".") in verdict.reason


def wrong_run(**changes: Any) -> RunRecord:
    wrong = run_of(8, 1, 1.0, **changes)
    workload = wrong.workload.model_copy(
        update={"outputs": (make_check(within_tolerance=False),), "outputs_compared": True}
    )
    return wrong.model_copy(update={"workload": workload})


@pytest.mark.parametrize(
    ("earlier", "now", "kind"),
    [
        (None, {}, VerdictKind.NOT_JUDGED),  # never right
        ({}, {}, VerdictKind.REGRESSED),
        ({"disturbances": (HOT,)}, {}, VerdictKind.REGRESSED),
        ({"simulated": SIMULATED}, {"simulated": SIMULATED}, VerdictKind.REGRESSED),
    ],
)
def test_wrong_outputs_regress_where_an_earlier_run_was_right(
    store: Store, earlier: dict[str, Any] | None, now: dict[str, Any], kind: VerdictKind
) -> None:
    if earlier is not None:
        keep_nights(store, quiet(3), **earlier)
    wrong = wrong_run(**now)
    verdict = judge_new(store, wrong)
    assert verdict.kind is kind
    if kind is VerdictKind.REGRESSED:
        assert "1 of 1 run" in verdict.reason
        assert verdict.remedy == f"etdeploy report {wrong.run_id}"


def test_the_first_number_leads_where_others_regressed_as_well(store: Store) -> None:
    keep_nights(store, quiet(8), peak_rss_bytes=10_000_000)
    [night] = keep_nights(store, [1.3], first=8, peak_rss_bytes=30_000_000)
    verdict = judge(store, 8, night)
    worse = [each.metric for each in verdict.findings if each.kind is VerdictKind.REGRESSED]
    assert worse == ["latency_ms", "peak_rss_bytes"]
    assert verdict.since is not None
    assert verdict.since.metric == "latency_ms"
    assert "--metric" not in verdict.remedy
    assert value_text(headline_finding(verdict)).startswith("1.3")


def test_a_night_that_nothing_can_be_judged_of_is_blocked_once_there_are_enough_nights(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = keep_nights(store, quiet(8), disturbances=(HOT,))
    early, late = judge(store, 3, made[3]), judge(store, 7, made[7])
    assert {early.kind, late.kind} == {VerdictKind.NOT_JUDGED}
    assert (early.blocked, late.blocked) == (False, True)
    simulated = keep_nights(store, quiet(8), serial="S2", simulated=SIMULATED)
    assert not judge(store, 7, simulated[7]).blocked
    # Every recipe has changes that were not committed, so that no night is one of main.
    monkeypatch.setattr("etdeploy.history.check.run_git", lambda *_, **__: "")
    fit = keep_nights(store, quiet(8), serial="S3", dirty=True)
    assert not judge(store, 3, fit[3], baseline=Baseline.MAIN).blocked
    main = judge(store, 7, fit[7], baseline=Baseline.MAIN)
    assert main.blocked
    assert "7 of 7 earlier nights" in main.reason


def test_a_branch_main_without_nights_is_said(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With few nights, too: more of the same never make it judged."""
    monkeypatch.setattr("etdeploy.history.check.run_git", lambda *_, **__: "")
    made = keep_nights(store, quiet(4), dirty=True)
    verdict = judge(store, 3, made[-1], baseline=Baseline.MAIN)
    assert (verdict.kind, verdict.gap) == (VerdictKind.NOT_JUDGED, Gap.BASELINE)
    assert verdict.reason == (
        "baseline main leaves out 3 of 3 earlier nights, since their recipes were not committed on "
        "the branch main"
    )


def test_one_night_is_not_judged_and_says_how_many_are_needed(store: Store) -> None:
    [runs] = keep_nights(store, [1.0])
    verdict = judge(store, 0, runs)
    assert (verdict.kind, verdict.gap, verdict.blocked) == (VerdictKind.NOT_JUDGED, Gap.NEW, False)
    assert verdict.reason.startswith("0 earlier nights have it, and ")


@pytest.mark.parametrize(("before_ms", "now_ms"), [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0)])
def test_a_latency_that_is_always_zero_is_not_judged(
    store: Store, before_ms: float, now_ms: float
) -> None:
    made = keep_nights(store, [*[before_ms] * 10, now_ms])
    verdict = judge(store, 10, made[-1])
    # The size of the program is the same, which says nothing about the latency.
    assert (verdict.kind, verdict.gap) == (VerdictKind.NOT_JUDGED, Gap.OTHER)
    what = "0 earlier nights have it" if now_ms else "it is 0 in every run"
    assert verdict.reason.startswith(what)


def test_a_clock_that_runs_backwards_within_a_night_loses_no_verdict(store: Store) -> None:
    made = keep_nights(store, [*quiet(12), 1.2])
    last = made[-1][-1].model_copy(update={"run_id": "back", "started_at": made[9][0].started_at})
    store.add(last)
    verdict = judge(store, 12, [*made[-1][:2], last])
    assert verdict.kind is VerdictKind.REGRESSED
    # A night that the clock puts before all others has none to be judged by.
    long_ago = run_of(-4000, 1, 1.2)
    store.add(long_ago)
    assert judge(store, 13, [long_ago]).gap is Gap.NEW


def test_a_moderate_slowdown_is_suspected_and_decided_by_the_next_nights(store: Store) -> None:
    states: dict[int, list[Any]] = {8: [], 9: [], 10: []}
    for number in range(12):
        serial = f"S{number + 1}"
        last = quiet(3, seed=99 + number) if number else [1.066, 1.069, 1.064]
        levels = [*quiet(8, seed=number), *last]
        made = keep_nights(store, levels, serial=serial, within=0.0005)
        for night, found in states.items():
            found += states_of(night, made[night], device=f"android-{serial}")
    first = judge_night(store, night_id(8), states[8], farm())
    assert (first[0].identity, first[0].kind) == (PHONE, VerdictKind.SUSPECTED)
    assert "next nights" in first[0].reason
    assert {verdict.kind for verdict in first[1:]} == {VerdictKind.NO_DIFFERENCE}
    third = judge_night(store, night_id(10), states[10], farm())
    assert (third[0].identity, third[0].kind) == (PHONE, VerdictKind.REGRESSED)
    assert "last 3 nights" in third[0].reason
    assert {verdict.kind for verdict in third[1:]} == {VerdictKind.NO_DIFFERENCE}


def test_a_recipe_that_is_slower_on_all_devices_has_regressed_at_once(store: Store) -> None:
    states: list[Any] = []
    for number in range(4):
        serial = f"S{number + 1}"
        levels = [*quiet(10, seed=number), 1.08 if number else 1.0]
        made = keep_nights(store, levels, serial=serial, within=0.0005)
        states += states_of(10, made[10], device=f"android-{serial}")
    unsure = judge_night(store, night_id(10), states, farm())
    assert {verdict.kind for verdict in unsure} == {
        VerdictKind.SUSPECTED, VerdictKind.NO_DIFFERENCE,
    }  # fmt: skip
    three = [state for state in states if "S1" not in str(state)]
    found = judge_night(store, night_id(10), three, farm())
    assert {verdict.kind for verdict in found} == {VerdictKind.REGRESSED}
    assert "3 devices" in found[0].reason


def test_a_lasting_slowdown_stays_one_against_the_level_before(store: Store) -> None:
    made = keep_nights(store, [*quiet(20), *[1.1] * 7])
    verdict = judge(store, 26, made[-1])
    assert verdict.kind is VerdictKind.REGRESSED
    [finding] = [each for each in verdict.findings if each.metric == "latency_ms"]
    assert finding.ratio is not None
    assert finding.ratio.median == pytest.approx(1.1, rel=0.02)


def test_last_good_leaves_out_nights_that_regressed(store: Store) -> None:
    made = keep_nights(store, [*quiet(8), *[1.2] * 8])
    assert judge(store, 15, made[-1]).kind is VerdictKind.NO_DIFFERENCE
    for run in (run for night in made[8:-1] for run in night):
        store.judge([run.run_id], Judgement.REGRESSED)
    assert judge(store, 15, made[-1], baseline=Baseline.LAST_GOOD).kind is VerdictKind.REGRESSED


def test_main_outside_of_a_repository_is_not_judged(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("etdeploy.history.check.run_git", lambda *_, **__: None)
    made = keep_nights(store, quiet(8))
    files = {"mlp": tmp_path / "mlp.yaml"}
    verdict = judge(store, 7, made[-1], baseline=Baseline.MAIN, files=files)
    assert verdict.kind is VerdictKind.NOT_JUDGED
    assert "branches main" in verdict.reason


def test_a_pair_without_a_record_has_no_verdict(store: Store) -> None:
    assert judge_night(store, night_id(0), [missed(0, 1)], farm()) == ()
    run = run_of(0, 1, 1.0)
    assert "not in the history" in judge(store, 0, [run]).reason
    assert judge_night(store, night_id(1), states_of(0, [run]), farm()) == ()
