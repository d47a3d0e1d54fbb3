"""Compare outputs and texts of the device with the model's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from etdeploy.backends.registry import find_backend
from etdeploy.backends.schemes import STATIC_SCHEMES
from etdeploy.bench.records.outputs import OutputCheck, TextCheck
from etdeploy.bench.records.record import TaskRecord
from etdeploy.bench.run_pass import PassResult, Results
from etdeploy.bench.tolerance import (
    Limits,
    UnreadableTensorError,
    estimate_step,
    limits_for,
    logit_cosine,
    logit_limit,
    read_tensor,
)
from etdeploy.core.cancel import checkpoint
from etdeploy.core.files.basic import inside
from etdeploy.export.protocol import TaskRequest
from etdeploy.export.run import read_task_result
from etdeploy.program.folder import Provenance, Stored, TensorFile
from etdeploy.program.generation import ExpectedText, LogitNoise, NextToken, logit_distance
from etdeploy.program.model import PlainValue
from etdeploy.program.quality import TensorDistance, measure_distance
from etdeploy.recipe.sections.benchmark import Tolerance
from etdeploy.runner.protocol import RunnerOutput

# Files of a task's result in the record's folder; the first gets a suffix.
TASK_RESULT, TASK_LOG = "result", "result.log"
# The checks of each size, in the recipe's order; the name is empty without sizes.
Checks = Mapping[str, tuple[OutputCheck, ...]]


def compare_sizes(
    results: Results,
    here: Path,
    program_folder: Path,
    provenance: Provenance,
    tolerance: Tolerance,
) -> Checks:
    """Compare the outputs at each size, after a sweep with the chosen number of threads."""
    return {
        result.step.size: _compare(result, here, program_folder, provenance, tolerance)
        for result in results.values()
        if result.outputs and not result.step.swept
    }


def compare_threads(
    results: Results,
    here: Path,
    program_folder: Path,
    provenance: Provenance,
    tolerance: Tolerance,
) -> Mapping[int, tuple[OutputCheck, ...]]:
    """Compare the outputs with each number of threads of a sweep."""
    return {
        result.step.threads: _compare(result, here, program_folder, provenance, tolerance)
        for result in results.values()
        if result.outputs and result.step.swept
    }


def _compare(
    result: PassResult,
    here: Path,
    program_folder: Path,
    provenance: Provenance,
    tolerance: Tolerance,
) -> tuple[OutputCheck, ...]:
    steps = tuple(known.scale if known else None for known in provenance.output_quantization)
    return compare_outputs(
        result.results.outputs,
        here / result.step.outputs_folder,
        Expectation(
            provenance.measured[result.step.size].expected,
            program_folder,
            tolerance_scheme(provenance),
            tolerance,
            steps,
        ),
    )


def read_task(
    results: Results, here: Path, program_folder: Path, provenance: Provenance
) -> TaskRecord | None:
    """Read the result of a task from the device's outputs; None without a task."""
    program = provenance.task
    found = next((r for r in results.values() if r.outputs and not r.step.swept), None)
    if program is None or found is None:
        return None
    folder = here / found.step.outputs_folder
    names = [_name(index, each) for index, each in enumerate(provenance.expected)]
    outputs = tuple(
        TensorFile(
            path=str(_inside(folder, output.path)),
            dtype=str(output.dtype),
            shape=output.shape or (),
            name=names[index] if index < len(names) else f"output_{index}",
        )
        for index, output in enumerate(found.results.outputs)
        if output.path
    )
    request = TaskRequest(
        program=str(program_folder), outputs=outputs, file=str(here / TASK_RESULT)
    )
    result = read_task_result(request, here / TASK_LOG)
    if result.problem is None:
        (here / TASK_LOG).unlink(missing_ok=True)
    return TaskRecord(
        task=program.task,
        is_real=program.is_real,
        preprocess_ms=program.preprocess_ms,
        result=result,
        expected=program.expected,
        agrees=result.agrees(program.expected) if program.expected else None,
    )


def tolerance_scheme(provenance: Provenance) -> str | None:
    """The scheme whose tolerances apply: a backend may compute in fewer bits than the program."""
    backend = find_backend(provenance.backend) if provenance.backend else None
    scheme = provenance.quantization
    return backend.judged_as.get(scheme, scheme) if backend and scheme else scheme


@dataclass(frozen=True)
class Expectation:
    """The eager model's outputs with their files' folder, and what decides about tolerances.

    `steps` are those of each output's quantization; None, or missing, if the exporter did not see
    them. `noise` is how far rounding moves outputs that are logits, if that was measured.
    """

    tensors: tuple[Stored, ...]
    folder: Path
    quantization: str | None
    tolerance: Tolerance
    steps: tuple[float | None, ...] = ()
    noise: LogitNoise | None = None

    def step_of(self, index: int) -> float | None:
        """The step of an output's quantization, if known."""
        return self.steps[index] if index < len(self.steps) else None


def compare_outputs(
    outputs: Sequence[RunnerOutput], folder: Path, expectation: Expectation
) -> tuple[OutputCheck, ...]:
    """Compare every expected output; a difference is a result and not an error."""
    expected = expectation.tensors
    if not expected:
        return ()
    checks = []
    for index, tensor in enumerate(expected):
        checkpoint()
        try:
            if index >= len(outputs):
                raise UnreadableTensorError("the device did not return this output")
            checks.append(_check(index, outputs[index], folder, expectation))
        except UnreadableTensorError as error:
            checks.append(_failed(index, tensor, str(error)))
    checks += [_surplus(i, outputs[i]) for i in range(len(expected), len(outputs))]
    return tuple(checks)


def _check(index: int, output: RunnerOutput, folder: Path, expectation: Expectation) -> OutputCheck:
    expected = expectation.tensors[index]
    if isinstance(expected, PlainValue):
        return check_plain(_name(index, expected), output, expected, expectation.tolerance)
    if output.kind != "Tensor" or output.path is None:
        raise UnreadableTensorError(f"the device returned {output.kind} instead of a tensor")
    have = f"{output.dtype} {list(output.shape or ())}"
    want = f"{expected.dtype} {list(expected.shape)}"
    if have != want:
        raise UnreadableTensorError(f"the device returned {have} instead of {want}")
    actual = read_tensor(_inside(folder, output.path), expected.dtype, expected.shape)
    wanted = read_tensor(_inside(expectation.folder, expected.path), expected.dtype, expected.shape)
    distance = measure_distance(actual, wanted)
    step = expectation.step_of(index)
    if step is None and expectation.quantization in STATIC_SCHEMES and "float" in expected.dtype:
        step = estimate_step(actual, wanted)
    limits = limits_for(
        expected.dtype,
        expectation.quantization,
        distance,
        expectation.tolerance,
        step,
        expectation.noise,
    )
    return check_tensor(_name(index, expected), expected, distance, limits, step)


def check_tensor(
    name: str,
    tensor: TensorFile,
    distance: TensorDistance,
    limits: Limits,
    step: float | None = None,
) -> OutputCheck:
    """Check one output against its limits."""
    judges_angle = "float" in tensor.dtype or limits.cosine_similarity is not None
    cosine = distance.cosine_similarity if judges_angle else None
    error = distance.max_abs_error
    problem = _problem(distance)
    within = problem is None and _is_within(distance, limits)
    incomparable = distance.elements > 0 and distance.compared == 0
    return OutputCheck(
        name=name,
        dtype=tensor.dtype,
        shape=tensor.shape,
        max_abs_error=error,
        cosine_similarity=cosine,
        tolerance_max_abs=limits.max_abs_error,
        tolerance_cosine=limits.cosine_similarity,
        within_tolerance=None if incomparable and problem is None else within,
        problem=problem,
        remark=_remark(distance, limits) if problem is None else None,
        rms_error=distance.rms_error,
        tolerance_rms=limits.rms_error,
        step=step,
    )


def _problem(distance: TensorDistance) -> str | None:
    if not distance.odd_places:
        return None
    return (
        f"{distance.odd_places} of {distance.elements} values are NaN or infinite on one side only"
    )


def _remark(distance: TensorDistance, limits: Limits) -> str | None:
    """What weakens the comparison."""
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
        return "the values take so few steps of their quantization that zeros would pass too"
    return None


def _is_within(distance: TensorDistance, limits: Limits) -> bool:
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
        raise UnreadableTensorError(str(error)) from error


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
    return _failed(index, tensor, "the model does not have this output")


def check_plain(
    name: str, output: RunnerOutput, expected: PlainValue, tolerance: Tolerance
) -> OutputCheck:
    """Check a number, a boolean or None.

    Infinite and undefined numbers count as equal: the runner does not report which of them it is.
    """
    if output.kind != expected.kind:
        raise UnreadableTensorError(f"the device returned {output.kind} instead of {expected.kind}")
    have, want = output.value, expected.value
    if have is None or want is None:
        problem = (
            None
            if have is want
            else f"the device returned {_shown(have)} instead of {_shown(want)}"
        )
        return _verdict(name, expected, None, None, problem)
    import numpy as np

    dtype = _dtype(expected)
    distance = measure_distance(*(np.array([x], dtype=dtype) for x in (have, want)))
    limits = limits_for(dtype, None, distance, tolerance)
    return _verdict(name, expected, distance.max_abs_error, limits, None)


def _dtype(expected: PlainValue) -> str:
    return "float64" if expected.kind == "Double" else "int64"


def _shown(value: float | None) -> str:
    return "an infinite or undefined number" if value is None else str(value)


def _verdict(
    name: str, expected: PlainValue, error: float | None, limits: Limits | None, problem: str | None
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


@dataclass(frozen=True)
class _TextPosition:
    """One position of a text; `gap` is None if the most probable token is the model's."""

    gap: float | None
    gap_is_exact: bool
    error: float
    limit: float
    cosine: float
    least_cosine: float | None

    @property
    def is_right(self) -> bool:
        aligned = self.least_cosine is None or self.cosine >= self.least_cosine
        return self.error <= self.limit and aligned


def check_text(
    name: str,
    token_ids: Sequence[int],
    expected: ExpectedText,
    quantization: str | None,
    tolerance: Tolerance,
    *,
    logits: Sequence[Mapping[int, float]],
    prompt: str | None = None,
    text: str | None = None,
) -> TextCheck:
    """Check one text, position by position."""
    actual, reference = tuple(token_ids), expected.expected
    count = min(len(actual), len(reference.tokens))
    positions = [
        _text_position(
            reference.tokens[i], actual[i], logits[i], quantization, expected.noise, tolerance
        )
        for i in range(count)
    ]
    other = next((p for p in positions if p.gap is not None), None)
    wrong = next((i for i, p in enumerate(positions) if not p.is_right), None)
    shown = other if wrong is None else positions[wrong]
    limits = positions if wrong is None else [positions[wrong]]
    original = expected.original.token_ids if expected.quantized else None
    return TextCheck(
        name=name,
        prompt_tokens=len(expected.prompt_ids),
        prompt=prompt,
        token_ids=actual,
        text=text,
        expected_ids=reference.token_ids,
        equal_tokens=count_common(actual, reference.token_ids),
        gap=shown.gap if shown else None,
        gap_is_exact=shown.gap_is_exact if shown else True,
        tolerance_gap=2 * shown.limit if shown and shown.gap is not None else None,
        compared_tokens=count,
        wrong_token=None if wrong is None else wrong + 1,
        max_logit_error=max(p.error for p in positions),
        tolerance_logit=min(p.limit for p in limits),
        min_cosine=min(p.cosine for p in positions),
        tolerance_cosine=limits[0].least_cosine,
        within_tolerance=wrong is None and len(actual) == len(reference.tokens),
        original_ids=original,
        original_equal_tokens=None if original is None else count_common(actual, original),
    )


def _text_position(
    choice: NextToken,
    token: int,
    logits: Mapping[int, float],
    quantization: str | None,
    noise: LogitNoise | None,
    tolerance: Tolerance,
) -> _TextPosition:
    limit = logit_limit(choice.largest, quantization, noise, tolerance.max_abs_error)
    gap, exact = (None, True) if token == choice.ids[0] else choice.gap(token)
    error, cosine = logit_distance(choice, logits)
    least = logit_cosine(quantization, noise, tolerance.max_abs_error)
    # One of both logits is off by at least half of the gap.
    return _TextPosition(gap, exact, max(error, (gap or 0) / 2), limit, cosine, least)


def count_common(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the length of the common prefix of two texts."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))
