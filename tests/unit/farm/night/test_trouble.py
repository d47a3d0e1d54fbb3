"""Whose failure it was, and what follows."""

from __future__ import annotations

import pytest

from etdeploy.farm.model import AttemptFailure, AttemptResult, Fate, Gates, Health
from etdeploy.farm.night.failure_attribution import (
    AttributedFailure,
    FailureOwner,
    attribute_failure,
    quarantine_reason,
    relative_range,
    room_for_trials,
    stop_reason,
    variance_reason,
)
from etdeploy.farm.night.model import Rules

GATES = Gates(battery_percent=30, temperature_celsius=40.0, free_bytes=1000)
RULES = Rules()


def ending(
    kind: str = "run", fate: Fate = Fate.FAILED, message: str = "it failed", **health: object
) -> AttemptResult:
    failure = AttemptFailure(kind=kind, exit_code=7, message=message)
    return AttemptResult(
        visit="n-1", attempt=1, identity="p", host="h", fate=fate,
        failure=None if fate is Fate.LOST else failure,
        health=Health.model_validate(health) if health else None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("of", "trouble"),
    [
        (ending("run"), FailureOwner.RECIPE),
        (ending("check"), FailureOwner.RECIPE),
        (ending("time limit"), FailureOwner.RECIPE),
        (ending("bug"), FailureOwner.RECIPE),
        (ending("device"), FailureOwner.DEVICE),
        (ending("device", message="device unauthorized"), FailureOwner.UNAUTHORISED),
        (ending("device", message="the phone is locked"), FailureOwner.LOCKED),
        (ending("device", message="There is no room on the device"), FailureOwner.DISK),
        (ending("device", free_bytes=10), FailureOwner.DISK),
        (ending("run", free_bytes=10), FailureOwner.RECIPE),
        (ending("disk full"), FailureOwner.HOST),
        (ending("host"), FailureOwner.HOST),
        (ending("gate", Fate.PUT_OFF, temperature_celsius=48.0), FailureOwner.HEAT),
        (ending("gate", Fate.PUT_OFF, thermal_status="severe"), FailureOwner.HEAT),
        (ending("gate", Fate.PUT_OFF, battery_percent=5), None),
        (ending("in use", Fate.PUT_OFF), None),
        (ending("interrupted"), None),
        (ending(fate=Fate.LOST), None),
        (ending(fate=Fate.DONE), None),
    ],
)
def test_whose_failure_it_was(of: AttemptResult, trouble: FailureOwner | None) -> None:
    assert attribute_failure(of, GATES) == trouble


def seen(
    device: str, trouble: FailureOwner = FailureOwner.RECIPE, recipe: str = "a"
) -> AttributedFailure:
    return AttributedFailure(recipe, device, f"android:{device}", "h", trouble, "SIGSEGV")


def test_a_recipe_is_stopped_after_failures_on_three_devices() -> None:
    assert stop_reason([seen("1"), seen("1"), seen("1"), seen("2")], False, (), RULES) is None
    assert stop_reason([seen(each) for each in "123"], True, (), RULES) is None
    assert (
        stop_reason([seen(each, FailureOwner.DEVICE) for each in "123"], False, (), RULES) is None
    )
    assert stop_reason([seen(each, FailureOwner.HOST) for each in "123"], False, (), RULES) is None
    reason = stop_reason([seen(each) for each in "123"], False, (), RULES)
    assert reason is not None
    assert "3 devices" in reason
    assert "SIGSEGV" in reason


def test_a_recipe_that_takes_phones_down_is_to_blame_where_they_measure_another_one() -> None:
    gone = [seen(each, FailureOwner.DEVICE) for each in "123"]
    assert stop_reason(gone, False, "12", RULES) is None
    assert "3 devices" in (stop_reason(gone, False, "123", RULES) or "")
    # Or where they came back, and went away again.
    assert "3 devices" in (stop_reason(gone * 2, False, (), RULES) or "")
    assert (
        stop_reason([seen(each, FailureOwner.HEAT) for each in "123"] * 2, False, "123", RULES)
        is None
    )
    assert room_for_trials(gone, 0, "12", RULES) == 1
    assert quarantine_reason(gone[:1] * 3, lambda *_: False, lambda *_: True, RULES) is None
    full = [seen("1", FailureOwner.DISK)] * 3
    assert quarantine_reason(full, lambda *_: False, lambda *_: True, RULES) is not None


def test_trials_never_crash_more_devices_than_it_takes_to_stop() -> None:
    assert room_for_trials([], 0, (), RULES) == 3
    assert room_for_trials([seen("1")], 1, (), RULES) == 1
    assert room_for_trials([seen("1"), seen("2")], 1, (), RULES) == 0
    assert room_for_trials([seen("1", FailureOwner.DEVICE)], 0, (), RULES) == 3


@pytest.mark.parametrize(
    ("row", "elsewhere", "words"),
    [
        ([seen("1", FailureOwner.DEVICE)] * 2, True, None),
        ([seen("1", FailureOwner.DEVICE)] * 3, False, "3 attempts in a row"),
        ([seen("1", FailureOwner.DISK)] * 2, False, "no room"),
        ([seen("1", FailureOwner.UNAUTHORISED)] * 2, False, "key"),
        ([seen("1", FailureOwner.LOCKED)] * 2, False, "unlocked"),
        ([seen("1", FailureOwner.HEAT)] * 2, False, None),
        ([seen("1", FailureOwner.HEAT)] * 3, False, "too warm"),
        ([seen("1")] * 3, False, None),
        ([seen("1"), seen("1", recipe="b"), seen("1")], True, "succeed elsewhere (a, b)"),
        ([seen("1", FailureOwner.HOST)] * 9, True, None),
    ],
)
def test_when_a_device_is_quarantined(
    row: list[AttributedFailure], elsewhere: bool, words: str | None
) -> None:
    reason = quarantine_reason(row, lambda *_: elsewhere, lambda *_: False, RULES)
    assert (reason is None) == (words is None)
    assert words is None or words in (reason or "")


def test_a_device_whose_repeats_differ_far_more_than_others_is_odd() -> None:
    assert relative_range([100.0, 130.0]) is None
    assert relative_range([100.0, 110.0, 130.0]) == pytest.approx(30 / 110)
    quiet = [0.01, 0.02, 0.03, 0.02]
    assert variance_reason([0.4], quiet) == (
        "its repeats are 40 % apart, and those on other devices 2 %"
    )
    assert variance_reason([0.4, 0.02, 0.03], quiet) is None, "one noisy recipe is not the device"
    assert variance_reason([0.1], quiet) is None, "below 15 %"
    assert variance_reason([0.4], [0.3, 0.35, 0.2, 0.3]) is None, "it is noisy everywhere"
    assert variance_reason([0.4], quiet[:3]) is None, "too few to compare with"
