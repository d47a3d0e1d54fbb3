"""A stop request reaches every thread, once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from etdeploy.core import cancel
from etdeploy.core.errors import Interrupted


def test_work_that_waits_is_done_at_once_and_in_order_within_the_run() -> None:
    together = threading.Barrier(40, timeout=60)

    def wait(number: int) -> tuple[int, bool]:
        together.wait()
        return number, cancel.current() is flag

    with cancel.trapped_signals():
        flag = cancel.current()
        assert cancel.in_threads(wait, range(40)) == [(number, True) for number in range(40)]


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


def in_thread(function: Callable[[], object]) -> object:
    """What a function gives in a new thread."""
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def test_runs_in_threads_do_not_stop_each_other() -> None:
    def stopped() -> bool:
        with cancel.trapped_signals():
            cancel.request()
            return cancel.requested()

    with cancel.trapped_signals():
        assert in_thread(stopped)
        assert not cancel.requested()
        cancel.checkpoint()


def test_a_run_that_stops_leaves_the_children_of_others_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended: list[str] = []
    monkeypatch.setattr(cancel, "_on_request", [lambda: ended.append("children")])

    def stop() -> None:
        with cancel.trapped_signals():
            cancel.request()

    with cancel.trapped_signals():
        in_thread(stop)
        assert ended == []
        os.kill(os.getpid(), signal.SIGTERM)
    assert ended == ["children"]


def test_a_signal_stops_all_runs() -> None:
    begun, signalled = threading.Event(), threading.Event()
    seen: list[bool] = []

    def run() -> None:
        with cancel.trapped_signals():
            begun.set()
            signalled.wait()
            seen.append(cancel.requested())

    with cancel.trapped_signals():
        thread = threading.Thread(target=run)
        thread.start()
        begun.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        assert cancel.requested()
        signalled.set()
        thread.join()
    assert seen == [True]
    assert not cancel.requested()


def test_a_nested_run_stops_alone_and_with_the_one_around_it() -> None:
    with cancel.trapped_signals():
        with cancel.trapped_signals():
            cancel.request()
            assert cancel.requested()
        assert not cancel.requested()
        outer = cancel.current()
        with cancel.trapped_signals():
            outer.set()
            assert cancel.requested()


def test_threads_of_a_run_see_its_flag() -> None:
    with cancel.trapped_signals():
        in_thread(cancel.request)
        assert cancel.requested(), "there is but one run that the thread can be of"
        assert in_thread(cancel.requested)


def test_a_thread_can_be_told_whose_it_is() -> None:
    def bound_to(flag: cancel.Flag) -> bool:
        with cancel.bound(flag):
            return cancel.requested()

    def beside() -> tuple[object, object]:
        first = cancel.current()
        with cancel.trapped_signals():
            cancel.request()
            second = cancel.current()
            return in_thread(lambda: bound_to(first)), in_thread(lambda: bound_to(second))

    with cancel.trapped_signals():
        assert in_thread(beside) == (False, True)


def test_a_first_ctrl_c_ends_one_thing_and_a_second_everything() -> None:
    with cancel.trapped_signals():
        flag = cancel.Flag(cancel.current())
        with cancel.first_interrupt(flag):
            os.kill(os.getpid(), signal.SIGINT)
            assert flag.is_set()
            assert not cancel.requested()
            os.kill(os.getpid(), signal.SIGINT)
            assert cancel.requested()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nothing_is_waited_for_after_a_signal(number: int) -> None:
    waited = False
    with cancel.trapped_signals():
        os.kill(os.getpid(), number)
        with pytest.raises(Interrupted), cancel.waiting_for_input():
            waited = True
        for _ in range(2):
            with pytest.raises(Interrupted):
                cancel.checkpoint()
    assert not waited
    assert not cancel.requested(), "the next run starts without it"


def test_signals_end_a_wait_for_input() -> None:
    reading, writing = os.pipe()
    try:
        with cancel.trapped_signals():
            timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            with pytest.raises(KeyboardInterrupt), cancel.waiting_for_input():
                os.read(reading, 1)
            assert not cancel.requested()
            timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM))
            timer.start()
            with pytest.raises(Interrupted), cancel.waiting_for_input():
                os.read(reading, 1)
            assert cancel.requested()
    finally:
        os.close(reading)
        os.close(writing)
