from __future__ import annotations

from typing import Any

import pytest

from etdeploy.bench.records.performance import Disturbance, DisturbanceKind
from etdeploy.profile.calls import Names, calls_of
from etdeploy.profile.profiled import profile_notes
from etdeploy.profile.protocol import Trace
from tests.support.bench_values import make_device, make_record
from tests.support.traces import TRACE

_THROTTLED = Disturbance(kind=DisturbanceKind.THROTTLED, text="The device was hot.")


def _notes(trace: Trace = TRACE, **changes: Any) -> str:
    calls = calls_of(trace, Names((), ("XnnpackBackend",)))
    return "\n".join(profile_notes(trace, calls, make_record([10.0], **changes)))


@pytest.mark.parametrize(
    ("trace", "changes", "note"),
    [
        (TRACE, {"device": make_device("qemu", emulator="qemu 7.2")}, "Traced under qemu 7.2"),
        (TRACE, {"disturbances": (_THROTTLED,)}, "The device was hot."),
        (TRACE.model_copy(update={"graph": None}), {}, "no ETRecord"),
        (TRACE.model_copy(update={"loops": True}), {}, "The model has loops"),
        (TRACE, {}, "joined to modules by their order"),
    ],
)
def test_what_a_reader_has_to_know_is_said(
    trace: Trace, changes: dict[str, Any], note: str
) -> None:
    assert note in _notes(trace, **changes)


def test_a_run_like_any_other_has_no_remark_on_its_conditions() -> None:
    assert not any(word in _notes() for word in ("Traced under", "hot", "loops", "tracer"))
