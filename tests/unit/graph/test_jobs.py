"""Every recipe on every device, each pair once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from etdeploy.core.errors import DeviceError, UsageError
from etdeploy.devices.base import Capabilities, DeviceFacts
from etdeploy.graph.jobs import JobSelection, open_members, without_repetitions
from etdeploy.graph.run import look_up, refused_of
from etdeploy.recipe.load import LoadedRecipe, load_recipe
from etdeploy.targets.platforms import host_target
from tests.support.facts import lacks


class FakeDevice:
    """A device of some kind with an identity; counts how often it is opened and closed."""

    capabilities = Capabilities()

    def __init__(self, name: str, identity: str, log: list[str]) -> None:
        self.name, self.identity, self._log = name, identity, log
        self.capabilities = Capabilities(shares_cores=identity == "host")
        log.append(f"open {name}")

    def facts(self) -> DeviceFacts:
        return DeviceFacts(name=self.name, kind=self.name.split(":")[0], target=host_target().name)

    def close(self) -> None:
        self._log.append(f"close {self.name}")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Phones answer, but for the one that is gone; what was opened and closed is in the log."""
    calls: list[str] = []

    def opened(spec: str, _workspace: Any = None) -> FakeDevice:
        if spec == "android:gone":
            raise DeviceError("it is not connected", place=spec)
        name = "android:one" if spec == "android" else spec
        identity = "host" if spec in ("host", "qemu") else name
        return FakeDevice(name, identity, calls)

    monkeypatch.setattr("etdeploy.devices.registry.open_device", opened)
    return calls


@pytest.fixture
def recipes(tmp_path: Path) -> Callable[..., tuple[LoadedRecipe, ...]]:
    def write(*names: str, more: str = "") -> tuple[LoadedRecipe, ...]:
        for name in names:
            text = f"model: {{example: mlp}}\nexport: {{backend: portable}}\n{more}"
            (tmp_path / f"{name}.yaml").write_text(text)
        return tuple(load_recipe(str(tmp_path / f"{name}.yaml")) for name in names)

    return write


def test_each_device_is_opened_once_for_all_recipes(
    recipes: Any, log: list[str], tmp_path: Path
) -> None:
    wanted = JobSelection(recipes("a", "b"), ("host", "qemu"), tmp_path / "out")
    with open_members(wanted) as members:
        pairs = [str(member.pair) for member in members.all]
        assert pairs == ["a on host", "a on qemu", "b on host", "b on qemu"]
        assert len({member.job.state for member in members.all if member.job}) == 4
    assert sorted(log) == ["close host", "close qemu", "open host", "open qemu"]


def test_one_phone_by_two_names_is_one_device(recipes: Any, log: list[str], tmp_path: Path) -> None:
    wanted = JobSelection(
        recipes("a"), ("android", "android:one", "host", "host"), tmp_path / "out"
    )
    with open_members(wanted) as members:
        assert [member.pair.device for member in members.all] == ["android:one", "host"]
        same, repeated = members.notes
        assert not lacks(same, "android and android:one")
        assert not lacks(repeated, "host")


def test_a_device_that_is_gone_stops_only_its_own_jobs(
    recipes: Any, log: list[str], tmp_path: Path
) -> None:
    wanted = JobSelection(recipes("a", "b"), ("android:gone", "host"), tmp_path / "out")
    with open_members(wanted) as members:
        ready, failed = look_up(members.all)
    assert [str(each.member.pair) for each in ready] == ["a on host", "b on host"]
    assert [str(end.member.pair) for end in failed] == ["a on android:gone", "b on android:gone"]
    assert failed[0].error is failed[1].error


def test_a_word_that_is_no_device_stops_everything(
    recipes: Any, log: list[str], tmp_path: Path
) -> None:
    wanted = JobSelection(recipes("a"), ("host", "windows"), tmp_path / "out")
    with pytest.raises(UsageError, match="windows"), open_members(wanted):
        pass
    assert log == [], "nothing is opened before all names are known to be right"


def test_a_recipe_that_is_named_twice_is_used_once_and_told(recipes: Any, tmp_path: Path) -> None:
    a, b = recipes("a", "b")
    once, notes = without_repetitions((a, b, a))
    assert once == (a, b)
    [note] = notes
    assert not lacks(note, str(tmp_path / "a.yaml"), "2 times")


def test_what_cannot_end_well_is_refused_before_anything_starts(
    recipes: Any, log: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("etdeploy.graph.preflight.missing_for", lambda _: ())
    (good,) = recipes("good")
    (bad,) = recipes("bad", more="benchmark: {method: decode}\n")
    with open_members(JobSelection((good, bad), ("host",), tmp_path / "out")) as members:
        ready, failed = look_up(members.all)
        assert failed == []
        assert [str(end.member.pair) for end in refused_of(ready)] == ["bad on host"]


def test_what_jobs_look_up_alike_is_looked_up_once(
    recipes: Any, log: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def fingerprint(_host: Any, target: Any) -> str:
        asked.append(target.name)
        return "f"

    monkeypatch.setattr("etdeploy.graph.resolve.runner_fingerprint", fingerprint)
    with open_members(JobSelection(recipes("a", "b", "c"), ("host",), tmp_path / "out")) as members:
        ready, _ = look_up(members.all)
    assert len(ready) == 3
    assert len(asked) == len(set(asked))
