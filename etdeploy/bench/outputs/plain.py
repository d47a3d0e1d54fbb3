"""Compares outputs that are not tensors with the expected ones."""

from __future__ import annotations

from etdeploy.bench.outputs.tensors import UnreadableError
from etdeploy.bench.outputs.tolerance import Limits, limits_for
from etdeploy.bench.records.outputs import OutputCheck
from etdeploy.program.distance import measure_distance
from etdeploy.program.model import Plain
from etdeploy.recipe.model import Tolerance
from etdeploy.runner.protocol import RunnerOutput


def check_plain(
    name: str, output: RunnerOutput, expected: Plain, tolerance: Tolerance
) -> OutputCheck:
    """The verdict on a number, a boolean or None.

    A number that is infinite or undefined on both sides counts as equal: the runner does not report
    which of these it is.

    Raises:
        UnreadableError: A value of another kind came.
    """
    if output.kind != expected.kind:
        raise UnreadableError(
            f"a value of kind {output.kind} was received instead of {expected.kind}"
        )
    have, want = output.value, expected.value
    if have is None or want is None:
        problem = None if have is want else f"{_shown(have)} was received instead of {_shown(want)}"
        return _verdict(name, expected, None, None, problem)
    import numpy as np

    dtype = _dtype(expected)
    distance = measure_distance(*(np.array([x], dtype=dtype) for x in (have, want)))
    limits = limits_for(dtype, None, distance, tolerance)
    return _verdict(name, expected, distance.max_abs_error, limits, None)


def _dtype(expected: Plain) -> str:
    return "float64" if expected.kind == "Double" else "int64"


def _shown(value: float | None) -> str:
    return "an infinite or undefined number" if value is None else str(value)


def _verdict(
    name: str, expected: Plain, error: float | None, limits: Limits | None, problem: str | None
) -> OutputCheck:
    return OutputCheck(
        name=name,
        dtype=expected.dtype,
        shape=(),
        max_abs_error=error,
        cosine_similarity=None,
        tolerance_max_abs=limits.max_abs_error if limits else None,
        tolerance_cosine=None,
        within_tolerance=problem is None
        and (error is None or limits is None or error <= limits.max_abs_error),
        problem=problem,
    )
