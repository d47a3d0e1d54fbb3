"""Compares the outputs of a run with the expected ones of the eager model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from etdeploy.backends.schemes import STATIC_SCHEMES
from etdeploy.bench.outputs.plain import check_plain
from etdeploy.bench.outputs.steps import estimate_step
from etdeploy.bench.outputs.tensors import UnreadableError, read_tensor
from etdeploy.bench.outputs.tolerance import Limits, limits_for
from etdeploy.bench.records.outputs import OutputCheck
from etdeploy.core.cancel import checkpoint
from etdeploy.core.files.basic import inside
from etdeploy.program.distance import Distance, measure_distance
from etdeploy.program.folder import Stored, TensorFile
from etdeploy.program.model import Plain
from etdeploy.recipe.model import Tolerance
from etdeploy.runner.protocol import RunnerOutput


@dataclass(frozen=True)
class Expectation:
    """What the outputs are compared with.

    Attributes:
        tensors: The eager model's outputs; empty when there are none.
        folder: Where their files are.
        quantization: The program's scheme.
        tolerance: The recipe's own limits.
        steps: Of each output's quantisation, where the exporter saw it; None, or nothing at the
            end, where it did not.
    """

    tensors: tuple[Stored, ...]
    folder: Path
    quantization: str | None
    tolerance: Tolerance
    steps: tuple[float | None, ...] = ()

    def step_of(self, index: int) -> float | None:
        """The step of one output's quantisation, where it is known."""
        return self.steps[index] if index < len(self.steps) else None


def compare_outputs(
    outputs: Sequence[RunnerOutput], folder: Path, expectation: Expectation
) -> tuple[OutputCheck, ...]:
    """Compares every expected output; a difference is part of the result, not an error.

    Args:
        outputs: What the runner reports as written.
        folder: Where those files are now.
        expectation: Without tensors the result is empty.
    """
    expected = expectation.tensors
    if not expected:
        return ()
    checks = []
    for index, tensor in enumerate(expected):
        checkpoint()
        try:
            if index >= len(outputs):
                raise UnreadableError("the device gave no such output")
            checks.append(_check(index, outputs[index], folder, expectation))
        except UnreadableError as error:
            checks.append(_failed(index, tensor, str(error)))
    checks += [_surplus(i, outputs[i]) for i in range(len(expected), len(outputs))]
    return tuple(checks)


def _check(index: int, output: RunnerOutput, folder: Path, expectation: Expectation) -> OutputCheck:
    expected = expectation.tensors[index]
    if isinstance(expected, Plain):
        return check_plain(_name(index, expected), output, expected, expectation.tolerance)
    if output.kind != "Tensor" or output.path is None:
        raise UnreadableError(f"a value of kind {output.kind} was received instead of a tensor")
    have = f"{output.dtype} {list(output.shape or ())}"
    want = f"{expected.dtype} {list(expected.shape)}"
    if have != want:
        raise UnreadableError(f"{have} was received instead of {want}")
    actual = read_tensor(_inside(folder, output.path), expected.dtype, expected.shape)
    wanted = read_tensor(_inside(expectation.folder, expected.path), expected.dtype, expected.shape)
    distance = measure_distance(actual, wanted)
    step = expectation.step_of(index)
    if step is None and expectation.quantization in STATIC_SCHEMES and "float" in expected.dtype:
        step = estimate_step(actual, wanted)
    limits = limits_for(
        expected.dtype, expectation.quantization, distance, expectation.tolerance, step
    )
    return judged(_name(index, expected), expected, distance, limits, step)


def judged(
    name: str, tensor: TensorFile, distance: Distance, limits: Limits, step: float | None = None
) -> OutputCheck:
    """The verdict on one output."""
    judges_angle = "float" in tensor.dtype or limits.cosine_similarity is not None
    cosine = distance.cosine_similarity if judges_angle else None
    error = distance.max_abs_error
    problem = _problem(distance)
    within = problem is None and _within(distance, limits)
    nothing = distance.elements > 0 and distance.compared == 0
    return OutputCheck(
        name=name,
        dtype=tensor.dtype,
        shape=tensor.shape,
        max_abs_error=error,
        cosine_similarity=cosine,
        tolerance_max_abs=limits.max_abs_error,
        tolerance_cosine=limits.cosine_similarity,
        within_tolerance=None if nothing and problem is None else within,
        problem=problem,
        remark=_remark(distance, limits) if problem is None else None,
        rms_error=distance.rms_error,
        tolerance_rms=limits.rms_error,
        step=step,
    )


def _problem(distance: Distance) -> str | None:
    if not distance.odd_places:
        return None
    return (
        f"{distance.odd_places} of {distance.elements} values are NaN or infinite on one side only"
    )


def _remark(distance: Distance, limits: Limits) -> str | None:
    """What weakens the comparison of an output without a problem."""
    odd = distance.elements - distance.compared
    if odd:
        count = (
            "every value is"
            if not distance.compared
            else f"{odd} of {distance.elements} values are"
        )
        return f"{count} NaN or infinite, in the model's own output too"
    zeros_pass = limits.rms_error is not None and 0 < distance.rms <= limits.rms_error
    if zeros_pass and distance.largest <= limits.max_abs_error:
        return "the values take so few steps of their quantisation that zeros would pass too"
    return None


def _within(distance: Distance, limits: Limits) -> bool:
    error, rms, cosine = distance.max_abs_error, distance.rms_error, distance.cosine_similarity
    if error is None or rms is None or cosine is None:
        return True
    if error > limits.max_abs_error or (limits.rms_error is not None and rms > limits.rms_error):
        return False
    if limits.cosine_similarity is None or error == 0 or error <= limits.negligible:
        return True
    return cosine >= limits.cosine_similarity


def _inside(folder: Path, relative: str) -> Path:
    try:
        return inside(folder, relative)
    except ValueError as error:
        raise UnreadableError(str(error)) from error


def _name(index: int, expected: Stored) -> str:
    return expected.name or f"output_{index}"


def _failed(index: int, tensor: Stored, problem: str) -> OutputCheck:
    return OutputCheck(
        name=_name(index, tensor),
        dtype=tensor.dtype,
        shape=tensor.shape,
        max_abs_error=None,
        cosine_similarity=None,
        tolerance_max_abs=None,
        tolerance_cosine=None,
        within_tolerance=False,
        problem=problem,
    )


def _surplus(index: int, output: RunnerOutput) -> OutputCheck:
    tensor = TensorFile(path="", dtype=output.dtype or output.kind, shape=output.shape or ())
    return _failed(index, tensor, "the model has no such output")
