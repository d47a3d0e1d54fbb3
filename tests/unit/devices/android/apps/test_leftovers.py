"""Which apps are left of earlier runs."""

from __future__ import annotations

from etdeploy.devices.android.app_watch import parse_apps
from etdeploy.devices.base import Leftover

_STAT = "42 (xample.convnet) S 1 1 0 0 -1 0 0 0 0 0 0 0 0 0 20 0 9 0 10000 1 1"


def output(*apps: str) -> str:
    return "#uptime\n160.50 300.00\n" + "".join(f"#a{n}\n{app}" for n, app in enumerate(apps))


def test_an_app_that_a_run_started_is_one() -> None:
    (app,) = parse_apps(output(f"r1\norg.example.a 42\n{_STAT}\norg.example.a\n"))
    assert (app.app_id, app.leftover) == (
        "org.example.a",
        Leftover(pid=42, run_id="r1", seconds=60.5),
    )


def test_another_process_with_its_number_is_none() -> None:
    assert parse_apps(output(f"r1\norg.example.a 42\n{_STAT}\norg.example.b\n")) == ()
    assert parse_apps(output(f"r1\norg.example.a 42\n{_STAT}\n\n")) == ()
    for cut_off in ("", "r1\n", "r1\norg.example.a 42\n42\n"):
        assert parse_apps(output(cut_off)) == ()
