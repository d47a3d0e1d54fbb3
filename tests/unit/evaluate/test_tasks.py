"""Files of tasks: JSON Lines, and tasks of lm-eval with local data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from etdeploy.core.errors import EtdeployError, UsageError
from etdeploy.evaluate.tasks import AnswerItem, ChoiceItem, TaskItem, TextItem, load_tasks
from tests.support.facts import lacks


def items(folder: Path, *rows: Any, name: str = "tasks.jsonl") -> tuple[TaskItem, ...]:
    path = folder / name
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return load_tasks(path).items


def test_items_of_three_kinds(tmp_path: Path) -> None:
    found = items(
        tmp_path,
        {"prompt": "2 + 2 =", "choices": ["4", "5"], "answer": 0, "subject": "ignored"},
        "",
        {"id": "b", "prompt": "Sky:\n", "choices": ["red", "blue"], "answer": "blue"},
        {"prompt": "Paris is in", "answer": "France", "stop": [".", ""], "max_new_tokens": 3},
        {"prompt": "x", "answer": ["a", "b"]},
        {"text": "Once upon a time"},
    )
    assert found == (
        ChoiceItem("1", "2 + 2 =", (" 4", " 5"), (1, 1), 0),
        # A new line is in the way: no space joins the choices.
        ChoiceItem("b", "Sky:\n", ("red", "blue"), (3, 4), 1),
        AnswerItem("4", "Paris is in", ("France",), (".",), 3),
        AnswerItem("5", "x", ("a", "b"), ("\n",)),
        TextItem("6", "Once upon a time"),
    )


def test_an_array_and_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps([{"text": "a"}, {"text": "b"}, {"wrong": 1}]))
    assert load_tasks(path, limit=2).items == (TextItem("1", "a"), TextItem("2", "b"))
    with pytest.raises(UsageError, match="neither"):
        load_tasks(path)


@pytest.mark.parametrize(
    ("row", "facts"),
    [
        ("{", ("tasks.jsonl:2", "JSON")),
        ("[" * 100_000, ("tasks.jsonl:2", "JSON")),
        ("3", ("tasks.jsonl:2", "object")),
        ({"prompt": "a"}, ("tasks.jsonl:2", "answer")),
        ({"prompt": "a", "choices": ["b"], "answer": 0}, ("tasks.jsonl:2", "choices")),
        ({"prompt": "a", "choices": ["b", "c"], "answer": 2}, ("tasks.jsonl:2", "2 choices")),
        ({"prompt": "a", "choices": ["b", "c"], "answer": "d"}, ("tasks.jsonl:2", "'d'")),
        ({"prompt": 1, "answer": "d"}, ("tasks.jsonl:2", "prompt")),
        ({"prompt": "a", "answer": "d", "max_new_tokens": 0}, ("max_new_tokens",)),
    ],
)
def test_a_wrong_item_is_named_by_its_line(
    tmp_path: Path, row: Any, facts: tuple[str, ...]
) -> None:
    with pytest.raises(UsageError) as refused:
        items(tmp_path, {"text": "right"}, row)
    assert not lacks(f"{refused.value.place} {refused.value.message}", *facts)
    assert '{"text": TEXT}' in (refused.value.remedy or "")


@pytest.mark.parametrize("content", [b"", b"\n\n", b"[]", b"\xff\xfe"])
def test_a_file_without_items(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(content)
    with pytest.raises(UsageError):
        load_tasks(path)


TASK = """\
task: mine
dataset_path: json
dataset_kwargs: {data_files: {test: data.jsonl}}
output_type: multiple_choice
doc_to_text: "Q: {{question.strip()}}\\nA:"
doc_to_choice: "{{[a, b]}}"
doc_to_target: label
"""


def lm_eval(folder: Path, task: str, *rows: dict[str, Any]) -> tuple[TaskItem, ...]:
    (folder / "data.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "task.yaml").write_text(task)
    return load_tasks(folder / "task.yaml").items


def test_a_task_of_lm_eval_with_choices(tmp_path: Path) -> None:
    row = {"question": " Is it? ", "a": "yes", "b": "no", "label": 1}
    assert lm_eval(tmp_path, TASK, row) == (
        ChoiceItem("1", "Q: Is it?\nA:", (" yes", " no"), (3, 2), 1),
    )
    listed = TASK.replace('"{{[a, b]}}"', "['yes', 'no']").replace("label", '"{{ label }}"')
    assert lm_eval(tmp_path, listed, row) == lm_eval(tmp_path, TASK, row)
    digests = {load_tasks(tmp_path / "task.yaml").sha256}
    (tmp_path / "data.jsonl").write_text(json.dumps({**row, "label": 0}))
    digests.add(load_tasks(tmp_path / "task.yaml").sha256)
    assert len(digests) == 2


def test_a_task_of_lm_eval_with_answers_and_one_with_texts(tmp_path: Path) -> None:
    answers = TASK.replace("multiple_choice", "generate_until")
    answers += "generation_kwargs: {until: [';'], max_gen_toks: 5}\n"
    row = {"question": "Is it?", "a": "yes", "b": "no", "label": "yes"}
    assert lm_eval(tmp_path, answers, row) == (
        AnswerItem("1", "Q: Is it?\nA:", ("yes",), (";",), 5),
    )
    texts = TASK.replace("multiple_choice", "loglikelihood_rolling").replace("label", "question")
    assert lm_eval(tmp_path, texts, row) == (TextItem("1", "Is it?"),)


@pytest.mark.parametrize(
    ("change", "row", "facts"),
    [
        (("dataset_path: json", "dataset_path: hub/set"), {}, ("task.yaml:2", "local data")),
        (("multiple_choice", "loglikelihood"), {}, ("task.yaml:4", "loglikelihood")),
        (("task: mine", "num_fewshot: 5"), {}, ("task.yaml:1", "examples")),
        (("task: mine", "filter_list: []"), {}, ("task.yaml:1", "filter_list")),
        (("doc_to_target: label", "doc_to_target: !function u.f"), {}, ("task.yaml:7", "function")),
        (("test: data", "train: data"), {}, ("test",)),
        (("", ""), {"label": 3}, ("data.jsonl:1", "3")),
        (("label", "'{{ labels }}'"), {}, ("data.jsonl:1", "labels")),
        (("question.strip()", "question.__class__.__mro__[1]"), {}, ("data.jsonl:1",)),
        (("{{[a, b]}}", "{{ a }}"), {}, ("data.jsonl:1",)),
    ],
)
def test_what_a_task_of_lm_eval_may_not_have(
    tmp_path: Path, change: tuple[str, str], row: dict[str, Any], facts: tuple[str, ...]
) -> None:
    whole = {"question": "Is it?", "a": "yes", "b": "no", "label": 1, **row}
    with pytest.raises(EtdeployError) as refused:
        lm_eval(tmp_path, TASK.replace(*change) if change[0] else TASK, whole)
    assert not lacks(f"{refused.value.place} {refused.value.message}", *facts)
