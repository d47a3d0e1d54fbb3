"""The text of a run that generated text."""

from __future__ import annotations

from etdeploy.bench.generation.work import WorkPoint
from etdeploy.bench.records.stored import StoredRun
from etdeploy.report.terminal.summary import points_table, summary
from tests.support.bench_values import FOLDER, SIMULATED
from tests.support.text_values import make_text_record, make_text_workload, make_work


def _summary(**changes: object) -> str:
    return summary(StoredRun(FOLDER, make_text_record(**changes)))  # type: ignore[arg-type]


def test_every_point_is_a_line() -> None:
    work = make_work(WorkPoint(tuple(range(8)), 4, 0, 1, 2), WorkPoint((1,) * 16, 1, 128, 0, 1))
    assert (
        points_table(make_text_workload(work=work))
        == """\
prompt  new  depth  first token  prefill tok/s  decode tok/s  per token       p90
------  ---  -----  -----------  -------------  ------------  ---------  --------
     8    4      0     5.005 ms          1,598           198   5.055 ms  5.128 ms
    16    1    128     30.03 ms            533             –          –         –"""
    )


def test_the_summary_says_how_fast_and_what_the_numbers_mean() -> None:
    text = _summary()
    head, *lines = text.splitlines()
    assert head == (
        "mlp on host: 198 tokens per second, first token after 5.005 ms (prompt 8, new 4)"
    )
    unwrapped = " ".join(text.split())
    for words in ("decode tokens after the first by", "without loading, tokenising",
                  "over 6 generations of each line in 3 starts, 2 threads; load 8.357 ms",
                  "warm-up 1 generation ", "there are no expected token ids",
                  "program org/tiny, xnnpack"):  # fmt: skip
        assert words in unwrapped
    assert "inference" not in text
    assert "method decode" not in text
    assert max(map(len, [head, *lines])) <= 100


def test_the_text_of_a_prompt_is_shown() -> None:
    workload = make_text_workload()
    point = workload.first.model_copy(update={"text": "It was\na dark night."})
    update = {"points": (point,), "prompt": "Once upon a time"}
    text = _summary(workload=workload.model_copy(update=update))
    assert "  text         It was a dark night. ...\n" in text
    ended = point.model_copy(update={"stopped": True})
    text = _summary(workload=workload.model_copy(update={**update, "points": (ended,)}))
    assert "  text         It was a dark night.\n" in text


def test_a_simulated_run_has_no_rates() -> None:
    text = _summary(simulated=SIMULATED)
    assert "simulated by Simulator 1.2.3" in text
    assert "tok/s" not in text
