"""A stop request reaches every thread, once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from etdeploy.core import cancel
from etdeploy.core.errors import Interrupted


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_becomes_a_request(number: int) -> None:
    with cancel.trapped_signals():
        cancel.checkpoint()
        os.kill(os.getpid(), number)
        assert cancel.requested()
        with pytest.raises(Interrupted):
            cancel.checkpoint()
        with pytest.raises(Interrupted):
            cancel.checkpoint()
    assert not cancel.requested(), "the next run starts without it"


def test_handlers_are_given_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with cancel.trapped_signals():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before


def test_actions_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancel, "_on_request", [])
    seen: list[bool] = []
    cancel.on_request(lambda: seen.append(cancel.requested()))
    with cancel.trapped_signals():
        cancel.request()
    assert seen == [True]


_IMPATIENT = """
import os, signal, time
from etdeploy.core import cancel
with cancel.trapped_signals():
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(600)
"""


@pytest.mark.usefixtures("real_processes")
def test_a_second_ctrl_c_ends_at_once() -> None:
    assert subprocess.run([sys.executable, "-c", _IMPATIENT], check=False).returncode == 130
