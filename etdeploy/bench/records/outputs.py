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
        step: Of the quantization that the values come from; null for one that is not quantized.
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


class UndelegatedOperator(Value):
    """An operator that no delegate runs.

    Attributes:
        name: `aten::mean.out`.
        calls: Of it in an inference.
        share: Of the inference's time, from 0 to 1.
        modules: Of the model that call it.
        places: In the model's code, as `file.py:12`.
        reasons: Why the backend did not take it, as clauses.
    """

    name: str
    calls: int
    share: float
    modules: tuple[str, ...] = ()
    places: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()


class UndelegatedTime(Value):
    """The time outside of delegates, from the trace of the profile pass.

    Attributes:
        share: Of the time of an inference, from 0 to 1: (`Method::execute` - `DELEGATE_CALL`) /
            `Method::execute`. What the runtime does between operators is in it.
        operators: Those that take most of it, at most ten.
    """

    share: float
    operators: tuple[UndelegatedOperator, ...] = ()


class RewritesLeft(Value):
    """Places of a model that a rewrite of its graph left as they are.

    Attributes:
        rewrite: Its name.
        reason: As a clause.
        file, line: Of the model's code; null where they are not known.
        places: How many.
    """

    rewrite: str
    reason: str
    file: str | None = None
    line: int | None = None
    places: int = 1


class RewritesRecord(Value):
    """What rewrites of the graph did to the program.

    Attributes:
        tried: Their names.
        applied: How often each changed something.
        left: What they left as it is.
        dropped: Why the program was made without them after all; null if it was not.
        before: Partitions, and operators outside of them, without rewrites.
        after: The same of the program.
    """

    tried: tuple[str, ...]
    applied: dict[str, int]
    left: tuple[RewritesLeft, ...] = ()
    dropped: str | None = None
    before: dict[str, int] = {}
    after: dict[str, int] = {}


class TextCheck(Value):
    """A text of the model that was exported, run eagerly, and what the device gives along it.

    The model takes the most probable token each time, whatever the recipe samples with; no token
    ends the text. The device is fed the model's tokens, so that every position is compared.

    Attributes:
        name: `text_0` and so on.
        prompt_tokens: Tokens of the prompt.
        prompt: The prompt as text; null where the program has no tokenizer that can be read.
        token_ids: The most probable token on the device at each position.
        text: `token_ids` as text; null likewise.
        expected_ids: What the model gives, after quantization where it is quantized.
        equal_tokens: How many are equal, before the first that is not.
        gap: At that first one, or at `wrong_token` if the text is wrong, how much smaller the eager
            model's logit of the device's token is than that of its own token; null where the tokens
            are equal.
        gap_is_exact: Whether it is that; else it is at least that, since the logits of only a few
            tokens are kept.
        tolerance_gap: Up to which another token may be the most probable on the device: twice what
            a logit may be off, which follows from the quantization as for other outputs. null where
            `gap` is.
        compared_tokens: How many positions were compared.
        wrong_token: The first position, counted from 1, that is not within tolerance; null where
            all are.
        max_logit_error: How much the compared logits differ at most, over all positions.
        tolerance_logit: Up to which one may differ, at `wrong_token` or at the strictest position.
        min_cosine: The least cosine of both models' logits at a position, each without their mean.
        tolerance_cosine: The least that it may be; null where the recipe has its own tolerance.
        within_tolerance: Whether the text has all positions and every one is right.
        original_ids: What the model gives in 32-bit floats, before quantization; null for one that
            is not quantized.
        original_equal_tokens: How many of these the device gave, before the first that is another.
    """

    name: str
    prompt_tokens: int
    prompt: str | None
    token_ids: tuple[int, ...]
    text: str | None
    expected_ids: tuple[int, ...]
    equal_tokens: int
    gap: float | None = None
    gap_is_exact: bool = True
    tolerance_gap: float | None = None
    compared_tokens: int
    wrong_token: int | None = None
    max_logit_error: float
    tolerance_logit: float
    min_cosine: float
    tolerance_cosine: float | None = None
    within_tolerance: bool
    original_ids: tuple[int, ...] | None = None
    original_equal_tokens: int | None = None

    @property
    def whole(self) -> bool:
        """Whether it is the model's text, token for token."""
        return self.token_ids == self.expected_ids

    @property
    def parting(self) -> str | None:
        """Where it differs from the model's, as a clause; None where it does not."""
        if self.wrong_token is not None:
            return self._wrong_logits
        if self.whole:
            return None
        at, of = self.equal_tokens, len(self.expected_ids)
        if at == len(self.token_ids) or self.gap is None or self.tolerance_gap is None:
            return f"it has {len(self.token_ids)} tokens in place of {of}"
        least = "" if self.gap_is_exact else "at least "
        return (
            f"token {at + 1} of {of} is {self.token_ids[at]} in place of {self.expected_ids[at]}, "
            f"whose logit is {least}{self.gap:.3g} larger ({self.tolerance_gap:.3g} is within "
            "tolerance)"
        )

    @property
    def _wrong_logits(self) -> str:
        parts = [
            f"logits differ by up to {self.max_logit_error:.3g} "
            f"({self.tolerance_logit:.3g} is within tolerance)"
        ]
        if self.tolerance_cosine is not None:
            parts.append(
                f"their cosine is as low as {self.min_cosine:.5g} (at least "
                f"{self.tolerance_cosine:.5g})"
            )
        return f"from token {self.wrong_token} of {len(self.expected_ids)} on, " + " and ".join(
            parts
        )

    @property
    def as_output(self) -> OutputCheck:
        """The same as for any other output."""
        return OutputCheck(
            name=self.name,
            dtype="int64",
            shape=(len(self.expected_ids),),
            max_abs_error=None,
            cosine_similarity=None,
            tolerance_max_abs=None,
            tolerance_cosine=None,
            within_tolerance=self.within_tolerance,
            problem=None if self.within_tolerance else self.parting,
            remark=self.parting if self.within_tolerance else None,
        )
