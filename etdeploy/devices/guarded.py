"""Devices of another package, whose mistakes are told as that package's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, cast

from etdeploy.core.plugins import Origin, blamed, given, one_given
from etdeploy.core.values import Progress, silent
from etdeploy.devices.base import (
    Bundle,
    Capabilities,
    ConversingRun,
    Device,
    DeviceFacts,
    DeviceListing,
    DeviceState,
    Leftover,
    PushReport,
    RunFolder,
    RunOutcome,
    StreamingRun,
    Talk,
)
from etdeploy.devices.kinds import DeviceKind, DeviceSpec, Recovery

T = TypeVar("T")


def guarded(kind: DeviceKind, origin: Origin) -> DeviceKind:
    """The same kind; what its devices raise beside errors for users is a PluginError."""

    def opened(spec: DeviceSpec, workspace: Any) -> Device:
        with blamed(origin, "open"):
            return _Device(kind.open(spec, workspace), origin)

    def listed(workspace: Any) -> list[DeviceListing]:
        with blamed(origin, "list"):
            return [given(each, DeviceListing) for each in kind.list(workspace)]

    def recovered(spec: DeviceSpec, step: Recovery, tell: Callable[[str], None]) -> None:
        with blamed(origin, "recover"):
            if kind.recover:
                kind.recover(spec, step, tell)

    return replace(
        kind, open=opened, list=listed, plugged_in=None, recover=recovered if kind.recover else None
    )


class _Device:
    """A device, each use of which may fail by its package's mistake."""

    def __init__(self, inner: Device, origin: Origin) -> None:
        self._inner, self._origin = inner, origin

    def _attribute(self, name: str, expected: type) -> Any:
        with blamed(self._origin, name):
            return given(getattr(self._inner, name), expected)

    def _asked(self, name: str, expected: type, *arguments: Any) -> Any:
        call = self._attribute(name, object)
        return one_given(self._origin, name, call, expected)(*arguments)

    @property
    def name(self) -> str:
        return str(self._attribute("name", str))

    @property
    def identity(self) -> str:
        return str(self._attribute("identity", str))

    @property
    def capabilities(self) -> Capabilities:
        found: Capabilities = self._attribute("capabilities", Capabilities)
        return found

    def facts(self) -> DeviceFacts:
        found: DeviceFacts = self._asked("facts", DeviceFacts)
        return found

    def state(self) -> DeviceState:
        found: DeviceState = self._asked("state", DeviceState)
        return found

    def push(self, bundle: Bundle, progress: Progress = silent) -> PushReport:
        report: PushReport = self._asked("push", PushReport, bundle, progress)
        return report

    def end_leftovers(self) -> tuple[Leftover, ...]:
        found = self._asked("end_leftovers", Sequence)
        with blamed(self._origin, "end_leftovers"):
            return tuple(given(each, Leftover) for each in found)

    def open_run(self, bundle: Bundle, run_id: str) -> AbstractContextManager[RunFolder]:
        context = self._asked("open_run", AbstractContextManager, bundle, run_id)
        return _Opened(context, self._origin, "open_run", _Folder)

    def clean(self) -> Mapping[str, int]:
        freed: Mapping[str, int] = self._asked("clean", Mapping)
        return freed

    def close(self) -> None:
        self._asked("close", object)


class _Opened(AbstractContextManager[T]):
    """What a hook opens, from its beginning to its end."""

    def __init__(
        self,
        inner: AbstractContextManager[T],
        origin: Origin,
        hook: str,
        guard: Callable[[T, Origin], T],
    ) -> None:
        self._inner, self._origin, self._hook, self._guard = inner, origin, hook, guard

    def __enter__(self) -> T:
        with blamed(self._origin, self._hook):
            return self._guard(self._inner.__enter__(), self._origin)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        try:
            return self._inner.__exit__(kind, error, trace)
        except BaseException as raised:
            if raised is error:  # came from the block, and passes through
                raise
            with blamed(self._origin, self._hook):
                raise


class _Folder:
    def __init__(self, inner: RunFolder, origin: Origin) -> None:
        self._inner, self._origin = inner, origin

    def run(self, arguments: Sequence[str], timeout_s: float) -> RunOutcome:
        with blamed(self._origin, "run"):
            outcome: RunOutcome = given(self._inner.run(arguments, timeout_s), RunOutcome)
            return outcome

    def stream(
        self, arguments: Sequence[str], timeout_s: float, on_line: Callable[[str], None]
    ) -> RunOutcome:
        with blamed(self._origin, "stream"):
            # Only asked of a device whose capabilities promise it.
            folder = cast(StreamingRun, self._inner)
            outcome: RunOutcome = given(folder.stream(arguments, timeout_s, on_line), RunOutcome)
            return outcome

    def put(self, source: Path, relative: str) -> None:
        with blamed(self._origin, "put"):
            cast(StreamingRun, self._inner).put(source, relative)

    def converse(self, arguments: Sequence[str]) -> AbstractContextManager[Talk]:
        with blamed(self._origin, "converse"):
            context = cast(ConversingRun, self._inner).converse(arguments)
            given(context, AbstractContextManager)
        return _Opened(context, self._origin, "converse", _Talk)

    def pull(self, relative: str, to: Path) -> None:
        with blamed(self._origin, "pull"):
            self._inner.pull(relative, to)


class _Talk:
    def __init__(self, inner: Talk, origin: Origin) -> None:
        self._inner, self._origin = inner, origin

    def say(self, line: str) -> None:
        with blamed(self._origin, "say"):
            self._inner.say(line)

    def hear(self, wait_s: float) -> str | None:
        with blamed(self._origin, "hear", TimeoutError):
            line: str | None = given(self._inner.hear(wait_s), (str, type(None)))
            return line

    def end(self) -> RunOutcome:
        with blamed(self._origin, "end"):
            outcome: RunOutcome = given(self._inner.end(), RunOutcome)
            return outcome
