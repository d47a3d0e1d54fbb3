"""Which sentences accompany the numbers, and which do not."""

from __future__ import annotations

from collections.abc import Sequence

from etdeploy.bench.notes import measurement_notes, method_notes, output_notes, start_notes
from etdeploy.bench.records.record import DeviceRecord
from etdeploy.devices.base import DeviceState, Leftover
from tests.support.bench_values import (
    UNCOMPARED,
    make_check,
    make_device,
    make_results,
    make_series,
)
from tests.support.facts import lacks

_STEADY = (1.0, 1.02, 0.99, 1.01) * 5


def _notes(
    samples: Sequence[float] = _STEADY, device: DeviceRecord | None = None, portable: bool = False
) -> str:
    return "\n".join(measurement_notes(make_series(samples), device or make_device(), portable))


def test_a_method_that_nobody_named_is_told_with_the_others() -> None:
    names = ("decode", "prefill")
    [note] = method_notes("prefill", names, chosen=False)
    assert "method prefill" in note
    assert "benchmark.method=decode" in note
    assert not list(method_notes("prefill", names, chosen=True))
    assert not list(method_notes("encode", ("encode",), chosen=False))
    assert not list(method_notes("forward", ("forward", "get_bos_id"), chosen=False))


def test_qemu_and_the_portable_runner_are_told() -> None:
    assert "not those of a phone" in _notes(device=make_device("qemu", emulator="qemu-aarch64 7.2"))
    assert "portable runner" in _notes(portable=True)


def test_a_warm_device_is_told_with_how_to_wait_for_a_cool_one() -> None:
    told = _notes(device=make_device(before=DeviceState(battery_celsius=41.0)))
    assert "41 °C" in told
    assert "benchmark.cooldown.max_celsius=37" in told


def test_a_runner_that_was_ended_before_is_told() -> None:
    ended = (Leftover(pid=77, run_id="20260101T100000Z-mlp", seconds=42),)
    note = _notes(device=make_device().model_copy(update={"ended": ended}))
    assert not lacks(note, "77", "20260101T100000Z-mlp", "42 s")


def test_a_wide_spread_is_told() -> None:
    assert "vary a lot" in _notes((1.0, 1.0, 1.0, 1.0, 3.0))
    assert _notes((1.0, 3.0)) == ""


def test_a_slowing_device_is_told_apart_from_one_that_warms_up() -> None:
    slower = _notes((1.0,) * 10 + (1.15,) * 10)
    assert "15 % slower" in slower
    assert "throttling" in slower
    faster = _notes((1.0,) * 10 + (0.85,) * 10)
    assert "15 % faster" in faster
    assert "benchmark.warmup=20" in faster
    assert _notes((1.0,) * 10 + (1.05,) * 10) == ""


def test_starts_that_differ_are_told_with_a_remedy() -> None:
    [note] = start_notes(make_series((1.0,) * 20, (1.2,) * 20, (1.0,) * 20))
    assert "deviation of 12 %" in note
    assert "--runs 10" in note
    [note] = start_notes(make_series(*((1.0,), (1.3,)) * 20))
    assert "--runs 50" in note
    assert not list(start_notes(make_series((1.0,) * 20, (1.05,) * 20, (1.0,) * 20)))
    assert not list(start_notes(make_series((1.0,) * 20, (1.12,) * 20)))


def test_times_that_never_stopped_falling_are_told_with_a_remedy() -> None:
    steady = make_results((1.0,) * 5, steady=True)
    falling = make_results((1.0,) * 5, warmup=3000, steady=False)
    [note] = start_notes(make_series(steady, falling, falling))
    assert not lacks(note, "3,000", "2 of 3", "benchmark.warmup=12000")
    bounded = make_results((1.0,) * 5, warmup=90_000, steady=False)
    assert "benchmark.warmup=100000" in next(start_notes(make_series(bounded)))
    assert not list(start_notes(make_series(steady, steady)))


def test_outputs_that_change_from_start_to_start_are_told() -> None:
    same, other = (make_results((1.0,) * 5, outputs_digest=d) for d in ("0a", "0b"))
    [note] = start_notes(make_series(same, other, same))
    assert "1 of 3 starts" in note
    assert not list(start_notes(make_series(same, same)))
    assert not list(start_notes(make_series(make_results((1.0,) * 5), same)))


def test_outputs_that_say_little_are_noted() -> None:
    weak = make_check(remark="2 of 3 values are NaN or infinite, in the model's own output too")
    notes = list(output_notes((make_check(), UNCOMPARED, weak)))
    assert not lacks(notes[0], "output_9", "every value is NaN", "weights")
    assert not lacks(notes[1], "output_0", "2 of 3")
    assert len(notes) == 2
