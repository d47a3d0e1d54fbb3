"""What is observed around passes."""

from __future__ import annotations

import pytest

from etdeploy.bench import watch as watch_module
from etdeploy.bench.watch import MOST_SAMPLES, DeviceWatch, Observed
from etdeploy.core.errors import DeviceError
from etdeploy.core.values import silent
from etdeploy.devices.base import DeviceState, TimedState
from etdeploy.recipe.model import Cooldown
from tests.support.bench_device import FakeDevice


class Asked(FakeDevice):
    """Counts how often it is asked for its state; `gone` makes it fail."""

    def __init__(self) -> None:
        super().__init__((), ())
        self.asked = 0
        self.gone = False

    def state(self) -> DeviceState:
        self.asked += 1
        if self.gone:
            raise DeviceError("the device is gone", place="fake")
        return DeviceState(battery_percent=self.asked, battery_celsius=30.0)


_BEFORE = DeviceState(battery_percent=0)
_DURING = (TimedState(1.0, DeviceState(battery_percent=50)),)


def test_a_timed_pass_is_looked_at_before_and_after() -> None:
    device = Asked()
    watch = DeviceWatch(device, _BEFORE, None, silent)
    first = watch.open(timed=True).ended(_DURING)
    second = watch.open(timed=True).ended(())
    assert (first.before, first.after) == (
        _BEFORE,
        DeviceState(battery_percent=1, battery_celsius=30.0),
    )
    # The state after a pass is that before the next, and is not asked for again.
    assert (second.before, device.asked) == (first.after, 2)
    assert first.states == (_BEFORE, _DURING[0].state, first.after)
    assert 0 <= first.began_s <= first.ended_s <= second.began_s
    assert first.cooldown is None


def test_other_passes_are_not_looked_at() -> None:
    device = Asked()
    watch = DeviceWatch(device, _BEFORE, Cooldown(max_celsius=1), silent)
    assert watch.open(timed=False).ended(_DURING).states == (_DURING[0].state,)
    assert device.asked == 0


def test_a_state_that_others_made_old_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Asked()
    watch = DeviceWatch(device, _BEFORE, None, silent)
    monkeypatch.setattr(watch_module, "_FRESH_S", -1.0)
    before = watch.open(timed=True).ended(()).before
    assert before
    assert before.battery_percent == 1


def test_a_device_that_does_not_answer_is_told_by_the_next_pass() -> None:
    device = Asked()
    device.gone = True
    observed = DeviceWatch(device, _BEFORE, None, silent).open(timed=True).ended(())
    assert (observed.before, observed.after) == (_BEFORE, None)


def test_a_device_waits_before_a_timed_pass() -> None:
    watch = DeviceWatch(Asked(), _BEFORE, Cooldown(max_celsius=35), silent)
    cooldown = watch.open(timed=True).ended(()).cooldown
    assert cooldown
    assert (cooldown.sensor, cooldown.to_celsius, cooldown.reached) == ("battery", 30.0, True)


def test_a_clock_that_is_moved_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter((1000.0, 4600.0))
    monkeypatch.setattr(watch_module, "_clock_offset_s", lambda: next(times))
    assert (
        DeviceWatch(Asked(), _BEFORE, None, silent).open(timed=True).ended(()).clock_step_s
        == 3600.0
    )


def test_a_record_keeps_a_bounded_number_of_samples() -> None:
    during = tuple(TimedState(float(n), DeviceState()) for n in range(1, 1001))
    observed = Observed(began_s=5.0, ended_s=1006.0, during=during, after=DeviceState())
    samples = list(observed.samples("sustained"))
    assert MOST_SAMPLES / 2 < len(samples) <= MOST_SAMPLES + 1
    assert (samples[0].seconds, samples[-1].seconds) == (6.0, 1006.0)
    assert {sample.pass_name for sample in samples} == {"sustained"}
    few = Observed(during=during[:3])
    assert [sample.seconds for sample in few.samples("timing")] == [1.0, 2.0, 3.0]
