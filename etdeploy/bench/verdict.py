"""Whether outputs are right, as an error that a user can act on."""

from __future__ import annotations

from pathlib import Path

from etdeploy.bench.record import OutputCheck, RunRecord
from etdeploy.core.errors import MismatchError

_LEAST_HEADROOM = 1.2


def require_match(record: RunRecord) -> None:
    """Passes a record whose outputs are within tolerance, or that had nothing to compare.

    Raises:
        MismatchError: An output differs; the worst one is named.
    """
    wrong = wrong_outputs(record)
    if not wrong:
        return
    worst = max(wrong, key=_badness)
    others = f"; {len(wrong)} of {len(record.outputs)} outputs differ" if len(wrong) > 1 else ""
    raise MismatchError(
        f"{worst.name} ({worst.dtype} {list(worst.shape)}) is not what the model gives: "
        f"{explain(worst)}{others}",
        place=record.device.facts.name,
        remedy=_remedy(worst, record),
        log=Path(record.files["record"]),
    )


def wrong_outputs(record: RunRecord) -> list[OutputCheck]:
    """Outputs that were compared and differ, or that cannot be right."""
    return [check for check in record.outputs if check.within_tolerance is False]


def uncompared_outputs(record: RunRecord) -> list[OutputCheck]:
    """Outputs without any number to compare. That is the model's doing, not the device's."""
    return [check for check in record.outputs if check.within_tolerance is None]


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
        # A cosine near 1 must not be rounded to it.
        parts.append(
            f"cosine similarity {check.cosine_similarity:.6g} "
            f"(at least {check.tolerance_cosine:.6g})"
        )
    return ", ".join(parts) or "equal"


def _in_steps(check: OutputCheck) -> str:
    """The largest error in steps of the output's quantisation."""
    if not check.step or not check.max_abs_error:
        return ""
    steps = check.max_abs_error / check.step
    return f", {steps:.3g} {'step' if round(steps, 2) == 1 else 'steps'} of its quantisation"


def _badness(check: OutputCheck) -> float:
    """How far beyond its tolerance an output is."""
    if check.problem or check.max_abs_error is None or check.tolerance_max_abs is None:
        return float("inf")
    if check.tolerance_max_abs == 0:
        return 1e300 if check.max_abs_error else 0.0
    spread = (check.rms_error or 0.0) / check.tolerance_rms if check.tolerance_rms else 0.0
    return max(check.max_abs_error / check.tolerance_max_abs, spread)


def _remedy(worst: OutputCheck, record: RunRecord) -> str:
    lines = []
    program = record.program
    if program.backend not in (None, "portable"):
        lines.append(
            "See whether the backend is the cause: --set export.backend=portable"
            + (" --set export.quantization=none" if program.quantization != "none" else "")
        )
    if record.device.facts.name != "host":
        lines.append("See whether the device is the cause: --device host")
    if worst.problem is None and worst.max_abs_error is not None:
        allowed = f"{worst.max_abs_error * _LEAST_HEADROOM:.2g}"
        lines.append(
            "If the difference is acceptable, say so: "
            f"--set benchmark.tolerance.max_abs_error={allowed}" + _cosine_override(worst)
        )
    lines.append(f"The device's outputs are in {record.files['outputs']}")
    return "\n".join(lines)


def _cosine_override(worst: OutputCheck) -> str:
    cosine, limit = worst.cosine_similarity, worst.tolerance_cosine
    rms, most = worst.rms_error, worst.tolerance_rms
    if cosine is None or not (
        (limit is not None and cosine < limit)
        or (rms is not None and most is not None and rms > most)
    ):
        return ""
    lower = max(-1.0, cosine - 0.2 * (1 - cosine))
    return f" --set benchmark.tolerance.cosine_similarity={lower:.4g}"
