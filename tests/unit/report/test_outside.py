"""The time outside of delegates, in words."""

from __future__ import annotations

from etdeploy.bench.records.outputs import Outside, OutsideOperator
from etdeploy.report.outside import outside_text

_SUM = OutsideOperator(
    name="aten::sum.out", calls=2, share=0.051, modules=("head",), places=("net.py:3",),
    reasons=("XNNPACK has no sum",),
)  # fmt: skip
_COPY = OutsideOperator(
    name="aten::clone.out", calls=9, share=0.012, modules=("a", "b"), places=("net.py:3",),
    reasons=("one", "another"),
)  # fmt: skip
_SMALL = OutsideOperator(name="aten::add.out", calls=1, share=0.0009)


def test_operators_that_take_time_are_named() -> None:
    text = outside_text(Outside(share=0.07, operators=(_SUM, _COPY, _SMALL)), is_delegated=True)
    assert text == (
        "7 % of the time is outside of delegates: 5.1 % in aten::sum.out (head, net.py:3), since "
        "XNNPACK has no sum; 1.2 % in aten::clone.out (2 modules, net.py:3)"
    )


def test_without_operators_the_share_is_the_runtimes() -> None:
    outside = Outside(share=0.0004, operators=(_SMALL,))
    assert outside_text(outside, is_delegated=True) == "0.04 % of the time is outside of delegates"
    assert outside_text(outside, is_delegated=False) == ""


def test_where_nothing_is_delegated_most_of_the_time_is_told() -> None:
    text = outside_text(Outside(share=1.0, operators=(_SUM,)), is_delegated=False)
    assert text.startswith("most of the time: 5.1 % in aten::sum.out (head, net.py:3), since")


def test_four_operators_are_enough() -> None:
    text = outside_text(Outside(share=0.3, operators=(_COPY,) * 6), is_delegated=True)
    assert text.count("aten::clone.out") == 4
