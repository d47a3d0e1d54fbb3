"""Who may run beside whom."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from etdeploy.core import cancel
from etdeploy.core.errors import Interrupted
from etdeploy.graph.tasks.steps import Load, Slots, heavy_at_once


@contextmanager
def waiting(slots: Slots, load: Load) -> Iterator[threading.Event]:
    """Another thread that wants to run with that load; the event says that it does."""
    runs, ends = threading.Event(), threading.Event()

    def other() -> None:
        with slots.load(load):
            runs.set()
            ends.wait()

    thread = threading.Thread(target=other)
    thread.start()
    yield runs
    ends.set()
    thread.join()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Load.MEASURES, Load.HEAVY),
        (Load.MEASURES, Load.BUSY),
        (Load.MEASURES, Load.MEASURES),
        (Load.HEAVY, Load.MEASURES),
        (Load.BUSY, Load.MEASURES),
    ],
)
def test_a_measurement_on_our_cores_is_alone_on_them(first: Load, second: Load) -> None:
    slots = Slots(heavy=4)
    with slots.load(first):
        other = waiting(slots, second)
        runs = other.__enter__()
        assert not runs.wait(0.3)
    assert runs.wait(30)
    other.__exit__(None, None, None)


def test_only_so_many_heavy_steps_run_at_once() -> None:
    slots = Slots(heavy=1)
    with slots.load(Load.HEAVY):
        with waiting(slots, Load.BUSY) as busy:
            assert busy.wait(30)
        third = waiting(slots, Load.HEAVY)
        assert not third.__enter__().wait(0.3)
    third.__exit__(None, None, None)


def test_a_stop_ends_the_wait() -> None:
    slots = Slots(heavy=1)
    with cancel.trapped_signals(), slots.load(Load.MEASURES):
        threading.Timer(0.1, cancel.current().set).start()
        with pytest.raises(Interrupted), slots.load(Load.HEAVY):
            pass


def test_a_machine_does_one_to_four_heavy_steps_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    page = 1 << 12
    for gib, cores, expected in ((1, 8, 1), (8, 8, 2), (64, 2, 2), (64, 64, 4)):
        pages = (gib << 30) // page
        monkeypatch.setattr("os.sysconf", {"SC_PAGE_SIZE": page, "SC_PHYS_PAGES": pages}.get)
        monkeypatch.setattr("os.cpu_count", lambda cores=cores: cores)
        assert heavy_at_once() == expected
