"""Compares the texts of a device with those of the eager model.

The most probable token is taken each time. On the device, logits are a little different, so where
two tokens are nearly as probable it may take the other one, and all that follows is another text.
So a first token that differs is judged by the logits that the eager model had there: it is wrong if
its own logit was smaller than the chosen one's by more than both may be off.
"""

from __future__ import annotations

from collections.abc import Sequence

from etdeploy.bench.outputs.tolerance import logit_limit
from etdeploy.bench.records.texts import TextCheck
from etdeploy.program.expected import ExpectedText
from etdeploy.recipe.model import Tolerance


def check_text(
    name: str,
    token_ids: Sequence[int],
    expected: ExpectedText,
    quantization: str | None,
    tolerance: Tolerance,
    *,
    prompt: str | None = None,
    text: str | None = None,
) -> TextCheck:
    """The verdict on one text.

    Args:
        name: Of the text.
        token_ids: What the device gave.
        expected: What the model gives.
        quantization: The program's scheme; None or "none" for an unquantised one.
        tolerance: The recipe's own limits; its `max_abs_error` is about logits.
        prompt: As text, for people.
        text: Likewise, of the device's tokens.
    """
    found, wanted = tuple(token_ids), expected.expected
    equal = common(found, wanted.token_ids)
    gap, exact, limit = None, True, None
    within: bool | None = found == wanted.token_ids
    if equal < min(len(found), len(wanted.tokens)):
        choice = wanted.tokens[equal]
        gap, exact = choice.gap(found[equal])
        limit = 2 * logit_limit(choice.largest, quantization, tolerance.max_abs_error)
        within = gap <= limit
        if within and not exact and not equal:
            within = None  # not one token is known to be right
    original = expected.original.token_ids if expected.quantized else None
    return TextCheck(
        name=name,
        prompt_tokens=len(expected.prompt_ids),
        prompt=prompt,
        token_ids=found,
        text=text,
        expected_ids=wanted.token_ids,
        equal_tokens=equal,
        gap=gap,
        gap_is_exact=exact,
        tolerance_gap=limit,
        within_tolerance=within,
        original_ids=original,
        original_equal_tokens=None if original is None else common(found, original),
    )


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two texts have in common, from the first on."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))


def enough_tolerance(texts: Sequence[TextCheck]) -> float | None:
    """The `max_abs_error` with which all texts are right; None where it is not known."""
    wrong = [text for text in texts if text.within_tolerance is False]
    if any(text.gap is None or not text.gap_is_exact for text in wrong):
        return None
    return max((text.gap / 2 for text in wrong if text.gap is not None), default=None)
