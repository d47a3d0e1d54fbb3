"""Devices of other packages: what they must not do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from etdeploy.core.errors import DeviceError, PluginError
from etdeploy.core.plugins import Origin
from etdeploy.devices.base import ConversingRun, Device, StreamingRun
from etdeploy.devices.guarded import guarded
from etdeploy.devices.kinds import DeviceKind, DeviceSpec, Recovery

ORIGIN = Origin("lab", "etdeploy-lab 1.2", "entry point lab:X")
_WORKSPACE: Any = None
_BUNDLE: Any = None


def _opened(inner: Any) -> Device:
    kind = DeviceKind("lab", ("lab",), lambda *_: inner, lambda _: [])
    return guarded(kind, ORIGIN).open(DeviceSpec("lab"), _WORKSPACE)


class _Broken:
    """Every method raises, and no attribute is there."""

    def __getattr__(self, name: str) -> Any:
        if name in ("name", "identity", "capabilities"):
            raise KeyError(name)

        def broken(*_: Any) -> Any:
            raise RuntimeError("no luck")

        return broken


_USES: dict[str, Callable[[Device], object]] = {
    "name": lambda d: d.name,
    "identity": lambda d: d.identity,
    "capabilities": lambda d: d.capabilities,
    "facts": lambda d: d.facts(),
    "state": lambda d: d.state(),
    "push": lambda d: d.push(_BUNDLE),
    "end_leftovers": lambda d: d.end_leftovers(),
    "open_run": lambda d: d.open_run(_BUNDLE, "r"),
    "clean": lambda d: d.clean(),
    "close": lambda d: d.close(),
}


@pytest.mark.parametrize("method", _USES)
def test_a_method_that_raises_is_told(method: str) -> None:
    with pytest.raises(PluginError, match=f"etdeploy-lab 1.2 failed in its hook {method}: "):
        _USES[method](_opened(_Broken()))


def test_a_method_that_gives_something_else_is_told() -> None:
    class Lab:
        def facts(self) -> str:
            return "a board"

    with pytest.raises(PluginError, match="facts: TypeError: it gave 'a board', not DeviceFacts"):
        _opened(Lab()).facts()


def test_a_kind_that_cannot_open_or_list_is_told() -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("no luck")

    kind = guarded(DeviceKind("lab", ("lab",), broken, broken), ORIGIN)
    with pytest.raises(PluginError, match="in its hook open: "):
        kind.open(DeviceSpec("lab"), _WORKSPACE)
    with pytest.raises(PluginError, match="in its hook list: "):
        kind.list(_WORKSPACE)


class _Runs:
    """A device whose runs do what they are told to."""

    def __init__(self, ended: Exception | None = None) -> None:
        self._ended = ended
        self.closed = False

    @contextmanager
    def open_run(self, *_: Any) -> Iterator[Any]:
        try:
            yield self
        finally:
            self.closed = True
            if self._ended:
                raise self._ended

    def run(self, *_: Any) -> Any:
        raise DeviceError("the board went away")

    def pull(self, *_: Any) -> None:
        raise IsADirectoryError("outputs")

    def stream(self, *_: Any) -> Any:
        return "a line"

    def put(self, *_: Any) -> None:
        raise KeyError("room")

    @contextmanager
    def converse(self, *_: Any) -> Iterator[Any]:
        yield self

    def say(self, line: str) -> None:
        raise ValueError(line)

    def hear(self, wait_s: float) -> Any:
        if wait_s:
            raise TimeoutError
        return b"bytes"

    def end(self) -> Any:
        return 7


def test_the_folder_of_a_run_is_guarded_and_closed(tmp_path: Path) -> None:
    lab = _Runs()
    with _opened(lab).open_run(_BUNDLE, "r") as run:
        with pytest.raises(DeviceError, match="went away"):
            run.run([], 1.0)
        with pytest.raises(PluginError, match="in its hook pull: IsADirectoryError: outputs"):
            run.pull("outputs", tmp_path)
        streaming = cast(StreamingRun, run)
        with pytest.raises(PluginError, match="in its hook stream: TypeError: it gave 'a line'"):
            streaming.stream([], 1.0, print)
        with pytest.raises(PluginError, match="in its hook put: KeyError"):
            streaming.put(tmp_path, "prompt.bin")
    assert lab.closed


def test_what_is_said_and_heard_is_guarded() -> None:
    with _opened(_Runs()).open_run(_BUNDLE, "r") as run:
        with cast(ConversingRun, run).converse([]) as talk:
            with pytest.raises(PluginError, match="in its hook say: ValueError: hello"):
                talk.say("hello")
            with pytest.raises(PluginError, match="in its hook hear: TypeError: it gave b'bytes'"):
                talk.hear(0)
            with pytest.raises(TimeoutError):
                talk.hear(1)
            with pytest.raises(PluginError, match="in its hook end: TypeError: it gave 7"):
                talk.end()
        with pytest.raises(ZeroDivisionError), cast(ConversingRun, run).converse([]):
            _ = 1 / 0


def test_what_is_raised_within_a_run_is_not_the_devices_mistake() -> None:
    with pytest.raises(ZeroDivisionError), _opened(_Runs()).open_run(_BUNDLE, "r"):
        _ = 1 / 0


def test_a_run_that_cannot_be_closed_is_the_devices_mistake() -> None:
    device = _opened(_Runs(ValueError("still busy")))
    with (
        pytest.raises(PluginError, match="in its hook open_run: ValueError: still busy"),
        device.open_run(_BUNDLE, "r"),
    ):
        pass


def test_a_step_of_recovery_that_raises_is_told() -> None:
    def recover(*_: object) -> None:
        raise RuntimeError("no luck")

    kind = DeviceKind("lab", ("lab",), lambda *_: _BUNDLE, lambda _: [], recover=recover)
    safe = guarded(kind, ORIGIN)
    assert safe.recover is not None
    with pytest.raises(PluginError, match="failed in its hook recover: "):
        safe.recover(DeviceSpec("lab"), Recovery.REBOOT, lambda _: None)
    assert guarded(replace(kind, recover=None), ORIGIN).recover is None
