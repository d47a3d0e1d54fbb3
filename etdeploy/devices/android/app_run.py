"""Installing and running an app on an Android device.

`pm` reads what a push verified in the device's own store, so nothing travels again. It takes a path
below /data/local/tmp on every Android from 6 on; where a maker's policy keeps the system's services
from reading it, the same file goes through a pipe, which needs no permission but the shell's. A run
has its own folder, as for a runner.
"""

from __future__ import annotations

import posixpath
import re
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote

from etdeploy.core import console
from etdeploy.core.errors import DeviceError
from etdeploy.core.files.basic import write_atomic
from etdeploy.core.values import Progress
from etdeploy.devices import app_results
from etdeploy.devices.android import app_exit, app_watch
from etdeploy.devices.android.app_exit import AppExit, app_warnings, parse_log
from etdeploy.devices.android.app_watch import (
    LaunchReport,
    check_app_id,
    external_files,
    main_activity,
    stop_command,
)
from etdeploy.devices.android.diagnostics import (
    APP_FAILURES,
    explain_install,
    has_installed,
    is_unreadable,
)
from etdeploy.devices.android.facts import parse_screen
from etdeploy.devices.app_results import AppResults, parse_options
from etdeploy.devices.base import AppLaunch, Bundle, BundleFile, RunOutcome
from etdeploy.devices.bundles import check_relative
from etdeploy.devices.remote.layout import StateSampling
from etdeploy.devices.remote.run import RemoteRun, open_run_folder
from etdeploy.devices.remote.shell import DevicePaths, RemoteShell, check_output
from etdeploy.devices.shell import sections

_BUNDLE = "{bundle}"
_FILES = "files"
"""In the run's folder: copies of the bundle's small files."""
# What is copied at most: a request and its prompts. A model is read where it is.
_COPIED_BYTES = 16 << 20
# The system's record of an ending comes after the ending.
_ATTEMPTS = 5
_PAUSE_S = 0.5
_LOOKING = "looking why the app ended"
_LOG_S = 60.0


@contextmanager
def open_app_run(
    shell: RemoteShell, bundle: Bundle, app: AppLaunch, run_id: str, sampling: StateSampling
) -> Iterator[AppRun]:
    """A new folder for one run of an app that was pushed; it is removed when the block ends."""
    with open_run_folder(shell, bundle, run_id, sampling) as inner:
        command = files_command(shell.place, inner.folder, small_files(bundle, app))
        check_output(shell, command, "laying out the app's files")
        yield AppRun(shell, bundle, app, inner)


def small_files(bundle: Bundle, app: AppLaunch) -> list[BundleFile]:
    """What an app reads of a bundle and is copied for it."""
    return [
        file
        for file in bundle.files
        if file.path != app.archive and file.size_bytes <= _COPIED_BYTES
    ]


def files_command(place: DevicePaths, folder: str, files: Sequence[BundleFile]) -> str:
    """Copies files of the store to a run's folder, where every user may read them.

    A bundle's folder has symbolic links, and SELinux lets apps follow none of adb's user's.
    """
    inner = quote(f"{folder}/{_FILES}")
    folders = sorted({posixpath.dirname(file.path) for file in files} - {""})
    lines = [f"mkdir {inner} && cd {inner} || exit 1"]
    if folders:
        lines.append(f"mkdir -p -- {' '.join(map(quote, folders))} || exit 1")
    for file in files:
        source = quote(f"{place.root}/store/{file.sha256}")
        lines.append(f"cat {source} >{quote(file.path)} || exit 1")
    return "\n".join([*lines, f"chmod -R a+rX,go-w {quote(folder)}"])


def fill_option(
    word: str, place: DevicePaths, folder: str, bundle: Bundle, copied: set[str]
) -> str:
    """An option with the paths of the bundle's files in place of `{bundle}`."""
    name, _, value = word.partition("=")
    if _BUNDLE not in value:
        return word
    path = value.removeprefix(f"{_BUNDLE}/")
    for file in bundle.files:
        if file.path == path:
            there = f"{folder}/{_FILES}/{path}" if path in copied else None
            return f"{name}={there or f'{place.root}/store/{file.sha256}'}"
    raise ValueError(f"the bundle does not have what {word!r} names")


class AppRun:
    """The folder of one run of an app."""

    def __init__(
        self, shell: RemoteShell, bundle: Bundle, app: AppLaunch, inner: RemoteRun
    ) -> None:
        self._shell = shell
        self._bundle = bundle
        self._app = app
        self._inner = inner
        self._copied = {file.path for file in small_files(bundle, app)}
        self._results: AppResults | None = None

    def run(self, arguments: Sequence[str], timeout_s: float) -> RunOutcome:
        """Starts the app anew, waits for its results, and ends it."""
        self._results = None
        shell, folder = self._shell, self._inner.folder
        words = [fill_option(x, shell.place, folder, self._bundle, self._copied) for x in arguments]
        start_id = secrets.token_hex(8)
        script = app_watch.watch_script(self._app.id, start_id, parse_options(words))
        prepare_screen(shell)
        stop = stop_command(self._app.id)
        try:
            outcome = self._inner.execute(["sh", "-c", script], {}, timeout_s, ending=stop)
            return self._interpret(outcome, app_watch.parse_report(outcome.stdout), start_id)
        finally:
            # An open app keeps its memory, and the next program would be timed beside it.
            shell.best_effort_cleanup(stop)

    def _interpret(self, outcome: RunOutcome, report: LaunchReport, start_id: str) -> RunOutcome:
        outcome = replace(outcome, stdout="", out_of_memory=None)
        if outcome.timed_out:
            return replace(outcome, stderr="\n".join(self._log(report)))
        if report.ended == "results":
            return self._read_results(outcome, report, start_id)
        if report.ended == "gone":
            return self._explain_exit(outcome, report)
        if report.ended == "behind":
            said = f"behind {report.front or ''}".rstrip()
        else:
            said = "\n".join((report.said, outcome.stderr)).strip()
        raise explain_app(self._shell, said, self._app.id)

    def _read_results(self, outcome: RunOutcome, report: LaunchReport, start_id: str) -> RunOutcome:
        text = self._shell.read(
            f"{self._inner.folder}/{app_watch.RESULTS}", "reading the app's results"
        )
        found = app_results.parse_results(text, start_id, self._shell.name)
        if found.status == "done":
            self._results = found
            return replace(outcome, exit_code=0, signal_name=None, stderr="")
        said = found.error.message if found.error else "the app failed, and does not say why"
        if found.error and found.error.kind == "memory" and "out of memory" not in said.lower():
            said = f"out of memory: {said}"
        return replace(
            outcome, exit_code=1, signal_name=None, stderr="\n".join([*self._log(report), said])
        )

    def _explain_exit(self, outcome: RunOutcome, report: LaunchReport) -> RunOutcome:
        ending = self._find_exit(report)
        if ending.outside:
            raise explain_app(self._shell, f"outside: {ending.outside}", self._app.id)
        return replace(
            outcome,
            exit_code=ending.exit_code,
            signal_name=ending.signal_name,
            stderr="\n".join([*ending.lines, ending.cause]),
            out_of_memory=ending.out_of_memory,
        )

    def _find_exit(self, report: LaunchReport) -> AppExit:
        command = app_exit.ending_command(self._app.id)
        output = ""
        for attempt in range(_ATTEMPTS):
            time.sleep(_PAUSE_S if attempt else 0)
            output = self._shell.shell(command, _LOOKING, _LOG_S).output
            found = app_exit.parse_ending(output, self._app.id, report.pid, report.since)
            if found:
                return found
        return app_exit.unknown_exit(output, report.pid, report.since)

    def _log(self, report: LaunchReport) -> list[str]:
        """What the app warned of."""
        command = app_exit.ending_command(self._app.id)
        output = self._shell.shell(command, "reading the app's log", _LOG_S).output
        return app_warnings(parse_log(sections(output).get("log", ""), report.since), report.pid)

    def pull(self, relative: str, to: Path) -> None:
        """Copies the last start's results (a `.json`), or its folder of outputs."""
        check_relative(relative)
        if self._results is not None and relative.endswith(".json"):
            to.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(to, f"{self._results.results_text}\n")
        elif self._results is not None and relative.startswith(app_results.OUTPUTS):
            self._pull_outputs(self._results, to)
        else:
            raise DeviceError(f"the app left no {relative}", place=self._shell.name)

    def _pull_outputs(self, results: AppResults, to: Path) -> None:
        try:
            names = results.outputs()
        except ValueError as error:
            raise DeviceError(
                f"the app's outputs cannot be used: {error}", place=self._shell.name
            ) from error
        way = self._shell.read(f"{self._inner.folder}/{app_watch.WAY}", "reading the app's results")
        command = outputs_command(self._app.id, self._inner.folder, names, way.strip() == "private")
        result = self._shell.shell(command, "copying the app's outputs", _LOG_S)
        if not result.ok:
            raise DeviceError(
                f"the app's outputs cannot be read: {result.output.strip()}", place=self._shell.name
            )
        self._inner.pull(app_results.OUTPUTS, to)


def outputs_command(app_id: str, folder: str, names: Sequence[str], is_private: bool) -> str:
    """Copies an app's outputs to the run's folder.

    Through a pipe: what runs as the app may not write to files of adb's user.
    """
    lines = [f"cd {quote(folder)} && rm -rf outputs && mkdir outputs || exit 1", ": >.failed"]
    for name in names:
        if is_private:
            source = f"run-as {app_id} cat files/outputs/{name} || echo {name} >>.failed"
            lines.append(f"{{ {source}; }} | cat >outputs/{name}")
        else:
            source = f"{external_files(app_id)}/outputs/{name}"
            lines.append(f"cat {source} >outputs/{name} || echo {name} >>.failed")
    return "\n".join([*lines, "[ ! -s .failed ]"])


_DOING = "looking whether its screen is on and unlocked"
# `dumpsys` waits up to 10 s for each service that hangs.
_DUMPSYS_S = 35.0
# Screens come on and lock screens go away with an animation.
_SCREEN_ATTEMPTS = 8
_SCREEN_PAUSE_S = 0.4

SCREEN_COMMAND = "; ".join(
    (
        "echo '#power'; dumpsys power | grep -E 'mWakefulness=|Display Power: state='",
        "echo '#trust'; dumpsys trust 2>/dev/null | grep -F '(current)'",
        "echo '#policy'; dumpsys window policy 2>/dev/null |"
        " grep -E '^ *(showing|secure|mIsShowing)=|mShowingLockscreen=|isStatusBarKeyguard='",
        "true",
    )
)
WAKE_COMMAND = "input keyevent KEYCODE_WAKEUP"
# The second is the menu key, which removes a lock screen without a code on Android 6.
DISMISS_COMMAND = "wm dismiss-keyguard 2>/dev/null || input keyevent 82"


@dataclass(frozen=True)
class Screen:
    """The screen's state; None for what the device does not report."""

    is_on: bool | None
    is_covered: bool | None
    is_locked: bool | None


def parse_state(output: str) -> Screen:
    """Reads what SCREEN_COMMAND printed."""
    parts = sections(output)
    policy = parts.get("policy", "")
    # Android 7 and newer, a part of the same for makers that leave the first out, and Android 6.
    covered = _first(policy, r"^\s*showing=(\w+)", r"^\s*mIsShowing=(\w+)",
                     r"\bmShowingLockscreen=(\w+)", r"\bisStatusBarKeyguard=(\w+)")  # fmt: skip
    # Of the user in front only: a work profile has a lock of its own.
    locked = re.search(r"\(current\).*?\bdeviceLocked=(\d)", parts.get("trust", ""))
    if locked:
        is_locked: bool | None = locked[1] == "1"
    else:
        secure = _first(policy, r"^\s*secure=(\w+)")
        is_locked = None if covered is None or secure is None else covered and secure
    return Screen(parse_screen(parts.get("power", "")), covered, is_locked)


def _first(text: str, *patterns: str) -> bool | None:
    for pattern in patterns:
        if found := re.search(pattern, text, re.MULTILINE):
            return found[1] == "true"
    return None


def prepare_screen(shell: RemoteShell) -> None:
    """Turns the screen on, and removes a lock screen that needs no code."""
    screen = _read(shell)
    if not screen.is_on:
        shell.shell(WAKE_COMMAND, "turning its screen on")
        screen = _wait_for_screen(shell, lambda screen: screen.is_on is not False)
    if screen.is_on is False:
        raise explain_app(shell, "screen off")
    if screen.is_locked:
        raise explain_app(shell, "locked")
    if not screen.is_covered:
        return
    shell.shell(DISMISS_COMMAND, "removing its lock screen")
    screen = _wait_for_screen(shell, lambda screen: not screen.is_covered)
    if screen.is_locked:
        raise explain_app(shell, "locked")
    if screen.is_covered:
        raise explain_app(shell, "lock screen")


def explain_app(shell: RemoteShell, said: str, app_id: str = "") -> DeviceError:
    """Return the error for an app that was not measured, by no fault of its own."""
    return APP_FAILURES.error(
        DeviceError, said, shell.name,
        output=said or "no output",
        app=app_id,
        component=main_activity(app_id),
        adb=shell.advice.prefix,
    )  # fmt: skip


def _read(shell: RemoteShell) -> Screen:
    return parse_state(shell.shell(SCREEN_COMMAND, _DOING, _DUMPSYS_S).output)


def _wait_for_screen(shell: RemoteShell, is_reached: Callable[[Screen], bool]) -> Screen:
    screen = _read(shell)
    for _ in range(_SCREEN_ATTEMPTS):
        if is_reached(screen):
            break
        time.sleep(_SCREEN_PAUSE_S)
        screen = _read(shell)
    return screen


_LOOKING_FOR_APP = "looking which app is installed"
_HASH_S = 120.0
# A person may be asked on the phone's screen, and a large app is compiled.
_INSTALL_S = 600.0


@dataclass(frozen=True)
class InstalledApk:
    """What is installed under an app's id."""

    user: int
    paths: tuple[str, ...] = ()
    sha256: str | None = None

    def is_content(self, sha256: str) -> bool:
        """Whether it is exactly this file."""
        return len(self.paths) == 1 and self.sha256 == sha256


def install(shell: RemoteShell, bundle: Bundle, app: AppLaunch, progress: Progress) -> None:
    """Installs the app of a bundle that was pushed, and makes the bundle's files readable to it."""
    file = find_archive(bundle, app)
    command = f"{open_command(shell.place)}\n{installed_command(app.id)}"
    there = parse_installed(check_output(shell, command, _LOOKING_FOR_APP, _HASH_S))
    if there.is_content(file.sha256):
        return
    progress(f"installing {app.id} ({console.size(file.size_bytes)}); the phone may ask")
    said = ""
    for way in install_commands(shell.place, file, there.user):
        said = shell.shell(way, "installing the app", _INSTALL_S).output
        if has_installed(said):
            return
        if not is_unreadable(said):
            break
    raise explain_install(said, app.id, file.source, shell.name)


def find_archive(bundle: Bundle, app: AppLaunch) -> BundleFile:
    """The file that is installed."""
    check_app_id(app.id)
    for file in bundle.files:
        if file.path == app.archive:
            return file
    raise ValueError(f"the bundle does not have {app.archive}")


def open_command(place: DevicePaths) -> str:
    """Lets other users, which apps are, read what is pushed; nobody else may write.

    adb's user makes folders that only it may read where the device says so.
    """
    root = quote(place.root)
    return f"chmod 755 {root} {root}/store {root}/bundles {root}/runs || exit 1"


def installed_command(app_id: str) -> str:
    """Prints the user in front, the files of the installed app, and the digest of the first."""
    return "\n".join(
        (
            # Android 6 does not know the question; it, and most phones, have one user.
            "user=$(am get-current-user 2>/dev/null)",
            'case "$user" in ""|*[!0-9]*) user=0;; esac; echo "#user"; echo $user',
            f"paths=$(pm path --user $user {app_id} 2>/dev/null) ||"
            f" {{ [ $user != 0 ] || paths=$(pm path {app_id} 2>/dev/null); }}",
            'echo "#paths"; echo "$paths"; set -- $paths',
            'echo "#digest"; [ $# != 1 ] || sha256sum "${1#package:}" 2>/dev/null; true',
        )
    )


def parse_installed(output: str) -> InstalledApk:
    """Reads what `installed_command` printed."""
    parts = sections(output)
    user = parts.get("user", "").strip()
    digest = re.match(r"([0-9a-f]{64})\b", parts.get("digest", ""))
    return InstalledApk(
        user=int(user) if user.isdigit() else 0,
        paths=tuple(re.findall(r"^package:(\S+)\s*$", parts.get("paths", ""), re.MULTILINE)),
        sha256=digest[1] if digest else None,
    )


def install_commands(place: DevicePaths, file: BundleFile, user: int) -> tuple[str, str]:
    """The ways to install a file of the store: by its path, and by a pipe."""
    path = quote(f"{place.root}/store/{file.sha256}")
    # Replaces an installed one, keeps its data, and takes one that is marked as for tests.
    options = f"-r -t --user {user}"
    return (
        f"pm install {options} {path}",
        f"cat {path} | pm install {options} -S {file.size_bytes}",
    )
