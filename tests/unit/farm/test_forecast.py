"""What a plan says, and how it is shown."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from etdeploy.cache.workspace import Workspace
from etdeploy.devices.base import Capabilities
from etdeploy.farm.forecast import (
    DiscoveredDevice,
    DurationEstimate,
    Forecast,
    MatrixCell,
    MeasurementWindow,
    NightArtifact,
    Refused,
    duration,
    forecast_night,
    forecast_text,
)
from etdeploy.farm.spec.matrix import Unsatisfied
from etdeploy.farm.spec.model import Hosts, LoadedFarm, Window
from etdeploy.recipe.load import load_recipe
from tests.support.farm_values import farm, group, phone

NOW = datetime(2026, 11, 23, 12, tzinfo=timezone.utc)


def loaded(**changes: Any) -> LoadedFarm:
    of = farm({"phones": group(kind="android")}, repeats=2, **changes)
    return LoadedFarm(Path("/f/farm.yaml"), of, {"mlp": load_recipe("xnnpack")}, {})


def test_what_no_device_is_there_for(tmp_path: Path) -> None:
    window = Window(from_minute=22 * 60, until_minute=6 * 60, timezone="UTC")
    broken = phone("A1", problem="its state is offline", remedy="Plug it in.")
    found = forecast_night(loaded(window=window), [broken], {}, NOW, Workspace(tmp_path))
    assert (found.visits, found.cells, found.pieces, found.expected_s) == (0, (), (), None)
    assert "android:A1" in found.unsatisfied[0].reason
    assert found.window == MeasurementWindow(
        opens="2026-11-23T22:00+00:00", closes="2026-11-24T06:00+00:00", seconds=8 * 3600
    )
    assert found.devices[0].groups == ("phones",)
    shown = forecast_text(found, None)
    assert shown.startswith("f: 0 visits ")
    assert "2026-11-23T22:00" in shown.splitlines()[1]
    assert shown.endswith("android:A1: Plug it in.")


def test_what_cannot_be_made_is_not_measured(tmp_path: Path) -> None:
    watch = phone("A1", capabilities=Capabilities(launches=("tile",)))
    found = forecast_night(loaded(), [watch], {}, NOW, Workspace(tmp_path))
    [refused] = found.refused
    assert (refused.recipe, refused.devices) == ("mlp", ("android:A1",))
    assert "tile" in refused.reason
    assert (found.visits, found.pieces) == (0, ())


def test_devices_of_other_hosts_are_not_known_here(tmp_path: Path) -> None:
    several = loaded(hosts=Hosts(listen="tcp://127.0.0.1:8786"))
    [note] = forecast_night(several, [], {}, NOW, Workspace(tmp_path)).notes
    assert "other hosts" in note


def test_the_plan_as_text() -> None:
    guess = DurationEstimate(seconds=120, basis="guess, nothing was measured yet", measured=False)
    names = tuple(f"android:A{number}" for number in range(6))
    made: Any = {"recipes": ("mlp",), "classes": ("android-arm64",)}
    shown = forecast_text(
        Forecast(
            farm="night",
            devices=(
                DiscoveredDevice(name="android:A0", host="h", target="t", model=None, soc=None,
                                 os=None, pools=(), groups=()),
            ),
            cells=(MatrixCell(recipe="mlp", group="phones", devices=names, visits=18, each=guess),),
            pieces=(NightArtifact(step="export", cached=True, **made),
                    NightArtifact(step="build", cached=None, **made)),
            refused=(Refused(recipe="q", devices=("host",), reason="no SDK", remedy="Get it."),),
            unsatisfied=(Unsatisfied(recipe="mlp", group="bench", reason="none"),
                         Unsatisfied(recipe="q", group="bench", reason="none")),
            visits=18,
            expected_s=7500,
            guessed=True,
            window=None,
            notes=("A note.",),
        ),
        None,
    )  # fmt: skip
    assert shown.splitlines()[:2] == [
        "night: 18 visits of 1 recipe on 6 devices",
        "expected time: 2 h 05 min, in part a guess",
    ]
    assert "android:A0, android:A1, android:A2, android:A3 and 2 more" in shown
    assert "1 export, 1 cached; 1 build, 0 cached" in shown
    assert "known after the export" in shown
    assert "cannot be made: q for host: no SDK\n  what to do: Get it." in shown
    assert "cannot be measured\n  bench (mlp, q): none" in shown
    assert shown.endswith("A note.")


def test_durations() -> None:
    assert [duration(s) for s in (40, 89, 720, 5399, 5400, 11_100)] == [
        "40 s", "89 s", "12 min", "1 h 30 min", "1 h 30 min", "3 h 05 min",
    ]  # fmt: skip
