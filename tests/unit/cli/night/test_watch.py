"""What is shown of a night."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from etdeploy.bench.records.performance import Disturbance, DisturbanceKind
from etdeploy.cli.night_display import LiveVerdicts, NightDisplay, attempt_text
from etdeploy.core import console
from etdeploy.farm.model import Fate, Order, VisitState
from tests.support.bench_values import make_record
from tests.support.farm_sim import SimNight, make_farm
from tests.support.farm_sim_engine import CRASH, Script, offer_of
from tests.support.nights import measured


class _Verdicts(LiveVerdicts):
    """Finds a regression without a history."""

    def __init__(self) -> None:
        self._states = {}

    def _judge(self, _states: Sequence[VisitState]) -> str:
        return "regressed"


def watched(as_json: bool, quiet: bool) -> SimNight:
    def behave(order: Order, _: int) -> Script:
        crashes = order.visit.endswith("-1")
        return Script(60.0, Fate.FAILED, CRASH) if crashes else Script(60.0)

    night = SimNight(make_farm("a", repeats=2, retries=0), [offer_of(1)], behave)
    with console.TaskDisplay(live=False, quiet=quiet) as display:
        night.heard = NightDisplay(display, as_json, quiet, _Verdicts())
        night.run()
    return night


def test_each_visit_that_ends_is_a_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    watched(as_json=True, quiet=True)
    out, err = capsys.readouterr()
    failed, done = map(json.loads, out.splitlines())
    assert (failed["standing"], failed["run_id"], failed["repeat"]) == ("failed", None, 1)
    assert failed["failure"]["message"] == "SIGSEGV"
    assert "SIGSEGV" in failed["reason"]
    assert (done["standing"], done["run_id"], done["verdict"]) == ("done", "lab-1-2-1", "regressed")
    assert done["device"] == "android:phone-001"
    assert done["failure"] is None
    assert err == ""


def test_a_person_sees_attempts_begin_and_end(capsys: pytest.CaptureFixture[str]) -> None:
    watched(as_json=False, quiet=False)
    out, err = capsys.readouterr()
    assert out == ""
    assert "a on android:phone-001 #1 failed: run: SIGSEGV  (60.0 s)" in err
    assert "a on android:phone-001 #1 failed: the attempt failed" in err
    assert "a on android:phone-001 #2 done  (60.0 s)" in err


def test_an_attempt_is_shown_with_its_number(tmp_path: Path) -> None:
    good = measured(tmp_path, "n-1")
    assert re.fullmatch(r"done: 1\.\d+ ms per inference", attempt_text(good))
    hot = Disturbance(kind=DisturbanceKind.THROTTLED, text="The cores slowed down.")
    make_record(disturbances=(hot,)).save(tmp_path / "record.json")
    odd = good.model_copy(update={"record": str(tmp_path / "record.json")})
    assert attempt_text(odd).endswith(" (disturbed)")
    gone = good.model_copy(update={"record": str(tmp_path / "none.json")})
    assert attempt_text(gone) == "done"


def test_quiet_shows_warnings_only(capsys: pytest.CaptureFixture[str]) -> None:
    night = SimNight(make_farm("a"), [])
    with console.TaskDisplay(live=False, quiet=True) as display:
        night.heard = NightDisplay(display, as_json=False, quiet=True, verdicts=_Verdicts())
        end = night.run()
    assert end.unsatisfied == ("a on phones",)
    assert capsys.readouterr().err == "warning: a on phones: no device matches\n"
