"""Halving between good and bad, with candidates that nobody measures."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from etdeploy.core.errors import BuildError, DeviceError, UsageError
from etdeploy.farm.verdicts import bisect as procedure
from etdeploy.farm.verdicts.bisect import (
    BisectRequest,
    BisectStep,
    Candidate,
    CandidateSide,
    bisect,
    bisection_text,
    most_steps,
    save_step,
    saved_steps,
    state_file,
)


def candidates(count: int) -> tuple[Candidate, ...]:
    return tuple(Candidate(id=f"{i:040x}", label=f"c{i}") for i in range(count))


class Bench:
    """Times by candidate; None for one that cannot be built."""

    def __init__(self, times_ms: Sequence[float | None], noise: float = 0.002) -> None:
        self.times_ms, self.noise = times_ms, noise
        self.all = candidates(len(times_ms))
        self.tried: list[str] = []
        self.said: list[str] = []
        self.kept: list[BisectStep] = []
        self.draw = random.Random(1)
        self.error: Exception = BuildError("it does not compile")

    @contextmanager
    def opened(self, candidate: Candidate) -> Iterator[Any]:
        self.tried.append(candidate.label)
        time_ms = self.times_ms[self.all.index(candidate)]
        if time_ms is None:
            raise self.error
        yield time_ms

    def measure(self, a: Any, b: Any) -> tuple[Any, Any]:
        return self.side(a), self.side(b)

    def side(self, time_ms: float) -> Any:
        record = SimpleNamespace(
            run_id=f"run-{time_ms}", workload=SimpleNamespace(metric="latency_ms")
        )
        return SimpleNamespace(record=record, time_ms=time_ms)

    def pairs_of(self, a: Any, b: Any, _metric: str | None) -> Any:
        return tuple(
            (a.time_ms * self.draw.gauss(1, self.noise), b.time_ms * self.draw.gauss(1, self.noise))
            for _ in range(10)
        )

    def bisect(self, known: tuple[BisectStep, ...] = ()) -> Any:
        request = BisectRequest(self.all, "host", known=known)
        return bisect(request, self.opened, self.measure, self.said.append, self.kept.append)


def bench(monkeypatch: pytest.MonkeyPatch, times_ms: Sequence[float | None], **more: Any) -> Bench:
    made = Bench(times_ms, **more)
    monkeypatch.setattr(procedure, "pairs_of", made.pairs_of)
    return made


@pytest.mark.parametrize("first_bad", range(1, 12))
def test_every_first_bad_one_is_found(monkeypatch: pytest.MonkeyPatch, first_bad: int) -> None:
    made = bench(monkeypatch, [1.0 if i < first_bad else 1.1 for i in range(12)])
    found = made.bisect()
    assert [each.label for each in found.first_bad] == [f"c{first_bad}"]
    assert found.last_good.label == f"c{first_bad - 1}"
    assert len(found.steps) <= most_steps(made.all)
    assert f"first bad: c{first_bad}" in bisection_text(found)
    assert found.steps == tuple(made.kept)


def test_what_cannot_be_built_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    made = bench(monkeypatch, [1.0, 1.0, 1.0, None, 1.2, 1.2, 1.2])
    found = made.bisect()
    assert [each.label for each in found.first_bad] == ["c3", "c4"]
    [skipped] = [step for step in found.steps if step.side is CandidateSide.SKIPPED]
    assert skipped.reason == f"build: {made.error}"
    assert "one of these" in bisection_text(found)


def test_good_and_bad_have_to_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    for times_ms, fact in (
        ([1.0] * 5, "no difference"),
        ([1.2, 1.0], "better"),
        ([1.0], "nothing"),
    ):
        with pytest.raises(UsageError, match=fact):
            bench(monkeypatch, times_ms).bisect()


def test_a_device_that_is_gone_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made = bench(monkeypatch, [1.0, 1.0, None, 1.2, 1.2])
    made.error = DeviceError("it was unplugged")
    with pytest.raises(DeviceError):
        made.bisect()
    assert made.kept == []


def test_known_steps_are_not_measured_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = bench(monkeypatch, [1.0] * 6 + [1.2] * 6)
    whole = made.bisect()
    request = BisectRequest(made.all, "host")
    file = state_file(tmp_path, request, "r.yaml", ())
    assert saved_steps(file) == ()
    for step in whole.steps[:2]:
        save_step(file, request, step)
    made.tried.clear()
    again = made.bisect(known=saved_steps(file))
    assert again.first_bad == whole.first_bad
    assert not {step.candidate.label for step in whole.steps[:2]} & set(made.tried)
    assert file != state_file(tmp_path, request, "r.yaml", ("benchmark.runs=20",))


def test_one_between_is_measured_until_it_is_sure(monkeypatch: pytest.MonkeyPatch) -> None:
    made = bench(monkeypatch, [1.0, 1.1, 1.21], noise=0.1)
    found = bisect(
        BisectRequest(made.all, "host"),
        made.opened,
        made.measure,
        made.said.append,
        made.kept.append,
    )
    [step] = found.steps
    assert 1 <= len(step.run_ids) <= 3
    assert step.ratio is not None
