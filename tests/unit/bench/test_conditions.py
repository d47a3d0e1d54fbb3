"""What a measurement was done under."""

from __future__ import annotations

from dataclasses import replace

from etdeploy.bench.conditions import cooldown_notes, disturbances_of, judged, samples_of
from etdeploy.bench.passes import PassResult, Results
from etdeploy.bench.records.conditions import CooldownWait, Disturbance, DisturbanceKind
from etdeploy.bench.series import StartSeries
from etdeploy.bench.watch import Observed
from etdeploy.devices.base import CpuCluster, DeviceState
from etdeploy.recipe.model import Cooldown
from etdeploy.runner.protocol import Processors
from tests.support.bench_values import make_device, make_pass, make_results


def limited(khz: int) -> DeviceState:
    return DeviceState(clusters=(CpuCluster(cpus=(0,), max_khz=khz),))


def started(number: int, observed: Observed, busy_s: float | None = None) -> PassResult:
    processors = Processors(count=2, wall_s=1, own_s=1, busy_s=busy_s) if busy_s else None
    return replace(make_pass(number, make_results(processors=processors)), observed=observed)


def results_of(*starts: PassResult) -> Results:
    return {start.step.key: start for start in starts}


def test_a_limit_is_low_by_what_the_whole_run_shows() -> None:
    hot, cool = Observed(before=limited(1_000_000)), Observed(after=limited(2_000_000))
    found = judged(results_of(started(1, hot), started(2, cool)), make_device())
    assert [[d.kind for d in each.disturbances] for each in found.values()] == [["throttled"], []]
    after = make_device(after=limited(3_000_000))
    assert all(each.disturbances for each in judged(found, after).values())


def test_the_states_of_all_passes_are_in_one_line() -> None:
    first = Observed(ended_s=2.0, after=limited(1))
    second = Observed(began_s=3.0, ended_s=9.0, after=limited(2))
    samples = samples_of(results_of(started(1, first), started(2, second)))
    assert [(s.seconds, s.pass_name) for s in samples] == [(2.0, "timing"), (9.0, "timing.2")]


def test_a_load_average_counts_only_where_the_runner_knows_no_better() -> None:
    loaded = make_device(before=DeviceState(load_average=9.0))
    told = disturbances_of(StartSeries((started(1, Observed()),)), loaded)
    assert [each.kind for each in told] == [DisturbanceKind.BUSY]
    assert disturbances_of(StartSeries((started(1, Observed(), busy_s=1.0),)), loaded) == ()


def test_most_starts_make_the_run_disturbed() -> None:
    busy = Disturbance(kind=DisturbanceKind.BUSY, text="Other work took 1.0 of 2 processors.")
    starts = [started(n, Observed(), busy_s=1.0) for n in (1, 2, 3)]
    disturbed = [replace(start, disturbances=(busy,)) for start in starts[:2]]
    assert disturbances_of(StartSeries((*disturbed, starts[2])), make_device()) == (busy,)


def cooled(to_celsius: float, *, reached: bool) -> Observed:
    return Observed(
        cooldown=CooldownWait(
            sensor="battery", from_celsius=41, to_celsius=to_celsius, waited_s=9, reached=reached
        )
    )


def test_a_device_that_stayed_warm_is_told_with_what_to_do() -> None:
    wanted = Cooldown(max_celsius=35, timeout_s=300)
    starts = results_of(
        started(1, cooled(36.0, reached=False)), started(2, cooled(34.0, reached=True))
    )
    [note] = cooldown_notes(starts, wanted)
    assert "did not cool to 35 °C within 5 min before 1 of 2 starts: battery was at 36.0" in note
    assert "--set benchmark.cooldown.timeout_s=600" in note
    assert not list(cooldown_notes(results_of(started(1, cooled(34.0, reached=True))), wanted))


def test_a_wish_for_a_cool_device_without_a_sensor_is_told() -> None:
    [note] = cooldown_notes(results_of(started(1, Observed())), Cooldown())
    assert "reports no temperature: no start has waited" in note
    assert not list(cooldown_notes(results_of(started(1, Observed())), None))
