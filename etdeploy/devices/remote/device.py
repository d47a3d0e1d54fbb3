"""What every device with a POSIX shell at its other end does the same way."""

from __future__ import annotations

from contextlib import AbstractContextManager

from etdeploy.core.progress import Progress, silent
from etdeploy.devices.base import Bundle, Leftover, PushReport, RunFolder
from etdeploy.devices.remote import layout, leftovers
from etdeploy.devices.remote.push import push_bundle
from etdeploy.devices.remote.run import opened_run
from etdeploy.devices.remote.sampling import Sampling
from etdeploy.devices.remote.shell import RemoteShell

_REMOVE_S = 120.0


class RemoteDevice:
    """The part of a Device that a RemoteShell is enough for; the rest is of each kind.

    Args:
        shell: The connection to it.
        sampling: How its state is read while a program runs; None for files of /sys alone.
    """

    def __init__(self, shell: RemoteShell, sampling: Sampling | None = None) -> None:
        self._shell, self._sampling = shell, sampling or Sampling()

    @property
    def name(self) -> str:
        return self._shell.name

    def push(self, bundle: Bundle, progress: Progress = silent) -> PushReport:
        return push_bundle(self._shell, bundle, progress)

    def end_leftovers(self) -> tuple[Leftover, ...]:
        return leftovers.end_leftovers(self._shell)

    def open_run(self, bundle: Bundle, run_id: str) -> AbstractContextManager[RunFolder]:
        return opened_run(self._shell, bundle, run_id, self._sampling)

    def clean(self) -> dict[str, int]:
        command = layout.clean_command(self._shell.place)
        return layout.parse_sizes(
            self._shell.require(command, "removing what etdeploy left", _REMOVE_S)
        )

    def close(self) -> None:
        self._shell.close()
