"""What an app leaves when it was started to measure: results.json, the same on every system.

    {"schema_version": 1, "run_id": "...", "status": "done" or "failed", "error": null or
     {"kind": "...", "message": "..."}, "app": {...}, "thermal": {...}, "results": {...} or null}

`results` is what a runner's results.json holds (etdeploy/runner). The app is a program that anybody
may have changed, so nothing of it is believed before it is checked, names of files least of all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from etdeploy.core.errors import DeviceError

FILE = "results.json"
OUTPUTS = "outputs"
"""The folder beside it, with the outputs of the first inference."""
INTERRUPTED = "interrupted"
"""The kind of error of a run in which the app was not in front until the end."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")


class AppError(BaseModel):
    """Why an app could not measure."""

    model_config = ConfigDict(frozen=True)

    kind: str
    message: str


class AppResults(BaseModel):
    """results.json; what a later release of the app may add is ignored."""

    model_config = ConfigDict(frozen=True)

    schema_version: Literal[1]
    run_id: str
    status: Literal["done", "failed"]
    error: AppError | None = None
    thermal: Any = None
    """The device's heat around the start, by names of DeviceState.thermal_status, or nothing."""
    results: dict[str, Any] | None = None

    @property
    def results_text(self) -> str:
        """The runner's part as JSON; empty where there is none."""
        return json.dumps(self.results) if self.results is not None else ""

    def outputs(self) -> tuple[str, ...]:
        """The files in the folder of outputs, by their names there."""
        listed = (self.results or {}).get("outputs")
        outputs = listed if isinstance(listed, list) else []
        paths = [each.get("path") for each in outputs if isinstance(each, dict)]
        return tuple(checked_name(path) for path in paths if path is not None)


def checked_name(path: object) -> str:
    """`path` itself when it is the plain name of a file."""
    if not isinstance(path, str) or not _NAME.fullmatch(path):
        raise ValueError(f"{path!r} is not a plain file name")
    return path


def run_id_in(text: str) -> str | None:
    """The start that left a results.json; None where it says none."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    run_id = found.get("run_id") if isinstance(found, dict) else None
    return run_id if isinstance(run_id, str) else None


def parse_results(text: str, run_id: str, device: str) -> AppResults:
    """Reads results.json of one start."""
    try:
        found = AppResults.model_validate_json(text)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        raise _unreadable(device, f"{where + ': ' if where else ''}{problem['msg']}") from error
    if found.run_id != run_id:
        raise _unreadable(device, f"they are those of another start, {found.run_id[:64]}")
    if found.status == "done" and found.results is None:
        raise _unreadable(device, "its status is done, and there are none")
    return found


def _unreadable(device: str, problem: str) -> DeviceError:
    return DeviceError(
        f"the app's results cannot be used: {problem}",
        place=device,
        remedy="If the app's sources were changed, see that it writes results.json as the project "
        "that\netdeploy generates does; else run the same command again.",
    )


Option = str | int | bool
# What each takes; all may be left out.
_KINDS: Mapping[str, type] = {
    "iterations": int,
    "warmup": int,
    "threads": int,
    "size": str,
    "outputs": bool,
    "program": str,
    "request": str,
}
_BOOLEANS = {"true": True, "false": False}


def parse_options(words: Sequence[str]) -> dict[str, Option]:
    """The options by name, each with a value of its kind."""
    found: dict[str, Option] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or name not in _KINDS or name in found:
            raise ValueError(f"{word!r} is not an option of an app")
        found[name] = _value(word, _KINDS[name], value)
    return found


def _value(word: str, kind: type, text: str) -> Option:
    if kind is bool and text in _BOOLEANS:
        return _BOOLEANS[text]
    # What an int of Java and Swift's Int32 holds.
    if kind is int and re.fullmatch(r"-?\d{1,9}", text):
        return int(text)
    if kind is str and text.isprintable():
        return text
    raise ValueError(f"{word!r}: the value is not of type {kind.__name__}")
