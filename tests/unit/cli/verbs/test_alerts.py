"""Alerts on the command line: shown in groups, acknowledged, accepted and closed once."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from etdeploy.cli.main import run_cli
from etdeploy.cli.verbs.alerts import _change
from etdeploy.core.errors import UsageError
from etdeploy.history.alerts import Alert, AlertState
from etdeploy.history.location import require_location
from etdeploy.history.store.alerts import save_alert
from etdeploy.history.store.store import open_store


@pytest.fixture(autouse=True)
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "history.db"
    monkeypatch.setenv("ETDEPLOY_STORE", str(path))
    monkeypatch.chdir(tmp_path)
    with open_store(require_location(str(path))) as store:
        for recipe in ("mlp", "bert"):
            alert = Alert(
                farm="shelf", series=recipe, metric="latency_ms", night="n1", recipe=recipe,
                opened_at="2026-11-01T00:00:00+00:00", device="android:S1", identity="android-S1",
                before=0.001, after=0.0011, reason="slower", remedy="etdeploy farm bisect",
            )  # fmt: skip
            with store.transaction(writes=True) as connection:
                save_alert(connection, alert)
    return path


def test_alerts_are_shown_until_they_are_closed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["alerts"]) == 0
    shown = capsys.readouterr().out
    assert all(fact in shown for fact in ("mlp", "bert", "+10.0 %", "etdeploy farm bisect"))
    assert run_cli(["alerts", "ack", "1", "--by", "ann", "--note", "looking"]) == 0
    assert run_cli(["alerts", "show", "1"]) == 0
    shown = capsys.readouterr().out
    assert "acknowledged by ann" in shown
    assert "looking" in shown
    assert run_cli(["alerts", "close", "1", "2", "--as", "false alarm", "--by", "bob"]) == 0
    assert run_cli(["alerts"]) == 0
    assert "no open alert" in capsys.readouterr().out
    assert run_cli(["alerts", "--all", "--json"]) == 0
    groups = json.loads(capsys.readouterr().out)
    states = [alert["state"] for group in groups for alert in group["alerts"]]
    assert states == ["false alarm", "false alarm"]


def test_the_second_to_close_an_alert_is_told_who_was_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_cli(["alerts", "accept", "2", "--by", "ann"]) == 0
    assert run_cli(["alerts", "close", "1", "2", "--as", "fixed"]) == 2
    told = capsys.readouterr().err
    assert "alert 2" in told
    assert "ann" in told
    # None of those that were named is changed.
    assert run_cli(["alerts", "show", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "open"


@pytest.mark.usefixtures("capsys")
def test_of_two_who_close_an_alert_at_once_one_is_told() -> None:
    barrier = Barrier(2)

    def close(name: str) -> str:
        barrier.wait()
        try:
            _change((None, None), (1,), AlertState.FIXED, name, "")
        except UsageError as error:
            return error.message
        return ""

    with ThreadPoolExecutor(2) as pool:
        told = sorted(pool.map(close, ("ann", "bob")))
    assert told[0] == ""
    assert told[1].startswith("alert 1 is closed: fixed by ")


def test_an_alert_that_is_not_there_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["show", "9"], ["ack", "9"]):
        assert run_cli(["alerts", *words]) == 2
        assert "alert 9" in capsys.readouterr().err
