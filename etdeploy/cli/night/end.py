"""What a night ends with: totals, and the exit code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from etdeploy.core.console import count
from etdeploy.core.errors import (
    DeviceError,
    EtdeployError,
    JobsError,
    MismatchError,
    RegressionError,
)
from etdeploy.core.text.shell import quoted
from etdeploy.farm.model import STOPPED, Failure, Standing, VisitState
from etdeploy.farm.night.model import NightEnd, listed

REGRESSED = "regressed"


def totals_of(end: NightEnd, verdicts: Sequence[str]) -> dict[str, Any]:
    """How many visits ended how, and how many recipes on devices were judged how."""
    standings = Counter(state.standing for state in end.states)
    return {
        "visits": len(end.states),
        **{str(each): standings[each] for each in Standing},
        "attempts": sum(len(state.attempts) for state in end.states),
        "verdicts": dict(Counter(verdicts)),
        "unsatisfied": list(end.unsatisfied),
        "set_aside": end.set_aside,
    }


def failures_of(states: Sequence[VisitState]) -> list[Failure]:
    """Why visits failed; also of those that were measured with outputs that differ."""
    found = []
    for state in states:
        result = state.result
        if result:
            found += [result.failure] if result.failure else []
        # One that was given up with its recipe failed as the recipe's others did.
        elif state.standing is Standing.FAILED and (
            state.attempts or not state.reason.startswith(STOPPED)
        ):
            found.append(_last_failure(state))
    return found


def _last_failure(state: VisitState) -> Failure:
    known = [ending.failure for ending in state.attempts if ending.failure]
    if known:
        return known[-1]
    return Failure(kind=DeviceError.kind, exit_code=DeviceError.exit_code, message=state.reason)


def error_of(
    end: NightEnd,
    verdicts: Sequence[str],
    blocked: EtdeployError | None = None,
    farm: Path = Path("farm.yaml"),
) -> EtdeployError | None:
    """What the night ends with; None if all is well.

    A regression comes first, since a script acts on it. Then the worst failure: that with the
    highest exit code. A night that measured nothing of what it should is a failure of its devices;
    visits that were missed beside others are not. Last comes a night of which nothing could be
    judged.

    Args:
        end: The night.
        verdicts: On recipes and devices.
        blocked: Why nothing could be judged.
        farm: The farm.yaml, for remedies.
    """
    worse = sum(each == REGRESSED for each in verdicts)
    if worse:
        what = count(worse, "recipe") + (" has" if worse == 1 else "s have").removeprefix("s")
        return RegressionError(f"{what} regressed on a device", place=end.night)
    failures = failures_of(end.states)
    if failures:
        failed = sum(state.standing is Standing.FAILED for state in end.states)
        worst = max(failures, key=lambda failure: failure.exit_code)
        differ = sum(each.kind == MismatchError.kind for each in failures)
        every = count(len(end.states), "visit")
        text = f"{failed} of {every} failed"
        if differ:
            wrong = f"the outputs of {differ}"
            text = f"{text}, {wrong} differ" if failed else f"{wrong} of {every} differ"
        return JobsError(f"{text}; the worst: {worst.message}", _as_error(worst))
    if any(state.standing is Standing.DONE for state in end.states):
        return blocked
    why = sorted({state.reason for state in end.states if state.reason}) or end.unsatisfied
    return DeviceError(
        f"nothing was measured: {listed(tuple(why)) or 'no visit was planned'}",
        remedy=f"See what matches: etdeploy farm plan {quoted(farm)}\n"
        f"and what is set aside: etdeploy farm quarantine -f {quoted(farm)}",
    )


def _as_error(failure: Failure) -> EtdeployError:
    error = EtdeployError(failure.message, place=failure.place, remedy=failure.remedy)
    error.exit_code = failure.exit_code  # type: ignore[misc]
    error.kind = failure.kind  # type: ignore[misc]
    return error
