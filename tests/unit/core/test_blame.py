"""Whose mistake an exception in another package's code is."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from traceback import walk_tb
from typing import Any

import pytest

from etdeploy.core.errors import DeviceError, PluginError
from etdeploy.core.plugins import Origin, blamed, contact, each_given, given, one_given

ORIGIN = Origin("lab", "etdeploy-lab 1.2", "entry point lab:X", Path(__file__), "https://lab/bugs")


def _line_of(error: BaseException | None) -> int:
    assert error
    return list(walk_tb(error.__traceback__))[-1][1]


def test_what_goes_wrong_names_package_hook_line_and_whom_to_tell() -> None:
    with pytest.raises(PluginError) as caught, blamed(ORIGIN, "facts"):
        raise KeyError("soc")
    line = _line_of(caught.value.__cause__)
    assert str(caught.value) == (
        f"{__file__}:{line}: the plug-in 'lab' of the package etdeploy-lab 1.2 failed in its hook "
        "facts: KeyError: 'soc'\n"
        "  what to do: Tell the authors of etdeploy-lab 1.2: https://lab/bugs"
    )
    assert caught.value.exit_code == 9


def test_without_a_line_of_its_own_the_entry_point_is_named() -> None:
    origin = Origin("lab", "etdeploy-lab 1.2", "entry point lab:X", Path("/elsewhere"))
    with pytest.raises(PluginError) as caught, blamed(origin, "facts"):
        raise ValueError
    assert caught.value.place == "entry point lab:X"
    assert caught.value.message.endswith("failed in its hook facts: ValueError")
    assert caught.value.remedy == "Tell the authors of etdeploy-lab 1.2."


@pytest.mark.parametrize(
    "error",
    [
        DeviceError("gone"),
        OSError(errno.ENOSPC, "No space left on device"),
        KeyboardInterrupt(),
        LookupError("allowed"),
    ],
)
def test_what_is_nobodys_mistake_stays_as_it_is(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, blamed(ORIGIN, "push", LookupError):
        raise error
    assert caught.value is error


def test_things_are_asked_for_one_after_the_other() -> None:
    def hook(reached: list[int]) -> Iterator[str]:
        yield "first"
        reached.append(2)
        yield "second"

    reached: list[int] = []
    assert next(each_given(ORIGIN, "notes", hook, str)(reached)) == "first"
    assert not reached


@pytest.mark.parametrize(
    ("result", "why"),
    [
        (None, "TypeError: 'NoneType' object is not iterable"),
        ([7], "TypeError: it gave 7, not str"),
    ],
)
def test_things_of_another_kind_are_the_hooks_mistake(result: Any, why: str) -> None:
    with pytest.raises(PluginError, match=f"in its hook notes: {why}"):
        list(each_given(ORIGIN, "notes", lambda: result, str)())


def test_a_hook_with_other_parameters_is_the_packages_mistake() -> None:
    with pytest.raises(PluginError, match=r"in its hook key: TypeError: .*positional argument"):
        one_given(ORIGIN, "key", lambda: "x", str)("a station")


def test_a_thing_may_be_one_of_several_kinds() -> None:
    assert given(None, (str, type(None))) is None
    with pytest.raises(TypeError, match="it gave 7, not str or None"):
        given(7, (str, type(None)))


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
