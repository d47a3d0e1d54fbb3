"""A comparison of two runs as a value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import zip_longest

from pydantic import ValidationError

from etdeploy.bench.records.generation import TextGeneration
from etdeploy.bench.records.record import RunRecord
from etdeploy.bench.records.stored import StoredRun
from etdeploy.bench.verdict import wrong_outputs
from etdeploy.core.values import StrEnum, Value
from etdeploy.devices.base import DeviceFacts
from etdeploy.program.folder import Provenance, Stored, TensorFile


class Verdict(StrEnum):
    """What a comparison found about B, measured against A."""

    FASTER = "faster"
    SLOWER = "slower"
    NO_DIFFERENCE = "no difference found"
    NOT_COMPARABLE = "not comparable"


class Statistic(StrEnum):
    """What stands for a start."""

    MEDIAN = "median"
    """Half of its inferences took no longer."""
    FASTEST = "fastest"
    """Its fastest inference: other work delays it least."""


class ComparedRun(Value):
    """One of the two.

    Attributes:
        name: The recipe, as a person tells the two apart.
        run_id: Of its record.
        record: The record's file on this machine; null where it is only in the history.
        median_ms: Median of its starts' medians.
        starts: How many there are.
        spread_percent: Between its starts; null with one.
    """

    name: str
    run_id: str
    record: str | None
    median_ms: float
    starts: int
    spread_percent: float | None


class Ratio(Value):
    """B's time by A's, with an interval at 95 % confidence; null where it cannot be said.

    Attributes:
        median: Below 1 where B is faster.
        low: Lower end of the interval.
        high: Upper end of the interval.
    """

    median: float
    low: float | None
    high: float | None


class StartPair(Value):
    """Two starts that followed each other.

    Attributes:
        a_ms: Of A's start, as `statistic` says.
        b_ms: The same of B's.
        ratio: B's by A's.
    """

    a_ms: float
    b_ms: float
    ratio: float


class OperatorChange(Value):
    """An operator or delegate node whose time changed.

    Attributes:
        name: Of the operator or the delegate's node.
        module: The module that it belongs to; empty where it is not known.
        a_ms: Self time in one inference of A; null where A does not have it.
        b_ms: The same of B.
    """

    name: str
    module: str
    a_ms: float | None
    b_ms: float | None


class OutputDifference(Value):
    """How far the outputs of both are apart.

    Attributes:
        name: Of the output.
        max_abs_error: The largest difference; null where they cannot be compared.
        cosine_similarity: From -1 to 1; null for integers.
        problem: Why they cannot be compared.
    """

    name: str
    max_abs_error: float | None
    cosine_similarity: float | None
    problem: str | None = None


class Comparison(Value):
    """Two runs, judged.

    Attributes:
        metric: What is compared: `latency_ms`; of text `token_ms`, the time of each token after the
            first at the first point, or `ttft_ms` where there is only a first one.
        a, b: The two.
        ratio: B's by A's; null where they are not comparable.
        pairs: Empty where the starts did not take turns.
        statistic: What stands for a start, in the ratio and in the pairs.
        verdict: What was found.
        reason: Why, in a sentence.
        remarks: Sentences that weaken it.
        differences: What is under test, as `key A -> B`.
        operators: Those that changed most, the largest change first.
        outputs: B's against A's.
    """

    metric: str
    a: ComparedRun
    b: ComparedRun
    ratio: Ratio | None
    pairs: tuple[StartPair, ...]
    verdict: Verdict
    reason: str
    statistic: Statistic = Statistic.MEDIAN
    remarks: tuple[str, ...] = ()
    differences: tuple[str, ...] = ()
    operators: tuple[OperatorChange, ...] = ()
    outputs: tuple[OutputDifference, ...] = ()


# An operator, or a delegate's node, with its module; self time in one inference, in milliseconds.
OperatorTimes = Mapping[tuple[str, str], float]
_MOST = 10
# A tracer changes times, and one trace shows no spread: what is smaller says nothing.
_LEAST_SHARE = 0.01


def operator_changes(a_ms: OperatorTimes, b_ms: OperatorTimes) -> tuple[OperatorChange, ...]:
    """The operators whose time changed most, the largest change first.

    Changes below 1 % of the longer inference are left out. An operator that only A has and one that
    only B has are one row where they do the work of the same module: a quantized layer has another
    name.

    Args:
        a_ms: By name and module.
        b_ms: The same of B.
    """
    least = _LEAST_SHARE * max(sum(a_ms.values()), sum(b_ms.values()))
    replaced = _replaced(a_ms, b_ms)
    changes = [
        OperatorChange(name=key[0], module=key[1], a_ms=a_ms.get(key), b_ms=b_ms.get(key))
        for key in dict.fromkeys((*a_ms, *b_ms))
        if key not in replaced and key not in replaced.values()
    ]
    changes += [
        OperatorChange(name=f"{a[0]} -> {b[0]}", module=a[1], a_ms=a_ms[a], b_ms=b_ms[b])
        for a, b in replaced.items()
    ]
    changes.sort(key=_size, reverse=True)
    return tuple(change for change in changes[:_MOST] if _size(change) >= least > 0)


def _replaced(a_ms: OperatorTimes, b_ms: OperatorTimes) -> dict[tuple[str, str], tuple[str, str]]:
    """Operators of A with what stands in their place in B."""
    gone, new = (
        {module: [key for key in own if key[1] == module and key not in other] for _, module in own}
        for own, other in ((a_ms, b_ms), (b_ms, a_ms))
    )
    return {
        keys[0]: new[module][0]
        for module, keys in gone.items()
        if module and len(keys) == 1 and len(new.get(module, ())) == 1
    }


def _size(change: OperatorChange) -> float:
    return abs((change.b_ms or 0.0) - (change.a_ms or 0.0))


MIN_DIFFERENCE_PERCENT = 1.0
"""Smaller differences are not called, however sure they are: where a linker puts a function, or the
size of the environment, changes times by as much (Mytkowicz and others, "Producing wrong data
without doing anything obviously wrong!", 2009)."""


def judge(ratio: Ratio, min_difference_percent: float = MIN_DIFFERENCE_PERCENT) -> Verdict:
    """The verdict on B: a difference needs an interval without 1, and has to be large enough."""
    if ratio.low is None or ratio.high is None or ratio.low <= 1 <= ratio.high:
        return Verdict.NO_DIFFERENCE
    if is_small(ratio, min_difference_percent):
        return Verdict.NO_DIFFERENCE
    return Verdict.SLOWER if ratio.median > 1 else Verdict.FASTER


def is_small(ratio: Ratio, min_difference_percent: float) -> bool:
    """Whether the slower one takes less than that much longer than the faster one."""
    return max(ratio.median, 1 / ratio.median) < 1 + min_difference_percent / 100


def explain_verdict(
    ratio: Ratio, pairs: int, min_difference_percent: float = MIN_DIFFERENCE_PERCENT
) -> str:
    """The reason for the verdict, in a sentence."""
    of = f"{pairs} pairs" if pairs != 1 else "one pair"
    if ratio.low is None or ratio.high is None:
        if pairs:
            return f"{of} cannot show the spread between starts: at least 3 are needed"
        return "each side has one start: the spread between starts is unknown"
    between = f"between {ratio.low:.3f} and {ratio.high:.3f}"
    by = f"of {of}" if pairs else "of starts that did not take turns"
    if ratio.low <= 1 <= ratio.high:
        return f"the ratio {by} is {between} with 95 % confidence, and that includes 1"
    if is_small(ratio, min_difference_percent):
        return (
            f"the ratio {by} is {between} with 95 % confidence, but a difference below "
            f"{min_difference_percent:g} % is not called one"
        )
    return f"the ratio {by} is {between} with 95 % confidence"


# Facts of a device with which times change, and what a difference in them shows.
_DEVICE = {
    "kind": "another device: its kind",
    "manufacturer": "another device: its manufacturer",
    "model": "another device: its model",
    "soc": "another device: its SoC",
    "cpu_count": "another device: its number of processors",
    "os": "another system on the device: its name",
    "fingerprint": "another system on the device: its build",
    "emulator": "another emulator: its version",
    "emulated_cpu": "another emulated processor: it",
}


def find_obstacles(a: StoredRun, b: StoredRun) -> tuple[str, ...]:
    """Why B cannot be measured against A, each as a clause; nothing of disturbances."""
    if a.record.run_id == b.record.run_id:
        return ("both are the same run",)
    return (
        *_simulated(a.record, b.record),
        *other_device(a.record.device.facts, b.record.device.facts),
        *_other_workload(a.record, b.record),
        *_other_inputs(a, b),
        *_wrong(a.record, b.record),
    )


def other_device(a: DeviceFacts, b: DeviceFacts) -> Iterator[str]:
    """What shows that two records are of different devices, or of one that was changed."""
    for key, what in _DEVICE.items():
        values = getattr(a, key), getattr(b, key)
        if values[0] != values[1]:
            yield f"{what} is {values[0]} in A and {values[1]} in B"
            return
    if a.serial != b.serial:
        yield "another unit of the same model: the serial numbers differ"
    elif a.serial is None and a.name != b.name:
        yield f"nothing shows that {a.name} and {b.name} are the same unit"


def _simulated(a: RunRecord, b: RunRecord) -> Iterator[str]:
    for side, record in (("A", a), ("B", b)):
        if record.simulated:
            yield f"{side} was simulated by {record.simulated.by} and has no times of a device"


def _other_workload(a: RunRecord, b: RunRecord) -> Iterator[str]:
    if a.workload.kind != b.workload.kind:
        yield f"another workload: {a.workload.kind} in A, {b.workload.kind} in B"
    if isinstance(a.workload, TextGeneration) and isinstance(b.workload, TextGeneration):
        yield from _other_text(a.workload, b.workload)
    # Of text, how a program's methods are called is no part of what is measured.
    elif a.program.method != b.program.method:
        yield f"another method: {a.program.method} in A, {b.program.method} in B"


def _other_text(a: TextGeneration, b: TextGeneration) -> Iterator[str]:
    if a.first.counted != b.first.counted:
        yield f"another first point: {a.first.label} in A, {b.first.label} in B"
    elif a.prompt != b.prompt:
        yield "another prompt"


def _other_inputs(a: StoredRun, b: StoredRun) -> Iterator[str]:
    """By what `export.json` says of them; nothing where it is not there."""
    if isinstance(a.record.workload, TextGeneration):
        return
    of_a, of_b = _inputs(a), _inputs(b)
    if not of_a or not of_b:
        return
    for index, (in_a, in_b) in enumerate(zip_longest(of_a, of_b)):
        if _shown(in_a) != _shown(in_b):
            yield f"other inputs: input {index} is {_shown(in_a)} in A and {_shown(in_b)} in B"
            return


def _inputs(run: StoredRun) -> tuple[Stored, ...]:
    """The inputs of the times that are compared, which are those of the first size."""
    path = run.path("export")
    try:
        made = Provenance.load(path).of(run.record.program.method) if path else None
    except (OSError, ValidationError, KeyError):
        return ()
    return next(iter(made.measured.values())).inputs if made else ()


def _shown(value: Stored | None) -> str:
    if value is None:
        return "not there"
    if isinstance(value, TensorFile):
        return f"a tensor {list(value.shape)}"
    return f"the value {value.value}"


def _wrong(a: RunRecord, b: RunRecord) -> Iterator[str]:
    for side, record in (("A", a), ("B", b)):
        if wrong := wrong_outputs(record):
            yield f"{side} computes something else: {wrong[0].name} is not what its model gives"
