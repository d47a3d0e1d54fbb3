"""Which processes are runners of ours, and which never."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.devices.base import Leftover
from etdeploy.devices.bundles import Process, seconds_since_start
from etdeploy.devices.local.store import find_leftovers

ROOT = "/data/local/tmp/etdeploy"
# A name as no program should have it.
STAT = "77 (a) b (c) S 1 77 77 0 -1 4194304 9 0 0 0 0 0 0 0 20 0 1 0 123450 1000 10 18446744073709"


@pytest.mark.parametrize(
    ("executable", "arguments", "folder", "run_id"),
    [
        (f"{ROOT}/store/ab", ["runner"], f"{ROOT}/runs/r1", "r1"),
        (f"{ROOT}/bundles/ab/runner", ["runner"], f"{ROOT}/runs/r1/deep", "r1"),
        (f"{ROOT}/store/ab (deleted)", ["runner"], f"{ROOT}/runs/r1 (deleted)", "r1"),
        ("/usr/bin/qemu-aarch64", ["q", "-cpu", "max", f"{ROOT}/ab/run"], f"{ROOT}/runs/r1", "r1"),
        # Its working folder is elsewhere: somebody started it by hand.
        (f"{ROOT}/store/ab", ["runner"], "/data/local/tmp", None),
        (f"{ROOT}/store/ab", ["runner"], f"{ROOT}/runs", None),
        (f"{ROOT}/store/ab", ["runner"], f"{ROOT}/runs/", None),
        # It is no program of ours, whatever it names and wherever it works.
        ("/usr/bin/vim", ["vim", f"{ROOT}/bundles/ab/runner"], f"{ROOT}/runs/r1", None),
        ("/usr/bin/gdb", ["gdb", f"{ROOT}/store/ab"], f"{ROOT}/runs/r1", None),
        ("/usr/bin/qemu-aarch64", ["q", "/home/me/runner"], f"{ROOT}/runs/r1", None),
        (f"{ROOT}x/store/ab", ["runner"], f"{ROOT}/runs/r1", None),
    ],
)
def test_a_runner_of_ours_was_started_from_a_bundle_and_works_in_a_run(
    executable: str, arguments: list[str], folder: str, run_id: str | None
) -> None:
    found = Process(7, executable, arguments, folder, 2.5).leftover(ROOT)
    assert found == (Leftover(pid=7, run_id=run_id, seconds=2.5) if run_id else None)


def test_how_long_a_process_has_run() -> None:
    assert seconds_since_start(STAT, "2000.50 1.00\n") == 2000.5 - 1234.5
    for stat, uptime in (("", "1.0 1.0"), (STAT, ""), ("7 (a) S 1", "1.0 1.0")):
        with pytest.raises(ValueError, match="is not a /proc"):
            seconds_since_start(stat, uptime)


def test_a_listing_of_processes_here(tmp_path: Path) -> None:
    root, proc = tmp_path / "bundles", tmp_path / "proc"
    for pid, exe, cwd in (
        (77, root / "store/ab", root / "runs/r1"),
        (78, Path("/usr/bin/vim"), root / "runs/r1"),
        (79, root / "store/ab", tmp_path),
    ):
        folder = proc / str(pid)
        folder.mkdir(parents=True)
        (folder / "exe").symlink_to(exe)
        (folder / "cwd").symlink_to(cwd)
        (folder / "stat").write_text(STAT)
        (folder / "cmdline").write_bytes(b"x\0")
    (proc / "80").mkdir()
    (proc / "uptime").write_text("1244.5 9.9\n")
    assert list(find_leftovers(root, proc)) == [Leftover(pid=77, run_id="r1", seconds=10.0)]
    assert list(find_leftovers(root, tmp_path / "nothing")) == []
