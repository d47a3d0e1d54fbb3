"""What two runs generated, and how good their models are."""

from __future__ import annotations

from collections.abc import Iterator

from etdeploy.bench.records.generation import TextGeneration
from etdeploy.bench.records.record import Workload
from etdeploy.core.console import count
from etdeploy.program.expected import Evaluation


def text_remarks(a: TextGeneration, b: Workload) -> Iterator[str]:
    """Sentences about texts and perplexities of both."""
    if not isinstance(b, TextGeneration):
        return
    yield from _texts(a, b)
    if a.evaluation and b.evaluation:
        yield from _perplexities(a.evaluation, b.evaluation)


def _texts(a: TextGeneration, b: TextGeneration) -> Iterator[str]:
    """Whether both generated the same, where nothing is drawn by chance."""
    if a.sampling != b.sampling:
        return
    ours, theirs = a.first.token_ids, b.first.token_ids
    same = next((i for i, (x, y) in enumerate(zip(ours, theirs, strict=False)) if x != y), None)
    if same is None and len(ours) == len(theirs):
        yield f"Both texts have the same {count(len(ours), 'token')}."
    else:
        at = min(len(ours), len(theirs)) if same is None else same
        yield f"They generated different texts, from new token {at + 1} on."


def _perplexities(a: Evaluation, b: Evaluation) -> Iterator[str]:
    if a.sha256 != b.sha256:
        yield "They were evaluated on different texts, or on tokens of different tokenizers."
        return
    ours, theirs = a.exported_perplexity, b.exported_perplexity
    if ours and theirs:
        more = 100 * (theirs / ours - 1)
        yield f"Perplexity on {b.file}: {ours:.4g} in A, {theirs:.4g} in B ({more:+.2g} %)."
