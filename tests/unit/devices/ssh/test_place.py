"""Folders of a board that etdeploy can use, and what is said about the others."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from etdeploy.core.errors import DeviceError
from etdeploy.devices.ssh.connection import parse_address, parse_place, place_command, room_command

BOARD = parse_address("pi@board:/mnt/it's")


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ("exec", "mounted with noexec"),
        ("write", "read-only, full, or another's"),
        ("owner", "belongs to another user"),
        ("sh: mkdir: not found", "cannot use the folder"),
    ],
)
def test_a_folder_that_cannot_be_used(state: str, told: str) -> None:
    with pytest.raises(DeviceError, match=told) as caught:
        parse_place(f"{state}\n/mnt/it's\n/var/tmp\n/dev/sda1 1 2 3 4% /\n", BOARD)
    lines = str(caught.value.remedy).splitlines()
    assert shlex.split(lines[-1]) == ["--device", "ssh:pi@board:/var/tmp"]
    assert shlex.split(shlex.split(lines[1])[-1])[:3] == ["df", "-h", "/mnt/it's;"]


def test_without_another_folder_it_is_the_user_who_knows_one() -> None:
    with pytest.raises(DeviceError) as caught:
        parse_place("exec\n/mnt\ntmpfs 1 2 3 4% /mnt\n", BOARD)
    assert "--device ssh:pi@board:/FOLDER" in str(caught.value.remedy)


@pytest.mark.usefixtures("real_processes")
@pytest.mark.parametrize("name", ["plain", "it's new; reboot"])
def test_the_script_finds_out(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    script = place_command(str(folder))
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[:2] == ["ok", str(folder)]
    assert not list((folder / "etdeploy").iterdir())
    assert (folder / "etdeploy").stat().st_mode & 0o777 == 0o700


def test_the_room_is_that_of_the_nearest_folder(tmp_path: Path, real_processes: None) -> None:
    command = room_command(str(tmp_path / "it's" / "not there" / "yet"))
    said = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    expected = subprocess.run(["df", "-k", tmp_path], capture_output=True, text=True, check=True)
    assert said.stdout.split()[-1] == expected.stdout.split()[-1]
    assert not list(tmp_path.iterdir())
