"""How far the outputs of two runs are apart: B's against A's, not against the model's."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from pydantic import ValidationError

from etdeploy.bench.outputs.tensors import UnreadableError, read_tensor
from etdeploy.bench.records.stored import StoredRun
from etdeploy.compare.model import OutputDifference
from etdeploy.core.cancel import checkpoint
from etdeploy.core.files.basic import inside
from etdeploy.program.distance import measure_distance
from etdeploy.runner.protocol import RunnerOutput, RunnerResults


def output_differences(a: StoredRun, b: StoredRun) -> tuple[OutputDifference, ...]:
    """Each output of the first inference, at the first size; empty where there are no files."""
    try:
        sides = [_outputs(run) for run in (a, b)]
    except UnreadableError:
        return ()
    return tuple(_differences(a, b, *sides))


def _differences(
    a: StoredRun, b: StoredRun, of_a: list[RunnerOutput], of_b: list[RunnerOutput]
) -> Iterator[OutputDifference]:
    names = {i: check.name for i, check in enumerate(a.record.inference.outputs)}
    for index, (in_a, in_b) in enumerate(zip_longest(of_a, of_b)):
        checkpoint()
        name = names.get(index, f"output_{index}")
        try:
            yield _difference(name, a, b, in_a, in_b)
        except UnreadableError as error:
            yield _cannot(name, str(error))


def _difference(
    name: str, a: StoredRun, b: StoredRun, in_a: RunnerOutput | None, in_b: RunnerOutput | None
) -> OutputDifference:
    if in_a is None or in_b is None:
        return _cannot(name, f"only {'B' if in_a is None else 'A'} has it")
    if in_a.kind != "Tensor" or in_b.kind != "Tensor":
        return _plain(name, in_a, in_b)
    forms = [f"{value.dtype} {list(value.shape or ())}" for value in (in_a, in_b)]
    if forms[0] != forms[1]:
        return _cannot(name, f"{forms[0]} in A and {forms[1]} in B")
    dtype, shape = in_a.dtype or "", in_a.shape or ()
    files = [_file(run, value) for run, value in ((a, in_a), (b, in_b))]
    first, second = (read_tensor(file, dtype, shape) for file in files)
    distance = measure_distance(second, first)
    odd = (
        f"{distance.odd_places} of {distance.elements} values are NaN or infinite on one side only"
    )
    return OutputDifference(
        name=name,
        max_abs_error=distance.max_abs_error,
        cosine_similarity=distance.cosine_similarity if "float" in dtype else None,
        problem=odd if distance.odd_places else None,
    )


def _plain(name: str, in_a: RunnerOutput, in_b: RunnerOutput) -> OutputDifference:
    if in_a.kind != in_b.kind:
        return _cannot(name, f"{in_a.kind} in A and {in_b.kind} in B")
    if in_a.value is None or in_b.value is None:
        return _cannot(name, "a value is not a number")
    error = abs(float(in_b.value) - float(in_a.value))
    return OutputDifference(name=name, max_abs_error=error, cosine_similarity=None)


def _cannot(name: str, problem: str) -> OutputDifference:
    return OutputDifference(name=name, max_abs_error=None, cosine_similarity=None, problem=problem)


def _outputs(run: StoredRun) -> list[RunnerOutput]:
    """What the timing pass says that it wrote.

    Raises:
        UnreadableError: That is not there any more.
    """
    try:
        path = run.path("timing")
        if path is None:
            raise UnreadableError("the record has no results of the timing pass")
        return list(RunnerResults.load(path).outputs)
    except (OSError, ValueError, ValidationError) as error:
        raise UnreadableError(f"the results of the timing pass cannot be read: {error}") from error


def _file(run: StoredRun, output: RunnerOutput) -> Path:
    try:
        folder = run.path("outputs")
        if folder is None or output.path is None:
            raise UnreadableError("the outputs were not kept")
        return inside(folder, output.path)
    except ValueError as error:
        raise UnreadableError(str(error)) from error
