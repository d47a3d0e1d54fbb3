"""Build folders are shared where they can be, and know what they were configured with."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from etdeploy.cache.workspace import Workspace
from etdeploy.core.values import silent
from etdeploy.provider.checkout import Checkout
from etdeploy.runner.build_tree import BuildTree, open_tree


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "cache")


def _checkout(folder: Path) -> Checkout:
    folder.mkdir(parents=True, exist_ok=True)
    return Checkout(path=str(folder), version="1.4.1", revision="1", origin="recipe")


@contextmanager
def _open(
    workspace: Workspace,
    folder: Path,
    target: str = "linux-x86_64",
    compiler: str = "gcc",
) -> Iterator[BuildTree]:
    with open_tree(workspace, target, _checkout(folder), compiler, silent) as tree:
        yield tree


def _root(workspace: Workspace, folder: Path, **given: str) -> Path:
    with _open(workspace, folder, **given) as tree:
        assert tree.root.is_dir()
        return tree.root


def test_one_folder_serves_a_target_a_checkout_and_a_compiler(
    workspace: Workspace, tmp_path: Path
) -> None:
    source = tmp_path / "executorch"
    root = _root(workspace, source)
    assert _root(workspace, source) == root
    others = {
        _root(workspace, source, target="linux-aarch64"),
        _root(workspace, source, compiler="clang"),
        _root(workspace, tmp_path / "other" / "executorch"),
    }
    assert len(others | {root}) == 4
    assert all(path.parent == workspace.root / "builds" for path in others)
    assert root.name.startswith("linux-x86_64-")


def test_a_checkout_by_another_name_gets_a_link_that_executorch_accepts(
    workspace: Workspace, tmp_path: Path
) -> None:
    source = tmp_path / "et-1.4"
    for _ in range(2):
        with _open(workspace, source) as tree:
            assert tree.checkout.folder.name == "executorch"
            assert tree.checkout.folder.resolve() == source
            assert tree.checkout.revision == "1"


def _configured(tree: BuildTree, definitions: dict[str, str]) -> None:
    tree.forget()
    tree.cmake.mkdir(exist_ok=True)
    (tree.cmake / "build.ninja").write_text("")
    tree.remember(definitions)


def test_a_folder_knows_what_it_was_configured_with(workspace: Workspace, tmp_path: Path) -> None:
    with _open(workspace, tmp_path / "executorch") as tree:
        assert not tree.is_configured({"A": "ON"})
        _configured(tree, {"A": "ON", "B": "1"})
    with _open(workspace, tmp_path / "executorch") as again:
        assert again.is_configured({"B": "1", "A": "ON"})
        assert not again.is_configured({"A": "ON"})
        assert not again.is_configured({"A": "OFF", "B": "1"})


@pytest.mark.parametrize("damage", ["definitions.json", "cmake/build.ninja"])
def test_a_folder_that_lost_a_file_is_configured_again(
    damage: str, workspace: Workspace, tmp_path: Path
) -> None:
    with _open(workspace, tmp_path / "executorch") as tree:
        _configured(tree, {"A": "ON"})
        (tree.root / damage).unlink()
        assert not tree.is_configured({"A": "ON"})


def _program(folder: Path, name: str) -> Path:
    path = folder / name / "program.pte"
    path.parent.mkdir()
    path.write_text(name)
    return path


def test_programs_with_one_selection_have_one_name(workspace: Workspace, tmp_path: Path) -> None:
    one, two = _program(tmp_path, "one"), _program(tmp_path, "two")
    with _open(workspace, tmp_path / "executorch") as tree:
        link = tree.select(one, "a" * 64)
        assert link.read_text() == "one"
        assert tree.select(two, "a" * 64) == link
        assert link.read_text() == "two"
        assert tree.select(one, "b" * 64) != link
        assert sorted(p.name for p in tree.root.iterdir()) == [
            f"selected-{letter * 16}.pte" for letter in "ab"
        ]


@pytest.mark.parametrize(
    ("other", "cache"),
    [({}, "cache"), ({"target": "linux-aarch64"}, "cache"), ({"by": "link"}, "other-cache")],
)
def test_builds_on_one_checkout_wait_for_each_other(
    other: dict[str, str], cache: str, workspace: Workspace, tmp_path: Path
) -> None:
    """flatcc's tool is built in the source tree, whatever the target, the cache and the path."""
    source = tmp_path / "executorch"
    source.mkdir(mode=0o555)
    (tmp_path / "link").symlink_to(source)
    order: list[str] = []
    waiting = threading.Event()

    def second() -> None:
        def told(text: str, fraction: float | None = None) -> None:
            waiting.set()

        checkout = _checkout(tmp_path / other.get("by", "executorch"))
        target = other.get("target", "linux-x86_64")
        with open_tree(Workspace(tmp_path / cache), target, checkout, "gcc", told):
            order.append("second")

    thread = threading.Thread(target=second)
    with _open(workspace, source):
        thread.start()
        assert waiting.wait(60)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
