"""What two runs generated, how good their models are, and what quantisation costs them."""

from __future__ import annotations

from collections.abc import Iterator

from etdeploy.bench.records.generation import TextGeneration
from etdeploy.bench.records.record import ProgramRecord, Workload
from etdeploy.core.console import count
from etdeploy.program.expected import Evaluation

_NO_LOSS = "no quantisation before the lowering"


def text_remarks(a: TextGeneration, b: Workload) -> Iterator[str]:
    """Sentences about texts and perplexities of both."""
    if not isinstance(b, TextGeneration):
        return
    yield from _texts(a, b)
    if a.evaluation and b.evaluation:
        yield from _perplexities(a.evaluation, b.evaluation)


def loss_remarks(a: ProgramRecord, b: ProgramRecord) -> Iterator[str]:
    """A sentence for each output that quantisation moves differently in both."""
    ours, theirs = ({loss.name: loss.text for loss in p.quantization_loss} for p in (a, b))
    for name in dict.fromkeys((*ours, *theirs)):
        if ours.get(name) != theirs.get(name):
            sides = zip("AB", (ours, theirs), strict=True)
            told = "; ".join(f"{side.get(name, _NO_LOSS)} in {letter}" for letter, side in sides)
            yield f"{name} against the unquantised model: {told}."


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
