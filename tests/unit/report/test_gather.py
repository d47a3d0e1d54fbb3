"""What a report is made of, where parts of a run are missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.bench.records.stored import StoredRun
from etdeploy.cache.workspace import Workspace
from etdeploy.core.errors import Interrupted, UsageError
from etdeploy.profile import profiled
from etdeploy.profile.model import TextProfile
from etdeploy.report.report_data import collect_report
from tests.support.bench_values import FOLDER, SIMULATED, make_record, make_run
from tests.support.report_values import make_profile


def _with_profile(monkeypatch: pytest.MonkeyPatch, *times: float) -> None:
    operator = make_profile().operators[0]
    profiles = (
        make_profile(operators=(operator.model_copy(update={"self_ms": ms}),)) for ms in times
    )
    found = (TextProfile(run_id="x", method="forward", methods={"forward": p}) for p in profiles)
    monkeypatch.setattr(profiled, "profiles_of", lambda *_: next(found))


def _failing(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(profiled, "profiles_of", fail)


def _workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path)


def test_a_run_without_trace_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _failing(
        monkeypatch, UsageError("the run has no trace", remedy="Measure again: etdeploy bench")
    )
    [run] = collect_report([make_run()], _workspace(tmp_path)).runs
    assert run.no_profile[0].endswith(". Measure again: etdeploy bench")


def test_a_stop_is_no_missing_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _failing(monkeypatch, Interrupted())
    with pytest.raises(Interrupted):
        collect_report([make_run()], _workspace(tmp_path))


def test_a_simulated_run_has_no_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _failing(monkeypatch, AssertionError("its trace was read"))
    [run] = collect_report([make_run(simulated=SIMULATED)], _workspace(tmp_path)).runs
    assert "simulator" in run.no_profile[0]


def test_several_runs_are_measured_against_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _with_profile(monkeypatch, 1.0, 3.0, 1.0)
    runs = [StoredRun(FOLDER, make_record(run_id=name)) for name in "abc"]
    report = collect_report(runs, _workspace(tmp_path))
    assert [c.a.run_id for c in report.comparisons] == ["a", "a"]
    assert [c.b.run_id for c in report.comparisons] == ["b", "c"]
    [first, second] = report.comparisons
    assert [(change.a_ms, change.b_ms) for change in first.operators] == [(1.0, 3.0)]
    assert second.operators == ()
