"""Starts an app over the developer services of iOS 17, and hears what it prints until its end."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from etdeploy.core.errors import DeviceError, Interrupted
from etdeploy.core.processes.conversation import InteractiveProcess
from etdeploy.devices.ios.command import TUNNELLED, PhoneCommand, PhoneCommandResult, last_error
from etdeploy.devices.ios.diagnostics import (
    IMAGE_FAILURES,
    UnavailableError,
    explain,
    phone_error,
    short,
)

# Making the tunnel and starting the app, before the app's own time begins.
_START_S = 30.0
# Downloading the image and having it signed, once for each phone and release of iOS.
_MOUNT_S = 600.0
# From the end of an app's output to that of the tunnel.
_END_S = 20.0
_SIGKILL = "9"


@dataclass(frozen=True)
class LaunchResult:
    """How a start went.

    Attributes:
        text: What the app printed.
        seconds: Wall time, with the tunnel.
        timed_out: Whether it had to be ended.
        announced: Whether it said that its results are there.
    """

    text: str
    seconds: float
    timed_out: bool
    announced: bool


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
        raise IMAGE_FAILURES.error(DeviceError, answer.said, command.name, said=said)


def _launch(
    command: PhoneCommand, app: str, arguments: Sequence[str], run_id: str, timeout_s: float
) -> LaunchResult:
    # Arguments after -- may begin with a dash.
    words = [*TUNNELLED, "launch-application", "--console", app, "--", *arguments]
    started = time.monotonic()
    with command.listening(words) as conversation:
        try:
            text, ended = hear(conversation, announcement(run_id), timeout_s + _START_S)
        except Interrupted:
            end_app(command, app)
            raise
        announced = _announces(text, announcement(run_id))
        if ended and not announced:
            _require_success(conversation, command, text)
    heard = LaunchResult(text, time.monotonic() - started, not (ended or announced), announced)
    if heard.timed_out:
        end_app(command, app)
    return heard


def hear(conversation: InteractiveProcess, mark: str, limit_s: float) -> tuple[str, bool]:
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
    if not ended_badly(conversation):
        return
    log = conversation.errors()
    answer = PhoneCommandResult(conversation.exit_code or 1, text, last_error(log), False, log)
    raise explain(answer, command, "starting the app")


def ended_badly(conversation: InteractiveProcess) -> bool:
    """Whether a program that prints no more has ended with an error."""
    try:
        return conversation.ended(_END_S) != 0
    except TimeoutError:
        return False


def end_app(command: PhoneCommand, app: str) -> None:
    """Ends an app; a phone that is gone is left alone. A stop does not keep it from that."""
    listed = command.tidy([*TUNNELLED, "list-processes"])
    for pid in parse_processes(listed, _folder(command, app)):
        command.tidy([*TUNNELLED, "send-signal-to-process", str(pid), _SIGKILL])


def _folder(command: PhoneCommand, app: str) -> str | None:
    try:
        information = json.loads(command.tidy(["apps", "query", app]))[app]
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
        # /var is a link to /private/var, and either may be told.
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
