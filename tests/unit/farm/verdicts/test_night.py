"""What a night is called, by the nights before it in a real history."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from etdeploy.bench.records.conditions import Disturbance, DisturbanceKind
from etdeploy.bench.records.record import RunRecord
from etdeploy.core import git
from etdeploy.farm.report.words import first_number, value_text
from etdeploy.farm.spec.model import Baseline
from etdeploy.farm.verdicts.night import judge_night, note
from etdeploy.farm.verdicts.pair import PairVerdict, VerdictKind, by_night
from etdeploy.history.entry import Judgement
from etdeploy.history.store.store import Filter, Store, open_store
from etdeploy.report.document import NOTHING
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


def judged(store: Store, levels_ms: list[float], **changes: object) -> PairVerdict:
    """The verdict on the last of these nights."""
    made = keep_nights(store, levels_ms)
    day = len(levels_ms) - 1
    [verdict] = judge_night(store, night_id(day), states_of(day, made[-1]), farm(**changes))
    return verdict


def test_a_slower_night_regressed(store: Store) -> None:
    verdict = judged(store, [*quiet(10), 1.2])
    assert verdict.kind is VerdictKind.REGRESSED
    assert verdict.reason.startswith("latency is 1.205 ms instead of 0.998")
    assert verdict.device == "android:S1 (Test CPU)"
    latency = verdict.finding("latency_ms")
    assert latency is not None
    assert len(latency.values) == 3
    assert latency.nights == 10
    assert latency.within_percent == pytest.approx(0.5, rel=0.6)


def test_the_same_is_no_difference_and_faster_an_improvement(store: Store) -> None:
    assert judged(store, [*quiet(10), 1.0]).kind is VerdictKind.NO_DIFFERENCE
    later = keep_nights(store, [0.8], first=11)[0]
    [verdict] = judge_night(store, night_id(11), states_of(11, later), farm())
    assert verdict.kind is VerdictKind.IMPROVED


def test_too_few_nights_are_not_judged_however_many_runs_they_have(store: Store) -> None:
    verdict = judged(store, [*quiet(4), 1.5])
    assert verdict.kind is VerdictKind.NOT_JUDGED
    assert verdict.reason == "4 earlier nights have it, and 5 are needed"


def test_one_earlier_night_is_one(store: Store) -> None:
    verdict = judged(store, [*quiet(1), 1.5])
    assert verdict.reason == "1 earlier night has it, and 5 are needed"


def test_the_change_is_dated_with_its_commits_and_a_bisection(store: Store) -> None:
    made = keep_nights(store, [*quiet(8), *quiet(5, 1.3, seed=2)])
    for run in (run for night in made[8:] for run in night):
        store.judge(run.run_id, Judgement.REGRESSED)
    day = len(made) - 1
    states = states_of(day, made[-1])
    files = {"mlp": Path("/shelf/mlp.yaml")}
    chosen = farm(baseline=Baseline.LAST_GOOD)
    [verdict] = judge_night(store, night_id(day), states, chosen, files)
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
    [verdict] = judge_night(store, night_id(8), states_of(8, made[-1]), farm())
    assert verdict.remedy.startswith(f"etdeploy compare {made[7][-1].run_id} {made[8][0].run_id}")


def test_disturbed_and_simulated_nights_are_not_judged(store: Store) -> None:
    keep_nights(store, quiet(8))
    hot = [run_of(8, i, 2.0, disturbances=(HOT,)) for i in (1, 2)]
    simulated = [run_of(8, i, 2.0, serial="S2", simulated=SIMULATED) for i in (1, 2)]
    for run in (*hot, *simulated):
        store.add(run)
    states = [*states_of(8, hot), *states_of(8, simulated, device="android-S2")]
    verdicts = judge_night(store, night_id(8), states, farm())
    assert {verdict.kind for verdict in verdicts} == {VerdictKind.NOT_JUDGED}
    reasons = {verdict.identity: verdict.reason for verdict in verdicts}
    assert reasons[PHONE] == "all 2 runs were disturbed: The cores slowed down."
    assert reasons["android-S2"] == "it was simulated, so it has no times"
    shown = {verdict.identity: value_text(first_number(verdict)) for verdict in verdicts}
    assert shown == {PHONE: "2.000 ms (disturbed)", "android-S2": NOTHING}


def test_a_disturbed_run_is_left_out_of_the_repeats(store: Store) -> None:
    keep_nights(store, quiet(8))
    runs = [run_of(8, 1, 1.0), run_of(8, 2, 5.0, disturbances=(HOT,)), run_of(8, 3, 1.0)]
    for run in runs:
        store.add(run)
    [verdict] = judge_night(store, night_id(8), states_of(8, runs), farm())
    assert verdict.kind is VerdictKind.NO_DIFFERENCE
    assert "1 of 3 runs left out: The cores slowed down" in verdict.reason


def wrong_run(**changes: Any) -> RunRecord:
    wrong = run_of(8, 1, 1.0, **changes)
    workload = wrong.workload.model_copy(
        update={"outputs": (make_check(within_tolerance=False),), "outputs_compared": True}
    )
    return wrong.model_copy(update={"workload": workload})


def test_outputs_that_were_never_right_do_not_regress(store: Store) -> None:
    wrong = wrong_run()
    store.add(wrong)
    [verdict] = judge_night(store, night_id(8), states_of(8, [wrong]), farm())
    assert verdict.kind is VerdictKind.NOT_JUDGED
    assert "no earlier run shows them right" in str(verdict.findings)


def test_wrong_outputs_regress(store: Store) -> None:
    keep_nights(store, quiet(8))
    wrong = wrong_run()
    store.add(wrong)
    [verdict] = judge_night(store, night_id(8), states_of(8, [wrong]), farm())
    assert verdict.kind is VerdictKind.REGRESSED
    assert verdict.reason.startswith("outputs are wrong in 1 of 1 run")
    assert verdict.remedy == f"etdeploy report {wrong.run_id}"


def test_wrong_outputs_after_disturbed_or_simulated_nights_that_were_right_regress(
    store: Store,
) -> None:
    keep_nights(store, quiet(3), disturbances=(HOT,))
    keep_nights(store, quiet(3), serial="S2", simulated=SIMULATED)
    phone, simulated = wrong_run(), wrong_run(serial="S2", simulated=SIMULATED)
    for run in (phone, simulated):
        store.add(run)
    states = [*states_of(8, [phone]), *states_of(8, [simulated], device="android-S2")]
    verdicts = judge_night(store, night_id(8), states, farm())
    assert [verdict.kind for verdict in verdicts] == [VerdictKind.REGRESSED] * 2
    assert all("they were right before" in verdict.reason for verdict in verdicts)


def test_the_first_number_leads_where_others_regressed_as_well(store: Store) -> None:
    keep_nights(store, quiet(8), peak_rss_bytes=10_000_000)
    [night] = keep_nights(store, [1.3], first=8, peak_rss_bytes=30_000_000)
    [verdict] = judge_night(store, night_id(8), states_of(8, night), farm())
    worse = [each.metric for each in verdict.findings if each.kind is VerdictKind.REGRESSED]
    assert worse == ["latency_ms", "peak_rss_bytes"]
    assert verdict.since is not None
    assert verdict.since.metric == "latency_ms"
    assert "--metric" not in verdict.remedy
    assert value_text(first_number(verdict)).startswith("1.3")


def test_a_night_that_nothing_can_be_judged_of_is_blocked_once_there_are_enough_nights(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def verdict(day: int, runs: list[RunRecord], **changes: object) -> PairVerdict:
        [found] = judge_night(store, night_id(day), states_of(day, runs), farm(**changes))
        return found

    made = keep_nights(store, quiet(8), disturbances=(HOT,))
    early, late = verdict(3, made[3]), verdict(7, made[7])
    assert {early.kind, late.kind} == {VerdictKind.NOT_JUDGED}
    assert (early.blocked, late.blocked) == (False, True)
    simulated = keep_nights(store, quiet(8), serial="S2", simulated=SIMULATED)
    assert not verdict(7, simulated[7]).blocked
    # Every recipe has changes that were not committed, so that no night is one of main.
    monkeypatch.setattr(git, "ask", lambda *_, **__: "")
    fit = keep_nights(store, quiet(8), serial="S3", dirty=True)
    assert not verdict(3, fit[3], baseline=Baseline.MAIN).blocked
    main = verdict(7, fit[7], baseline=Baseline.MAIN)
    assert main.blocked
    assert "7 of 7 earlier nights" in main.reason


def test_among_many_pairs_a_single_one_is_suspected_and_decided_by_the_next_night(
    store: Store,
) -> None:
    serials = [f"S{i}" for i in range(1, 13)]
    states, later = [], []
    for number, serial in enumerate(serials):
        worse = serial == "S1"
        levels = [
            *quiet(8, seed=number),
            *((1.066, 1.069) if worse else quiet(2, seed=99 + number)),
        ]
        made = keep_nights(store, levels, serial=serial, within=0.0005)
        states += states_of(8, made[8], device=f"android-{serial}")
        later += states_of(9, made[9], device=f"android-{serial}")
    first = judge_night(store, night_id(8), states, farm())
    assert first[0].identity == PHONE
    assert first[0].kind is VerdictKind.SUSPECTED
    assert "the next night decides" in first[0].reason
    assert {verdict.kind for verdict in first[1:]} == {VerdictKind.NO_DIFFERENCE}
    second = judge_night(store, night_id(9), later, farm())
    assert (second[0].identity, second[0].kind) == (PHONE, VerdictKind.REGRESSED)
    assert "the last night was worse, too" in second[0].reason


def test_last_good_leaves_out_nights_that_regressed(store: Store) -> None:
    made = keep_nights(store, [*quiet(8), *[1.2] * 8])
    day = len(made) - 1
    states = states_of(day, made[-1])
    assert judge_night(store, night_id(day), states, farm())[0].kind is VerdictKind.NO_DIFFERENCE
    for night in made[8:-1]:
        for run in night:
            store.judge(run.run_id, Judgement.REGRESSED)
    [verdict] = judge_night(store, night_id(day), states, farm(baseline=Baseline.LAST_GOOD))
    assert verdict.kind is VerdictKind.REGRESSED


def test_main_outside_of_a_repository_is_not_judged(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(git, "ask", lambda *_, **__: None)
    made = keep_nights(store, quiet(8))
    files = {"mlp": tmp_path / "mlp.yaml"}
    states = states_of(7, made[-1])
    [verdict] = judge_night(store, night_id(7), states, farm(baseline=Baseline.MAIN), files)
    assert verdict.kind is VerdictKind.NOT_JUDGED
    assert verdict.reason.startswith("none of the branches main")


def test_a_pair_without_a_record_has_no_verdict(store: Store) -> None:
    assert judge_night(store, night_id(0), [missed(0, 1)], farm()) == ()
    unknown = states_of(0, [run_of(0, 1, 1.0)])
    [verdict] = judge_night(store, night_id(0), unknown, farm())
    assert verdict.reason == "its records are not in the history"
    assert judge_night(store, night_id(1), unknown, farm()) == ()


def test_verdicts_are_noted_as_checks_are(store: Store) -> None:
    made = keep_nights(store, [*quiet(10), 1.2])
    verdicts = judge_night(store, night_id(10), states_of(10, made[-1]), farm())
    note(store, verdicts)
    entry = store.entry(made[-1][0].run_id)
    assert entry is not None
    assert entry.judgement is Judgement.REGRESSED


def test_runs_are_grouped_by_night(store: Store) -> None:
    keep_nights(store, quiet(3))
    nights = by_night(store.entries(Filter(), 100))
    assert [len(night.entries) for night in nights] == [3, 3, 3]
    assert by_night([]) == []
