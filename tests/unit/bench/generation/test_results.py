"""What a runner generated, as times that the rest of the measurement understands."""

from __future__ import annotations

from etdeploy.bench.generation.results import as_inferences
from tests.support.text_values import generated, make_generated


def test_the_first_points_tokens_are_the_samples() -> None:
    results = make_generated(
        generated("warmup-0", 9.0, [5.0]),
        generated("point-0", 4.0, [1.0, 2.0]),
        generated("point-0", 4.5, [3.0]),
        generated("point-1", 8.0, [7.0]),
    )
    seen = as_inferences(results, "decode", 1)
    assert seen.samples_ms == (1.0, 2.0, 3.0)
    assert seen.first_inference_ms == 9.0
    assert seen.load_method_ms == 3.0
    assert (seen.method, seen.warmup, seen.threads) == ("decode", 1, 2)
    assert (seen.verify_ms, seen.peak_rss_bytes) == (0.25, 9_000_000)


def test_where_only_first_tokens_are_generated_their_times_are() -> None:
    results = make_generated(generated("point-0", 4.0, []), generated("point-0", 5.0, []))
    assert as_inferences(results, "prefill").samples_ms == (4.0, 5.0)
