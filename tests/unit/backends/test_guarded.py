"""Backends of other packages: what their hooks must not do."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from etdeploy.backends import guarded as plugged
from etdeploy.backends import registry
from etdeploy.backends.base import Backend
from etdeploy.backends.guarded import EACH, ONE, guarded
from etdeploy.backends.values import Workstation
from etdeploy.core.errors import PluginError, UsageError
from etdeploy.core.flatbuffer import CorruptError
from etdeploy.core.plugins import Origin
from tests.support.plugins import forgetting_backends, install_plugin

ORIGIN = Origin("lab", "etdeploy-lab 1.2", "entry point lab:X")


def test_every_hook_is_guarded() -> None:
    hooks = {name for name, value in vars(Backend).items() if inspect.isfunction(value)}
    assert {name for name in hooks if not name.startswith("_")} == {*EACH, *ONE}


def _arguments(hook: str) -> list[None]:
    needed = inspect.signature(getattr(Backend, hook)).parameters.values()
    return [None for each in needed if each.name != "self" and each.default is each.empty]


@pytest.mark.parametrize("hook", [*EACH, *ONE])
@pytest.mark.parametrize("raises", [True, False])
def test_a_hook_that_fails_or_gives_something_else_is_told(hook: str, raises: bool) -> None:
    def bad(*_: Any) -> Any:
        if raises:
            raise RuntimeError("no luck")
        return 3.5

    lab = type("Lab", (Backend,), {hook: bad})(name="lab")
    ask = getattr(guarded(lab, ORIGIN), hook)
    arguments = _arguments(hook)
    with pytest.raises(PluginError, match=f"in its hook {hook}: ") as caught:
        list(ask(*arguments))
    assert ("no luck" in caught.value.message) is raises


@dataclass(frozen=True, kw_only=True, eq=False)
class _Lab(Backend):
    def build_key(self, station: Workstation) -> str:  # noqa: ARG002
        return f"{self.name} {','.join(self.build_notes({'A': 'ON'}))}"

    def build_notes(self, options: Mapping[str, str | None]) -> Iterator[str]:
        yield f"{len(options)} option"

    def definitions(self, *_: Any) -> dict[str, str]:
        raise UsageError("no SDK")

    def read_payload(self, *_: Any) -> Any:
        raise CorruptError("damaged")


def test_what_hooks_may_do_is_left_as_it_is() -> None:
    lab = guarded(_Lab(name="lab"), ORIGIN)
    here = Workstation({}, Path())
    assert isinstance(lab, _Lab)
    assert lab.build_key(here) == "lab 1 option"
    with pytest.raises(UsageError, match="no SDK"):
        lab.definitions(here, {})
    unread: Any = None
    with pytest.raises(CorruptError):
        lab.read_payload(unread, unread)


_MODULE = """
from etdeploy.backends.base import Backend
class Lab(Backend):
    def findings(self, station):
        return station.nothing
LAB = Lab(name="lab")
"""


def test_the_registry_guards_and_the_doctor_survives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_plugin(
        tmp_path, monkeypatch, registry.GROUP, "lab = lab_guarded:LAB", lab_guarded=_MODULE,
        metadata="Project-URL: Issues, https://lab/bugs\n",
    )  # fmt: skip
    with forgetting_backends():
        found = list(plugged.plugged_findings(Workstation({}, tmp_path)))
        assert registry.release_of("lab") == "etdeploy-lab 1.2"
    assert [finding.name for finding in found] == ["backend lab", "backend lab: its findings"]
    assert str(found[1].remedy).startswith(f"{tmp_path / 'lab_guarded.py'}:5: the plug-in 'lab'")
    assert "https://lab/bugs" in str(found[1].remedy)
    assert registry.release_of("xnnpack") is None
