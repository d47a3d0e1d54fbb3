"""Runners that are still running on a device, as its tools list them."""

from __future__ import annotations

from etdeploy.devices.base import Leftover
from etdeploy.devices.remote.run import parse_folders, parse_processes, processes_command

ROOT = "/data/local/tmp/etdeploy"
STAT = "77 (a) S 1 77 77 0 -1 4194304 9 0 0 0 0 0 0 0 20 0 1 0 123450 1000 10 18446744073709"


def test_a_listing_of_processes_on_a_device() -> None:
    output = (
        "lrwxrwxrwx 1 shell shell 0 2026-01-01 10:00 /proc/9/cwd -> /\n"
        f"lrwxrwxrwx 1 shell shell 0 2026-01-01 10:00 /proc/77/cwd -> {ROOT}/runs/r1\n"
        f"lrwxrwxrwx 1 shell shell 0 2026-01-01 10:00 /proc/78/cwd -> {ROOT}/runs/r1\n"
        f"lrwxrwxrwx 1 shell shell 0 2026-01-01 10:00 /proc/79/cwd -> {ROOT}/runs/r2 (deleted)\n"
    )
    folders = parse_folders(output, ROOT)
    assert sorted(folders) == [77, 78, 79]
    assert "/proc/79/exe" in processes_command(folders)
    told = (
        f"#uptime\n1334.5 9.9\n#p77\n{ROOT}/store/ab\n{STAT}\nrunner\n"
        f"#p78\n/system/bin/sh\n{STAT}\nsh\n#p79\n"
    )
    assert parse_processes(told, folders, ROOT) == (Leftover(pid=77, run_id="r1", seconds=100.0),)
