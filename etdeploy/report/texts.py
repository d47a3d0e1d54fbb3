"""Whether generated text is the model's, and how good the model is, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from etdeploy.bench.records.generation import TextGeneration
from etdeploy.bench.records.record import RunRecord
from etdeploy.bench.records.texts import TextCheck
from etdeploy.core.console import count
from etdeploy.program.quality import loss_lines, quality_lines
from etdeploy.report import shown


def verdict_lines(workload: TextGeneration) -> Iterator[str]:
    """The verdict on the texts, and where quantisation changes them; nothing without texts."""
    texts = workload.texts
    wrong = [text for text in texts if text.within_tolerance is False]
    unknown = [text for text in texts if text.within_tolerance is None]
    right = [text for text in texts if text.within_tolerance]
    if wrong:
        which = f"{len(wrong)} of {count(len(texts), 'text')}"
        yield f"WRONG: {which} {'is' if len(wrong) == 1 else 'are'} not what the model gives"
    elif right:
        yield f"correct: {_equal(right)}"
    for text in unknown:
        yield f"NOT COMPARED: {text.name}: {text.parting}"
    for text in (*wrong, *right):
        if text.parting:
            yield f"{text.name}: {text.parting}"
    yield from original_lines(texts)


def quality_of(record: RunRecord) -> Iterator[str]:
    """How good the model is, as far as it was evaluated, and what quantisation costs."""
    workload = record.workload
    if isinstance(workload, TextGeneration):
        yield from quality_lines(workload.evaluation) if workload.evaluation else ()
    yield from loss_lines(record.program.quantization_loss)


def _equal(texts: Sequence[TextCheck]) -> str:
    *others, last = (text.equal_tokens for text in texts)
    tokens = "".join(f"{number:,} and " for number in others) + count(last, "token")
    model = "the quantised model's" if texts[0].original_ids is not None else "the model's"
    if all(text.whole for text in texts):
        return f"token for token {model}, run eagerly ({tokens})"
    errors = [text.max_logit_error for text in texts if text.max_logit_error is not None]
    if len(errors) == len(texts):
        compared = count(sum(text.compared_tokens or 0 for text in texts), "position")
        return f"{model} logits, run eagerly, within {max(errors):.3g} at {compared}"
    return f"{model}, run eagerly, up to tokens that are nearly as probable ({tokens})"


def original_lines(texts: Sequence[TextCheck]) -> Iterator[str]:
    """What quantisation does to the texts."""
    known = [text for text in texts if text.original_ids is not None]
    other = [text for text in known if text.token_ids != text.original_ids]
    if known and not other:
        yield "the model gives the same before it is quantised"
    for text in other:
        at = (text.original_equal_tokens or 0) + 1
        yield (
            f"before it is quantised, the model gives another text from token {at} of "
            f"{len(text.original_ids or ())} on ({text.name})"
        )


def one_line(text: str | None) -> str:
    """A text without control characters, which a terminal or a page would obey."""
    if text is None:
        return shown.NOTHING
    return "".join(c if c.isprintable() else " " for c in text).strip()
