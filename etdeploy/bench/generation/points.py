"""Points as the record has them, from all starts of the runner."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from etdeploy.bench.generation.prompts import text_of
from etdeploy.bench.generation.results import runs_of
from etdeploy.bench.generation.work import Work, WorkPoint
from etdeploy.bench.records.generation import GenerationPoint
from etdeploy.bench.statistics import percentile, summarize
from etdeploy.runner.generation import Generated, GenerationResults, tokens_per_s


def points_of(
    work: Work, starts: Sequence[GenerationResults], program_folder: Path
) -> tuple[GenerationPoint, ...]:
    """Every point of a measurement.

    Args:
        work: What was generated.
        starts: What each start of the runner gave; at least one.
        program_folder: With the tokenizer, for the text.
    """
    return tuple(
        _point(point, [run for start in starts for run in runs_of(start, i)], work, program_folder)
        for i, point in enumerate(work.points)
    )


def _point(
    point: WorkPoint, runs: Sequence[Generated], work: Work, program_folder: Path
) -> GenerationPoint:
    first, tokens_ms = runs[0], [ms for run in runs for ms in run.token_ms]
    first_token = summarize([run.first_token_ms for run in runs])
    return GenerationPoint(
        prompt_tokens=len(point.prompt),
        new_tokens=point.new_tokens,
        depth=point.depth,
        ttft_ms=first_token.median,
        prefill_tokens_per_s=tokens_per_s(len(point.prompt), first_token.median),
        decode_tokens_per_s=_decode_rate(runs),
        first_token_ms=first_token,
        token_ms=summarize(tokens_ms) if tokens_ms else None,
        token_ids=first.token_ids,
        text=text_of(first.token_ids, work.generation, program_folder),
        stopped=first.stopped,
        generations=len(runs),
        distinct=len({run.token_ids for run in runs}),
    )


def _decode_rate(runs: Sequence[Generated]) -> float | None:
    """The median over the generations that have more than a first token."""
    rates = [tokens_per_s(len(run.token_ms), sum(run.token_ms)) for run in runs if run.token_ms]
    return percentile(rates, 50) if rates else None
