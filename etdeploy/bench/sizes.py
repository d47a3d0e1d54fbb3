"""The results of each size of a recipe, from its passes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from etdeploy.backends.registry import find_backend
from etdeploy.backends.schemes import STATIC_SCHEMES
from etdeploy.bench.notes import start_notes
from etdeploy.bench.passes import PassResult, Results
from etdeploy.bench.records.outputs import OutputCheck
from etdeploy.bench.records.record import SizeRecord
from etdeploy.bench.series import series_of
from etdeploy.bench.tolerance import (
    Limits,
    UnreadableTensorError,
    estimate_step,
    limits_for,
    read_tensor,
)
from etdeploy.core.cancel import checkpoint
from etdeploy.core.files.basic import inside
from etdeploy.program.folder import InputSet, Provenance, Stored, TensorFile
from etdeploy.program.model import PlainValue
from etdeploy.program.quality import TensorDistance, measure_distance
from etdeploy.recipe.model import Tolerance
from etdeploy.runner.protocol import RunnerOutput

# The checks of each size by its name, in the order of the recipe; one without a name has no sizes.
Checks = Mapping[str, tuple[OutputCheck, ...]]


def compare_sizes(
    results: Results,
    here: Path,
    program_folder: Path,
    provenance: Provenance,
    tolerance: Tolerance,
) -> Checks:
    """Compares the outputs of every pass that wrote some with those expected at its size.

    Of a sweep of threads, that is the one with the chosen number.
    """
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
    """Compares the outputs with each number of threads of a sweep."""
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
    # Of the program's quantisation, which is the same at every size.
    steps = tuple(known.scale if known else None for known in provenance.output_quantization)
    return compare_outputs(
        result.results.outputs,
        here / result.step.outputs_folder,
        Expectation(
            provenance.measured[result.step.size].expected,
            program_folder,
            judged_as(provenance),
            tolerance,
            steps,
        ),
    )


def judged_as(provenance: Provenance) -> str | None:
    """The scheme whose tolerances hold: a backend may compute in fewer bits than it was given."""
    backend = find_backend(provenance.backend) if provenance.backend else None
    scheme = provenance.quantization
    return backend.judged_as.get(scheme, scheme) if backend and scheme else scheme


def size_records(
    results: Results, checks: Checks, provenance: Provenance
) -> tuple[SizeRecord, ...]:
    """The record of every size that the recipe names; none for a recipe without."""
    return tuple(
        _record(provenance.measured[name], results, outputs)
        for name, outputs in checks.items()
        if name
    )


def size_notes(results: Results, checks: Checks) -> Iterator[str]:
    """Notes about the samples of further sizes."""
    for name in list(checks)[1:]:
        for note in start_notes(series_of(results, name)):
            yield f"At {name}: {note[0].lower()}{note[1:]}"


def _record(made: InputSet, results: Results, outputs: tuple[OutputCheck, ...]) -> SizeRecord:
    series = series_of(results, made.name)
    memory = [r for r in results.values() if (r.step.name, r.step.size) == ("memory", made.name)]
    return SizeRecord(
        name=made.name,
        sizes=made.sizes,
        shapes={
            value.name or f"input_{index}": value.shape
            for index, value in enumerate(made.inputs)
            if isinstance(value, TensorFile)
        },
        latency_ms=series.latency,
        first_inference_ms=series.first_inference_ms,
        peak_rss_bytes=(memory[0].results.peak_rss_bytes or None) if memory else None,
        outputs=outputs,
        runs=series.starts,
        spread=series.spread,
    )


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
    """Compares every expected output; a difference is part of the result, not an error."""
    expected = expectation.tensors
    if not expected:
        return ()
    checks = []
    for index, tensor in enumerate(expected):
        checkpoint()
        try:
            if index >= len(outputs):
                raise UnreadableTensorError("the device gave no such output")
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
        raise UnreadableTensorError(
            f"a value of kind {output.kind} was received instead of a tensor"
        )
    have = f"{output.dtype} {list(output.shape or ())}"
    want = f"{expected.dtype} {list(expected.shape)}"
    if have != want:
        raise UnreadableTensorError(f"{have} was received instead of {want}")
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
    name: str,
    tensor: TensorFile,
    distance: TensorDistance,
    limits: Limits,
    step: float | None = None,
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


def _problem(distance: TensorDistance) -> str | None:
    if not distance.odd_places:
        return None
    return (
        f"{distance.odd_places} of {distance.elements} values are NaN or infinite on one side only"
    )


def _remark(distance: TensorDistance, limits: Limits) -> str | None:
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


def _within(distance: TensorDistance, limits: Limits) -> bool:
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
    return _failed(index, tensor, "the model has no such output")


def check_plain(
    name: str, output: RunnerOutput, expected: PlainValue, tolerance: Tolerance
) -> OutputCheck:
    """The verdict on a number, a boolean or None.

    A number that is infinite or undefined on both sides counts as equal: the runner does not report
    which of these it is.
    """
    if output.kind != expected.kind:
        raise UnreadableTensorError(
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
