"""Which operators changed."""

from __future__ import annotations

from etdeploy.compare.model import operator_changes


def test_the_largest_change_comes_first() -> None:
    a = {("add", ""): 1.0, ("conv", "stem"): 5.0, ("gone", ""): 0.5, ("same", ""): 9.0}
    b = {("add", ""): 1.3, ("conv", "stem"): 3.0, ("new", ""): 0.4, ("same", ""): 9.001}
    found = [(c.name, c.module, c.a_ms, c.b_ms) for c in operator_changes(a, b)]
    assert found == [
        ("conv", "stem", 5.0, 3.0),
        ("gone", "", 0.5, None),
        ("new", "", None, 0.4),
        ("add", "", 1.0, 1.3),
    ]


def test_few_are_named_and_none_of_nothing() -> None:
    many = {(f"op{i}", ""): float(i) for i in range(30)}
    assert len(operator_changes(many, {})) == 10
    assert operator_changes({}, {}) == ()
    assert operator_changes({("add", ""): 0.0}, {("add", ""): 0.0}) == ()


def test_another_operator_of_the_same_module_is_one_row() -> None:
    a = {("fp32", "0"): 4.0, ("fp32", "1"): 2.0, ("x", "2"): 1.0, ("y", "2"): 1.0, ("a", ""): 0.3}
    b = {("int8", "0"): 1.0, ("int8", "1"): 0.5, ("z", "2"): 0.2, ("b", ""): 0.2}
    found = [(c.name, c.module, c.a_ms, c.b_ms) for c in operator_changes(a, b)]
    assert found[:2] == [("fp32 -> int8", "0", 4.0, 1.0), ("fp32 -> int8", "1", 2.0, 0.5)]
    assert {name for name, *_ in found[2:]} == {"x", "y", "z", "a", "b"}
