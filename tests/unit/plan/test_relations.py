"""Options get what they require, and options that exclude each other are reported."""

from __future__ import annotations

import pytest

from etdeploy.core.errors import BuildError
from etdeploy.core.values import ReasonedChoice
from etdeploy.plan.cmake_options import (
    OptionTable,
    Relation,
    apply_relations,
    is_on,
    spelled_for,
    with_overrides,
)
from tests.support.facts import lacks

_TABLE = OptionTable(
    names=frozenset(
        {"EXECUTORCH_A", "EXECUTORCH_B", "EXECUTORCH_C", "EXECUTORCH_X", "EXECUTORCH_Y"}
        | {"EXECUTORCH_BUILD_XNNPACK", "EXECUTORCH_SELECT_OPS_MODEL", "EXECUTORCH_DTYPES"}
    ),
    requires=(
        Relation("EXECUTORCH_A", ("EXECUTORCH_B",)),
        Relation("EXECUTORCH_B", ("EXECUTORCH_C",)),
        Relation("EXECUTORCH_C", ("EXECUTORCH_A",)),
        Relation("EXECUTORCH_DTYPES", ("EXECUTORCH_SELECT_OPS_MODEL",)),
    ),
    conflicts=(Relation("EXECUTORCH_X", ("EXECUTORCH_Y", "EXECUTORCH_A")),),
    origin="the release",
)


def _options(**values: str) -> tuple[ReasonedChoice, ...]:
    return tuple(
        ReasonedChoice(name=f"EXECUTORCH_{name}", value=value, reason=f"the rule of {name}")
        for name, value in values.items()
    )


def _by_hand(name: str, value: str = "ON") -> ReasonedChoice:
    return ReasonedChoice(name=name, value=value, reason="recipe", by_hand=True)


def _values(options: tuple[ReasonedChoice, ...]) -> dict[str, str | None]:
    return {option.name: option.value for option in options}


def test_words_that_cmake_takes_for_true_and_false() -> None:
    def on(value: str | None) -> bool:
        return is_on(ReasonedChoice(name="A", value=value, reason="r"))

    assert all(map(on, ("ON", "on", "1", "TRUE", "yes", "Y", "a/path.pte", "Release")))
    off = ("OFF", "off", "0", "FALSE", "no", "N", "", "IGNORE", "NOTFOUND", "zlib-NOTFOUND", None)
    assert not any(map(on, off))


def test_what_is_required_is_switched_on_through_all_steps() -> None:
    options, blockers = apply_relations(_options(A="ON"), _TABLE)
    assert blockers == ()
    assert _values(options) == {f"EXECUTORCH_{name}": "ON" for name in "ABC"}
    reasons = {o.name: o.reason for o in options}
    assert reasons["EXECUTORCH_A"] == "the rule of A"
    assert reasons["EXECUTORCH_B"] == "EXECUTORCH_A requires it"
    assert reasons["EXECUTORCH_C"] == "EXECUTORCH_B requires it"


def test_a_derived_off_gives_way_to_a_requirement() -> None:
    options, blockers = apply_relations(_options(B="OFF", C="ON", A="ON"), _TABLE)
    assert blockers == ()
    assert [o.name for o in options] == ["EXECUTORCH_B", "EXECUTORCH_C", "EXECUTORCH_A"]
    assert _values(options)["EXECUTORCH_B"] == "ON"


def test_off_by_hand_stays_and_is_a_blocker() -> None:
    options, blockers = apply_relations(
        (*_options(A="ON"), _by_hand("EXECUTORCH_B", "OFF")), _TABLE
    )
    assert _values(options)["EXECUTORCH_B"] == "OFF"
    assert [o.what for o in blockers] == ["EXECUTORCH_B"]
    assert not lacks(blockers[0].why, "EXECUTORCH_A is on", "the rule of A", "EXECUTORCH_B")
    assert "runtime.cmake" in blockers[0].remedy


def test_a_program_to_select_from_is_not_made_up() -> None:
    options, blockers = apply_relations((_by_hand("EXECUTORCH_DTYPES"),), _TABLE)
    assert "EXECUTORCH_SELECT_OPS_MODEL" not in _values(options)
    assert [o.what for o in blockers] == ["EXECUTORCH_SELECT_OPS_MODEL"]
    path = ReasonedChoice(name="EXECUTORCH_SELECT_OPS_MODEL", value="program.pte", reason="r")
    assert apply_relations((_by_hand("EXECUTORCH_DTYPES"), path), _TABLE)[1] == ()


def test_a_conflict_names_both_reasons_and_what_to_remove() -> None:
    _, blockers = apply_relations((*_options(Y="ON"), _by_hand("EXECUTORCH_X")), _TABLE)
    [blocker] = blockers
    assert blocker.what.split() == ["EXECUTORCH_X", "and", "EXECUTORCH_Y"]
    assert not lacks(blocker.why, "EXECUTORCH_X (recipe)", "(the rule of Y)")
    assert not lacks(blocker.remedy, "EXECUTORCH_X", "runtime.cmake")


def test_a_conflict_with_something_that_is_only_required_is_found() -> None:
    _, blockers = apply_relations((*_options(B="ON"), _by_hand("EXECUTORCH_X")), _TABLE)
    assert [o.what.split()[::2] for o in blockers] == [["EXECUTORCH_X", "EXECUTORCH_A"]]


def test_an_option_by_hand_takes_the_place_of_the_derived_one() -> None:
    options = with_overrides(_options(A="ON", B="ON"), {"EXECUTORCH_A": False}, _TABLE)
    assert [(o.name, o.value, o.reason) for o in options] == [
        ("EXECUTORCH_A", "OFF", "recipe"),
        ("EXECUTORCH_B", "ON", "the rule of B"),
    ]


def test_other_options_by_hand_come_last_in_their_order() -> None:
    by_hand: dict[str, str | bool | int] = {"EXECUTORCH_X": True, "CMAKE_CXX_FLAGS": "-g"}
    by_hand["MAX_KERNEL_NUM"] = 64
    options = with_overrides(_options(A="ON"), by_hand, _TABLE)
    assert _values(options) == {
        "EXECUTORCH_A": "ON",
        "EXECUTORCH_X": "ON",
        "CMAKE_CXX_FLAGS": "-g",
        "MAX_KERNEL_NUM": "64",
    }
    assert {o.reason for o in options[1:]} == {"recipe"}


def test_an_unknown_option_by_hand_is_allowed_and_shown_with_a_suggestion() -> None:
    options = with_overrides((), {"EXECUTORCH_BUILD_XNPACK": True, "EXECUTORCH_Q7": True}, _TABLE)
    assert [o.value for o in options] == ["ON", "ON"]
    assert not lacks(options[0].reason, "the release", "EXECUTORCH_BUILD_XNNPACK")
    assert spelled_for(options[:1], _TABLE) == options[:1]


def test_a_name_that_is_like_no_other_has_no_suggestion() -> None:
    (option,) = with_overrides((), {"EXECUTORCH_ZZZZZZZZZZZZZZZZZZZZZZZ": "1"}, _TABLE)
    assert "the release" in option.reason
    assert "did you mean" not in option.reason


def test_a_derived_option_that_the_release_does_not_know_is_a_mistake_of_etdeploy() -> None:
    with pytest.raises(BuildError, match="EXECUTORCH_NEW") as raised:
        spelled_for(_options(NEW="ON"), _TABLE)
    assert "the rule of NEW" in raised.value.message
    assert "the release" in raised.value.message
    assert "bug in etdeploy" in (raised.value.remedy or "")
    assert raised.value.exit_code == 4


def test_the_old_name_of_an_option_is_taken_and_told() -> None:
    old = OptionTable(frozenset({"EXECUTORCH_BUILD_KERNELS_CUSTOM"}), (), (), "ExecuTorch 1.0")
    (option,) = spelled_for(_options(BUILD_KERNELS_LLM="ON"), old)
    assert option.name == "EXECUTORCH_BUILD_KERNELS_CUSTOM"
    assert option.value == "ON"
    assert not lacks(option.reason, "rule of", "ExecuTorch 1.0", "EXECUTORCH_BUILD_KERNELS_LLM")
