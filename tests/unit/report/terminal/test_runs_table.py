"""Several runs side by side."""

from __future__ import annotations

from typing import Any

import pytest

from etdeploy.report.terminal.runs_table import Row, runs_table
from tests.support.bench_values import SIMULATED, UNCOMPARED, make_check, make_record, make_series
from tests.support.text_values import make_text_record

ROWS = [
    Row("mlp", "host", make_record(make_series((1.0, 1.1, 1.2), (1.05,), (1.2,)))),
    Row("int8/conv.yaml", "android:R5CT20ABCDE", make_record((120.0, 130.0), peak_rss_bytes=None)),
    Row("mlp", "qemu", None, "failed (run): the runner ended with SIGILL"),
]


def test_whole_table() -> None:
    assert (
        runs_table(ROWS)
        == """\
recipe          device               median ms  spread  first ms  load ms   memory  outputs
--------------  -------------------  ---------  ------  --------  -------  -------  \
------------------------------------------
mlp             host                     1.100   6.9 %     2.500    8.357  32.7 MB  correct
int8/conv.yaml  android:R5CT20ABCDE      125.0       -     2.500    8.357        -  correct
mlp             qemu                         -       -         -        -        -  \
failed (run): the runner ended with SIGILL"""
    )


def test_a_simulated_run_has_a_verdict_and_no_times() -> None:
    simulated = make_record((0.0001,), simulated=SIMULATED)
    head, _, first, second = runs_table(
        [Row("mlp", "host", make_record()), Row("npu", "host", simulated)]
    ).splitlines()
    assert "median ms" in head
    assert first.split()[2] == "1.100"
    assert second.split() == ["npu", "host", "simulated", "-", "-", "-", "-", "correct"]


def test_a_table_of_simulated_runs_alone() -> None:
    text = runs_table([Row("npu", "host", make_record(simulated=SIMULATED))])
    assert text.splitlines()[-1].split()[2] == "simulated"


def test_short_times_have_a_unit_that_shows_them() -> None:
    head, _, row = runs_table([Row("mlp", "host", make_record((0.021, 0.0213)))]).splitlines()
    assert "median µs" in head
    assert row.split()[2] == "21.15"


def test_a_line_of_this_machine_and_an_emulator_fits_80_columns() -> None:
    text = runs_table([Row("xnnpack", d, make_record()) for d in ("host", "qemu")], 80)
    assert len(text.splitlines()) == 4


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120])
def test_it_fits_the_terminal(width: int) -> None:
    text = runs_table(ROWS, width)
    assert max(map(len, text.splitlines())) <= width
    assert "SIGILL" in text


@pytest.mark.parametrize(
    ("outputs", "verdict"),
    [
        ((make_check(),), "correct"),
        ((make_check(within_tolerance=False),), "WRONG"),
        ((make_check(), UNCOMPARED), "not all compared"),
        ((), "not checked"),
    ],
)
def test_the_verdict_on_the_outputs(outputs: tuple[Any, ...], verdict: str) -> None:
    assert runs_table([Row("a", "host", make_record(outputs=outputs))]).endswith(verdict)


def test_generated_text_has_its_rate_beside_its_times() -> None:
    rows = [Row("tiny", "host", make_text_record()), Row("mlp", "host", make_record())]
    head, _, text, inference = runs_table(rows).splitlines()
    assert head.split()[:4] == ["recipe", "device", "decode", "tok/s"]
    assert text.split()[2:7] == ["198", "5.055", "1.1", "%", "5.005"]
    assert inference.split()[2:4] == ["-", "1.100"]
