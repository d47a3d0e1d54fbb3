"""One run on an Android device, in its own folder."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote

from etdeploy.core.errors import DeviceError, Interrupted
from etdeploy.devices.adb.errors import AdbError, AdbTimeoutError
from etdeploy.devices.adb.exec import start_command
from etdeploy.devices.android import layout
from etdeploy.devices.android.errors import explained
from etdeploy.devices.android.link import AndroidLink
from etdeploy.devices.base import Bundle, RunOutcome
from etdeploy.devices.bundles import check_relative, command_line, environment
from etdeploy.devices.signals import signal_of


class AndroidRun:
    """The folder of one run on the device."""

    def __init__(self, link: AndroidLink, bundle: Bundle, bundle_folder: str, folder: str) -> None:
        self._link = link
        self._bundle = bundle
        self._bundle_folder = bundle_folder
        self._folder = folder

    def run(self, arguments: Sequence[str], timeout_s: float) -> RunOutcome:
        argv = command_line(self._bundle, arguments, self._bundle_folder, self._folder)
        variables = environment(self._bundle, self._bundle_folder, self._folder)
        command = layout.start_command(self._folder, argv, variables)
        started = time.monotonic()
        exit_code = self._wait(command, timeout_s)
        seconds = time.monotonic() - started
        return RunOutcome(
            exit_code=exit_code,
            signal_name=None if exit_code is None else signal_of(exit_code),
            stdout=self._link.read(f"{self._folder}/.stdout", "reading the program's output"),
            stderr=self._link.read(f"{self._folder}/.stderr", "reading the program's output"),
            seconds=seconds,
            timed_out=exit_code is None,
        )

    def pull(self, relative: str, to: Path) -> None:
        check_relative(relative)
        doing = f"pulling {relative}"
        # Names come back relative to the folder, so that they cannot lead out of `to`.
        script = (
            f"cd {quote(self._folder)} || exit 1\n"
            f"if [ -d {quote(relative)} ]; then cd {quote(relative)} && echo folder && "
            f"find . -type f; elif [ -f {quote(relative)} ]; then echo file; fi"
        )
        kind, *names = self._link.require(script, doing).splitlines() or [""]
        if kind == "file":
            self._link.pull(f"{self._folder}/{relative}", to, doing)
        elif kind == "folder":
            to.mkdir(parents=True, exist_ok=True)
            for name in names:
                inner = check_relative(name.removeprefix("./"))
                self._link.pull(f"{self._folder}/{relative}/{inner}", to / inner, doing)
        else:
            raise DeviceError(f"the run left no {relative}", place=self._link.name)

    def _wait(self, command: str, timeout_s: float) -> int | None:
        """The exit code; None when the program took longer than the time limit."""
        # The shell is silent until the program has ended, so its silence lasts as long as the run.
        patience = replace(self._link.patience, idle_s=timeout_s)
        with self._link.errors("starting the program"):
            running = start_command(self._link.transport, command, patience)
        began = time.monotonic()
        try:
            result = running.finish()
            seconds = time.monotonic() - began
        except AdbTimeoutError:
            self._kill()
            return None
        except Interrupted:
            self._kill()
            raise
        except AdbError as error:
            self._kill()
            raise explained(error, self._link.name, "the program was running") from error
        finally:
            running.close()
        exit_code = layout.parse_exit_code(result.output)
        if exit_code is None:
            raise DeviceError(
                f"the device cannot start the program: {result.output.strip()}",
                place=self._link.name,
                remedy="Run the same command again.",
            )
        return exit_code if seconds <= timeout_s else None

    def _kill(self) -> None:
        self._link.tidy(layout.kill_command(self._folder))
