"""The scores of a model on a device, item by item, and what they add up to."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Literal

from etdeploy.core.errors import UsageError
from etdeploy.core.values import Stop, Value
from etdeploy.devices.base import DeviceFacts
from etdeploy.evaluate.tasks import AnswerItem, ChoiceItem, TaskItem, TextItem
from etdeploy.program.tokenizer import ChatTemplate
from etdeploy.session.session import Session

SCHEMA_VERSION = 1


class ItemScore(Value):
    """What the model gave for an item.

    Attributes:
        id: The item's name.
        kind: `choices`, `answer` or `text`.
        log_probabilities: Natural logarithms of each choice's or answer's probability after the
            prompt, or of the text's without its first token.
        tokens: Of each of these.
        chosen: The index of the most probable choice.
        text: The continuation that was compared with the answers.
        is_right: Whether the choice or the continuation is the answer.
        is_right_normalized: The same of choices by their probability for each character.
        bytes: Of the text, in UTF-8.
    """

    id: str
    kind: Literal["choices", "answer", "text"]
    log_probabilities: tuple[float, ...]
    tokens: tuple[int, ...]
    chosen: int | None = None
    text: str | None = None
    is_right: bool | None = None
    is_right_normalized: bool | None = None
    bytes: int | None = None


class TaskMetric(Value):
    """A number of all items of a kind.

    Attributes:
        standard_error: Of the mean over items; None for a single item, and for metrics that are not
            means.
    """

    name: str
    value: float
    standard_error: float | None
    items: int


class TaskEvaluation(Value):
    """A model's scores on the items of a file, as `evaluate` stores them.

    Attributes:
        is_complete: Whether all items were scored.
        program_sha256: Of the program with its weights.
        simulated: What computed in place of the device's processor; None for the device.
    """

    schema_version: int = SCHEMA_VERSION
    created: datetime
    etdeploy_version: str
    tasks: str
    tasks_sha256: str
    recipe: str
    model: str | None
    program_sha256: str
    device: DeviceFacts
    simulated: str | None
    chat_template: bool
    is_complete: bool
    metrics: tuple[TaskMetric, ...]
    items: tuple[ItemScore, ...]


def score_items(
    session: Session,
    items: Iterable[TaskItem],
    template: ChatTemplate | None,
    stop: Stop | None = None,
) -> Iterator[ItemScore]:
    """Yield the score of each item.

    Args:
        session: The model.
        items: In their order.
        template: Formats prompts as the first message of a chat; None leaves them as they are.
        stop: Ends an item's text, and raises Interrupted.

    Raises:
        UsageError: A prompt does not fit the context.
    """
    scorer = _Scorer(session, template, stop)
    for item in items:
        try:
            yield scorer.score(item)
        except UsageError as error:
            raise UsageError(error.message, place=f"item {item.id}", remedy=error.remedy) from error


class _Scorer:
    def __init__(self, session: Session, template: ChatTemplate | None, stop: Stop | None) -> None:
        self._session, self._template, self._stop = session, template, stop

    def score(self, item: TaskItem) -> ItemScore:
        match item:
            case ChoiceItem():
                return self._choice(item)
            case AnswerItem():
                return self._answer(item)
            case TextItem():
                return self._whole(item)

    def _choice(self, item: ChoiceItem) -> ItemScore:
        found = [self._log_probability(item.prompt, choice) for choice in item.choices]
        sums = [number for number, _ in found]
        each = [number / max(1, size) for number, size in zip(sums, item.lengths, strict=True)]
        chosen = sums.index(max(sums))
        return ItemScore(
            id=item.id, kind="choices", log_probabilities=tuple(sums),
            tokens=tuple(tokens for _, tokens in found), chosen=chosen,
            is_right=chosen == item.answer,
            is_right_normalized=each.index(max(each)) == item.answer,
        )  # fmt: skip

    def _answer(self, item: AnswerItem) -> ItemScore:
        text = ""
        with self._session.generate(
            self._prompt(item.prompt), item.max_new_tokens, temperature=0, stop=self._stop
        ) as pieces:
            for piece in pieces:
                text += piece
                if any(stop in text for stop in item.stops):
                    break
        for stop in item.stops:
            text = text.partition(stop)[0]
        found = [self._log_probability(item.prompt, answer) for answer in item.answers]
        return ItemScore(
            id=item.id, kind="answer", log_probabilities=tuple(number for number, _ in found),
            tokens=tuple(tokens for _, tokens in found), text=text,
            is_right=text.strip() in [answer.strip() for answer in item.answers],
        )  # fmt: skip

    def _whole(self, item: TextItem) -> ItemScore:
        ids = self._session.encode(item.text)
        if len(ids) < 2:
            raise UsageError("the text has a single token, and none is predicted")
        found = self._session.score(ids[:1], ids[1:], stop=self._stop)
        return ItemScore(
            id=item.id, kind="text", log_probabilities=(found.log_probability,),
            tokens=(len(ids) - 1,), bytes=len(item.text.encode()),
        )  # fmt: skip

    def _prompt(self, prompt: str) -> tuple[int, ...]:
        if self._template is None or self._session.tokenizer is None:
            return self._session.encode(prompt)
        rendered = self._template.render([{"role": "user", "content": prompt}])
        return self._session.tokenizer.encode_rendered(rendered)

    def _log_probability(self, prompt: str, continuation: str) -> tuple[float, int]:
        before, after = self._parted(prompt, continuation)
        found = self._session.score(before, after, stop=self._stop)
        return found.log_probability, len(after)

    def _parted(self, prompt: str, continuation: str) -> tuple[Sequence[int], Sequence[int]]:
        """The tokens of a prompt and of what follows it.

        Both are tokenized together, as lm-eval does: a space at the end of the prompt belongs to
        the next word's token.
        """
        if self._template is not None:
            before = self._prompt(prompt)
            tokenizer = self._session.tokenizer
            return before, tokenizer.encode_rendered(continuation.lstrip()) if tokenizer else ()
        bare = prompt.rstrip()
        whole = self._session.encode(prompt + continuation)
        before = self._session.encode(bare)
        if not bare:  # a text of its own, after what begins one
            return whole[:1], whole[1:]
        return before, whole[len(before) :]


def task_metrics(scores: Sequence[ItemScore]) -> tuple[TaskMetric, ...]:
    """Return what scores add up to."""
    choices = [score for score in scores if score.kind == "choices"]
    answers = [score for score in scores if score.kind == "answer"]
    texts = [score for score in scores if score.kind == "text"]
    return (
        *_mean("accuracy", choices, lambda score: score.is_right),
        *_mean("accuracy by character", choices, lambda score: score.is_right_normalized),
        *_mean("exact match", answers, lambda score: score.is_right),
        *_text_metrics(texts),
    )


def _mean(
    name: str, scores: Sequence[ItemScore], value: Callable[[ItemScore], bool | None]
) -> Iterator[TaskMetric]:
    numbers = [float(bool(value(score))) for score in scores]
    if not numbers:
        return
    error = statistics.stdev(numbers) / math.sqrt(len(numbers)) if len(numbers) > 1 else None
    yield TaskMetric(
        name=name, value=statistics.fmean(numbers), standard_error=error, items=len(numbers)
    )


def _text_metrics(texts: Sequence[ItemScore]) -> Iterator[TaskMetric]:
    if not texts:
        return
    total = -sum(score.log_probabilities[0] for score in texts)
    tokens = sum(score.tokens[0] for score in texts)
    size = sum(score.bytes or 0 for score in texts)
    for name, value in (
        ("perplexity", math.exp(min(total / tokens, 700.0))),
        ("bits per byte", total / math.log(2) / size),
    ):
        yield TaskMetric(name=name, value=value, standard_error=None, items=len(texts))
