"""Commands that go into a device's shell, and what they print."""

from __future__ import annotations

import shlex

import pytest

from etdeploy.devices.base import Bundle, BundleFile, ProcessLaunch
from etdeploy.devices.remote import layout
from etdeploy.devices.remote.layout import (
    StateSampling,
    parse_df,
    parse_out_of_memory,
)
from etdeploy.devices.remote.shell import DevicePaths

PLACE = DevicePaths("/data/local/tmp")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "Filesystem     1K-blocks    Used Available Use% Mounted on\n"
            "/dev/block/dm-44 233871340 9271340 224600000   4% /data\n",
            224600000 * 1024,
        ),
        (
            "Filesystem           1K-blocks      Used Available Use% Mounted on\n"
            "/dev/block/bootdevice/by-name/userdata\n"
            "                      52429152  50000000   2429152  96% /data\n",
            2429152 * 1024,
        ),
        ("df: /data/local/tmp: Permission denied\n", None),
        ("", None),
    ],
)
def test_free_room(text: str, expected: int | None) -> None:
    assert parse_df(text) == expected


def sha(letter: str) -> str:
    return letter * 64


def file(letter: str, path: str, executable: bool = False) -> BundleFile:
    return BundleFile(
        source="x", path=path, sha256=sha(letter), size_bytes=1, executable=executable
    )


def test_kills_for_want_of_memory() -> None:
    output = "exit code 137\nbefore: oom_kill 3\nafter: oom_kill {}\n"
    assert parse_out_of_memory(output.format(3)) is False
    assert parse_out_of_memory(output.format(4)) is True
    assert parse_out_of_memory("exit code 137\nbefore: \nafter: \n") is None


def linked(*paths: str) -> Bundle:
    return Bundle(
        files=tuple(file("a", path) for path in paths), launch=ProcessLaunch(argv=("runner",))
    )


def test_every_word_from_outside_is_quoted_for_the_shell() -> None:
    nasty = "it's; $(reboot) `x`"
    command = layout.start_command("/r", [nasty], {"A": nasty}, 90, StateSampling())
    assert f"export A={shlex.quote(nasty)}" in command
    assert f"exec {shlex.quote(nasty)} <" in command
    command = layout.talk_command("/r'", [nasty], {"A": nasty}, 90, "end", "marker")
    assert f"export A={shlex.quote(nasty)}" in command
    assert f"exec {shlex.quote(nasty)} 2>" in command
    bundle = linked(nasty)
    for script in (
        layout.survey_command(PLACE, bundle, "d"),
        layout.prepare_command(PLACE, bundle, "/part"),
    ):
        assert shlex.quote(nasty) in script
        assert script.count(nasty) == 0
