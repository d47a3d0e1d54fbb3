"""One run on a remote device, in its own folder."""

from __future__ import annotations

import math
import posixpath
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from shlex import quote

from etdeploy.core.errors import DeviceError, Interrupted
from etdeploy.devices.base import Bundle, Leftover, RunOutcome, TimedState
from etdeploy.devices.bundles import (
    Process,
    bundle_digest,
    check_relative,
    check_run_id,
    command_line,
    environment,
    find_run_id,
    seconds_since_start,
)
from etdeploy.devices.remote import layout
from etdeploy.devices.remote.layout import FILE, StateSampling
from etdeploy.devices.remote.shell import (
    DeviceWriteError,
    PersistentShell,
    RemoteShell,
    SilentError,
    check_output,
    pull_file,
)
from etdeploy.devices.shell import sections, signal_name_for
from etdeploy.devices.sysfs import parse_samples

# So much later than from here, a program is ended on the device.
_LOST_S = 60


@contextmanager
def open_run_folder(
    shell: RemoteShell, bundle: Bundle, run_id: str, sampling: StateSampling
) -> Iterator[RemoteRun]:
    """A new folder for one run of a bundle that was pushed; it is removed when the block ends."""
    folder = shell.place.run(check_run_id(run_id))
    digest = bundle_digest(bundle)
    check_output(shell, layout.run_command(shell.place, run_id, digest), "making the run's folder")
    try:
        yield RemoteRun(shell, bundle, shell.place.bundle(digest), folder, sampling)
    finally:
        shell.best_effort_cleanup(f"rm -rf {quote(folder)}")


class RemoteRun:
    """The folder of one run on the device."""

    def __init__(
        self,
        shell: RemoteShell,
        bundle: Bundle,
        bundle_folder: str,
        folder: str,
        sampling: StateSampling,
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
        reader = OutputReader(on_line, f"etdeploy-{secrets.token_hex(8)}", timeout_s)
        return self._run(arguments, timeout_s, reader)

    def converse(self, arguments: Sequence[str]) -> AbstractContextManager[RemoteTalk]:
        argv, variables = self._program(arguments)
        return talking(self._shell, self._folder, argv, variables)

    def _program(self, arguments: Sequence[str]) -> tuple[list[str], dict[str, str]]:
        folders = (self._bundle_folder, self._folder)
        return command_line(self._bundle, arguments, *folders), environment(self._bundle, *folders)

    def _run(
        self, arguments: Sequence[str], timeout_s: float, reader: OutputReader | None
    ) -> RunOutcome:
        return self.execute(*self._program(arguments), timeout_s, reader)

    def execute(
        self,
        argv: Sequence[str],
        variables: Mapping[str, str],
        timeout_s: float,
        reader: OutputReader | None = None,
        ending: str = ":",
    ) -> RunOutcome:
        """Runs any command in the run's folder, as `run` does the bundle's."""
        limit_s = math.ceil(timeout_s) + _LOST_S
        end = reader.end if reader else ""
        command = layout.start_command(
            self._folder, argv, variables, limit_s, self._sampling, end, ending
        )
        started = time.monotonic()
        report = self._wait(command, timeout_s, reader)
        seconds = time.monotonic() - started
        stdout = reader.text if reader else _read_output(self._shell, self._folder, ".stdout")
        outcome = _outcome(self._shell, self._folder, report, stdout, seconds)
        return replace(outcome, states=self._states())

    def _states(self) -> tuple[TimedState, ...]:
        text = self._shell.read(f"{self._folder}/{FILE}", "reading its states")
        return parse_samples(text, self._sampling.parse)

    def put(self, source: Path, relative: str) -> None:
        activity = f"sending {relative}"
        target = f"{self._folder}/{check_relative(relative)}"
        check_output(self._shell, f"mkdir -p {quote(posixpath.dirname(target))}", activity)
        try:
            self._shell.send(source, target, activity, lambda sent: None)  # noqa: ARG005
        except DeviceWriteError as error:
            raise DeviceError(
                f"{relative} cannot be written: {error}", place=self._shell.name
            ) from error

    def pull(self, relative: str, to: Path) -> None:
        check_relative(relative)
        activity = f"pulling {relative}"
        # Names come back relative to the folder, so that they cannot lead out of `to`.
        script = (
            f"cd {quote(self._folder)} || exit 1\n"
            f"if [ -d {quote(relative)} ]; then cd {quote(relative)} && echo folder && "
            f"find . -type f; elif [ -f {quote(relative)} ]; then echo file; fi"
        )
        kind, *names = check_output(self._shell, script, activity).splitlines() or [""]
        if kind == "file":
            pull_file(self._shell, f"{self._folder}/{relative}", to, activity)
        elif kind == "folder":
            to.mkdir(parents=True, exist_ok=True)
            for name in names:
                inner = check_relative(name.removeprefix("./"))
                pull_file(self._shell, f"{self._folder}/{relative}/{inner}", to / inner, activity)
        else:
            raise DeviceError(f"the run left no {relative}", place=self._shell.name)

    def _wait(self, command: str, timeout_s: float, reader: OutputReader | None) -> str | None:
        """What the shell says at the end; None when the program took longer than the limit."""
        # Unless the output is streamed, the shell is silent until it has ended, so that its silence
        # lasts as long as the run.
        running = self._shell.start(command, "starting the program", timeout_s)
        began = time.monotonic()
        try:
            result = running.finish("the program was running", reader.take if reader else None)
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
        return reader.after(result.output) if reader else result.output

    def _kill(self) -> None:
        self._shell.best_effort_cleanup(layout.kill_command(self._folder))


def _outcome(
    shell: RemoteShell, folder: str, report: str | None, stdout: str, seconds: float
) -> RunOutcome:
    """The outcome of a program; its shell's `report` is None where a time limit ended it."""
    exit_code = None if report is None else layout.require_exit_code(report, shell.name)
    return RunOutcome(
        exit_code=exit_code,
        signal_name=None if exit_code is None else signal_name_for(exit_code),
        stdout=stdout,
        stderr=_read_output(shell, folder, ".stderr"),
        seconds=seconds,
        timed_out=exit_code is None,
        out_of_memory=None if report is None else layout.parse_out_of_memory(report),
    )


def _read_output(shell: RemoteShell, folder: str, name: str) -> str:
    return shell.read(f"{folder}/{name}", "reading the program's output")


class OutputReader:
    """The lines of a program, handed over as they come.

    A program that prints is never silent for long, so its time limit is looked at here.
    """

    def __init__(self, on_line: Callable[[str], None], end: str, timeout_s: float) -> None:
        self._on_line = on_line
        self.end = end
        self._deadline = time.monotonic() + timeout_s
        self._lines: list[str] = []
        self._ended = False

    @property
    def text(self) -> str:
        """All lines of the program so far."""
        return "".join(f"{line}\n" for line in self._lines)

    def take(self, line: str) -> None:
        """The next line of the shell's output."""
        if self._ended:
            return
        if time.monotonic() > self._deadline:
            raise SilentError
        self._ended = line.endswith(self.end)
        line = line.removesuffix(self.end)
        if line or not self._ended:
            self._lines.append(line)
            self._on_line(line)

    def after(self, said: str) -> str:
        """What the shell said after the program, in all of its output."""
        return said.rpartition(self.end)[2]


_DOING = "the program was running"
# What is longest talked with; the end of the connection ends it, too.
_LIMIT_S = 86_400


class RemoteTalk:
    """The lines of a program."""

    def __init__(
        self, shell: RemoteShell, folder: str, persistent: PersistentShell, end: str, marker: str
    ) -> None:
        self._shell = shell
        self._folder = folder
        self._persistent = persistent
        self._end, self._marker = end, marker
        self._began = time.monotonic()
        self._has_ended = False

    def write_line(self, line: str) -> None:
        if not self._has_ended:
            self._persistent.write_lines(line, _DOING)

    def read_line(self, wait_s: float) -> str | None:
        if self._has_ended:
            return None
        try:
            line = self._persistent.read_line(_DOING, wait_s)
        except SilentError as error:
            raise TimeoutError(f"no line within {wait_s:g} s") from error
        self._has_ended = line is None or line.endswith(self._end)
        if line is None:
            self._persistent.read_result(self._marker, _DOING)  # tells why the connection ended
        return (line or "").removesuffix(self._end) or None if self._has_ended else line

    def end(self) -> RunOutcome:
        seconds = time.monotonic() - self._began
        if self._has_ended:
            report = self._persistent.read_result(self._marker, _DOING).output
        else:
            report = None
            self.kill()
        return _outcome(self._shell, self._folder, report, "", seconds)

    def kill(self) -> None:
        """Ends the program and all that it started."""
        self._shell.best_effort_cleanup(layout.kill_command(self._folder))


@contextmanager
def talking(
    shell: RemoteShell, folder: str, argv: Sequence[str], variables: Mapping[str, str]
) -> Iterator[RemoteTalk]:
    """Starts a program in a run's folder to talk with, and ends it with the block."""
    end, marker = (f"etdeploy-{secrets.token_hex(8)}" for _ in range(2))
    command = layout.talk_command(folder, argv, variables, _LIMIT_S, end, marker)
    with shell.persistent_shell(command, "starting the program") as persistent:
        talk = RemoteTalk(shell, folder, persistent, end, marker)
        try:
            yield talk
        finally:
            talk.kill()


_LOOKING = "looking for runners of earlier runs"
_FOLDERS_COMMAND = "ls -l /proc/[0-9]*/cwd 2>/dev/null; true"
_END_S = 5.0
_POLL_S = 0.1


def end_leftovers(shell: RemoteShell) -> tuple[Leftover, ...]:
    """Ends the runners of earlier runs, and returns them."""
    return end_all(shell, _find, "ending a runner of an earlier run")


def end_all(
    shell: RemoteShell, find: Callable[[RemoteShell], Mapping[Leftover, str]], activity: str
) -> tuple[Leftover, ...]:
    """Ends what `find` returns, by the command of each, until nothing is left; returns them.

    A run from another computer whose connection is still open is not a leftover.
    """
    found = left = find(shell)
    for leftover in found:
        if is_watched(shell, leftover):
            raise in_use_error(shell, leftover)
    deadline = time.monotonic() + _END_S
    while left:
        if time.monotonic() > deadline:
            raise not_ended_error(shell, next(iter(left)))
        shell.shell("\n".join(left.values()), activity)
        time.sleep(_POLL_S)
        left = find(shell)
    return tuple(found)


def is_watched(shell: RemoteShell, leftover: Leftover) -> bool:
    """Whether the connection that a run was started over is still open."""
    command = _is_watched_command(_folder(shell, leftover), leftover.run_id)
    return shell.shell(command, _LOOKING).ok


def _folder(shell: RemoteShell, leftover: Leftover) -> str:
    return shell.place.run(leftover.run_id)


def _find(shell: RemoteShell) -> dict[Leftover, str]:
    """The leftovers, each with the command that ends it."""
    root = shell.place.root
    folders = parse_folders(shell.shell(_FOLDERS_COMMAND, _LOOKING).output, root)
    if not folders:
        return {}
    output = shell.shell(processes_command(folders), _LOOKING).output
    return {
        found: _end_command(found.pid, _folder(shell, found))
        for found in parse_processes(output, folders, root)
    }


def parse_folders(output: str, root: str) -> dict[int, str]:
    """The working folders of processes that run in a run's folder, by process."""
    links = re.findall(r"/proc/(\d+)/cwd -> (.*)$", output, re.MULTILINE)
    return {int(pid): folder for pid, folder in links if find_run_id(folder, root)}


def processes_command(pids: Mapping[int, str]) -> str:
    """Prints for each process what it was started from, and when."""
    lines = [
        f"echo '#p{pid}'; readlink /proc/{pid}/exe; cat /proc/{pid}/stat; "
        f"tr '\\0' '\\n' </proc/{pid}/cmdline"
        for pid in pids
    ]
    return "\n".join(["echo '#uptime'; cat /proc/uptime", *(f"( {x} ) 2>/dev/null" for x in lines)])


def parse_processes(output: str, folders: Mapping[int, str], root: str) -> tuple[Leftover, ...]:
    """The runners of etdeploy in the output of `processes_command`."""
    return tuple(_leftovers(sections(output), folders, root))


def _leftovers(
    parts: Mapping[str, str], folders: Mapping[int, str], root: str
) -> Iterator[Leftover]:
    for pid, folder in folders.items():
        lines = parts.get(f"p{pid}", "").splitlines()
        if len(lines) < 2:
            continue  # it ended meanwhile
        try:
            seconds = seconds_since_start(lines[1], parts.get("uptime", ""))
        except ValueError:
            continue
        if leftover := Process(pid, lines[0], lines[2:], folder, seconds).leftover(root):
            yield leftover


def _is_watched_command(folder: str, run_id: str) -> str:
    """Succeeds while the shell that started a run watches over its connection."""
    return f"read -r w <{quote(folder)}/.watch && grep -qF {quote(f'/{run_id}')} /proc/$w/cmdline"


def _end_command(pid: int, folder: str) -> str:
    """Ends a process if it is still the one that was found."""
    return f'case "$(readlink /proc/{pid}/cwd)/" in {quote(folder)}[/\\ ]*) kill -9 {pid};; esac'


def in_use_error(shell: RemoteShell, leftover: Leftover) -> DeviceError:
    """The error for a run of another computer."""
    return DeviceError(
        f"another run of etdeploy is active on the device: {leftover.run_id}, "
        f"process {leftover.pid}, for {leftover.duration}",
        place=shell.name,
        remedy="Wait until it has ended: two runs at once would disturb each other's times.",
    )


def not_ended_error(shell: RemoteShell, leftover: Leftover) -> DeviceError:
    """The error for what cannot be ended."""
    return DeviceError(
        f"a runner of the earlier run {leftover.run_id} is still running on the device and cannot "
        f"be ended: process {leftover.pid}",
        place=shell.name,
        remedy=f"Restart the device:\n{shell.advice.restart}",
    )
