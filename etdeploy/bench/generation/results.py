"""What a start of the runner generated, as times that the rest of the measurement understands."""

from __future__ import annotations

from collections.abc import Sequence

from etdeploy.bench.generation.request import point_name
from etdeploy.runner.generation import Generated, GenerationResults
from etdeploy.runner.protocol import RunnerResults


def as_inferences(results: GenerationResults, method: str, warmup: int = 0) -> RunnerResults:
    """The first point's times in the form of inferences'.

    The samples are the tokens after the first; where there is none, the times to first token. The
    first inference is the first generation's time to first token.

    Args:
        results: Of the runner.
        method: That stands for the program's.
        warmup: Generations before those that count.
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
