"""What is installed, and how."""

from __future__ import annotations

from etdeploy.devices.android.app_run import parse_installed


def test_an_app_in_parts_is_another_one() -> None:
    parts = "package:/data/app/a/base.apk\npackage:/data/app/a/split_config.arm64_v8a.apk\n"
    there = parse_installed(f"#user\n0\n#paths\n{parts}#digest\n")
    assert len(there.paths) == 2
    assert not there.is_content("")
