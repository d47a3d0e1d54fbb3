"""Two measurements on one device, start by start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from etdeploy.bench import measure
from etdeploy.core.errors import RunError


class _Played:
    """A measurement that only notes what is asked of it."""

    def __init__(self, name: str, starts: int, log: list[str]) -> None:
        self.run_id, self.starts, self._log = name, starts, log

    def start(self, number: int) -> None:
        if (self.run_id, number) == ("b", 99):
            raise RunError("it crashed")
        self._log.append(f"{self.run_id}{number}")

    def finish(self, interleaved_with: str) -> str:
        self._log.append(f"{self.run_id} with {interleaved_with}")
        return self.run_id


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    calls: list[str] = []

    @contextmanager
    def open_measurement(
        _device: Any, prepared: Any, _output: Path, progress: Any
    ) -> Iterator[_Played]:
        progress("begins", 0.5)
        yield _Played(prepared.name, prepared.starts, calls)
        calls.append(f"close {prepared.name}")

    monkeypatch.setattr(measure, "open_measurement", open_measurement)
    return calls


def _measure(starts_a: int, starts_b: int, **more: Any) -> Any:
    device: Any = None
    a: Any = SimpleNamespace(name="a", starts=starts_a)
    b: Any = SimpleNamespace(name="b", starts=starts_b)
    return measure.measure_interleaved(device, a, b, Path("out"), **more)


def test_neither_is_always_first(log: list[str]) -> None:
    assert _measure(4, 4) == ("a", "b")
    assert log[:8] == ["a1", "b1", "b2", "a2", "a3", "b3", "b4", "a4"]
    assert log[8:] == ["a with b", "b with a", "close b", "close a"]


def test_one_may_have_fewer_starts(log: list[str]) -> None:
    _measure(1, 3)
    assert log[:4] == ["a1", "b1", "b2", "b3"]


def test_progress_says_whose_it_is(log: list[str]) -> None:
    told: list[tuple[str, float | None]] = []
    _measure(1, 1, progress=lambda text, part=None: told.append((text, part)))
    assert told == [("A: begins", 0.5), ("B: begins", 0.5)]


def test_a_failure_ends_both(log: list[str]) -> None:
    with pytest.raises(RunError) as caught:
        _measure(1, 99)
    assert str(caught.value) == "B: it crashed"
    assert [call for call in log if "with" in call] == []
