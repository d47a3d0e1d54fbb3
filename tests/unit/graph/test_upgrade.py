"""Two releases of ExecuTorch: which are named, what they need, and what a report says of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from etdeploy.bench.records.performance import DisturbanceKind
from etdeploy.bench.records.stored import StoredRun
from etdeploy.cache.workspace import Workspace
from etdeploy.compare.model import Verdict
from etdeploy.core.errors import BuildError, UsageError
from etdeploy.core.values import silent
from etdeploy.graph.upgrade import (
    Release,
    named_releases,
    obtain_environment,
    upgrade_report,
)
from tests.support.compare_values import disturbed, separate_runs, slower_by

_RELEASES = named_releases(("1.5.0", "1.5.1"), ())


def test_releases_of_the_tested_minor_version_have_its_torch() -> None:
    assert (Release("1.5.0", "2.13.0"), Release("1.5.1", "2.13.0")) == _RELEASES
    assert "torchvision==0.28.*" in _RELEASES[0].overrides


def test_another_release_needs_its_torch() -> None:
    with pytest.raises(UsageError) as raised:
        named_releases(("1.4.1", "1.5.1"), ())
    assert "1.4.1" in raised.value.message
    assert "--torch" in str(raised.value.remedy)
    assert named_releases(("1.4.1", "1.5.1"), ("2.12.0", "2.13.0"))[0].torch == "2.12.0"


@pytest.mark.parametrize("named", [("1.5.1", "1.5.1"), ("1.5.1", "newest")])
def test_what_are_not_two_releases(named: tuple[str, str]) -> None:
    with pytest.raises(UsageError):
        named_releases(named, ())


def test_without_uv_the_remedy_installs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError) as raised:
        obtain_environment(_RELEASES[0], Workspace(tmp_path), silent, tmp_path / "log")
    assert raised.value.remedy == "pip install uv"


def _rounds(*factors: float) -> tuple[tuple[StoredRun, StoredRun], ...]:
    return tuple(separate_runs(slower_by(factor)) for factor in factors)


def test_rounds_that_agree_give_the_verdict() -> None:
    report = upgrade_report(_RELEASES, _rounds(1.3, 1.3))
    assert report.verdict == Verdict.SLOWER
    assert report.ratios == pytest.approx((1.3, 1.3), rel=0.01)
    assert (report.before, report.after) == ("1.5.0", "1.5.1")


def test_rounds_that_disagree_give_none() -> None:
    assert upgrade_report(_RELEASES, _rounds(1.3, 0.7)).verdict == Verdict.NO_DIFFERENCE


def test_a_round_that_cannot_be_compared_leaves_no_verdict() -> None:
    [pair, (before, after)] = _rounds(1.3, 1.3)
    hot = disturbed(after, DisturbanceKind.THROTTLED)
    report = upgrade_report(_RELEASES, (pair, (before, hot)))
    assert report.verdict == Verdict.NOT_COMPARABLE
    assert report.ratios[1] is None


def test_a_report_has_all_measured_values_and_only_options_that_differ() -> None:
    [(before, after), other] = _rounds(1.3, 1.3)
    versions = {**after.record.versions, "executorch": "9.9.9"}
    changed = replace(after, record=after.record.model_copy(update={"versions": versions}))
    found = upgrade_report(_RELEASES, ((before, changed), other)).changes
    named = {(each.part, each.name): (each.before, each.after) for each in found}
    assert named["program", "size [bytes]"] == (before.record.program.size_bytes,) * 2
    assert [name for part, name in named if part == "versions"] == ["executorch"]
    assert named["versions", "executorch"][1] == "9.9.9"
    assert not [name for part, name in named if part == "plan"]
