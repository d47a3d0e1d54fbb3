"""Whose mistake an exception is."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable
from email.message import Message
from pathlib import Path
from typing import Any, Protocol

import pytest

from etdeploy.core.errors import DeviceError, PluginError, UsageError
from etdeploy.core.plugins import attributed, call_hook, check_hooks, contact, plugin_error
from tests.support.facts import lacks
from tests.support.plugins import install_plugin

GROUP = "etdeploy.tests"
CODE = """
import json
from contextlib import contextmanager
from lab_helper import low

def facts():
    raise KeyError("soc")

def text():
    return json.loads("{")

def notes():
    yield "first"
    low()

def number():
    return 7

def call(given):
    given()

@contextmanager
def opened():
    yield

class Opened:
    def __enter__(self):
        pass

    def __exit__(self, kind, error, trace):
        raise error
"""


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A plug-in of several files, which says where its authors want reports."""
    install_plugin(
        tmp_path, monkeypatch, GROUP, "lab = lab_bad:number", lab_bad=CODE,
        lab_helper="def low():\n    raise ValueError",
        metadata="Project-URL: Issues, https://lab/bugs\n",
    )  # fmt: skip
    record = tmp_path / "etdeploy_lab-1.2.dist-info" / "RECORD"
    record.write_text("lab_bad.py,,\nlab_helper.py,,\n")
    import lab_bad  # type: ignore[import-not-found]

    yield lab_bad
    sys.modules.pop("lab_helper", None)


def _raised(call: Callable[[], object]) -> BaseException:
    with pytest.raises(BaseException) as caught:
        call()
    return caught.value


@pytest.mark.parametrize(
    ("call", "hook", "kind", "place"),
    [
        (lambda lab: lab.facts(), "facts", "KeyError: 'soc'", "lab_bad.py:7"),
        (lambda lab: lab.text(), "text", "JSONDecodeError: ", "lab_bad.py:10"),
        (lambda lab: list(lab.notes()), "notes", "ValueError", "lab_helper.py:2"),
        (lambda lab: lab.call(lambda: 1 / 0), "call", "ZeroDivisionError: ", "lab_bad.py:20"),
        (
            lambda lab: call_hook(lab.number, str),
            "number", "TypeError: returned 7, not str", "lab_bad.py:16",
        ),
    ],
)  # fmt: skip
def test_an_exception_of_a_plugin_names_package_hook_line_and_address(
    lab: Any, tmp_path: Path, call: Callable[[Any], object], hook: str, kind: str, place: str
) -> None:
    with pytest.raises(PluginError) as caught, attributed():
        call(lab)
    error = caught.value
    assert not lacks(str(error), "'lab'", "etdeploy-lab 1.2", f"hook {hook}: {kind}")
    assert error.place == str(tmp_path / place)
    assert str(error.remedy).endswith(": https://lab/bugs")
    assert error.exit_code == 9


def _with(context: Any) -> None:
    with context:
        _ = 1 / 0


@pytest.mark.parametrize(
    "call",
    [
        lambda lab: lab.call(lambda: (_ for _ in ()).throw(DeviceError("gone"))),
        lambda lab: lab.call(lambda: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full"))),
        lambda lab: lab.call(lambda: (_ for _ in ()).throw(KeyboardInterrupt())),
        lambda lab: _with(lab.opened()),
        lambda lab: _with(lab.Opened()),
        lambda _: int("x"),
        lambda _: call_hook(lambda: 7, str),
    ],
    ids=["for users", "full disk", "stopped", "passed", "raised again", "own", "own result"],
)
def test_other_exceptions_stay_as_they_are(lab: Any, call: Callable[[Any], object]) -> None:
    error = _raised(lambda: call(lab))
    assert plugin_error(error) is None

    def attribute() -> None:
        with attributed():
            raise error

    assert _raised(attribute) is error


class _Hooks(Protocol):
    name: str

    def facts(self, wanted: str, *, brief: bool) -> str: ...


class _Fits:
    def facts(self, *_: str, brief: bool = True) -> str:
        return str(brief)


@pytest.mark.parametrize(
    ("hook", "why"),
    [
        (None, "has no hook facts"),
        (lambda _: "x", "'brief'"),
        (lambda *, brief: brief, "too many positional arguments"),
    ],
)
def test_a_plugin_for_another_version_is_refused(lab: Any, hook: Any, why: str) -> None:
    assert lab
    check_hooks(GROUP, "lab", _Fits(), _Hooks)
    other = _Fits()
    other.facts = hook  # type: ignore[method-assign]
    with pytest.raises(UsageError) as caught:
        check_hooks(GROUP, "lab", other, _Hooks)
    assert "etdeploy-lab 1.2" in caught.value.message
    assert why in caught.value.message


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"Project-URL": ["Homepage, https://h", "Bug Tracker, https://b"]}, "https://b"),
        ({"Project-URL": ["Docs, https://d"], "Author-email": ["Ann <a@x>"]}, "Ann <a@x>"),
        ({"Home-page": ["https://h"], "Author-email": ["Ann <a@x>"]}, "https://h"),
        ({}, None),
    ],
)
def test_the_address_for_bugs_is_the_nearest_that_a_package_names(
    fields: dict[str, list[str]], found: str | None
) -> None:
    metadata: Any = Message()
    for name, values in fields.items():
        for value in values:
            metadata[name] = value
    assert contact(metadata) == found
