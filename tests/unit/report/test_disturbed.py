"""How what disturbed a run is shown."""

from __future__ import annotations

from dataclasses import replace

from etdeploy.bench.records.conditions import Disturbance, DisturbanceKind
from etdeploy.bench.records.record import RunRecord
from etdeploy.bench.series import StartSeries
from etdeploy.report.formatting import disturbed_lines, mark
from etdeploy.report.terminal.runs_table import Row, runs_table
from etdeploy.report.terminal.summary import summary
from tests.support.bench_values import make_pass, make_record, make_results, make_run

_BUSY = Disturbance(kind=DisturbanceKind.BUSY, text="Other work took 1.0 of 2 processors.")
_SAVING = Disturbance(
    kind=DisturbanceKind.POWER_SAVING, text="The device's mode that saves power was on."
)
_CLOCK = Disturbance(kind=DisturbanceKind.CLOCK, text="The clock of the device was moved.")


def record(*starts: tuple[Disturbance, ...], whole: tuple[Disturbance, ...] = ()) -> RunRecord:
    passes = [
        replace(make_pass(n, make_results()), disturbances=told)
        for n, told in enumerate(starts, start=1)
    ]
    return make_record(StartSeries(tuple(passes)), disturbances=whole)


def test_a_run_that_nothing_disturbed_has_no_mark() -> None:
    assert mark(record((), ())) == ""
    assert list(disturbed_lines(record((), ()))) == []
    assert "disturbed" not in summary(make_run())


def test_a_run_as_a_whole_is_marked_and_some_starts_are_told() -> None:
    most = record((_BUSY,), (), (_BUSY,), whole=(_BUSY,))
    assert mark(most) == "busy"
    assert list(disturbed_lines(most)) == [f"busy in 2 of 3 starts: {_BUSY.text}"]
    one = record((), (_BUSY,), ())
    assert mark(one) == ""
    assert list(disturbed_lines(one)) == [f"busy in start 2 of 3: {_BUSY.text}"]


def test_kinds_are_told_in_words() -> None:
    both = record((_BUSY, _SAVING), whole=(_BUSY, _SAVING))
    assert mark(both) == "busy, power saving"
    assert list(disturbed_lines(both)) == [f"busy: {_BUSY.text}", f"power saving: {_SAVING.text}"]
    assert list(disturbed_lines(record((_BUSY,), (_BUSY,)))) == [
        f"busy in all starts: {_BUSY.text}"
    ]


def test_a_clock_that_jumped_is_told_but_marks_no_number() -> None:
    jumped = record((_CLOCK,), whole=(_CLOCK,))
    assert mark(jumped) == ""
    assert list(disturbed_lines(jumped)) == [f"clock: {_CLOCK.text}"]


def test_the_mark_stands_with_the_number_and_in_the_table() -> None:
    run = make_run(disturbances=(_BUSY,))
    text = summary(run)
    assert text.splitlines()[0].endswith("inferences per second (disturbed: busy)")
    assert f"  disturbed    busy: {_BUSY.text}" in text
    table = runs_table([Row("mlp", "host", run.record)], width=80)
    assert table.splitlines()[-1].endswith("correct, busy")
