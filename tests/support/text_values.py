"""Programs that generate text, what their runner writes, and records of it, made by hand."""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from etdeploy.bench.generation_request import warmup_name
from etdeploy.bench.generation_workload import (
    GenerationWorkload,
    WorkPoint,
    make_points,
    point_name,
)
from etdeploy.bench.passes import TIMING, Pass
from etdeploy.bench.records.generation import MethodTrace, TextGeneration
from etdeploy.bench.records.outputs import TextCheck
from etdeploy.bench.records.record import RunRecord
from etdeploy.bench.run_pass import PassResult, as_inferences
from etdeploy.bench.starts import StartSeries
from etdeploy.program.generation import (
    Evaluation,
    ExpectedText,
    Generation,
    GenerationMethod,
    GreedyText,
    NextToken,
    QuantizationCost,
)
from etdeploy.recipe.document import KeyPath, SourceLocation
from etdeploy.recipe.load import LoadedRecipe
from etdeploy.recipe.model import Recipe
from etdeploy.runner.generation import GenerationResults, Sampling
from tests.support.bench_values import make_pass, make_program, make_record

METHODS = (
    GenerationMethod(name="prefill", role="prefill", max_tokens=32, dynamic=True, capacity=256),
    GenerationMethod(name="decode", role="decode", max_tokens=1, dynamic=False, capacity=256),
    GenerationMethod(name="decode_64", role="decode", max_tokens=1, dynamic=False, capacity=64),
)


# Of a text of 4 tokens after 8.
TRACED = (
    MethodTrace(
        method="decode", calls=3, tokens=3, position=8, call_ms=5.5, outside_delegates=0.045
    ),
    MethodTrace(
        method="prefill", calls=1, tokens=8, position=0, call_ms=6.0, outside_delegates=0.03
    ),
)


def make_generation(**changes: Any) -> Generation:
    """A program with a context of 256 tokens, and a shorter method for decoding."""
    values: dict[str, Any] = {
        "methods": METHODS,
        "vocabulary": 100,
        "context": 256,
        "stop_ids": (2, 3),
        "bos_id": 1,
        "model": "tiny",
        "path": "fast",
        "path_reason": "its attention is one that etdeploy knows",
    }
    return Generation(**(values | changes))


def make_loaded(
    places: Mapping[tuple[str, ...], int] | None = None, **sections: Any
) -> LoadedRecipe:
    """A recipe of a language model; `places` gives lines of keys."""
    recipe = Recipe.model_validate({"model": {"hf": "org/tiny"}} | sections)
    path = Path("/recipes/tiny.yaml")
    lines = (places or {}).items()
    known: dict[KeyPath, SourceLocation] = {
        keys: SourceLocation("tiny.yaml", line, 5) for keys, line in lines
    }
    return LoadedRecipe("tiny", path, recipe, (), known)


def make_work(*points: WorkPoint, **changes: Any) -> GenerationWorkload:
    """The first point generates 4 tokens after 8, once after a warm-up."""
    values: dict[str, Any] = {
        "generation": make_generation(),
        "sampling": Sampling(),
        "stop_ids": (),
        "points": points or (WorkPoint(tuple(range(8)), 4, 0, 1, 2),),
        "prompt": None,
    }
    return GenerationWorkload(**(values | changes))


def generated(
    point: str, first_ms: float, token_ms: Sequence[float], ids: Sequence[int] = (), **changes: Any
) -> dict[str, Any]:
    """One repetition of a point, as results.json has it."""
    tokens = ids or range(10, 11 + len(token_ms))
    values = {"point": point, "prefill_ms": [first_ms], "first_token_ms": first_ms}
    return {**values, "token_ms": token_ms, "token_ids": list(tokens), "stopped": False, **changes}


def make_generated(*runs: Mapping[str, Any], **changes: Any) -> GenerationResults:
    """results.json of a runner with --generation."""
    values: dict[str, Any] = {
        "schema_version": 1,
        "executorch_version": "1.5.1",
        "started_unix_s": 0,
        "threads": 2,
        "verify_ms": 0.25,
        "load_program_ms": 0.5,
        "rss_after_load_bytes": 5_000_000,
        "peak_rss_bytes": 9_000_000,
        "generation": {"load_methods_ms": {"prefill": 1.0, "decode": 2.0}, "runs": runs},
    }
    return GenerationResults.model_validate(values | changes)


def make_start(number: int, results: GenerationResults, warmup: int = 1) -> PassResult:
    """A start of the timing pass that generated text."""
    seen = make_pass(number, as_inferences(results, "decode", warmup))
    step = Pass(TIMING, warmup, 3, start=number, request="generation/timing.txt")
    return PassResult(step, seen.results, seen.seconds, seen.started, generated=results)


def make_text_workload(
    base_ms: float = 5.0, work: GenerationWorkload | None = None, starts: int = 3, **changes: Any
) -> TextGeneration:
    """Starts a percent apart, whose tokens take longer the more are before them."""
    work, rng = work or make_work(), random.Random(3)
    passes = [
        make_start(number, make_generated(*_runs(work, base_ms * (1 + rng.gauss(0, 0.01)))))
        for number in range(1, starts + 1)
    ]
    series = StartSeries(tuple(passes))
    values: dict[str, Any] = {
        "points": make_points(work, [each.generated for each in passes if each.generated], Path()),
        "sampling": work.sampling,
        "prompt": work.prompt,
        "first_ttft_ms": series.first_inference_ms,
        "runs": series.starts,
        "spread": series.spread,
    }
    return TextGeneration(**(values | changes))


def _runs(work: GenerationWorkload, ms: float) -> list[dict[str, Any]]:
    found = []
    for i, point in enumerate(work.points):
        names = [warmup_name(i)] * point.warmup + [point_name(i)] * point.repetitions
        token_ms = [ms * (1 + n / 100) for n in range(point.new_tokens - 1)]
        for number, name in enumerate(names):
            slower = 3.0 if number == 0 else 1.0
            found.append(generated(name, slower * ms * len(point.prompt) / 8, token_ms))
    return found


def make_text_record(
    base_ms: float = 5.0, workload: TextGeneration | None = None, **changes: Any
) -> RunRecord:
    """A record of generated text."""
    values: dict[str, Any] = {
        "workload": workload or make_text_workload(base_ms),
        "program": make_program(method="decode", source="org/tiny"),
    }
    return make_record(**(values | changes))


def make_expected(
    ids: Sequence[int] = (10, 11, 12),
    quantized: Sequence[int] = (),
    behind: Sequence[float] = (0.0, 0.1, 0.5),
    prompt: Sequence[int] = (1, 5, 6),
) -> ExpectedText:
    """A text with the same choice each time: the other candidates are 100, 200 and so on more.

    The logit of the first is 0, as those of all sampled tokens of a vocabulary of 100 are.
    """
    both = [_greedy(each, behind) for each in (ids, quantized) if each]
    return ExpectedText(
        prompt_ids=tuple(prompt), original=both[0], quantized=both[1] if len(both) > 1 else None
    )


def _greedy(ids: Sequence[int], behind: Sequence[float]) -> GreedyText:
    tokens = [
        NextToken(
            ids=tuple(each + 100 * i for i in range(len(behind))),
            behind=tuple(behind),
            largest=10,
            best=0,
            sample=(0,) * 64,
        )
        for each in ids
    ]
    return GreedyText(tokens=tuple(tokens))


def make_text_check(**changes: Any) -> TextCheck:
    """A text of two tokens that is right."""
    values: dict[str, Any] = {
        "name": "text_0",
        "prompt_tokens": 3,
        "prompt": "The sky",
        "token_ids": (10, 11),
        "text": " is blue",
        "expected_ids": (10, 11),
        "equal_tokens": 2,
        "compared_tokens": 2,
        "max_logit_error": 0.0,
        "tolerance_logit": 0.001,
        "min_cosine": 1.0,
        "within_tolerance": True,
    }
    return TextCheck(**(values | changes))


def make_cost(**changes: Any) -> QuantizationCost:
    """The same perplexity, and small differences."""
    values: dict[str, Any] = {
        "perplexity": 14.0, "mean_kl_divergence": 0.0123, "max_kl_divergence": 0.4,
        "same_top_percent": 95.25, "logit_rms_error": 0.3125, "logit_max_abs_error": 2.4,
    }  # fmt: skip
    return QuantizationCost(**(values | changes))


def make_evaluation(quantized: float | None = None, **changes: Any) -> Evaluation:
    """A perplexity of 14 on 100 tokens."""
    cost = None if quantized is None else make_cost(perplexity=quantized)
    values: dict[str, Any] = {
        "file": "text.txt", "sha256": "ab" * 32, "tokens": 100, "whole": True, "perplexity": 14.0,
    }  # fmt: skip
    return Evaluation(quantized=cost, **(values | changes))


def ids_in(path: Path) -> tuple[int, ...]:
    """The token ids of a prompt's file."""
    content = path.read_bytes()
    return struct.unpack(f"<{len(content) // 8}q", content)
