"""Progress while a device works."""

from __future__ import annotations

import threading

import pytest

from etdeploy.bench import measure
from etdeploy.bench.measure import telling_time


def test_time_is_told_until_the_work_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_EVERY_S", 0.001)
    told: list[tuple[str, float | None]] = []
    twice = threading.Event()

    def progress(text: str, fraction: float | None = None) -> None:
        told.append((text, fraction))
        if len(told) > 1:
            twice.set()

    with telling_time(progress, "sustained pass", 0.002):
        assert twice.wait(30)
    text, fraction = told[-1]
    assert text.startswith("sustained pass: 0 s of 0")
    assert 0 <= (fraction or 0) <= 1
    assert not any(thread.name == "telling time" for thread in threading.enumerate())


def test_nothing_is_told_of_other_passes() -> None:
    def never(text: str, fraction: float | None = None) -> None:
        raise AssertionError(text, fraction)

    with telling_time(never, "timing pass", 0):
        assert not any(thread.name == "telling time" for thread in threading.enumerate())
