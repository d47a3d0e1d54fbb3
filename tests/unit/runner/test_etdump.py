"""How much of a trace's time is in delegates."""

from __future__ import annotations

import pytest

from etdeploy.core.flatbuffer import CorruptError
from etdeploy.runner.etdump import Kernel, outside_share, read_summary
from tests.support.etdumps import make_etdump

# 10 us, of which 6 us and 1 us are in delegates; what is in a delegate is no call of its own.
_CALL = (
    ("DELEGATE_CALL", 1_000, 7_000),
    ("Fully Connected", 2_000, 5_000),
    ("OPERATOR_CALL", 7_000, 8_000),
    ("DELEGATE_CALL", 8_500, 9_500),
    ("Method::execute", 0, 10_000),
)


def test_the_share_is_what_is_in_no_delegate_of_all_calls() -> None:
    slower = [(name, 3 * start, 3 * end) for name, start, end in _CALL[-1:]]
    found = read_summary(make_etdump(_CALL, slower, ()))
    assert (found.calls, found.total_ms, found.delegated_ms) == (2, 0.04, 0.007)
    assert found.outside == pytest.approx(33 / 40)


def test_kernels_outside_of_delegates_are_added_up() -> None:
    call = (
        ("native_call_mean.out", 0, 1_000),
        ("OPERATOR_CALL", 0, 1_100),
        ("native_call_add.out", 1_100, 1_200),
        ("native_call_mean.out", 1_200, 3_200),
        ("Method::execute", 0, 10_000),
    )
    found = read_summary(make_etdump(call, call))
    assert found.kernels == (Kernel("mean.out", 4, 0.006), Kernel("add.out", 2, 0.0002))


@pytest.mark.parametrize(
    ("total_ms", "delegated_ms", "share"),
    [(10.0, 7.0, 0.3), (0.0, 0.0, 0.0), (1.0, 1.1, 0.0)],
)
def test_a_share_is_between_nothing_and_everything(
    total_ms: float, delegated_ms: float, share: float
) -> None:
    assert outside_share(total_ms, delegated_ms) == pytest.approx(share)


def test_what_is_cut_off_or_something_else_is_refused() -> None:
    whole = make_etdump(_CALL)
    for data in (b"", whole[:-1], whole[:20], b"\x08\0\0\0" + b"\0" * 8):
        with pytest.raises(CorruptError):
            read_summary(data)
