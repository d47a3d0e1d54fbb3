"""Whether outputs are correct, as an error that a user can act on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from etdeploy.bench.records.generation import TextGeneration
from etdeploy.bench.records.outputs import OutputCheck, TextCheck
from etdeploy.bench.records.record import RunRecord
from etdeploy.bench.records.stored import StoredRun
from etdeploy.bench.tolerance import logit_cosine, logit_limit
from etdeploy.core.errors import MismatchError
from etdeploy.devices.base import Capabilities
from etdeploy.program.generation import ExpectedText, LogitNoise, NextToken, logit_distance
from etdeploy.recipe.model import Tolerance

_LEAST_HEADROOM = 1.2
_ELSEWHERE = Capabilities()


def require_match(run: StoredRun, device: Capabilities = _ELSEWHERE) -> None:
    """Raises unless a run's outputs are within tolerance; a run with nothing to compare passes.

    Args:
        run: With its record.
        device: What can be done with its device, for the remedy.

    Raises:
        MismatchError: An output differs; it names the worst one.
    """
    record = run.record
    wrong = wrong_outputs(record)
    if not wrong:
        return
    worst = max(wrong, key=lambda check: (check.problem is not None, strain(check)))
    count = len(record.workload.all_outputs)
    others = f"; {len(wrong)} of {count} outputs differ" if len(wrong) > 1 else ""
    raise MismatchError(
        f"{worst.name} ({worst.dtype} {list(worst.shape)}) is not what the model gives: "
        f"{explain(worst)}{others}",
        place=record.device.facts.name,
        remedy=_remedy(wrong, run, device),
        log=run.record_path,
    )


def wrong_outputs(record: RunRecord) -> list[OutputCheck]:
    """Outputs that were compared and differ, or that cannot be correct."""
    return [check for check in record.workload.all_outputs if check.within_tolerance is False]


def uncompared_outputs(record: RunRecord) -> list[OutputCheck]:
    """Outputs without any number to compare. The cause is the model, not the device."""
    return [check for check in record.workload.all_outputs if check.within_tolerance is None]


def explain(check: OutputCheck) -> str:
    """Error and tolerance in words."""
    if check.problem:
        return check.problem
    parts = []
    if check.max_abs_error is not None and check.tolerance_max_abs is not None:
        parts.append(
            f"largest error {check.max_abs_error:.3g}{_in_steps(check)} "
            f"(tolerance {check.tolerance_max_abs:.3g})"
        )
    if check.rms_error is not None and check.tolerance_rms is not None:
        parts.append(
            f"root mean square error {check.rms_error:.3g} (at most {check.tolerance_rms:.3g})"
        )
    if check.cosine_similarity is not None and check.tolerance_cosine is not None:
        cosine, limit = _distinguishable(check.cosine_similarity, check.tolerance_cosine)
        parts.append(f"cosine similarity {cosine} (at least {limit})")
    return ", ".join(parts) or "equal"


def strain(check: OutputCheck) -> float:
    """How much of its tolerance an output uses: 1 for all of it, more for a wrong one.

    The larger of two ratios: the error by its tolerance, and the measure of the errors'
    distribution (their root mean square, or the cosine's distance from 1) by its limit.
    """
    if check.problem or check.max_abs_error is None or check.tolerance_max_abs is None:
        return math.inf
    strains = [
        _share(check.max_abs_error, check.tolerance_max_abs),
        _share(check.rms_error, check.tolerance_rms),
        _cosine_strain(check),
    ]
    # A cosine beyond its limit is not judged where the error is negligible.
    return min(1.0, max(strains)) if check.within_tolerance else max(strains)


def _share(error: float | None, limit: float | None) -> float:
    if not error or limit is None:
        return 0.0
    return error / limit if limit else math.inf


def _cosine_strain(check: OutputCheck) -> float:
    if check.cosine_similarity is None or check.tolerance_cosine is None:
        return 0.0
    return _share(1 - check.cosine_similarity, 1 - check.tolerance_cosine)


def _distinguishable(cosine: float, limit: float) -> tuple[str, str]:
    """Both with six significant digits, or as many more as show that they differ."""
    texts = [(f"{cosine:.{digits}g}", f"{limit:.{digits}g}") for digits in range(6, 18)]
    return next((pair for pair in texts if pair[0] != pair[1]), texts[0])


def _in_steps(check: OutputCheck) -> str:
    """The largest error in steps of the output's quantisation."""
    if not check.step or not check.max_abs_error:
        return ""
    steps = check.max_abs_error / check.step
    return f", {steps:.3g} {'step' if round(steps, 2) == 1 else 'steps'} of its quantisation"


def _remedy(wrong: Sequence[OutputCheck], run: StoredRun, device: Capabilities) -> str:
    lines = []
    record, program = run.record, run.record.program
    if program.backend not in (None, "portable"):
        lines.append(
            "See whether the backend is the cause: --set export.backend=portable"
            + (" --set export.quantization=none" if program.quantization != "none" else "")
        )
    if not device.is_here:
        without = ", without --as app and --app" if record.runner.app else ""
        lines.append(f"See whether the device is the cause: --device host{without}")
    if isinstance(record.workload, TextGeneration):
        return "\n".join([*lines, *_of_texts(record.workload, run)])
    if not any(check.problem for check in wrong):
        lines.append(_allowed(_overrides(record.workload.all_outputs)))
    folders = ", ".join(str(run.folder / record.files[name]) for name in _wrong_folders(record))
    lines.append(f"The device's outputs are in {folders}")
    return "\n".join(lines)


def _of_texts(workload: TextGeneration, run: StoredRun) -> Iterator[str]:
    enough = enough_tolerance(workload.texts)
    if enough is not None:
        yield _allowed(f"--set benchmark.tolerance.max_abs_error={_above(enough)}")
    if "text" in run.record.files:
        yield f"What the device generated is in {run.folder / run.record.files['text']}"


def _allowed(options: str) -> str:
    return f"If the difference is acceptable, allow it: {options}"


def _wrong_folders(record: RunRecord) -> list[str]:
    """The names, in the record's files, of the outputs of every size that has a wrong one."""
    sizes = record.inference.sizes
    return [
        f"outputs-{size.name}" if index else "outputs"
        for index, size in enumerate(sizes)
        if any(check.within_tolerance is False for check in size.outputs)
    ] or ["outputs"]


def _overrides(outputs: Sequence[OutputCheck]) -> str:
    """Options that make all outputs pass; a limit of the recipe applies to every output."""
    options = []
    if any(_share(c.max_abs_error, c.tolerance_max_abs) > 1 for c in outputs):
        largest = max(c.max_abs_error or 0.0 for c in outputs)
        options.append(f"--set benchmark.tolerance.max_abs_error={_above(largest)}")
    if any(_fails_by_distribution(c) for c in outputs):
        least = min(c.cosine_similarity for c in outputs if c.cosine_similarity is not None)
        options.append(f"--set benchmark.tolerance.cosine_similarity={_below(least)}")
    return " ".join(options)


def _fails_by_distribution(check: OutputCheck) -> bool:
    """Whether the distribution of the errors is what makes an output wrong."""
    if check.within_tolerance is not False:
        return False
    return _share(check.rms_error, check.tolerance_rms) > 1 or _cosine_strain(check) > 1


def _above(error: float) -> str:
    """A limit above the error, as YAML reads numbers: 1e-05 without a point is text to it."""
    text = f"{error * _LEAST_HEADROOM:.2g}"
    return f"{error * _LEAST_HEADROOM:.1e}" if "e" in text else text


def _below(cosine: float) -> str:
    """A limit below the cosine, in as few digits as keep it there."""
    lower = max(-1.0, cosine - 0.2 * (1 - cosine))
    texts = (f"{lower:.{digits}f}" for digits in range(3, 18))
    return next(text for text in texts if float(text) <= cosine)


@dataclass(frozen=True)
class _Position:
    """One position of a text: `gap` is null where the most probable token is the model's."""

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
    """The verdict on one text."""
    found, wanted = tuple(token_ids), expected.expected
    count = min(len(found), len(wanted.tokens))
    positions = [
        _position(wanted.tokens[i], found[i], logits[i], quantization, expected.noise, tolerance)
        for i in range(count)
    ]
    other = next((p for p in positions if p.gap is not None), None)
    wrong = next((i for i, p in enumerate(positions) if not p.is_right), None)
    judged = other if wrong is None else positions[wrong]
    limits = positions if wrong is None else [positions[wrong]]
    original = expected.original.token_ids if expected.quantized else None
    return TextCheck(
        name=name,
        prompt_tokens=len(expected.prompt_ids),
        prompt=prompt,
        token_ids=found,
        text=text,
        expected_ids=wanted.token_ids,
        equal_tokens=common(found, wanted.token_ids),
        gap=judged.gap if judged else None,
        gap_is_exact=judged.gap_is_exact if judged else True,
        tolerance_gap=2 * judged.limit if judged and judged.gap is not None else None,
        compared_tokens=count,
        wrong_token=None if wrong is None else wrong + 1,
        max_logit_error=max(p.error for p in positions),
        tolerance_logit=min(p.limit for p in limits),
        min_cosine=min(p.cosine for p in positions),
        tolerance_cosine=limits[0].least_cosine,
        within_tolerance=wrong is None and len(found) == len(wanted.tokens),
        original_ids=original,
        original_equal_tokens=None if original is None else common(found, original),
    )


def _position(
    choice: NextToken,
    token: int,
    logits: Mapping[int, float],
    quantization: str | None,
    noise: LogitNoise | None,
    tolerance: Tolerance,
) -> _Position:
    limit = logit_limit(choice.largest, quantization, noise, tolerance.max_abs_error)
    gap, exact = (None, True) if token == choice.ids[0] else choice.gap(token)
    error, cosine = logit_distance(choice, logits)
    least = logit_cosine(quantization, noise, tolerance.max_abs_error)
    # One of both logits is off by at least half of the gap.
    return _Position(gap, exact, max(error, (gap or 0) / 2), limit, cosine, least)


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two texts have in common, from the first on."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))


def enough_tolerance(texts: Sequence[TextCheck]) -> float | None:
    """The `max_abs_error` with which all logits are right; None where no text is wrong."""
    return max((t.max_logit_error for t in texts if not t.within_tolerance), default=None)
