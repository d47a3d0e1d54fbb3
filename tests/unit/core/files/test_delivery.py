"""A copy for the user appears whole or not at all, and nothing of the user's is lost for it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from etdeploy.core.errors import UsageError
from etdeploy.core.files.basic import folder_files
from etdeploy.core.files.delivery import LIST_FILE, Delivery


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "cache" / "programs" / "abc"
    (folder / "inputs").mkdir(parents=True)
    (folder / "program.pte").write_bytes(b"one")
    (folder / "inputs" / "0.bin").write_bytes(b"two")
    (folder / ".manifest.json").write_text("{}")
    return folder


@pytest.fixture
def working(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's working folder, with the recipe in a project beside it."""
    (tmp_path / "project" / "models").mkdir(parents=True)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def delivery(folder: Path | str, content: str = "program") -> Delivery:
    root = Path.cwd().parent
    kept = {"recipe's folder": root / "project" / "models"}
    return Delivery(Path(folder), content, kept, root / "cache")


def put(source: Path, folder: Path | str = "out", content: str = "program") -> Path:
    return delivery(folder, content).put(source, (".manifest.json",))


def refusal(folder: Path | str, content: str = "program") -> str:
    before = snapshot(Path.cwd().parent)
    with pytest.raises(UsageError) as caught:
        delivery(folder, content).require_free()
    assert snapshot(Path.cwd().parent) == before
    return str(caught.value)


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def snapshot(folder: Path) -> dict[str, bytes | None]:
    return {str(p): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


def test_an_earlier_delivery_is_replaced_with_all_that_it_had(working: Path, source: Path) -> None:
    (working / "out").mkdir()
    put(source)
    assert (working / "out").stat().st_mode & 0o777 == 0o755
    (source / "inputs" / "0.bin").unlink()
    (source / "program.pte").write_bytes(b"new")
    delivery("out").require_free()
    put(source)
    assert folder_files(working / "out") == [LIST_FILE, "program.pte"]
    assert (working / "out" / "program.pte").read_bytes() == b"new"
    assert names(working) == ["out"], "the old one is gone"


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda out: (out / "notes.txt").write_text("mine"), "notes.txt;"),
        (lambda out: (out / "inputs" / "mine.bin").write_text("mine"), "inputs/mine.bin;"),
        (lambda out: (out / "mine").mkdir(), "mine/;"),
        (lambda out: (out / "program.pte").write_bytes(b"ONE"), "program.pte (changed);"),
        (lambda out: os.mkfifo(out / "pipe"), "pipe;"),
        (lambda out: (out / "link").symlink_to("/etc"), "link;"),
        (lambda out: link_in_place(out / "program.pte"), "program.pte (changed);"),
        (lambda out: (out / LIST_FILE).unlink(), "inputs/, inputs/0.bin, program.pte;"),
        (lambda out: (out / LIST_FILE).write_text("[]"), f"{LIST_FILE}, inputs/, "),
    ],
)
def test_what_the_user_put_there_is_named_and_stays(
    working: Path, source: Path, spoil: object, named: str
) -> None:
    put(source)
    assert callable(spoil)
    spoil(working / "out")
    assert f": {named}" in refusal("out")
    with pytest.raises(UsageError, match="did not write"):
        put(source)
    assert names(working) == ["out"]


def link_in_place(path: Path) -> None:
    moved = path.parent.parent.parent / "moved"
    path.rename(moved)
    path.symlink_to(moved)


def test_a_runner_does_not_replace_a_program(working: Path, source: Path) -> None:
    put(source)
    assert "did not write" in refusal("out", "runner")


@pytest.mark.parametrize(
    ("folder", "why", "remedy"),
    [
        (".", "contains the working folder", "--output program"),
        ("..", "contains the working folder", "--output ../program"),
        ("x/..", "contains the working folder", "--output x/../program"),
        ("/", "contains the working folder", "--output /program"),
        ("../project", "contains the recipe's folder", "--output ../project/program"),
        ("../project/models", "is or contains the recipe's folder", ""),
        ("../cache", "is or contains the cache", "--output FOLDER"),
        ("../cache/programs/abc", "is in the cache", "Name a new or empty folder"),
        ("../cache/new", "is in the cache", "Name a new or empty folder"),
    ],
)
def test_places_that_are_never_replaced(
    working: Path, source: Path, folder: str, why: str, remedy: str
) -> None:
    told = refusal(folder)
    assert why in told
    assert remedy in told
    with pytest.raises(UsageError):
        put(source, folder)
    assert (source / "program.pte").read_bytes() == b"one"


def test_a_mount_point_cannot_be_replaced(working: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (working / "out").mkdir()
    monkeypatch.setattr(os.path, "ismount", lambda _path: True)
    assert "mount point" in refusal("out")


def test_a_link_is_not_followed(working: Path) -> None:
    (working / "real one").mkdir()
    (working / "out").symlink_to("real one")
    told = refusal("out")
    assert "is a symbolic link" in told
    assert f"--output '{working}/real one'" in told


@pytest.mark.parametrize("make", [Path.touch, os.mkfifo])
def test_what_is_not_a_folder_is_refused(working: Path, make: object) -> None:
    assert callable(make)
    make(working / "out")
    assert "is not a folder" in refusal("out")


def test_the_old_delivery_survives_a_failed_copy(
    working: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(source)

    def fail(*_arguments: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(shutil, "copy2", fail)
    with pytest.raises(UsageError, match=r"out: .*program.*Input/output"):
        put(source)
    assert (working / "out" / "program.pte").read_bytes() == b"one"
    assert names(working) == ["out"]


def test_the_old_delivery_survives_a_failed_exchange(
    working: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(source)
    rename = Path.rename
    moved_away: list[Path] = []

    def fail(self: Path, target: Path) -> Path:
        if moved_away and self.name != moved_away[0].name:
            raise OSError(5, "Input/output error")
        if target.name.endswith(".old"):
            moved_away.append(target)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(UsageError, match="Input/output error"):
        put(source)
    assert moved_away
    assert (working / "out" / "program.pte").read_bytes() == b"one"
    assert names(working) == ["out"]


def test_a_list_that_names_files_elsewhere_removes_nothing_there(
    working: Path, source: Path
) -> None:
    put(source)
    (working / "mine.txt").write_text("mine")
    path = working / "out" / LIST_FILE
    known = json.loads(path.read_bytes())
    known["files"] |= {"../mine.txt": "", str(working / "mine.txt"): ""}
    path.write_text(json.dumps(known))
    put(source)
    assert (working / "mine.txt").read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_told_before_the_work(working: Path) -> None:
    (working / "file").touch()
    assert f"cannot be copied there: {working}/file is not a folder" in refusal("file/new/out")
