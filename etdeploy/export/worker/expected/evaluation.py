"""How well a model predicts a text, and what quantisation costs it.

The measures of `llama-perplexity --kl-divergence`, llama.cpp's
(https://github.com/ggml-org/llama.cpp/blob/master/tools/perplexity/README.md), with the difference
of the logits. Every token but the first of a window is predicted from those before it in the
window.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from etdeploy.export.worker.expected.forward import Forward
from etdeploy.program.expected import QuantizationCost

# Tokens whose logits are there at a time.
_PART = 64


@dataclass(frozen=True)
class Original:
    """What the original model gave.

    Attributes:
        perplexity: Its own; None where logits are NaN.
        logits: At each position that was predicted, float32 of shape (tokens, vocabulary), in
            parts; none where nothing is compared with them.
    """

    perplexity: float | None
    logits: tuple[torch.Tensor, ...] = ()


def windows(ids: Sequence[int], size: int, bos_id: int | None) -> tuple[tuple[int, ...], ...]:
    """A text in parts that a cache has room for; each begins as a text does.

    Args:
        ids: Of the text, as the tokenizer gives them.
        size: The most tokens of a part; at least 2.
        bos_id: What texts begin with; None for nothing.
    """
    head = () if bos_id is None else (bos_id,)
    body = tuple(ids[1:] if head and tuple(ids[:1]) == head else ids)
    room = size - len(head)
    parts = (head + body[i : i + room] for i in range(0, len(body), room))
    return tuple(part for part in parts if len(part) > 1)


def evaluate(
    begin: Callable[[], Forward], parts: Sequence[Sequence[int]], *, keep: bool
) -> Original:
    """The original model's perplexity.

    Args:
        begin: Gives the model at the beginning of a text.
        parts: Of the text, as `windows` gives them.
        keep: Whether its logits are compared with another model's later.
    """
    surprise, kept, count = 0.0, [], 0
    for logits, targets in _predicted(begin, parts):
        surprise += _surprise(torch.log_softmax(logits, -1), targets)
        count += len(targets)
        if keep:
            kept.append(logits)
    return Original(_perplexity(surprise, count), tuple(kept))


def compare(
    begin: Callable[[], Forward], parts: Sequence[Sequence[int]], original: Original
) -> QuantizationCost:
    """The quantised model's perplexity, and how far its logits are from the original's.

    Args:
        begin: Gives the quantised model at the beginning of a text.
        parts: The same as of the original.
        original: With its logits.
    """
    sums = _Sums()
    for before, (after, targets) in zip(original.logits, _predicted(begin, parts), strict=True):
        sums.add(before, after, targets)
    return sums.cost()


@dataclass
class _Sums:
    """Over positions; differences of logits over those that are finite in both."""

    surprise: float = 0.0
    positions: int = 0
    divergences: list[torch.Tensor] = field(default_factory=list)
    same_top: int = 0
    squares: float = 0.0
    elements: int = 0
    largest: float = 0.0

    def add(self, before: torch.Tensor, after: torch.Tensor, targets: torch.Tensor) -> None:
        p, q = torch.log_softmax(before, -1), torch.log_softmax(after, -1)
        self.surprise += _surprise(q, targets)
        self.positions += len(targets)
        # Rounding may make the divergence of equal distributions a little less than 0.
        self.divergences.append(torch.where(p.isneginf(), 0.0, p.exp() * (p - q)).sum(-1).clamp(0))
        self.same_top += int((before.argmax(-1) == after.argmax(-1)).sum())
        difference = torch.where(before.isneginf() & after.isneginf(), 0.0, after - before).double()
        self.squares += float(difference.square().sum())
        self.elements += difference.numel()
        # torch's maximum, which keeps a NaN.
        self.largest = float(difference.abs().max().maximum(torch.tensor(self.largest)))

    def cost(self) -> QuantizationCost:
        divergences = torch.cat(self.divergences)
        return QuantizationCost(
            perplexity=_perplexity(self.surprise, self.positions),
            mean_kl_divergence=_finite(float(divergences.mean())),
            max_kl_divergence=_finite(float(divergences.max())),
            same_top_percent=100 * self.same_top / self.positions,
            logit_rms_error=_finite(math.sqrt(self.squares / self.elements)),
            logit_max_abs_error=_finite(self.largest),
        )


def _predicted(
    begin: Callable[[], Forward], parts: Sequence[Sequence[int]]
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Logits with the tokens that they are to predict, some positions at a time."""
    for part in parts:
        forward = begin()
        for start in range(0, len(part) - 1, _PART):
            end = min(start + _PART, len(part) - 1)
            yield forward.each(part[start:end]), torch.tensor(part[start + 1 : end + 1])


def _surprise(log_probabilities: torch.Tensor, targets: torch.Tensor) -> float:
    """The sum of -ln(probability) of the tokens that came."""
    return -float(log_probabilities.gather(-1, targets.unsqueeze(-1)).double().sum())


def _perplexity(surprise: float, count: int) -> float | None:
    mean = surprise / count
    # Beyond this, exp() overflows.
    return math.exp(mean) if mean < 700 else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
