"""Points as the record has them, by the definitions of docs/measuring.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.bench.generation.results import points_of
from etdeploy.bench.generation.work import WorkPoint
from tests.support.text_values import generated, make_generated, make_work

WORK = make_work(WorkPoint(tuple(range(8)), 3, 0, 1, 2), WorkPoint((1, 2, 3, 4), 1, 16, 0, 1))


def test_rates_and_times_are_those_of_the_generations_that_count() -> None:
    first = make_generated(
        generated("warmup-0", 90.0, [70.0, 80.0]),
        generated("point-0", 4.0, [1.0, 3.0]),
        generated("point-0", 6.0, [2.0, 2.0]),
        generated("point-1", 2.0, []),
    )
    second = make_generated(
        generated("warmup-0", 90.0, [70.0, 80.0]),
        generated("point-0", 5.0, [4.0, 4.0]),
        generated("point-1", 4.0, []),
    )
    long, short = points_of(WORK, [first, second], Path())
    assert (long.counted, short.counted) == ((8, 3, 0), (4, 1, 16))
    assert long.first_token_ms.samples == (4.0, 6.0, 5.0)
    assert long.ttft_ms == 5.0
    assert long.prefill_tokens_per_s == pytest.approx(1600)
    assert long.token_ms
    assert long.token_ms.samples == (1.0, 3.0, 2.0, 2.0, 4.0, 4.0)
    # Two tokens in 4, 4 and 8 ms: 500, 500 and 250 per second.
    assert long.decode_tokens_per_s == pytest.approx(500)
    assert (long.generations, long.distinct) == (3, 1)
    assert (short.token_ms, short.decode_tokens_per_s) == (None, None)
    assert short.prefill_tokens_per_s == pytest.approx(1000 * 4 / 3)


def test_texts_that_differ_are_counted() -> None:
    start = make_generated(
        generated("point-0", 4.0, [1.0], ids=(7, 8)),
        generated("point-0", 4.0, [1.0], ids=(7, 9)),
        generated("point-1", 4.0, [], ids=(2,), stopped=True),
    )
    long, short = points_of(WORK, [start], Path())
    assert (long.token_ids, long.distinct, long.stopped) == ((7, 8), 2, False)
    assert (short.token_ids, short.text, short.stopped) == ((2,), None, True)


def test_a_clock_that_sees_no_time_gives_no_rate() -> None:
    start = make_generated(generated("point-0", 0.0, [0.0]), generated("point-1", 0.0, []))
    long, _ = points_of(WORK, [start], Path())
    assert (long.prefill_tokens_per_s, long.decode_tokens_per_s) == (0.0, 0.0)
