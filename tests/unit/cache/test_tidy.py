"""Parts of the cache are removed by their last use, and never while a run uses them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from etdeploy.cache.folder import CacheKind, prepare_cache
from etdeploy.cache.tidy import (
    CacheRemoval,
    Unit,
    alone,
    find_units,
    keep_below,
    remove_kind,
    remove_units,
    unused_units,
)
from etdeploy.cache.workspace import Workspace, use_lock
from etdeploy.core.errors import UsageError
from etdeploy.core.files.basic import folder_files
from etdeploy.core.files.locks import exclusive

DAY_S = 24 * 3600
KB = 1000


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    prepare_cache(tmp_path / "cache")
    return Workspace(tmp_path / "cache")


def store(workspace: Workspace, kind: str, key: str, days: float = 0, size: int = KB) -> Path:
    """An entry that a run used so many days ago."""
    entry = workspace.entry(CacheKind(kind), key)

    def build(folder: Path) -> None:
        (folder / "f").write_bytes(b"x" * size)

    with workspace.in_use():
        workspace.obtain(entry, build)
    used_s = time.time() - days * DAY_S
    os.utime(use_lock(workspace.locks, kind, key), (used_s, used_s))
    return entry.path


def lay(folder: Path, days: float = 0, size: int = KB, name: str = "f") -> Path:
    """Any other part, with a file in it."""
    folder.mkdir(parents=True)
    (folder / name).write_bytes(b"x" * size)
    used_s = time.time() - days * DAY_S
    os.utime(folder, (used_s, used_s))
    return folder


def names(units: CacheRemoval | list[Unit] | tuple[Unit, ...]) -> list[str]:
    found = units.removed if isinstance(units, CacheRemoval) else units
    return [f"{unit.kind}/{unit.name}" for unit in found]


@contextmanager
def another_run(workspace: Workspace, kind: str = "", key: str = "") -> Iterator[None]:
    """A process that lives, and uses an entry if one is named."""
    child = subprocess.Popen(
        [sys.executable, "-c", _RUN, str(workspace.root), kind, key],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert child.stdin
    assert child.stdout
    try:
        assert child.stdout.readline() == b"ready\n"
        yield
    finally:
        child.communicate()
    assert child.returncode == 0


_RUN = """
import sys
from pathlib import Path
from etdeploy.cache.workspace import Workspace

workspace = Workspace(Path(sys.argv[1]))
with workspace.in_use():
    if sys.argv[2]:
        assert workspace.entry(sys.argv[2], sys.argv[3]).is_sound()
    print("ready", flush=True)
    sys.stdin.read()
    if sys.argv[2]:
        assert workspace.entry(sys.argv[2], sys.argv[3]).is_sound()
"""


def test_parts_are_found_with_size_and_in_the_order_of_their_last_use(workspace: Workspace) -> None:
    store(workspace, "programs", "p", days=3)
    store(workspace, "runners", "r", days=1)
    lay(workspace.root / "builds" / "linux-1", days=5, size=3 * KB)
    lay(workspace.root / "sources" / "v1.5.1" / "executorch", days=9)
    lay(workspace.root / "state" / "mlp-1" / "host", days=2)
    lay(workspace.root / "programs" / ".staging-1", days=9)
    units = find_units(workspace)
    assert names(units) == ["builds/linux-1", "programs/p", "state/mlp-1/host", "runners/r",
                            "sources/v1.5.1"]  # fmt: skip
    sizes = {unit.kind: unit.size_bytes for unit in units}
    assert sizes[CacheKind.BUILDS] == 3 * KB
    assert KB < sizes[CacheKind.PROGRAMS] < 2 * KB, "with the manifest"


def test_a_use_is_noted_when_it_happens(workspace: Workspace) -> None:
    store(workspace, "programs", "old", days=10)
    store(workspace, "programs", "older", days=20)
    with workspace.in_use():
        assert workspace.entry(CacheKind.PROGRAMS, "older").is_sound()
    assert names(find_units(workspace)) == ["programs/old", "programs/older"]


def test_a_build_folder_was_used_when_its_lock_was_taken(workspace: Workspace) -> None:
    lay(workspace.root / "builds" / "linux-1", days=9)
    lay(workspace.root / "builds" / "linux-2", days=5)
    note = workspace.lock_path("builds", "linux-1").with_suffix(".pid")
    note.write_text("1")
    assert names(find_units(workspace)) == ["builds/linux-2", "builds/linux-1"]


def test_a_part_that_was_not_used_is_not_measured_again(workspace: Workspace) -> None:
    folder = lay(workspace.root / "builds" / "linux-1", days=5)
    [before] = find_units(workspace)
    (folder / "f").write_bytes(b"x" * 5 * KB)
    [after] = find_units(workspace)
    assert after == before
    os.utime(folder)
    [used] = find_units(workspace)
    assert used.size_bytes == 5 * KB
    (workspace.root / "sizes.json").write_text("[")
    assert find_units(workspace) == [used]


def test_what_was_used_longest_ago_goes_first_and_no_more_than_is_needed(
    workspace: Workspace,
) -> None:
    for days in (1, 2, 3, 4):
        store(workspace, "programs", f"p{days}", days, size=100 * KB)
    lay(workspace.root / "builds" / "linux-1", days=5, size=100 * KB)
    removal = keep_below(Workspace(workspace.root), 310 * KB)
    assert names(removal) == ["builds/linux-1", "programs/p4"]
    assert removal.freed_bytes[CacheKind.BUILDS] == 100 * KB
    assert sorted(p.name for p in (workspace.root / "programs").iterdir()) == ["p1", "p2", "p3"]
    assert list((workspace.root / ".gone").iterdir()) == []
    assert keep_below(Workspace(workspace.root), 310 * KB) == CacheRemoval()


def test_what_this_run_has_used_stays_even_when_it_is_too_much(workspace: Workspace) -> None:
    store(workspace, "programs", "mine", days=9, size=100 * KB)
    store(workspace, "programs", "other", days=1, size=100 * KB)
    with workspace.in_use():
        assert workspace.entry(CacheKind.PROGRAMS, "mine").is_sound()
        lay(workspace.root / "builds" / "mine", size=100 * KB)
        assert names(keep_below(workspace, 0)) == ["programs/other"]
    assert (workspace.root / "builds" / "mine").is_dir()


def test_the_time_for_it_is_bounded(workspace: Workspace) -> None:
    store(workspace, "programs", "p", days=9)
    units = find_units(workspace)
    assert remove_units(workspace, units, until_s=time.monotonic() - 1) == CacheRemoval()


@pytest.mark.usefixtures("real_processes")
def test_an_entry_that_another_process_uses_stays(workspace: Workspace) -> None:
    store(workspace, "programs", "theirs", days=50)
    store(workspace, "programs", "nobodys", days=40)
    lay(workspace.root / "builds" / "linux-1", days=60)
    old = find_units(workspace)
    with another_run(workspace, "programs", "theirs"):
        removal = remove_units(workspace, old)
        assert names(removal) == ["programs/nobodys"]
        assert names(removal.kept) == ["builds/linux-1", "programs/theirs"]
        assert keep_below(Workspace(workspace.root), 0).removed == ()
        assert names(remove_kind(workspace, CacheKind.PROGRAMS).kept) == ["programs/theirs"]
        assert names(remove_kind(workspace, CacheKind.BUILDS).kept) == ["builds/linux-1"]
    assert names(remove_units(workspace, old)) == ["builds/linux-1", "programs/theirs"]


def test_a_run_that_begins_waits_until_the_cache_is_tidy(workspace: Workspace) -> None:
    order: list[str] = []
    with alone(workspace) as free:
        assert free
        thread = threading.Thread(target=lambda: begin(workspace.root, order))
        thread.start()
        time.sleep(0.05)
        order.append("tidy")
    thread.join()
    assert order == ["tidy", "begun"]


def begin(root: Path, order: list[str]) -> None:
    with Workspace(root).in_use():
        order.append("begun")


def test_looking_whether_other_runs_go_on_keeps_the_own_mark(workspace: Workspace) -> None:
    other = Workspace(workspace.root)
    with workspace.in_use():
        with alone(workspace) as free:
            assert free
        with alone(other) as free:
            assert not free, "the first one still goes on"
        with alone(workspace) as free:
            assert free, "and the look of the second is over"


def test_an_entry_that_is_being_made_stays(workspace: Workspace) -> None:
    store(workspace, "runners", "r", days=9)
    [unit] = find_units(workspace)
    with exclusive(workspace.lock_path("runners", "r"), "runners r"):
        assert names(remove_units(workspace, [unit]).kept) == ["runners/r"]
    assert names(remove_units(workspace, [unit])) == ["runners/r"]


def test_a_removed_bundle_takes_the_contents_along_that_no_other_has(workspace: Workspace) -> None:
    bundles = workspace.root / "bundles"
    store_folder = lay(bundles / "store", name="own", size=5 * KB)
    (store_folder / "shared").write_bytes(b"x" * KB)
    (store_folder / ".new.1").touch()
    lay(bundles / "stamps", name="own")
    for number, contents in enumerate((("own", "shared"), ("shared",))):
        folder = bundles / (str(number) * 64)
        folder.mkdir()
        for content in contents:
            (folder / content).hardlink_to(store_folder / content)
        used_s = time.time() - (9 - number) * DAY_S
        os.utime(folder, (used_s, used_s))
    [old, new] = find_units(workspace)
    assert (old.size_bytes, new.size_bytes) == (5 * KB, 0)
    assert names(remove_units(workspace, [old])) == [f"bundles/{'0' * 64}"]
    assert folder_files(bundles) == [f"{'1' * 64}/shared", "store/.new.1", "store/shared"]


def test_unused_is_what_is_old_or_what_no_recipe_names(workspace: Workspace) -> None:
    named = store(workspace, "programs", "named", days=29)
    store(workspace, "programs", "replaced", days=1)
    store(workspace, "runners", "by-an-old-recipe", days=31)
    lay(workspace.root / "builds" / "recent", days=29)
    lay(workspace.root / "builds" / "old", days=31)
    state = workspace.root / "state"
    recent = lay(state / "mlp-1" / "host", days=1)
    (recent / "export.json").write_text(json.dumps({"folder": str(named), "x": [{"y": "z"}]}))
    (recent / "broken.json").write_text("{")
    os.utime(recent)
    old = lay(state / "convnet-1" / "host", days=31)
    (old / "runner.json").write_text(json.dumps({"path": f"{workspace.root}/runners/x"}))
    os.utime(old, (time.time() - 31 * DAY_S,) * 2)
    unused = unused_units(workspace, find_units(workspace))
    assert sorted(names(unused)) == [
        "builds/old",
        "programs/replaced",
        "runners/by-an-old-recipe",
        "state/convnet-1/host",
    ]


def test_a_whole_kind_goes_with_what_killed_runs_left_and_its_locks(workspace: Workspace) -> None:
    store(workspace, "programs", "p")
    lay(workspace.root / "programs" / ".staging-1", size=3 * KB)
    removal = remove_kind(workspace, CacheKind.PROGRAMS)
    assert removal.freed_bytes[CacheKind.PROGRAMS] > 4 * KB
    assert not (workspace.root / "programs").exists()
    assert sorted(p.name for p in workspace.locks.iterdir()) == ["live.lock"]
    assert remove_kind(workspace, CacheKind.PROGRAMS) == CacheRemoval()
    store(workspace, "programs", "p")


def test_a_linked_kind_loses_the_link_only(workspace: Workspace, tmp_path: Path) -> None:
    elsewhere = lay(tmp_path / "elsewhere")
    (workspace.root / "builds").symlink_to(elsewhere)
    remove_kind(workspace, CacheKind.BUILDS)
    assert not (workspace.root / "builds").is_symlink()
    assert (elsewhere / "f").exists()


@pytest.mark.parametrize("kind", ["..", "/tmp", "locks", "thesis"])
def test_only_kinds_of_the_cache_are_removed(workspace: Workspace, kind: str) -> None:
    with pytest.raises(ValueError, match=kind):
        remove_kind(workspace, CacheKind(kind))


def test_a_folder_of_somebody_else_loses_nothing(tmp_path: Path) -> None:
    lay(tmp_path / "sources" / "mine", days=99)
    (tmp_path / "thesis").touch()
    workspace = Workspace(tmp_path)
    with pytest.raises(UsageError):
        remove_kind(workspace, CacheKind.SOURCES)
    with pytest.raises(UsageError):
        remove_units(workspace, find_units(workspace))
    with pytest.raises(UsageError):
        keep_below(workspace, 0)
    assert (tmp_path / "sources" / "mine" / "f").exists()


def test_on_a_full_disk_there_is_still_removed(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(workspace, "programs", "p", days=9)

    def full(*_arguments: object, **_options: object) -> None:
        raise OSError(28, "No space left on device")

    [unit] = find_units(workspace)
    monkeypatch.setattr(Path, "rename", full)
    assert names(remove_units(workspace, [unit])) == ["programs/p"]
    assert not unit.path.exists()


def test_the_state_of_recipes_is_no_burden(workspace: Workspace) -> None:
    lay(workspace.root / "state" / "mlp-1" / "host", days=9)
    assert keep_below(Workspace(workspace.root), 0) == CacheRemoval()
