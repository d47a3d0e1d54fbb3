"""Two run records, judged."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from statistics import median
from typing import Any

from pydantic import ValidationError

from etdeploy.bench.records.generation import TextGeneration
from etdeploy.bench.records.record import ProgramRecord, RunRecord, Workload
from etdeploy.bench.records.stored import StoredRun
from etdeploy.bench.statistics import percentile
from etdeploy.bench.tolerance import UnreadableTensorError, read_tensor
from etdeploy.bench.verdict import uncompared_outputs
from etdeploy.compare.disturbed import UsableTimes, select_pairs, select_starts, start_medians
from etdeploy.compare.model import (
    MIN_DIFFERENCE_PERCENT,
    ComparedRun,
    Comparison,
    OperatorChange,
    OutputDifference,
    Ratio,
    StartPair,
    Verdict,
    explain_verdict,
    find_obstacles,
    judge,
)
from etdeploy.compare.statistics import BETWEEN_RECORDS, paired_ratio, unpaired_ratio
from etdeploy.core.cancel import checkpoint
from etdeploy.core.console import count
from etdeploy.core.files.basic import inside
from etdeploy.core.values import flattened
from etdeploy.program.generation import Evaluation
from etdeploy.program.quality import measure_distance
from etdeploy.runner.protocol import RunnerOutput, RunnerResults

# Starts that are further apart hide a difference of 5 % from ten pairs.
_FAR_APART_PERCENT = 3.0
# The two states of a virtual machine's core, alone or shared with a neighbour, change after some
# tenths of a second. Starts of 50 ms had fastest inferences 4 % apart, and of 250 ms 2 %.
_SHORT_MS = 200.0


def compare_runs(
    a: StoredRun,
    b: StoredRun,
    min_difference_percent: float = MIN_DIFFERENCE_PERCENT,
    operators: Sequence[OperatorChange] = (),
) -> Comparison:
    """Judge B against A by their starts.

    Args:
        a: What B is measured against.
        b: What is judged.
        min_difference_percent: Smaller differences are not called one.
        operators: As `operator_changes` found them, where both have a profile.
    """
    paired = took_turns(a.record, b.record)
    usable = (select_pairs if paired else select_starts)(a.record, b.record)
    against = _refusals(a, b, usable)
    ratio = None if against else _ratio(usable, paired)
    pairs = _pairs(usable) if paired and ratio else ()
    if ratio is None:
        verdict, reason = Verdict.NOT_COMPARABLE, "; ".join(against)
    else:
        verdict = judge(ratio, min_difference_percent)
        reason = explain_verdict(ratio, len(pairs), min_difference_percent)
    return Comparison(
        metric=a.record.workload.metric,
        a=_side(a),
        b=_side(b),
        ratio=ratio,
        pairs=pairs,
        verdict=verdict,
        reason=reason,
        statistic=usable.statistic,
        remarks=() if ratio is None else tuple(_remarks(a.record, b.record, usable, paired)),
        differences=differences(a.record, b.record),
        operators=() if ratio is None else tuple(operators),
        outputs=() if ratio is None else output_differences(a, b),
    )


def took_turns(a: RunRecord, b: RunRecord) -> bool:
    """Whether the starts of both are pairs."""
    together = a.interleaved_with == b.run_id and b.interleaved_with == a.run_id
    return together and len(a.workload.runs) == len(b.workload.runs)


def _refusals(a: StoredRun, b: StoredRun, usable: UsableTimes) -> tuple[str, ...]:
    found = find_obstacles(a, b)
    # A simulator's times, or a device's that is another, need no further reason.
    if found:
        return found
    if usable.obstacles:
        return usable.obstacles
    if not all(0 < time < float("inf") for time in (*usable.a_ms, *usable.b_ms)):
        return ("a start's median is not a positive time",)
    return ()


def _ratio(usable: UsableTimes, paired: bool) -> Ratio:
    if paired:
        return paired_ratio(usable.a_ms, usable.b_ms)
    return unpaired_ratio(usable.a_ms, usable.b_ms)


def _pairs(usable: UsableTimes) -> tuple[StartPair, ...]:
    return tuple(
        StartPair(a_ms=a, b_ms=b, ratio=b / a)
        for a, b in zip(usable.a_ms, usable.b_ms, strict=True)
    )


def _side(run: StoredRun) -> ComparedRun:
    """What the record says of itself, disturbed starts included."""
    medians = start_medians(run.record)
    return ComparedRun(
        name=run.record.recipe.name,
        run_id=run.record.run_id,
        record=str(run.record_path),
        median_ms=percentile(medians, 50),
        starts=len(medians),
        spread_percent=run.record.workload.spread.between_percent,
    )


def _remarks(a: RunRecord, b: RunRecord, usable: UsableTimes, paired: bool) -> Iterator[str]:
    if not paired:
        yield (
            "The runs were measured at different times: the interval includes what records of "
            f"the same thing are taken to differ by, {100 * BETWEEN_RECORDS:.0f} % or more. "
            "Recipes that take turns show smaller differences: etdeploy compare A.yaml B.yaml"
        )
        if min(len(usable.a_ms), len(usable.b_ms)) == 1:
            yield "A run with one start does not show how far its starts are apart."
    yield from usable.remarks
    if usable.medians_ms:
        yield f"{_by_medians(paired_ratio(*usable.medians_ms))}."
    yield from _conditions(a, b)
    yield from _short_starts(a, b) if paired else ()
    yield from _compared_at(a.workload, b.workload)
    yield from loss_remarks(a.program, b.program)
    unchecked = [n for n, r in zip("AB", (a, b), strict=True) if not r.workload.outputs_compared]
    if unchecked:
        yield f"Outputs were not checked: nothing was expected of {' and '.join(unchecked)}."
    if uncompared_outputs(a) or uncompared_outputs(b):
        yield "Outputs that are NaN or infinite in the model too were not checked."


def _short_starts(a: RunRecord, b: RunRecord) -> Iterator[str]:
    """That starts are too short to agree well, where they do not."""
    if max(r.workload.spread.between_percent or 0 for r in (a, b)) < _FAR_APART_PERCENT:
        return
    times_ms = [median(start_medians(record)) for record in (a, b)]
    samples = min(start.samples for record in (a, b) for start in record.workload.runs)
    if samples * max(times_ms) < _SHORT_MS:
        enough = min(_round_up(2 * _SHORT_MS / min(times_ms)), 1_000_000)
        yield (
            f"A start times {count(samples, a.workload.sample)} in "
            f"{samples * max(times_ms):.3g} ms. Longer starts agree better: "
            f"--set benchmark.iterations={enough}"
        )


def _round_up(number: float) -> int:
    """To one digit."""
    unit: int = 10 ** (len(str(int(number))) - 1)
    return unit * math.ceil(number / unit)


def _by_medians(ratio: Ratio) -> str:
    between = "" if ratio.low is None else f", between {ratio.low:.3f} and {ratio.high:.3f}"
    return f"By medians, B takes {ratio.median:.3f} times as long as A{between}"


def _compared_at(a: Workload, b: Workload) -> Iterator[str]:
    """At which of several sizes or points."""
    if isinstance(a, TextGeneration):
        if len(a.points) > 1:
            yield f"Compared at the first point: {a.first.label}."
        yield from text_remarks(a, b)
    elif a.sizes:
        yield f"Compared at the first size, {a.sizes[0].name}."


def _conditions(a: RunRecord, b: RunRecord) -> Iterator[str]:
    changed = measured_differently(a, b)
    if changed:
        yield f"They were measured differently: {', '.join(changed)}."
    hot = [n for n, r in zip("AB", (a, b), strict=True) if _stayed_hot(r)]
    if hot:
        yield f"The device did not cool down before every start of {' and '.join(hot)}."
    if not differences(a, b):
        yield "Nothing that is known differs between A and B: any difference is the measurement's."
    if a.device.facts.emulator:
        yield "Measured in an emulator: the ratio on a device is another."


def _stayed_hot(record: RunRecord) -> bool:
    return any(start.cooldown and not start.cooldown.reached for start in record.workload.runs)


_NO_LOSS = "no quantization before the lowering"


def text_remarks(a: TextGeneration, b: Workload) -> Iterator[str]:
    """Sentences about texts and perplexities of both."""
    if not isinstance(b, TextGeneration):
        return
    yield from _texts(a, b)
    if a.evaluation and b.evaluation:
        yield from _perplexities(a.evaluation, b.evaluation)


def loss_remarks(a: ProgramRecord, b: ProgramRecord) -> Iterator[str]:
    """A sentence for each output that quantization moves differently in both."""
    ours, theirs = ({loss.name: loss.text for loss in p.quantization_loss} for p in (a, b))
    for name in dict.fromkeys((*ours, *theirs)):
        if ours.get(name) != theirs.get(name):
            sides = zip("AB", (ours, theirs), strict=True)
            losses = "; ".join(f"{side.get(name, _NO_LOSS)} in {letter}" for letter, side in sides)
            yield f"{name} against the unquantized model: {losses}."


def _texts(a: TextGeneration, b: TextGeneration) -> Iterator[str]:
    """Whether both generated the same, where nothing is drawn by chance."""
    if a.sampling != b.sampling:
        return
    ours, theirs = a.first.token_ids, b.first.token_ids
    same = next((i for i, (x, y) in enumerate(zip(ours, theirs, strict=False)) if x != y), None)
    if same is None and len(ours) == len(theirs):
        yield f"Both texts have the same {count(len(ours), 'token')}."
    else:
        at = min(len(ours), len(theirs)) if same is None else same
        yield f"They generated different texts, from new token {at + 1} on."


def _perplexities(a: Evaluation, b: Evaluation) -> Iterator[str]:
    if a.sha256 != b.sha256:
        yield "They were evaluated on different texts, or on tokens of different tokenizers."
        return
    ours, theirs = a.exported_perplexity, b.exported_perplexity
    if ours and theirs:
        more = 100 * (theirs / ours - 1)
        yield f"Perplexity on {b.file}: {ours:.4g} in A, {theirs:.4g} in B ({more:+.2g} %)."


# Names and text; `extends` was followed.
_NO_SETTINGS = ("name", "description", "extends")
# How it was measured, and not what.
_MEASUREMENT = "benchmark."
# Those with which the times themselves may change.
_OF_TIMES = ("benchmark.warmup", "benchmark.iterations", "benchmark.cooldown")
_ABSENT = "none"


def differences(a: RunRecord, b: RunRecord) -> tuple[str, ...]:
    """What is under test, as `key A -> B`: settings, threads, program and runner."""
    settings = [
        f"{key} {_shown(x)} -> {_shown(y)}"
        for key, x, y in _changed(a, b)
        if not key.startswith(_MEASUREMENT)
    ]
    return (*settings, *_parts(a, b))


def measured_differently(a: RunRecord, b: RunRecord) -> tuple[str, ...]:
    """Settings of the measurement that differ, in the same form."""
    return tuple(
        f"{key} {_shown(x)} -> {_shown(y)}"
        for key, x, y in _changed(a, b)
        if key.startswith(_OF_TIMES)
    )


def _changed(a: RunRecord, b: RunRecord) -> Iterator[tuple[str, Any, Any]]:
    left, right = (dict(flattened(record.recipe.content)) for record in (a, b))
    for key in dict.fromkeys((*left, *right)):
        if left.get(key) != right.get(key) and key not in _NO_SETTINGS:
            yield key, left.get(key), right.get(key)


def _parts(a: RunRecord, b: RunRecord) -> Iterator[str]:
    """Parts that may differ without any change of a setting."""
    if a.runner.threads != b.runner.threads:
        yield f"threads {a.runner.threads} -> {b.runner.threads}"
    if a.program.sha256 != b.program.sha256:
        yield f"program {_digest(a.program.sha256)} -> {_digest(b.program.sha256)}"
    if a.runner.sha256 != b.runner.sha256:
        yield f"runner {_digest(a.runner.sha256)} -> {_digest(b.runner.sha256)}"
    versions = a.runner.executorch_version, b.runner.executorch_version
    if versions[0] != versions[1]:
        yield f"ExecuTorch of the runner {versions[0]} -> {versions[1]}"


def _digest(sha256: str) -> str:
    return sha256[:8]


def _shown(value: object) -> str:
    """A value as a recipe has it; what is not set is `none`."""
    if value is None or value == []:
        return _ABSENT
    return str(value).lower() if isinstance(value, bool) else str(value)


def output_differences(a: StoredRun, b: StoredRun) -> tuple[OutputDifference, ...]:
    """Each output of the first inference, at the first size; empty where there are no files."""
    try:
        sides = [_outputs(run) for run in (a, b)]
    except UnreadableTensorError:
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
        except UnreadableTensorError as error:
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
    """What the timing pass says that it wrote."""
    try:
        path = run.path("timing")
        if path is None:
            raise UnreadableTensorError("the record has no results of the timing pass")
        return list(RunnerResults.load(path).outputs)
    except (OSError, ValueError, ValidationError) as error:
        raise UnreadableTensorError(
            f"the results of the timing pass cannot be read: {error}"
        ) from error


def _file(run: StoredRun, output: RunnerOutput) -> Path:
    try:
        folder = run.path("outputs")
        if folder is None or output.path is None:
            raise UnreadableTensorError("the outputs were not saved")
        return inside(folder, output.path)
    except ValueError as error:
        raise UnreadableTensorError(str(error)) from error
