"""What is installed, and how."""

from __future__ import annotations

from etdeploy.devices.android.app_run import InstalledApk, parse_installed

_PATH = "/data/app/~~xQ_8aw==/org.example.a-1Zt_A==/base.apk"


def test_the_installed_app_is_read() -> None:
    digest = "ab" * 32
    output = f"#user\n10\n#paths\npackage:{_PATH}\n#digest\n{digest}  {_PATH}\n"
    there = parse_installed(output)
    assert there == InstalledApk(10, (_PATH,), digest)
    assert there.is_content(digest)
    assert not there.is_content("cd" * 32)


def test_an_app_in_parts_is_another_one() -> None:
    parts = "package:/data/app/a/base.apk\npackage:/data/app/a/split_config.arm64_v8a.apk\n"
    there = parse_installed(f"#user\n0\n#paths\n{parts}#digest\n")
    assert len(there.paths) == 2
    assert not there.is_content("")


def test_nothing_installed_is_nothing() -> None:
    for output in ("#user\n0\n#paths\n\n#digest\n", "#user\n\n#paths\n\n#digest\n", ""):
        assert parse_installed(output) == InstalledApk(0)
