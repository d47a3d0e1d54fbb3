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


def test_a_conflict_with_something_that_is_only_required_is_found() -> None:
    _, blockers = apply_relations((*_options(B="ON"), _by_hand("EXECUTORCH_X")), _TABLE)
    assert [o.what.split()[::2] for o in blockers] == [["EXECUTORCH_X", "EXECUTORCH_A"]]


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
