"""One run on a remote device, in its own folder."""

from __future__ import annotations

import math
import posixpath
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from shlex import quote

from etdeploy.core.errors import DeviceError, Interrupted
from etdeploy.devices.base import Bundle, RunOutcome, TimedState
from etdeploy.devices.bundles import (
    bundle_digest,
    check_relative,
    check_run_id,
    command_line,
    environment,
)
from etdeploy.devices.remote import layout
from etdeploy.devices.remote.heard import Heard
from etdeploy.devices.remote.sampling import FILE, Sampling
from etdeploy.devices.remote.shell import RefusedError, RemoteShell, SilentError
from etdeploy.devices.remote.talk import RemoteTalk, talking
from etdeploy.devices.sampling import parse_samples
from etdeploy.devices.signals import signal_of

# So much later than from here, a program is ended on the device.
_LOST_S = 60


@contextmanager
def opened_run(
    shell: RemoteShell, bundle: Bundle, run_id: str, sampling: Sampling
) -> Iterator[RemoteRun]:
    """A new folder for one run of a bundle that was pushed; it is removed when the block ends.

    Args:
        shell: The connection.
        bundle: What runs.
        run_id: Names the folder.
        sampling: How the device's state is read meanwhile.

    Raises:
        DeviceError: The device went away, or cannot make it.
    """
    folder = shell.place.run(check_run_id(run_id))
    digest = bundle_digest(bundle)
    shell.require(layout.run_command(shell.place, run_id, digest), "making the run's folder")
    try:
        yield RemoteRun(shell, bundle, shell.place.bundle(digest), folder, sampling)
    finally:
        shell.tidy(f"rm -rf {quote(folder)}")


class RemoteRun:
    """The folder of one run on the device."""

    def __init__(
        self,
        shell: RemoteShell,
        bundle: Bundle,
        bundle_folder: str,
        folder: str,
        sampling: Sampling,
    ) -> None:
        self._sampling = sampling
        self._shell = shell
        self._bundle = bundle
        self._bundle_folder = bundle_folder
        self._folder = folder

    @property
    def folder(self) -> str:
        """Its path on the device."""
        return self._folder

    def run(self, arguments: Sequence[str], timeout_s: float) -> RunOutcome:
        return self._run(arguments, timeout_s, None)

    def stream(
        self, arguments: Sequence[str], timeout_s: float, on_line: Callable[[str], None]
    ) -> RunOutcome:
        heard = Heard(on_line, f"etdeploy-{secrets.token_hex(8)}", timeout_s)
        return self._run(arguments, timeout_s, heard)

    def converse(self, arguments: Sequence[str]) -> AbstractContextManager[RemoteTalk]:
        argv, variables = self._program(arguments)
        return talking(self._shell, self._folder, argv, variables)

    def _program(self, arguments: Sequence[str]) -> tuple[list[str], dict[str, str]]:
        folders = (self._bundle_folder, self._folder)
        return command_line(self._bundle, arguments, *folders), environment(self._bundle, *folders)

    def _run(self, arguments: Sequence[str], timeout_s: float, heard: Heard | None) -> RunOutcome:
        return self.execute(*self._program(arguments), timeout_s, heard)

    def execute(
        self,
        argv: Sequence[str],
        variables: Mapping[str, str],
        timeout_s: float,
        heard: Heard | None = None,
        ending: str = ":",
    ) -> RunOutcome:
        """Runs any command in the run's folder, as `run` does the bundle's.

        Args:
            argv: The command, without placeholders.
            variables: For its environment.
            timeout_s: As for `run`.
            heard: Takes its stdout as it comes; None for a file.
            ending: A command for the device's shell, where the connection ends before the other.
        """
        limit_s = math.ceil(timeout_s) + _LOST_S
        end = heard.end if heard else ""
        command = layout.start_command(
            self._folder, argv, variables, limit_s, self._sampling, end, ending
        )
        started = time.monotonic()
        said = self._wait(command, timeout_s, heard)
        seconds = time.monotonic() - started
        exit_code = None if said is None else layout.require_exit_code(said, self._shell.name)
        return RunOutcome(
            exit_code=exit_code,
            signal_name=None if exit_code is None else signal_of(exit_code),
            stdout=heard.text if heard else self._printed(".stdout"),
            stderr=self._printed(".stderr"),
            seconds=seconds,
            timed_out=exit_code is None,
            out_of_memory=None if said is None else layout.parse_out_of_memory(said),
            states=self._states(),
        )

    def _printed(self, name: str) -> str:
        return self._shell.read(f"{self._folder}/{name}", "reading the program's output")

    def _states(self) -> tuple[TimedState, ...]:
        text = self._shell.read(f"{self._folder}/{FILE}", "reading its states")
        return parse_samples(text, self._sampling.parse)

    def put(self, source: Path, relative: str) -> None:
        doing = f"sending {relative}"
        target = f"{self._folder}/{check_relative(relative)}"
        self._shell.require(f"mkdir -p {quote(posixpath.dirname(target))}", doing)
        try:
            self._shell.send(source, target, doing, lambda sent: None)  # noqa: ARG005
        except RefusedError as error:
            raise DeviceError(
                f"{relative} cannot be written: {error}", place=self._shell.name
            ) from error

    def pull(self, relative: str, to: Path) -> None:
        check_relative(relative)
        doing = f"pulling {relative}"
        # Names come back relative to the folder, so that they cannot lead out of `to`.
        script = (
            f"cd {quote(self._folder)} || exit 1\n"
            f"if [ -d {quote(relative)} ]; then cd {quote(relative)} && echo folder && "
            f"find . -type f; elif [ -f {quote(relative)} ]; then echo file; fi"
        )
        kind, *names = self._shell.require(script, doing).splitlines() or [""]
        if kind == "file":
            self._shell.pull(f"{self._folder}/{relative}", to, doing)
        elif kind == "folder":
            to.mkdir(parents=True, exist_ok=True)
            for name in names:
                inner = check_relative(name.removeprefix("./"))
                self._shell.pull(f"{self._folder}/{relative}/{inner}", to / inner, doing)
        else:
            raise DeviceError(f"the run left no {relative}", place=self._shell.name)

    def _wait(self, command: str, timeout_s: float, heard: Heard | None) -> str | None:
        """What the shell says at the end; None when the program took longer than the limit."""
        # Unless the program is heard, the shell is silent until it has ended, so that its silence
        # lasts as long as the run.
        running = self._shell.start(command, "starting the program", timeout_s)
        began = time.monotonic()
        try:
            result = running.finish("the program was running", heard.take if heard else None)
            seconds = time.monotonic() - began
        except SilentError:
            self._kill()
            return None
        except (DeviceError, Interrupted):
            self._kill()
            raise
        finally:
            running.close()
        if seconds > timeout_s:
            return None
        return heard.after(result.output) if heard else result.output

    def _kill(self) -> None:
        self._shell.tidy(layout.kill_command(self._folder))
