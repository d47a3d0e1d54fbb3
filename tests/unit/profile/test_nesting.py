from __future__ import annotations

import pytest

from etdeploy.profile.calls import DELEGATE_CALL, Timed, nested
from etdeploy.profile.protocol import TraceEvent
from tests.support.traces import make_event


def _shown(each: Timed) -> object:
    inside = [_shown(child) for child in each.inside]
    time_ms = round(each.self_ms, 6)
    return (each.event.name, time_ms, inside) if inside else (each.event.name, time_ms)


def _inner(name: str, start_ms: float, duration_ms: float, **changes: object) -> TraceEvent:
    return make_event(name, start_ms, duration_ms, inner=True, **changes)


def _counted(name: str, count: float, *handles: int) -> TraceEvent:
    """A duration in a unit of its own, as a delegate logs it: from 0 to its value."""
    return _inner(name, 0, count, handles=handles).model_copy(update={"starts_ns": (0.0,)})


def test_a_phase_contains_what_is_in_its_time() -> None:
    block = (
        _inner("upload", 0.0, 1.0),
        _inner("run", 1.0, 6.0),
        _inner("kernel", 2.0, 3.0),
        _inner("nothing", 2.0, 0.0),
        make_event(DELEGATE_CALL, 0.0, 8.0),
    )
    [call] = nested(block)
    phases = [("upload", 1.0), ("run", 3.0, [("kernel", 3.0)]), ("nothing", 0.0)]
    assert _shown(call) == (DELEGATE_CALL, 1.0, phases)


def test_nodes_in_a_unit_of_their_own_share_the_calls_time() -> None:
    block = (
        _counted("Execute (cycles)", 4_000_000),
        _counted("conv", 3_000_000, 1),
        _counted("relu", 1_000_000, 2),
        make_event(DELEGATE_CALL, 0.0, 8.0),
    )
    [call] = nested(block)
    assert _shown(call) == (DELEGATE_CALL, 0.0, [("conv", 6.0), ("relu", 2.0)])
    assert all(each.foreign for each in call.inside)


def test_times_of_another_clock_are_part_of_the_longest_phase() -> None:
    block = (
        _inner("copy", 0.0, 1.0),
        _inner("run", 1.0, 6.0),
        _inner("shader 1", 5000.0, 2.0),
        _inner("shader 2", 5002.0, 3.0),
        make_event(DELEGATE_CALL, 0.0, 8.0),
    )
    [call] = nested(block)
    shaders = [("shader 1", 2.0), ("shader 2", 3.0)]
    assert _shown(call) == (DELEGATE_CALL, 1.0, [("copy", 1.0), ("run", 1.0, shaders)])
    assert [each.depth for each in call.inside[1].inside] == [2, 2]


@pytest.mark.parametrize("count", [9.0, 4_000_000.0])
def test_sums_without_nodes_that_cannot_fit_are_left_out(count: float) -> None:
    [call] = nested((_counted("Accelerator time", count), make_event(DELEGATE_CALL, 0.0, 8.0)))
    assert _shown(call) == (DELEGATE_CALL, 8.0)
