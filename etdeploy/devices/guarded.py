"""Devices of another package, whose mistakes are told as that package's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from etdeploy.core.blame import Origin, blamed, given, one_given
from etdeploy.core.progress import Progress, silent
from etdeploy.devices.base import (
    Bundle,
    Capabilities,
    Device,
    DeviceFacts,
    DeviceListing,
    DeviceState,
    Leftover,
    PushReport,
    RunFolder,
    RunOutcome,
    StreamingRun,
)
from etdeploy.devices.kinds import DeviceKind
from etdeploy.devices.spec import DeviceSpec


def guarded(kind: DeviceKind, origin: Origin) -> DeviceKind:
    """The same kind; what its devices raise beside errors for users is a PluginError."""

    def opened(spec: DeviceSpec, workspace: Any) -> Device:
        with blamed(origin, "open"):
            return _Device(kind.open(spec, workspace), origin)

    def listed(workspace: Any) -> list[DeviceListing]:
        with blamed(origin, "list"):
            return [given(each, DeviceListing) for each in kind.list(workspace)]

    return replace(kind, open=opened, list=listed)


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
        return _OpenRun(context, self._origin)

    def clean(self) -> Mapping[str, int]:
        freed: Mapping[str, int] = self._asked("clean", Mapping)
        return freed

    def close(self) -> None:
        self._asked("close", object)


class _OpenRun(AbstractContextManager[RunFolder]):
    """The folder of a run, from its making to its removal."""

    def __init__(self, inner: AbstractContextManager[RunFolder], origin: Origin) -> None:
        self._inner, self._origin = inner, origin

    def __enter__(self) -> RunFolder:
        with blamed(self._origin, "open_run"):
            return _Folder(self._inner.__enter__(), self._origin)

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
            with blamed(self._origin, "open_run"):
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

    def pull(self, relative: str, to: Path) -> None:
        with blamed(self._origin, "pull"):
            self._inner.pull(relative, to)
