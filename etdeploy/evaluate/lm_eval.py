"""Tasks of lm-eval whose data is in local files, without the package.

Their keys are described in
https://github.com/EleutherAI/lm-evaluation-harness/blob/main/docs/task_guide.md.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etdeploy.core.errors import UsageError
from etdeploy.core.values import cached_property
from etdeploy.evaluate.tasks import (
    AnswerItem,
    TaskItem,
    TextItem,
    choice_item,
    json_rows,
    read_bytes,
)
from etdeploy.recipe.document import Document, FileKind, read_document

_TASK = FileKind("a task of lm-eval", "dataset_path", "https://github.com/EleutherAI")
# What changes no score of an item.
_WITHOUT_EFFECT = frozenset(
    {"task", "task_alias", "tag", "group", "metadata", "metric_list", "dataset_name", "repeats",
     "validation_split", "training_split", "fewshot_split", "should_decontaminate"}
)  # fmt: skip
_READ = frozenset(
    {"dataset_path", "dataset_kwargs", "test_split", "output_type", "doc_to_text", "doc_to_choice",
     "doc_to_target", "target_delimiter", "generation_kwargs", "num_fewshot", "description"}
)  # fmt: skip
_DEFAULT_NEW_TOKENS = 256


def lm_eval_items(path: Path, digest: Callable[[bytes], object]) -> Iterator[TaskItem]:
    """Yield the items of a task; `digest` takes the bytes of its data.

    Raises:
        UsageError: The task has a key or a value that is not supported, with its place.
    """
    task = _Task(read_document(path, _TASK), path)
    task.require_supported()
    for number, (place, row) in enumerate(task.rows(digest), 1):
        try:
            yield task.item(str(number), row)
        except _template_errors() as error:
            raise UsageError(f"a template fails: {error}", place=place) from error
        except ValueError as error:
            raise UsageError(f"this item is wrong: {error}", place=place) from error


def _template_errors() -> type[Exception]:
    from jinja2 import TemplateError

    return TemplateError


@dataclass(frozen=True)
class _Task:
    document: Document
    path: Path

    def require_supported(self) -> None:
        for problem in self.document.problems:
            raise UsageError(problem.message, place=problem.place)
        data = self.document.data
        for key, value in data.items():
            if key not in _READ | _WITHOUT_EFFECT:
                raise self._refused(key, f"{key} is not supported")
            if key == "num_fewshot" and value:
                raise self._refused(
                    key, "examples before the prompt (num_fewshot) are not supported"
                )
        if data.get("dataset_path") != "json":
            raise self._refused("dataset_path", "only local data is supported: dataset_path: json")
        if self._kind not in ("multiple_choice", "generate_until", "loglikelihood_rolling"):
            raise self._refused("output_type", f"the output_type {self._kind} is not supported")

    def _refused(self, key: str, why: str) -> UsageError:
        place = self.document.places.get((key,), self.path)
        return UsageError(
            why,
            place=str(place),
            remedy="Write the items as JSON Lines (docs/evaluate.md), or let lm-eval ask a server: "
            "etdeploy serve",
        )

    @property
    def _kind(self) -> str:
        return str(self.document.data.get("output_type", "generate_until"))

    def rows(self, digest: Callable[[bytes], object]) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """The rows of the split that is tested, each with its place."""
        files = (self.document.data.get("dataset_kwargs") or {}).get("data_files")
        if isinstance(files, Mapping):
            split = self.document.data.get("test_split", "test")
            if split not in files:
                raise self._refused("test_split", f"data_files has no {split!r}")
            files = files[split]
        names = [files] if isinstance(files, str) else files
        if not isinstance(names, list) or not names:
            raise self._refused("dataset_kwargs", "dataset_kwargs.data_files names no file")
        for name in names:
            path = self.path.parent / str(name)
            content = read_bytes(path)
            digest(content)
            for number, row in json_rows(path, content):
                yield f"{path}:{number}", row

    def item(self, name: str, row: Mapping[str, Any]) -> TaskItem:
        """An item; raises ValueError or a TemplateError for a row that does not make one."""
        data = self.document.data
        if self._kind == "loglikelihood_rolling":
            return TextItem(
                name, self._text("doc_to_target", row) or self._text("doc_to_text", row)
            )
        prompt = self._text("description", row) + self._text("doc_to_text", row)
        target = self._value("doc_to_target", row)
        if self._kind == "multiple_choice":
            delimiter = str(data.get("target_delimiter", " "))
            if isinstance(target, str) and target.strip().isdecimal():
                target = int(target)
            return choice_item(name, prompt, self._choices(row), target, delimiter)
        options = data.get("generation_kwargs") or {}
        stops = options.get("until", ["\n\n"])
        answers = target if isinstance(target, list) else [str(target)]
        return AnswerItem(
            name, prompt, tuple(map(str, answers)),
            tuple([stops] if isinstance(stops, str) else stops),
            int(options.get("max_gen_toks", _DEFAULT_NEW_TOKENS)),
        )  # fmt: skip

    def _choices(self, row: Mapping[str, Any]) -> list[str]:
        asked = self.document.data.get("doc_to_choice")
        if isinstance(asked, list):
            return [self._rendered(str(each), row) for each in asked]
        found = self._value("doc_to_choice", row)
        if isinstance(found, str):
            found = ast.literal_eval(found)
        if not isinstance(found, Sequence) or len(found) < 2:
            raise ValueError("doc_to_choice gives no list of two or more")
        return [str(each) for each in found]

    def _text(self, key: str, row: Mapping[str, Any]) -> str:
        return str(self._value(key, row)) if key in self.document.data else ""

    def _value(self, key: str, row: Mapping[str, Any]) -> Any:
        """A column by its name, a number, or a template."""
        asked = self.document.data.get(key)
        if not isinstance(asked, str):
            return asked
        return row[asked] if asked in row else self._rendered(asked, row)

    def _rendered(self, template: str, row: Mapping[str, Any]) -> str:
        return str(self._templates.from_string(template).render(**row))

    @cached_property
    def _templates(self) -> Any:
        from jinja2 import StrictUndefined
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        return ImmutableSandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)
