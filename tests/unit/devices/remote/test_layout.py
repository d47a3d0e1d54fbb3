"""Commands that go into a device's shell, and what they print."""

from __future__ import annotations

import shlex

import pytest

from etdeploy.devices.base import Bundle, BundleFile, ProcessLaunch
from etdeploy.devices.remote import layout
from etdeploy.devices.remote.layout import (
    StateSampling,
    parse_df,
    parse_digests,
    parse_exit_code,
    parse_out_of_memory,
    parse_sizes,
    parse_survey,
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


SURVEY = f"""#df
Filesystem 1K-blocks Used Available Use% Mounted on
tmpfs 100 50 50 50% /data
#partial
{sha("c")} 4096
notes 7
#store
{sha("a")} 10 101 755 2026-01-01 10:00:00.5 2026-01-01 10:00:01.5
{sha("b")} 20 102 644 2026-01-01 10:00:00.5 2026-01-01 10:00:09.5
stat: '*': No such file or directory
#stamps
{sha("a")} 10 101 755 2026-01-01 10:00:00.5 2026-01-01 10:00:01.5
{sha("b")} 20 102 644 2026-01-01 10:00:00.5 2026-01-01 10:00:01.5
#links
101 bin/a runner
102 b
"""


def test_a_survey_tells_what_is_untouched() -> None:
    survey = parse_survey(SURVEY)
    assert survey.free_bytes == 50 * 1024
    assert survey.is_sound(sha("a"), executable=True)
    # Its change time differs, so somebody wrote to it.
    assert not survey.is_sound(sha("b"), executable=False)
    assert not survey.is_sound(sha("c"), executable=False)
    assert survey.partial == {sha("c"): 4096}


def test_a_content_that_cannot_be_executed_is_not_sound_for_a_program() -> None:
    stamp = f"{sha('a')} 10 101 644 x y"
    survey = parse_survey(f"#store\n{stamp}\n#stamps\n{stamp}\n")
    assert survey.is_sound(sha("a"), executable=False)
    assert not survey.is_sound(sha("a"), executable=True)


def test_a_survey_tells_whether_the_bundles_paths_lead_to_its_contents() -> None:
    survey = parse_survey(SURVEY)
    good = Bundle(
        files=(file("a", "bin/a runner"), file("b", "b")), launch=ProcessLaunch(argv=("b",))
    )
    swapped = Bundle(
        files=(file("b", "bin/a runner"), file("a", "b")), launch=ProcessLaunch(argv=("b",))
    )
    more = Bundle(files=(*good.files, file("a", "another")), launch=ProcessLaunch(argv=("b",)))
    assert survey.is_laid_out(good)
    assert not survey.is_laid_out(swapped)
    assert not survey.is_laid_out(more)


def test_digests_count_only_where_they_are_the_names() -> None:
    output = f"{sha('a')}  {sha('a')}\n{sha('c')}  {sha('b')}\nsha256sum: x: No such file\n"
    assert parse_digests(output) == {sha("a")}


def test_kills_for_want_of_memory() -> None:
    output = "exit code 137\nbefore: oom_kill 3\nafter: oom_kill {}\n"
    assert parse_out_of_memory(output.format(3)) is False
    assert parse_out_of_memory(output.format(4)) is True
    assert parse_out_of_memory("exit code 137\nbefore: \nafter: \n") is None


def test_sizes_and_exit_codes() -> None:
    assert parse_sizes("200\tstore\n4\truns\n") == {"store": 204800, "runs": 4096}
    assert parse_exit_code("Segmentation fault \nexit code 139\n") == 139
    assert parse_exit_code("cd: no such folder\n") is None


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


def test_what_is_not_in_the_group_ends_with_it() -> None:
    lines = layout.start_command("/r", ["x"], {}, 90, StateSampling(), ending="am force-stop a.b")
    ends = [line for line in lines.splitlines() if "kill -9 -$$" in line]
    assert len(ends) == 2
    assert all("am force-stop a.b; kill -9 -$$" in line for line in ends)
