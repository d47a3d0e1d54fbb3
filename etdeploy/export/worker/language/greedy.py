"""The text that a model finds most probable, and how far rounding errors move its logits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from etdeploy.export.worker.language.forward import Forward
from etdeploy.export.worker.language.prompts import Prompt
from etdeploy.program.generation import (
    GreedyText,
    LogitNoise,
    NextToken,
    logit_distance,
    sampled_ids,
)

_KEPT = 8
# A few units in the last place, as kernels that sum in another order differ by.
_ROUNDING = 2.0**-20
_DRAWS = 2


class UndefinedLogitsError(Exception):
    """No token is the most probable: a logit is NaN, or infinite."""


def greedy_text(
    begin: Callable[[], Forward], prompt: Prompt, draft: GreedyText | None = None
) -> GreedyText:
    """Generate a model's text, in one call if it equals the draft: a call costs like a token.

    `begin` starts a text, and starts it again where the draft differs.
    """
    tokens = list(_verified(begin(), prompt, draft)) if draft else []
    if not _is_whole(tokens, prompt):
        forward, waiting = begin(), [*prompt.ids, *(token.ids[0] for token in tokens)]
        while not _is_whole(tokens, prompt):
            tokens.append(next_token(forward.last(waiting)))
            waiting = [tokens[-1].ids[0]]
    return GreedyText(tokens=tuple(tokens))


def _is_whole(tokens: Sequence[NextToken], prompt: Prompt) -> bool:
    ended = bool(tokens) and tokens[-1].ids[0] in prompt.stop_ids
    return ended or len(tokens) >= prompt.new_tokens


def _verified(forward: Forward, prompt: Prompt, draft: GreedyText) -> Iterator[NextToken]:
    """The model's tokens while they equal the draft's, and the first that differs."""
    for logits, expected in zip(_text_logits(forward, prompt, draft), draft.tokens, strict=True):
        token = next_token(logits)
        yield token
        if token.ids[0] != expected.ids[0]:
            return


def _text_logits(forward: Forward, prompt: Prompt, text: GreedyText) -> torch.Tensor:
    """The logits before each token of a text, of shape (tokens, vocabulary)."""
    fed = [token.ids[0] for token in text.tokens[:-1]]
    return forward.each([*prompt.ids, *fed], len(prompt.ids) - 1)


def logit_noise(
    begin: Callable[[], Forward],
    prompts: Sequence[Prompt],
    texts: Sequence[GreedyText],
    weights: Sequence[torch.Tensor],
) -> LogitNoise | None:
    """How far the logits along a model's texts move if some weights change by rounding errors.

    Several texts are computed with one draw each, a single text with all draws.
    """
    distances: list[tuple[float, float]] = []
    pairs = list(zip(prompts, texts, strict=True))
    if not (weights and pairs):
        return None
    for draw in range(_DRAWS):
        with _rounded_otherwise(weights, draw):
            for prompt, text in pairs[draw % len(pairs) :: _DRAWS]:
                distances += _moved(begin(), prompt, text)
    errors, cosines = zip(*distances, strict=True)
    return LogitNoise(max_error=max(errors), min_cosine=min(cosines))


def _moved(forward: Forward, prompt: Prompt, text: GreedyText) -> Iterator[tuple[float, float]]:
    for token, logits in zip(text.tokens, _text_logits(forward, prompt, text), strict=True):
        ids = (*sampled_ids(logits.shape[0]), *token.ids)
        yield logit_distance(token, {i: float(logits[i]) for i in ids})


def output_noise(
    run: Callable[[], torch.Tensor], weights: Sequence[torch.Tensor]
) -> LogitNoise | None:
    """The same of the logits that a method gives for one call."""
    if not weights:
        return None
    with torch.no_grad():
        before = run().to(torch.float64)
        after = []
        for draw in range(_DRAWS):
            with _rounded_otherwise(weights, draw):
                after.append(run().to(torch.float64))
    cosine = torch.nn.functional.cosine_similarity
    return LogitNoise(
        max_error=max(float((each - before).abs().max()) for each in after),
        min_cosine=min(float(cosine(each.ravel(), before.ravel(), dim=0)) for each in after),
    )


@contextmanager
def _rounded_otherwise(weights: Sequence[torch.Tensor], draw: int) -> Iterator[None]:
    before = [weight.detach().clone() for weight in weights]
    generator = torch.Generator().manual_seed(draw)
    with torch.no_grad():
        for weight in weights:
            weight *= 1 + _ROUNDING * torch.randn(weight.shape, generator=generator)
    try:
        yield
    finally:
        with torch.no_grad():
            for weight, old in zip(weights, before, strict=True):
                weight.copy_(old)


def next_token(logits: torch.Tensor) -> NextToken:
    """The choice of a token."""
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
