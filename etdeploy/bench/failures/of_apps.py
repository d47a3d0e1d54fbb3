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
    """The same as `run_error`, for an app."""
    error = run_error(outcome, pass_name, recipe, device, log, capabilities, iterations, limit_s)
    lines = [_OF_RUNNERS.sub("", line) for line in (error.remedy or "").splitlines()]
    kept = [line[0].upper() + line[1:] for line in lines if line.strip()]
    if lines != (error.remedy or "").splitlines() and recipe.app.runtime != "source":
        kept.append(_SOURCE)
    if "process" in capabilities.launches and not outcome.timed_out:
        kept.append(_RUNNER)
    return RunError(
        error.message.replace("the runner", "the app"),
        place=error.place,
        remedy="\n".join(kept) or None,
        log=error.log,
    )
