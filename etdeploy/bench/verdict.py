"""Whether a run is complete and its outputs are correct, as an error that a user can act on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from etdeploy.bench.records.generation import TextGeneration
from etdeploy.bench.records.outputs import OutputCheck, TextCheck
from etdeploy.bench.records.record import RunRecord
from etdeploy.bench.records.stored import StoredRun
from etdeploy.core.errors import MismatchError, RunError
from etdeploy.devices.base import Capabilities

_LEAST_HEADROOM = 1.2


_ELSEWHERE = Capabilities()


def require_match(run: StoredRun, device: Capabilities = _ELSEWHERE) -> None:
    """Raises MismatchError, which names the worst output, unless all are within tolerance.

    A run with nothing to compare passes.
    """
    record = run.record
    wrong = wrong_outputs(record)
    if not wrong:
        return
    worst = max(wrong, key=lambda check: (check.problem is not None, strain(check)))
    count = len(record.workload.all_outputs)
    others = f"; {len(wrong)} of {count} outputs differ" if len(wrong) > 1 else ""
    raise MismatchError(
        f"{worst.name} ({worst.dtype} {list(worst.shape)}) differs from the model's: "
        f"{explain(worst)}{others}",
        place=record.device.facts.name,
        remedy=_remedy(wrong, run, device),
        log=run.record_path,
    )


def require_whole(run: StoredRun) -> None:
    """Raises RunError if the sustained pass ended early."""
    workload = run.record.workload
    sustained = None if isinstance(workload, TextGeneration) else workload.sustained
    if sustained is None or sustained.ended_early is None:
        return
    raise RunError(
        f"{sustained.ended_early}. The record has what was measured in {sustained.seconds:.0f} s "
        "before that",
        place=run.record.device.facts.name,
        remedy="Measure again, with `run --again`, or for a shorter time: "
        f"--set benchmark.sustained_s={max(1, int(sustained.seconds / 2))}",
        log=run.path("log"),
    )


def wrong_outputs(record: RunRecord) -> list[OutputCheck]:
    """Outputs that differ from the model's or cannot be correct."""
    return [check for check in record.workload.all_outputs if check.within_tolerance is False]


def uncompared_outputs(record: RunRecord) -> list[OutputCheck]:
    """Outputs without a number to compare, because of the model and not the device."""
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
    """Return how much of its tolerance an output uses: 1 for all of it, more for a wrong one.

    It is the larger of two ratios: the error by its tolerance, and the root mean square error, or
    the cosine's distance from 1, by its limit.
    """
    if check.problem or check.max_abs_error is None or check.tolerance_max_abs is None:
        return math.inf
    strains = [
        _share(check.max_abs_error, check.tolerance_max_abs),
        _share(check.rms_error, check.tolerance_rms),
        _cosine_strain(check),
    ]
    # The cosine of a negligible error has no limit.
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
    """Both with six significant digits, or more if they would look equal."""
    texts = [(f"{cosine:.{digits}g}", f"{limit:.{digits}g}") for digits in range(6, 18)]
    return next((pair for pair in texts if pair[0] != pair[1]), texts[0])


def _in_steps(check: OutputCheck) -> str:
    """The largest error in steps of the output's quantization."""
    if not check.step or not check.max_abs_error:
        return ""
    steps = check.max_abs_error / check.step
    return f", {steps:.3g} {'step' if round(steps, 2) == 1 else 'steps'} of its quantization"


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
        return "\n".join([*lines, *_text_remedies(record.workload, run)])
    if not any(check.problem for check in wrong):
        lines.append(_allowed(_overrides(record.workload.all_outputs)))
    folders = ", ".join(str(run.folder / record.files[name]) for name in _wrong_folders(record))
    lines.append(f"The device's outputs are in {folders}")
    return "\n".join(lines)


def _text_remedies(workload: TextGeneration, run: StoredRun) -> Iterator[str]:
    enough = enough_tolerance(workload.texts)
    if enough is not None:
        yield _allowed(f"--set benchmark.tolerance.max_abs_error={_above(enough)}")
    if "text" in run.record.files:
        yield f"The device's text is in {run.folder / run.record.files['text']}"


def _allowed(options: str) -> str:
    return f"If the difference is acceptable, allow it: {options}"


def _wrong_folders(record: RunRecord) -> list[str]:
    """Roles in the record's files of the outputs of every size with a wrong one."""
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
    """Whether an output is wrong because of the distribution of its errors."""
    if check.within_tolerance is not False:
        return False
    return _share(check.rms_error, check.tolerance_rms) > 1 or _cosine_strain(check) > 1


def _above(error: float) -> str:
    """A limit above the error that YAML reads as a number: 1e-05 without a point is a text."""
    text = f"{error * _LEAST_HEADROOM:.2g}"
    return f"{error * _LEAST_HEADROOM:.1e}" if "e" in text else text


def _below(cosine: float) -> str:
    """A limit below the cosine, in as few digits as possible."""
    lower = max(-1.0, cosine - 0.2 * (1 - cosine))
    texts = (f"{lower:.{digits}f}" for digits in range(3, 18))
    return next(text for text in texts if float(text) <= cosine)


def enough_tolerance(texts: Sequence[TextCheck]) -> float | None:
    """The `max_abs_error` that accepts all logits; None if no text is wrong."""
    return max((t.max_logit_error for t in texts if not t.within_tolerance), default=None)
