"""Limits as users write them, and which numbers break them."""

from __future__ import annotations

import math

import pytest

from etdeploy.core.errors import UsageError
from etdeploy.program.folder import Provenance
from etdeploy.program.model import EMPTY_PROGRAM
from etdeploy.program.quality import OutputLoss
from etdeploy.tune.metrics import (
    breaches,
    has_high_loss,
    parse_limit,
    parse_limits,
    program_figures,
    require_metric,
)


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("latency=20ms", 20.0),
        ("latency=0.5s", 500.0),
        ("latency=250us", 0.25),
        ("latency=3", 3.0),
        ("peak_memory=300MB", 300e6),
        ("peak_memory=1GiB", 2**30),
        ("size=50 MB", 50e6),
        ("error=1e-2", 0.01),
        ("error=1%", 0.01),
        ("energy=20mJ", 0.02),
    ],
)
def test_a_limit_has_a_value_with_a_unit(text: str, bound: float) -> None:
    limit = parse_limit(text, is_text=False)
    assert limit.bound == pytest.approx(bound)
    assert not limit.relative


def test_a_change_in_percent_is_relative_to_the_recipe() -> None:
    limit = parse_limit("latency=-10%", is_text=False)
    assert limit.relative
    assert limit.bound_for({"latency": 20.0}) == pytest.approx(18.0)
    assert limit.bound_for({}) is None


def test_perplexity_is_relative_to_the_unquantized_model() -> None:
    limit = parse_limit("perplexity=+2%", is_text=True)
    own = {"perplexity": 10.3, "unquantized_perplexity": 10.0}
    [breach] = breaches([limit], own, {"perplexity": 20.0})
    assert breach.excess == pytest.approx(10.3 / 10.2 - 1)
    assert breaches([limit], {**own, "perplexity": 10.19}, {}) == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("latency", "is not a limit"),
        ("latency=", "is not a limit"),
        ("latency=fast", "is not a limit"),
        ("latency=-3ms", "is not a limit"),
        ("latency=0", "is not a limit"),
        ("latency=3MB", "is not a limit"),
        ("latency=1.2.3ms", "is not a limit"),
        ("latency=-100%", "is not a limit"),
        ("error=+2%", "is not a limit"),
        ("latencie=3ms", "did you mean latency?"),
        ("perplexity=+2%", "a model that does not generate text has no perplexity"),
        ("ttft=3ms", "has no time to first token"),
    ],
)
def test_what_is_no_limit_is_refused_with_what_is_one(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words.replace("?", r"\?")) as caught:
        parse_limit(text, is_text=False)
    assert caught.value.remedy


def test_the_refusal_lists_the_metrics_of_the_kind_of_model() -> None:
    with pytest.raises(UsageError) as caught:
        parse_limit("perplexity=+2%", is_text=False)
    assert caught.value.remedy == (
        "For a model that does not generate text: latency, load, peak_memory, size, energy, error."
    )
    with pytest.raises(UsageError, match="a language model has no error"):
        parse_limit("error=1%", is_text=True)


def test_error_can_be_limited_but_not_minimized() -> None:
    with pytest.raises(UsageError, match="error can be limited, but not minimized"):
        require_metric("error", is_text=False, option="--minimize")
    assert require_metric("error", is_text=False, option="--limit").name == "error"


def test_a_metric_is_limited_once() -> None:
    with pytest.raises(UsageError, match="size is limited 2 times"):
        parse_limits(["size=1MB", "size=2MB"], is_text=False)


def test_what_is_not_known_breaks_no_limit() -> None:
    limits = parse_limits(["peak_memory=1MB", "size=2MB"], is_text=False)
    assert breaches(limits, {"size": 1e6}, {}) == ()
    assert [b.limit.metric for b in breaches(limits, {"size": 3e6, "peak_memory": 1e6}, {})] == [
        "size"
    ]


def test_the_error_of_a_program_is_the_noise_of_its_worst_output() -> None:
    losses = tuple(
        OutputLoss(name=n, cosine_similarity=0.999, sqnr_db=db, max_abs_error=0.1)
        for n, db in (("a", 40.0), ("b", 20.0))
    )
    made = Provenance(source="x", quantization_loss=losses)
    figures = program_figures(EMPTY_PROGRAM.model_copy(update={"size_bytes": 7}), made)
    assert figures == {"size": 7.0, "error": pytest.approx(0.1)}
    assert not has_high_loss(made)
    bad = losses[0].model_copy(update={"sqnr_db": 5.0})
    assert has_high_loss(made.model_copy(update={"quantization_loss": (bad,)}))


def test_a_program_without_quantization_has_no_error_before_it_runs() -> None:
    assert set(program_figures(EMPTY_PROGRAM, Provenance(source="x"))) == {"size"}


def test_excess_is_infinite_for_a_bound_of_nothing() -> None:
    limit = parse_limit("latency=-99.99999999999%", is_text=False)
    [breach] = breaches([limit], {"latency": 1.0}, {"latency": 0.0})
    assert math.isinf(breach.excess)
