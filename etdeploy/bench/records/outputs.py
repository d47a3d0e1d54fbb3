"""An output of a program, compared with the model's."""

from __future__ import annotations

from etdeploy.core.values import Value


class OutputCheck(Value):
    """One output against the eager model's.

    Errors are over all values that are finite on both sides, in the output's own unit; null for an
    output that cannot be compared. A limit is null where it was not used.

    Attributes:
        name: `output_0` and so on, in the order of the method's outputs.
        dtype: torch's name of the data type.
        shape: Sizes, the outermost first.
        max_abs_error: The largest difference.
        cosine_similarity: Cosine of the angle between both, from -1 to 1; null for integers.
        tolerance_max_abs: The largest `max_abs_error` that passes.
        tolerance_cosine: The least `cosine_similarity` that passes.
        within_tolerance: Whether the output is correct; null when nothing was compared, because
            every value is NaN or infinite, in the model's own output too.
        problem: Why the output cannot be correct, or cannot be compared, whatever the limits.
        remark: What weakens the comparison.
        rms_error: Root of the mean square difference.
        tolerance_rms: The largest `rms_error` that passes.
        step: Of the quantisation that the values come from; null for one that is not quantised.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    max_abs_error: float | None
    cosine_similarity: float | None
    tolerance_max_abs: float | None
    tolerance_cosine: float | None
    within_tolerance: bool | None
    problem: str | None = None
    remark: str | None = None
    rms_error: float | None = None
    tolerance_rms: float | None = None
    step: float | None = None
