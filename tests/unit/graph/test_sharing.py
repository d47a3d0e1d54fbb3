"""When two jobs do the same work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from etdeploy.graph.explain import explain_graph, graph_mermaid
from etdeploy.graph.jobs import RecipeDevicePair, open_job
from etdeploy.graph.pipeline import expected_runner, export_work, libraries_work, runner_work
from etdeploy.graph.resolve import Resolved, resolve
from etdeploy.graph.run import Ready
from etdeploy.recipe.load import load_recipe
from tests.support.runtime_values import make_method, make_program

_RELU = make_program(make_method(operators=("aten::relu.out",)))
_DELEGATED = make_program(make_method(delegates=("XnnpackBackend",)))


@pytest.fixture
def resolved(tmp_path: Path) -> Any:
    def look(
        name: str = "a",
        example: str = "mlp",
        target: str = "linux-x86_64",
        more: str = "",
        export: str = "backend: xnnpack",
    ) -> Resolved:
        path = tmp_path / f"{name}.yaml"
        path.write_text(f"model: {{example: {example}}}\nexport: {{{export}}}\n{more}")
        with open_job(load_recipe(str(path)), tmp_path / "out", None, target) as job:
            return resolve(job)

    return look


def test_recipes_share_an_export_whatever_they_are_called_and_run_on(resolved: Any) -> None:
    a = resolved("a", target="android-arm64")
    b = resolved("b", target="linux-aarch64", more="benchmark: {warmup: 3}\n")
    assert export_work(a) == export_work(b)
    # What is rewritten in a model differs.
    assert export_work(a) != export_work(resolved("a", target="linux-x86_64"))
    a = resolved("a")
    assert export_work(a) != export_work(resolved("c", example="convnet"))
    assert export_work(a) != export_work(resolved("d", export="backend: xnnpack, seed: 5"))


def test_user_code_that_was_never_exported_is_shared_by_its_files(
    resolved: Any, tmp_path: Path
) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "net.py").write_text("def make(): ...\n")
    found = []
    for name, folder in (("a", "one"), ("b", "one"), ("c", "two")):
        path = tmp_path / f"{name}.yaml"
        path.write_text(
            f"model: {{python: '{folder}/net.py:make'}}\nexport: {{backend: portable}}\n"
        )
        with open_job(load_recipe(str(path)), tmp_path, None, "linux-x86_64") as job:
            found.append(resolve(job))
    assert [each.program_key for each in found] == [None] * 3
    works = [export_work(each) for each in found]
    assert works[0] == works[1]
    assert works[0] != works[2]


def test_which_runner_is_needed_is_known_with_the_program(resolved: Any) -> None:
    before = resolved()
    assert runner_work(before) is None
    assert libraries_work(before) is None
    assert expected_runner(before)
    assert runner_work(before.with_program(_DELEGATED)) is not None


def test_programs_with_the_same_needs_share_a_runner(resolved: Any) -> None:
    a, b = resolved("a"), resolved("b", example="convnet")
    works = [runner_work(each.with_program(_DELEGATED)) for each in (a, b)]
    assert works[0] == works[1]
    assert works[0] != runner_work(a.with_program(_RELU))
    other = resolved("c", target="linux-aarch64").with_program(_DELEGATED)
    assert works[0] != runner_work(other)
    assert libraries_work(a.with_program(_RELU)) == libraries_work(b.with_program(_DELEGATED))


def explained(*jobs: Resolved) -> Any:
    ready = []
    for number, each in enumerate(jobs):
        member: Any = type("Member", (), {"pair": RecipeDevicePair(f"r{number}", "host")})()
        ready.append(Ready(member, each))
    return explain_graph(ready)


def test_the_drawing_has_one_box_for_each_task(resolved: Any, no_tools: None) -> None:
    graph = explained(resolved("a"), resolved("b"))
    assert [task.expected for task in graph.tasks[:4]] == [False, False, True, True]
    drawn = graph_mermaid(graph)
    assert drawn.count("export all<br/>") == 1
    assert "t0 --> t1" in drawn
    boxes = [line for line in drawn.splitlines() if '["' in line]
    assert len(boxes) == len(graph.tasks)


@pytest.fixture
def no_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is asked what is installed: that would start programs."""
    monkeypatch.setattr("etdeploy.graph.explain.missing_for", lambda _: ())
