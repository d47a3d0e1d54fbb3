"""What a start of the runner generated, as times that the rest of the measurement understands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from etdeploy.bench.generation.request import point_name
from etdeploy.bench.generation.work import GenerationWorkload, WorkPoint, text_of
from etdeploy.bench.records.generation import GenerationPoint
from etdeploy.bench.statistics import percentile, summarize
from etdeploy.runner.generation import Generated, GenerationResults, tokens_per_s
from etdeploy.runner.protocol import RunnerResults


def as_inferences(results: GenerationResults, method: str, warmup: int = 0) -> RunnerResults:
    """The first point's times in the form of inferences'.

    The samples are the tokens after the first; where there is none, the times to first token. The
    first inference is the first generation's time to first token.
    """
    made = results.generation
    counted = runs_of(results, 0)
    tokens = [ms for run in counted for ms in run.token_ms]
    return RunnerResults(
        **{name: getattr(results, name) for name in type(results).model_fields if name != _OWN},
        method=method,
        warmup=warmup,
        load_method_ms=sum(made.load_methods_ms.values()),
        first_inference_ms=made.runs[0].first_token_ms,
        outputs=(),
        outputs_digest=None,
        samples_ms=tuple(tokens or [run.first_token_ms for run in counted]),
    )


_OWN = "generation"


def runs_of(results: GenerationResults, index: int) -> Sequence[Generated]:
    """The generations of a point that count."""
    return [run for run in results.generation.runs if run.point == point_name(index)]


def points_of(
    work: GenerationWorkload, starts: Sequence[GenerationResults], program_folder: Path
) -> tuple[GenerationPoint, ...]:
    """Every point of a measurement."""
    return tuple(
        _point(point, [run for start in starts for run in runs_of(start, i)], work, program_folder)
        for i, point in enumerate(work.points)
    )


def _point(
    point: WorkPoint, runs: Sequence[Generated], work: GenerationWorkload, program_folder: Path
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
