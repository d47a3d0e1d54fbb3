"""What a failed run of an app means: what is known of runners, in an app's words."""

from __future__ import annotations

import re
from pathlib import Path

from etdeploy.bench.failures.diagnosis import run_error
from etdeploy.core.errors import RunError
from etdeploy.devices.base import Capabilities, RunOutcome
from etdeploy.recipe.model import Recipe

# A release for apps cannot be built again, and neither brings its C library.
_OF_RUNNERS = re.compile(
    r"(?:Build (?:it|the runner) again: etdeploy clean runners(?:; or )?)"
    r"|(?:The runner does not match etdeploy\. )"
)
_SOURCE = "Build ExecuTorch for the app: --set app.runtime=source"
_ON_HOST = "--device host"
_WITHOUT = "without --as app and --app"
_RUNNER = "See whether the app is the cause: leave out --as app"


def app_error(
    outcome: RunOutcome,
    pass_name: str,
    recipe: Recipe,
    device: str,
    log: Path,
    capabilities: Capabilities,
    iterations: int | None = None,
    limit_s: float | None = None,
) -> RunError:
    """The same as `run_error`, for an app.

    A device that starts no processes is an iPhone, whose apps have ExecuTorch's Swift package.
    """
    has_runner = "process" in capabilities.launches
    error = run_error(outcome, pass_name, recipe, device, log, capabilities, iterations, limit_s)
    lines = [_OF_RUNNERS.sub("", line) for line in (error.remedy or "").splitlines()]
    kept = [_elsewhere(line[0].upper() + line[1:]) for line in lines if line.strip()]
    rebuilt = lines != (error.remedy or "").splitlines()
    if rebuilt and has_runner and recipe.app.runtime != "source":
        kept.append(_SOURCE)
    if has_runner and not outcome.timed_out:
        kept.append(_RUNNER)
    return RunError(
        error.message.replace("the runner", "the app"),
        place=error.place,
        remedy="\n".join(kept) or None,
        log=error.log,
    )


def _elsewhere(line: str) -> str:
    """This machine runs no apps."""
    return f"{line}, {_WITHOUT}" if line.endswith(_ON_HOST) else line
