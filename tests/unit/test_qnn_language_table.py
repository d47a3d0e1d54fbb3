"""benchmarks/qnn_language.py: what its tables say of measured runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.qnn_language import (
    _EVALUATED,
    _check_same,
    _Evaluated,
    _heads_table,
    _perplexity_table,
    _spec,
    _texts_table,
)


def _run(scheme: str, way: str, lower_s: float, **changes: Any) -> dict[str, Any]:
    text = {
        "name": "text_0",
        "token_ids": [5, 6, 8],
        "expected_ids": [5, 6, 7],
        "original_ids": [5, 9, 7],
        "equal_tokens": 2,
        "original_equal_tokens": 1,
    }
    return {
        "layers": 2,
        "scheme": scheme,
        "way": way,
        "seconds": {"quantize": 1.0, "lower": lower_s},
        "processor_s": {"quantize": 0.5, "lower": lower_s / 2},
        "texts": [text],
        "machine": "a processor",
        "day": "2026-11-28",
        "simulated": "QNN 2.49.40",
        **changes,
    }


def test_the_first_other_token_counts_from_one() -> None:
    rows = list(_texts_table([_run("16a8w", "split", 1.0)]))
    assert rows[-1] == "| 2, 16a8w | token 3 of 3 differs | token 2 of 3 differs |"
    assert rows[0].startswith("a processor, QNN 2.49.40 for SM8750, 2026-11-28.")


def test_a_ratio_is_of_the_runs_of_one_round() -> None:
    times_s = {"split": (9.0, 19.0), "written": (29.0, 39.0), "whole": (4.0, 9.0)}
    runs = [
        _run(scheme, way, each[number])
        for number in (0, 1)
        for scheme in ("fp16", "16a8w")
        for way, each in times_s.items()
    ]
    rows = list(_heads_table(runs))
    assert "| fp16, split | 1.0 | 14.0 | 15.0 | 7.5 |" in rows
    clock = "2.50 (2.00 to 3.00)"
    assert f"| 16a8w | written to split | {clock} | {clock} |" in rows
    assert "| 16a8w | whole to split | 0.50 (0.50 to 0.50) | 0.50 (0.50 to 0.50) |" in rows


def test_other_models_are_not_compared() -> None:
    other = {"original_ids": [1, 2, 3]}
    runs = [_run("16a8w", "split", 1.0), _run("16a8w", "written", 1.0, texts=[other])]
    with pytest.raises(SystemExit, match="the models give different texts"):
        _check_same("16a8w", runs)


@pytest.mark.parametrize("asked", _EVALUATED)
def test_what_is_evaluated_is_a_recipe(tmp_path: Path, asked: tuple[str, str, int | None]) -> None:
    backend, scheme, _ = asked
    spec = _spec(tmp_path, _Evaluated(*asked, 512))
    assert (spec.backend, spec.quantization, spec.generation.context) == (backend, scheme, 512)
    assert spec.generation.methods == ("prefill" if backend == "qnn" else "hybrid")


def test_a_scheme_stands_beside_the_floats() -> None:
    cost = {"perplexity": 36.7349, "mean_kl_divergence": 0.0304, "same_top_percent": 88.63}
    run = {"backend": "qnn", "scheme": "16a8w", "perplexity": 35.3053, "quantized": cost}
    rows = list(_perplexity_table([run | {"tokens": 387, "file": "evaluation.txt"}]))
    assert rows[0] == "387 predicted tokens of evaluation.txt."
    assert rows[-2:] == [
        "| 32-bit floats | 35.31 | | |",
        "| qnn 16a8w | 36.73 | 0.030 | 88.6 % |",
    ]
