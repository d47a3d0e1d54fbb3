"""What killed runs left is swept; what somebody works on, and what is the user's, stays."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from etdeploy.cache.workspace import Workspace
from etdeploy.core.files import basic as files
from etdeploy.core.files.basic import (
    claim,
    claimed,
    new_folder,
    sweep,
    sweep_empty,
    working_folder,
    write_atomic,
)

KEY = "0123456789abcdef" * 2
OURS = (
    f".{KEY}.ab12cd_x", f".{KEY}{KEY}.ab12cd_x", f".{KEY}.ab12cd_x.old",
    ".executorch-1.5.1-linux.ab12cd_x", ".staging-ab12cd_x", ".cloning-ab12cd_x", ".new.ab12cd_x",
    ".export.json.0123456789ab",
)  # fmt: skip
NOT_OURS = (
    KEY, ".notes.settings", f"{KEY}.ab12cd_x", ".staging", ".git", ".export.json", ".new.x",
    "notes.0123456789ab", ".DS_Store",
)  # fmt: skip


def age(path: Path) -> None:
    """Makes it older than what may not be locked yet."""
    then = time.time() - 3600
    os.utime(path, (then, then))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_what_nobody_works_on_goes_and_all_else_stays(tmp_path: Path) -> None:
    for name in (*OURS, *NOT_OURS):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
        age(tmp_path / name)
    sweep(tmp_path)
    assert names(tmp_path) == set(NOT_OURS)
    (tmp_path / OURS[-1]).touch()
    sweep(tmp_path)
    assert names(tmp_path) == {*NOT_OURS, OURS[-1]}, "it was just made"


def test_a_working_folder_that_is_swept_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []

    def mkdtemp(prefix: str, dir: Path) -> str:  # noqa: A002 - as in tempfile
        made.append(Path(dir) / f"{prefix}{len(made):08}")
        made[-1].mkdir()
        if len(made) == 1:
            sweep(tmp_path)
        return str(made[-1])

    monkeypatch.setattr("tempfile.mkdtemp", mkdtemp)
    with working_folder(tmp_path, ".staging-") as work:
        assert [path.is_dir() for path in made] == [False, True]
        assert work == made[1]


def test_links_are_neither_followed_nor_deleted(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    age(theirs)
    (tmp_path / OURS[0]).symlink_to(theirs)
    os.utime(tmp_path / OURS[0], (0, 0), follow_symlinks=False)
    sweep(tmp_path)
    assert names(tmp_path) == {"theirs", OURS[0]}


def test_new_folders_and_files_are_claimed_while_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []

    def look(handle: int) -> None:
        claim(handle)
        [work] = tmp_path.glob(".*")
        age(work)
        sweep(tmp_path)
        seen.append(work.exists())

    with new_folder(tmp_path / KEY) as work:
        age(work)
        sweep(tmp_path)
        assert work.is_dir()
    monkeypatch.setattr(files, "claim", look)
    write_atomic(tmp_path / "value.json", "1")
    assert seen == [True]
    assert names(tmp_path) == {KEY, "value.json"}


_KILLED = """
import os, sys
from pathlib import Path
from etdeploy.core.files.basic import new_folder
with new_folder(Path(sys.argv[1])) as work:
    (work / "half").touch()
    os.kill(os.getpid(), 9)
"""


@pytest.mark.usefixtures("real_processes")
def test_what_a_killed_process_left_is_swept(tmp_path: Path) -> None:
    target = tmp_path / "programs" / KEY
    subprocess.run([sys.executable, "-c", _KILLED, str(target)], check=False)
    assert len(names(target.parent)) == 1
    Workspace(tmp_path).sweep(tmp_path / "state")
    assert names(target.parent) == set()


def test_the_cache_is_swept_where_things_are_written_aside(tmp_path: Path) -> None:
    left = [tmp_path / "runners" / OURS[0], tmp_path / "state/recipe/host" / OURS[-1]]
    kept = [tmp_path / "elsewhere" / OURS[0], tmp_path / OURS[0]]
    for path in (*left, *kept):
        path.mkdir(parents=True)
        age(path)
    Workspace(tmp_path).sweep(tmp_path / "state/recipe/host")
    assert not any(path.exists() for path in left)
    assert all(path.exists() for path in kept)


def test_only_empty_folders_of_the_right_name_go(tmp_path: Path) -> None:
    for name in ("run-1", "run-2", "run-3", "mine"):
        (tmp_path / name).mkdir()
    (tmp_path / "run-2" / "notes.txt").touch()
    for path in tmp_path.iterdir():
        age(path)
    with claimed(tmp_path / "run-3"):
        sweep_empty(tmp_path, re.compile(r"run-\d"))
    assert names(tmp_path) == {"run-2", "run-3", "mine"}
