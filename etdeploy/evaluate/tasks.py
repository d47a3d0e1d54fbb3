"""The items that a language model is evaluated on: JSON Lines, or a task of lm-eval."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from etdeploy.core.errors import UsageError
from etdeploy.core.files.basic import open_regular

DEFAULT_NEW_TOKENS = 64
LM_EVAL_SUFFIXES = (".yaml", ".yml")
_FORMATS = (
    'An item is one of\n{"prompt": TEXT, "choices": [TEXT, ...], "answer": INDEX_OR_TEXT}\n'
    '{"prompt": TEXT, "answer": TEXT}\n{"text": TEXT}'
)


@dataclass(frozen=True)
class ChoiceItem:
    """A prompt with several continuations, of which one is right.

    Attributes:
        id: Its name; by default the number of its line.
        choices: The continuations, as they follow the prompt.
        lengths: Characters of each choice without what joins it to the prompt.
        answer: The index of the right one.
    """

    id: str
    prompt: str
    choices: tuple[str, ...]
    lengths: tuple[int, ...]
    answer: int


@dataclass(frozen=True)
class AnswerItem:
    """A prompt whose greedy continuation is compared with answers.

    Attributes:
        answers: Those that are right.
        stops: Texts that end the continuation.
    """

    id: str
    prompt: str
    answers: tuple[str, ...]
    stops: tuple[str, ...] = ("\n",)
    max_new_tokens: int = DEFAULT_NEW_TOKENS


@dataclass(frozen=True)
class TextItem:
    """A text whose probability is measured."""

    id: str
    text: str


TaskItem: TypeAlias = ChoiceItem | AnswerItem | TextItem


@dataclass(frozen=True)
class TaskFile:
    """The items of a file.

    Attributes:
        sha256: Of the file, and of the data that it names.
    """

    path: Path
    sha256: str
    items: tuple[TaskItem, ...]


class _Line(BaseModel):
    """An item as it is written; other keys are ignored, since data sets have more columns."""

    model_config = ConfigDict(extra="ignore", strict=True)

    id: str | int | None = None
    prompt: str | None = None
    choices: list[str] | None = Field(default=None, min_length=2)
    answer: str | int | list[str] | None = None
    text: str | None = None
    stop: str | list[str] = "\n"
    max_new_tokens: int = Field(default=DEFAULT_NEW_TOKENS, ge=1)

    def item(self, number: int) -> TaskItem:
        """Raises ValueError for keys that make no item."""
        name = str(number if self.id is None else self.id)
        if self.text is not None and self.prompt is None:
            return TextItem(name, self.text)
        if self.prompt is None or self.answer is None:
            raise ValueError("it has neither prompt and answer nor text")
        if self.choices is not None:
            return choice_item(name, self.prompt, self.choices, self.answer)
        answers = self.answer if isinstance(self.answer, list) else [str(self.answer)]
        stops = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        return AnswerItem(
            name, self.prompt, tuple(answers), tuple(filter(None, stops)), self.max_new_tokens
        )


def choice_item(
    name: str, prompt: str, choices: list[str], answer: Any, delimiter: str | None = None
) -> ChoiceItem:
    """Return an item; without a `delimiter`, a space joins words that would touch.

    Raises ValueError for an answer that is not among the choices.
    """
    if isinstance(answer, str) and answer in choices:
        answer = choices.index(answer)
    if not isinstance(answer, int) or isinstance(answer, bool) or not 0 <= answer < len(choices):
        raise ValueError(f"the answer {answer!r} is not among the {len(choices)} choices")
    joined = tuple(
        (_joint(prompt, choice) if delimiter is None else delimiter) + choice for choice in choices
    )
    return ChoiceItem(name, prompt, joined, tuple(map(len, choices)), answer)


def _joint(prompt: str, choice: str) -> str:
    return "" if prompt[-1:].isspace() or choice[:1].isspace() or not prompt else " "


def load_tasks(path: Path, limit: int | None = None) -> TaskFile:
    """Read the items of a file, at most `limit`.

    Raises:
        UsageError: The file cannot be read, or an item is wrong; with its line.
    """
    content = read_bytes(path)
    digest = hashlib.sha256(content)
    if path.suffix.lower() in LM_EVAL_SUFFIXES:
        from etdeploy.evaluate.lm_eval import lm_eval_items

        found = lm_eval_items(path, digest.update)
    else:
        found = _items(path, content)
    items = tuple(islice(found, limit))
    if not items:
        raise UsageError("there are no items", place=str(path), remedy=_FORMATS)
    return TaskFile(path, digest.hexdigest(), items)


def read_bytes(path: Path) -> bytes:
    """Raises UsageError for a file that cannot be read."""
    try:
        with open_regular(path) as stream:
            return bytes(stream.read())
    except OSError as error:
        raise UsageError(f"the file cannot be read: {error.strerror}", place=str(path)) from error


def _items(path: Path, content: bytes) -> Iterator[TaskItem]:
    for number, fields in json_rows(path, content):
        try:
            yield _Line.model_validate(fields).item(number)
        except ValidationError as error:
            problem = error.errors(include_url=False, include_input=False)[0]
            key = ".".join(str(part) for part in problem["loc"])
            raise _wrong(path, number, f"{key}: {problem['msg']}") from error
        except ValueError as error:
            raise _wrong(path, number, str(error)) from error


def json_rows(path: Path, content: bytes) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the objects of JSON Lines, or of a JSON array, each with its line or number from 1 on.

    Raises UsageError for anything else.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"the file is not UTF-8 text (byte {error.start})", place=str(path)
        ) from error
    rows: Iterator[tuple[int, Any]]
    if text.lstrip().startswith("["):
        rows = enumerate(_parsed(path, 1, text), 1)
    else:
        lines = enumerate(text.split("\n"), 1)
        rows = ((n, _parsed(path, n, line)) for n, line in lines if line.strip())
    for number, row in rows:
        if not isinstance(row, dict):
            raise _wrong(path, number, "it is not an object of JSON")
        yield number, row


def _parsed(path: Path, number: int, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _wrong(path, number, f"it is not JSON: {error}") from error


def _wrong(path: Path, number: int, why: str) -> UsageError:
    return UsageError(f"this item is wrong: {why}", place=f"{path}:{number}", remedy=_FORMATS)
