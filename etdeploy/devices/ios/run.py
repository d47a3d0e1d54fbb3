"""Starts of an app on a device of Apple's, each with its results."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote

from etdeploy.core.errors import DeviceError, Interrupted
from etdeploy.core.files.basic import write_atomic
from etdeploy.core.processes.conversation import InteractiveProcess
from etdeploy.core.values import cached_property
from etdeploy.devices.app_results import INTERRUPTED, AppResults, parse_results, run_id_in
from etdeploy.devices.base import AppLaunch, DeviceState, RunOutcome, TimedState
from etdeploy.devices.bundles import check_relative
from etdeploy.devices.ios.apps import OUTPUTS, RESULTS, Apps, LaunchResult, bundle_folder
from etdeploy.devices.ios.command import TUNNELLED, PhoneCommand, PhoneCommandResult, last_error
from etdeploy.devices.ios.diagnostics import (
    IMAGE_FAILURES,
    RUN_FAILURES,
    UnavailableError,
    explain,
    phone_error,
    short,
)
from etdeploy.devices.shell import signal_number


class IosRun:
    """One run; every start has its own id."""

    def __init__(self, apps: Apps, app: AppLaunch, run_id: str) -> None:
        self._apps = apps
        self._app = app
        self._run_id = run_id
        self._starts = 0
        self._results: AppResults | None = None

    def run(self, arguments: Sequence[str], timeout_s: float) -> RunOutcome:
        require_words(arguments, self._apps.name)
        self._results = None
        self._starts += 1
        start_id = f"{self._run_id}-{self._starts}"
        words = [self._filled(word) for word in arguments] + [f"run_id={start_id}"]
        began_unix_s = time.time()
        launched = self._apps.launch(self._app.id, words, start_id, timeout_s)
        printed = _without(launched.text, announcement(start_id))
        if launched.timed_out:
            return _timed_out(launched, printed)
        results = self._pull_results(start_id, announced=launched.announced)
        if results is None:
            return self._ended_without(launched, printed, began_unix_s)
        if results.error and results.error.kind == INTERRUPTED:
            raise RUN_FAILURES.error(DeviceError, INTERRUPTED, self._apps.name, app=self._app.id)
        self._results = results
        return finished(results, launched, printed)

    def pull(self, relative: str, to: Path) -> None:
        check_relative(relative)
        if relative.endswith(".json") and self._results and self._results.results is not None:
            to.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(to, json.dumps(self._results.results))
        elif relative.startswith("outputs") and self._results:
            self._pull_outputs(relative, to)
        else:
            raise DeviceError(f"the run left no {relative}", place=self._apps.name)

    def _filled(self, word: str) -> str:
        return word.replace("{bundle}", self._folder) if "{bundle}" in word else word

    @cached_property
    def _folder(self) -> str:
        installed = self._apps.query(self._app.id)
        return bundle_folder(installed.container if installed else None)

    def _pull_outputs(self, relative: str, to: Path) -> None:
        with tempfile.TemporaryDirectory() as folder:
            if not self._apps.pull(self._app.id, OUTPUTS, Path(folder)):
                raise DeviceError(f"the run left no {relative}", place=self._apps.name)
            shutil.copytree(Path(folder) / Path(OUTPUTS).name, to, dirs_exist_ok=True)

    def _pull_results(self, start_id: str, *, announced: bool) -> AppResults | None:
        """The results of this start; None where the app left none."""
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "results.json"
            if not self._apps.pull(self._app.id, RESULTS, copy):
                return None
            text = copy.read_text(errors="replace")
        if not announced and run_id_in(text) != start_id:
            return None
        return parse_results(text, start_id, self._apps.name)

    def _ended_without(
        self, launched: LaunchResult, printed: str, began_unix_s: float
    ) -> RunOutcome:
        crash = self._apps.find_crash(self._app.id, began_unix_s)
        text = crash.text if crash else (
            "the app ended without leaving results, and the phone has no crash report of it: "
            "it was closed on the phone, or ended itself"
        )  # fmt: skip
        signal = crash.signal if crash else None
        number = signal_number(signal) if signal else None
        return RunOutcome(
            exit_code=128 + number if number else 1,
            signal_name=signal if number else None,
            stdout=printed,
            stderr=_joined(printed, text),
            seconds=launched.seconds,
            out_of_memory=crash.out_of_memory if crash else None,
        )


def finished(results: AppResults, launched: LaunchResult, printed: str) -> RunOutcome:
    """The outcome of a start that left results; those may be of a failure."""
    error = results.error
    failed = results.status == "failed"
    message = (error.message if error else "the app failed, and does not say why") if failed else ""
    return RunOutcome(
        exit_code=1 if failed else 0,
        signal_name=None,
        stdout=printed,
        stderr=_joined(printed, message) if failed else "",
        seconds=launched.seconds,
        out_of_memory=bool(error and error.kind == "memory") if failed else None,
        states=_states(results, launched.seconds),
    )


def _states(results: AppResults, seconds: float) -> tuple[TimedState, ...]:
    """The thermal status that iOS reported to the app, before and after its work."""
    thermal = results.thermal if isinstance(results.thermal, dict) else {}
    read = ((0.0, thermal.get("status_before")), (seconds, thermal.get("status_after")))
    return tuple(TimedState(at, DeviceState(thermal_status=str(s))) for at, s in read if s)


def _timed_out(launched: LaunchResult, printed: str) -> RunOutcome:
    return RunOutcome(
        exit_code=None, signal_name=None, stdout=printed, stderr=printed,
        seconds=launched.seconds, timed_out=True,
    )  # fmt: skip


def _without(text: str, line: str) -> str:
    return "".join(one for one in text.splitlines(keepends=True) if one.strip() != line)


def _joined(printed: str, text: str) -> str:
    """What the app printed, then the reason: the last lines are what is shown."""
    return "\n".join(filter(None, (printed.rstrip("\n"), text))) + "\n"


# Making the tunnel and starting the app, before the app's own time begins.
_START_S = 30.0
# Downloading the image and having it signed, once for each phone and release of iOS.
_MOUNT_S = 600.0
# From the end of an app's output to that of the tunnel.
_END_S = 20.0
_SIGKILL = "9"


def announcement(run_id: str) -> str:
    """The line that an app prints when its results of a start are in place."""
    return f"etdeploy: run {run_id} has ended"


def launch(
    command: PhoneCommand, app: str, arguments: Sequence[str], run_id: str, timeout_s: float
) -> LaunchResult:
    """Starts an app, ending an earlier start of it, and waits until its results are there.

    Where the phone does not offer its developer services, its developer image is mounted first.
    """
    try:
        return _launch(command, app, arguments, run_id, timeout_s)
    except UnavailableError:
        prepare(command)
    return _launch(command, app, arguments, run_id, timeout_s)


def prepare(command: PhoneCommand) -> None:
    """Makes a phone offer its developer services."""
    answer = command.ask(["amfi", "developer-mode-status"])
    if not answer.ok:
        raise explain(answer, command, "asking for its Developer Mode")
    if answer.stdout.strip() == "false":
        raise phone_error("Developer Mode is off", command.name)
    answer = command.ask(["mounter", "auto-mount"], _MOUNT_S)
    if not answer.ok:
        said = short(answer.said) or "no answer"
        raise IMAGE_FAILURES.error(DeviceError, answer.said, command.name, output=said)


def _launch(
    command: PhoneCommand, app: str, arguments: Sequence[str], run_id: str, timeout_s: float
) -> LaunchResult:
    # Arguments after -- may begin with a dash.
    words = [*TUNNELLED, "launch-application", "--console", app, "--", *arguments]
    started = time.monotonic()
    with command.listening(words) as conversation:
        try:
            text, ended = read_until(conversation, announcement(run_id), timeout_s + _START_S)
        except Interrupted:
            end_app(command, app)
            raise
        announced = _announces(text, announcement(run_id))
        if ended and not announced:
            _require_success(conversation, command, text)
    seconds = time.monotonic() - started
    launched = LaunchResult(text, seconds, not (ended or announced), announced)
    if launched.timed_out:
        end_app(command, app)
    return launched


def read_until(conversation: InteractiveProcess, mark: str, limit_s: float) -> tuple[str, bool]:
    """What is printed until a line, the end or the limit, and whether it was the end."""
    output = b""
    deadline = time.monotonic() + limit_s
    while not _announces(output.decode(errors="replace"), mark):
        try:
            chunk = conversation.read(1 << 16, max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            return _plain(output), False
        if not chunk:
            return _plain(output), True
        output += chunk
    return _plain(output), False


def _announces(text: str, mark: str) -> bool:
    # The last line may be cut off in the middle of the name.
    return any(line.rstrip("\r\n") == mark for line in text.splitlines(keepends=True)
               if line.endswith("\n"))  # fmt: skip


def _plain(output: bytes) -> str:
    """Text of a terminal, whose lines end with a carriage return too."""
    return output.decode(errors="replace").replace("\r\n", "\n")


def _require_success(conversation: InteractiveProcess, command: PhoneCommand, text: str) -> None:
    """Raises unless the app was started: then the command ends with 0, however the app ended."""
    if not has_failed(conversation):
        return
    log = conversation.errors()
    answer = PhoneCommandResult(conversation.exit_code or 1, text, last_error(log), False, log)
    raise explain(answer, command, "starting the app")


def has_failed(conversation: InteractiveProcess) -> bool:
    """Whether a program that prints no more has ended with an error."""
    try:
        return conversation.ended(_END_S) != 0
    except TimeoutError:
        return False


def end_app(command: PhoneCommand, app: str) -> None:
    """Ends an app; a phone that is gone is left alone. A stop does not keep it from that."""
    listed = command.best_effort_cleanup([*TUNNELLED, "list-processes"])
    for pid in parse_processes(listed, _folder(command, app)):
        command.best_effort_cleanup([*TUNNELLED, "send-signal-to-process", str(pid), _SIGKILL])


def _folder(command: PhoneCommand, app: str) -> str | None:
    try:
        information = json.loads(command.best_effort_cleanup(["apps", "query", app]))[app]
        return str(information["Path"])
    except (ValueError, KeyError, TypeError):
        return None


def parse_processes(listed: str, folder: str | None) -> list[int]:
    """The processes whose program is in an app's folder."""
    try:
        processes = json.loads(listed)
    except ValueError:
        return []
    found = []
    for one in processes if folder and isinstance(processes, list) else ():
        url = one.get("executableURL") if isinstance(one, dict) else None
        path = unquote(str(url.get("relative", ""))) if isinstance(url, dict) else ""
        # /var is a link to /private/var, and either may be reported.
        if f"{_public(folder)}/" in _public(path.removeprefix("file://")) + "/":
            found.append(int(one["processIdentifier"]))
    return found


def _public(path: str | None) -> str:
    return (path or "").removeprefix("/private")


def require_words(arguments: Sequence[str], name: str) -> None:
    """Raises unless every argument is `key=value`."""
    for word in arguments:
        if "=" not in word:
            raise DeviceError(f"an app takes options key=value, not {word!r}", place=name)
