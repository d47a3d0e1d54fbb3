"""A sweep of threads: which number is the fastest, and what becomes of its files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from etdeploy.bench.passes import PassResult
from etdeploy.bench.series import series_of
from etdeploy.bench.sweep import chosen_threads, fastest, settled, thread_records
from tests.support.bench_values import make_pass, make_results


def _results(starts: Mapping[int, Sequence[float]]) -> dict[str, PassResult]:
    """The starts with each number of threads, from the times of their only inferences."""
    found = {}
    for number in range(max(map(len, starts.values()))):
        for threads, times_ms in starts.items():
            made = make_pass(number + 1, make_results((times_ms[number],), threads=threads))
            step = replace(made.step, threads=threads, swept=True, outputs=number == 0)
            found[step.key] = replace(made, step=step)
    return found


def test_the_fastest_is_that_with_the_smallest_median() -> None:
    assert fastest(_results({1: (8.0, 8.1), 2: (4.0, 4.2), 4: (4.4, 4.3)})) == 2
    assert fastest(_results({4: (4.0,), 2: (4.0,)})) == 2
    assert fastest({"timing": make_pass(1, make_results())}) is None


def test_the_fastest_becomes_what_the_record_is_about(tmp_path: Path) -> None:
    results = _results({1: (8.0, 8.1), 2: (4.0, 4.2)})
    for result in results.values():
        (tmp_path / result.file).write_text(result.file)
        if result.outputs:
            (tmp_path / result.outputs).mkdir()
    now = settled(results, 2, tmp_path)
    assert list(now) == ["timing.threads-1", "timing", "timing.threads-1.2", "timing.2"]
    assert all((tmp_path / result.file).is_file() for result in now.values())
    assert (tmp_path / "timing.2.json").read_text() == "timing.threads-2.2.json"
    assert sorted(p.name for p in tmp_path.glob("outputs*")) == ["outputs", "outputs.threads-1"]
    assert series_of(now, "").latency.samples == (4.0, 4.2)
    records = thread_records(now)
    assert [(r.threads, r.latency_ms.median, len(r.runs)) for r in records] == [
        (1, 8.05, 2), (2, 4.1, 2),
    ]  # fmt: skip


def test_a_list_of_one_number_is_no_curve(tmp_path: Path) -> None:
    results = _results({4: (4.0,)})
    for result in results.values():
        (tmp_path / result.file).touch()
        (tmp_path / str(result.outputs)).mkdir()
    assert thread_records(settled(results, 4, tmp_path)) == ()
    assert chosen_threads(results, 4, ()).reason is None


def test_why_it_was_chosen_and_what_may_be_as_fast() -> None:
    clear = chosen_threads(_results({1: (8.0, 8.1), 2: (4.0, 4.2)}), 2, ())
    assert (clear.numbers, clear.reason, clear.notes) == ((2,), "the fastest of 1, 2", ())
    close = chosen_threads(_results({1: (8.0, 8.1), 2: (4.0, 4.4), 4: (4.3, 4.5)}), 2, ())
    [note] = close.notes
    assert note.startswith("4 threads may be as fast as 2")
    single = chosen_threads(_results({1: (8.0,), 2: (4.0,)}), 2, ())
    assert single.notes == ()


def test_wrong_outputs_with_another_number_are_told() -> None:
    told = chosen_threads(_results({1: (8.0, 8.1), 2: (4.0, 4.2)}), 2, (1, 2)).notes
    assert told == (
        "With 1 thread the outputs are not what the model gives: see outputs.threads-1 beside the "
        "record.",
    )
