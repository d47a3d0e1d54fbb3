"""How a model continues prompts, when the most probable token is taken each time."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from etdeploy.export.worker.expected.forward import Forward
from etdeploy.export.worker.expected.prompts import Prompt
from etdeploy.program.expected import GreedyText, NextToken, sampled_ids

_KEPT = 8


class UndefinedLogitsError(Exception):
    """No token is the most probable: a logit is NaN, or infinite."""


def greedy_text(forward: Forward, prompt: Prompt) -> GreedyText:
    """A model's text.

    Args:
        forward: The model, at the beginning of a text.
        prompt: What it continues.

    Raises:
        UndefinedLogitsError: A logit is NaN.
    """
    tokens = [next_token(forward.last(prompt.ids))]
    while len(tokens) < prompt.new_tokens:
        tokens.append(next_token(forward.last([tokens[-1].ids[0]])))
    return GreedyText(tokens=tuple(tokens))


def next_token(logits: torch.Tensor) -> NextToken:
    """The choice of a token.

    Args:
        logits: Of shape (vocabulary,).

    Raises:
        UndefinedLogitsError: A logit is NaN or infinite; some models exclude tokens by -inf.
    """
    finite = logits[torch.isfinite(logits)]
    if torch.isnan(logits).any() or torch.isposinf(logits).any() or not finite.numel():
        raise UndefinedLogitsError
    values, ids = logits.topk(min(_KEPT, finite.numel()))
    first = int(logits.argmax())  # of equal ones the first, which topk does not promise
    others = [(int(i), float(v)) for i, v in zip(ids, values, strict=True) if int(i) != first]
    best = float(logits[first])
    return NextToken(
        ids=(first, *(i for i, _ in others)),
        behind=(0.0, *(best - value for _, value in others)),
        largest=float(finite.abs().max()),
        best=best,
        sample=tuple(_rounded(logits[list(sampled_ids(logits.shape[0]))])),
    )


def _rounded(logits: torch.Tensor) -> Iterator[float]:
    """In as many digits as matter, and without infinity, which JSON does not have."""
    most = torch.finfo(torch.float32).max
    return (float(f"{value:.7g}") for value in logits.clamp(-most, most).tolist())
