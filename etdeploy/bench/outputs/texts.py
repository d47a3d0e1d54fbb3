"""Compares the logits of a device with those of the eager model, along a text of the model.

The device is fed the model's tokens, whatever it would choose itself (teacher forcing), so every
position is compared and a token that differs changes no other. A position is right if

1. no compared logit is off by more than a logit's tolerance. Compared are those of `sampled_ids`
   and of the model's most probable tokens;
2. the most probable token on the device is the model's, or one whose logit is smaller by at most
   twice that tolerance: both logits may be off;
3. the cosine of the sampled logits, each vector without its mean, is large enough. The mean changes
   no probability, and the cosine sees logits that are all a little off.

Both limits are wider for a model in which rounding alone moves logits further (`LogitNoise`): with
activations in 8 bits, those of SmolLM2-135M move by 2 to 5 where its embeddings change by 1e-7.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from etdeploy.bench.outputs.tolerance import logit_cosine, logit_limit
from etdeploy.bench.records.outputs import TextCheck
from etdeploy.program.expected import ExpectedText, LogitNoise, NextToken, logit_distance
from etdeploy.recipe.model import Tolerance


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
    """The verdict on one text.

    Args:
        name: Of the text.
        token_ids: The most probable token on the device at each position.
        expected: What the model gives.
        quantization: The program's scheme; None or "none" for an unquantised one.
        tolerance: The recipe's own limits; its `max_abs_error` is about logits.
        logits: Of the device at each position: those of `sampled_ids` in their order, then others.
        prompt: As text, for people.
        text: Likewise, of the device's tokens.
    """
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
