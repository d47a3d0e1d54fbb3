"""The cache: built once, verified before use, shared between processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from etdeploy.cache.folder import CacheKind
from etdeploy.cache.workspace import CacheEntry, Workspace
from etdeploy.core import cancel
from etdeploy.core.errors import Interrupted
from etdeploy.core.files.basic import write_atomic
from etdeploy.core.files.locks import exclusive


class Builder:
    """Fills an entry and counts how often."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, folder: Path) -> None:
        self.count += 1
        (folder / "lib").mkdir()
        (folder / "lib" / "a.so").write_bytes(b"library")
        (folder / "info.json").write_text("{}")


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "cache")


@pytest.fixture
def entry(workspace: Workspace) -> CacheEntry:
    return workspace.entry(CacheKind.RUNNERS, "abc")


@pytest.fixture
def build() -> Builder:
    return Builder()


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: (path / "lib/a.so").write_bytes(b"LIBRARY"),
        lambda path: (path / "lib/a.so").write_bytes(b""),
        lambda path: (path / "lib/a.so").unlink(),
        lambda path: (path / ".manifest.json").unlink(),
        lambda path: (path / ".manifest.json").write_text("{"),
        lambda path: (path / ".manifest.json").write_text("[]"),
    ],
    ids=["changed", "truncated", "missing", "no manifest", "broken manifest", "odd manifest"],
)
@pytest.mark.parametrize("was_checked", [True, False])
def test_a_damaged_entry_is_built_anew(
    workspace: Workspace, entry: CacheEntry, build: Builder, damage: object, was_checked: bool
) -> None:
    workspace.obtain(entry, build)
    if was_checked:
        assert entry.is_sound()
    assert callable(damage)
    damage(entry.path)
    assert not entry.is_sound()
    assert workspace.obtain(entry, build)
    assert build.count == 2
    assert (entry.path / "lib/a.so").read_bytes() == b"library"
    assert entry.is_sound()


def test_damage_with_the_old_date_and_size_is_seen(
    workspace: Workspace, entry: CacheEntry, build: Builder
) -> None:
    workspace.obtain(entry, build)
    assert entry.is_sound()
    path = entry.path / "lib/a.so"
    info = path.stat()
    path.write_bytes(b"LIBRARY")
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
    assert not entry.is_sound()


def test_broken_notes_about_the_last_check_do_not_matter(
    workspace: Workspace, entry: CacheEntry, build: Builder
) -> None:
    workspace.obtain(entry, build)
    assert entry.is_sound()
    (entry.path / ".stamps.json").write_text("[1")
    assert entry.is_sound()
    (entry.path / ".stamps.json").write_text(json.dumps({"lib/a.so": "x"}))
    assert entry.is_sound()


def test_a_build_that_fails_leaves_nothing(
    workspace: Workspace, entry: CacheEntry, build: Builder
) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise RuntimeError("no compiler")

    with pytest.raises(RuntimeError, match="no compiler"):
        workspace.obtain(entry, fail)
    assert list((workspace.root / "runners").iterdir()) == []
    assert workspace.obtain(entry, build)


def test_an_old_entry_stays_while_its_successor_fails(
    workspace: Workspace, entry: CacheEntry, build: Builder
) -> None:
    workspace.obtain(entry, build)
    (entry.path / "info.json").write_text("changed")

    def fail(folder: Path) -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        workspace.obtain(entry, fail)
    assert (entry.path / "info.json").read_text() == "changed"


def test_a_file_with_two_names_counts_once(workspace: Workspace) -> None:
    (workspace.root / "bundles").mkdir(parents=True)
    content = workspace.root / "bundles" / "content"
    content.write_bytes(b"x" * 1000)
    (workspace.root / "bundles" / "link").hardlink_to(content)
    assert workspace.size_bytes() == {"bundles": 1000}


_SECOND_PROCESS = """
import sys, time
from pathlib import Path
from etdeploy.cache.folder import CacheKind
from etdeploy.cache.workspace import Workspace

def build(folder):
    (folder / "by").write_text(sys.argv[2])
    time.sleep(0.3)

workspace = Workspace(Path(sys.argv[1]))
print(workspace.obtain(workspace.entry(CacheKind.PROGRAMS, "shared"), build))
"""


@pytest.mark.usefixtures("real_processes")
def test_processes_at_once_share_one_build(workspace: Workspace) -> None:
    children = [
        subprocess.Popen(
            [sys.executable, "-c", _SECOND_PROCESS, str(workspace.root), str(number)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(3)
    ]
    answers = [child.communicate()[0].strip() for child in children]
    assert sorted(answers) == ["False", "False", "True"]
    builder = (workspace.root / "programs" / "shared" / "by").read_text()
    assert answers[int(builder)] == "True"


def test_a_stop_request_ends_the_wait_for_a_lock(tmp_path: Path) -> None:
    def progress(text: str, fraction: float | None = None) -> None:
        cancel.request()

    def take() -> None:
        with exclusive(tmp_path / "a.lock", "a", progress):
            pytest.fail("the lock is held by somebody else")

    with cancel.trapped_signals(), exclusive(tmp_path / "a.lock", "a"), pytest.raises(Interrupted):
        take()


def test_an_entry_that_this_release_cannot_read_is_made_again(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    entry = workspace.entry(CacheKind.RUNNERS, "key")
    workspace.obtain(entry, lambda folder: write_atomic(folder / "info.json", "old"))

    def usable(folder: Path) -> bool:
        return (folder / "info.json").read_text() == "new"

    def build(folder: Path) -> None:
        write_atomic(folder / "info.json", "new")

    assert workspace.obtain(entry, build, usable=usable)
    assert not workspace.obtain(entry, build, usable=usable)


def test_without_the_variable_it_is_below_the_home_folder(
    monkeypatch: pytest.MonkeyPatch, strange_home: Path
) -> None:
    monkeypatch.delenv("ETDEPLOY_CACHE_DIR")
    assert Workspace.default().root.is_relative_to(strange_home)


def test_names_of_locks_stay_in_their_folder(workspace: Workspace) -> None:
    path = workspace.lock_path("device", "android:../../x:5555")
    assert path.parent == workspace.root / "locks"
