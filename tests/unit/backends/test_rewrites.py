"""Which rewrites an export tries."""

from __future__ import annotations

from typing import Any

import pytest

from etdeploy.backends.rewrites import (
    CHANNELS_LAST,
    LINEARS,
    REWRITES,
    as_everywhere,
    chosen_rewrites,
    with_idle,
)
from etdeploy.backends.schemes import STATIC_SCHEMES
from etdeploy.export.derive import rewrites_of
from etdeploy.plan.language import rewrite_choices
from tests.support.facts import lacks
from tests.support.runtime_values import make_recipe

ALL = tuple(REWRITES)


def test_rewrites_that_change_nothing_give_the_same_program() -> None:
    assert as_everywhere(("depthwise", "views")) == ("views",)
    assert with_idle(("depthwise", "views"), ["depthwise"]) == (("views",),)
    assert with_idle(("views",), ["depthwise"]) == (("depthwise", "views"),)
    assert with_idle(("views",), []) == ()


def test_auto_takes_what_helps_on_the_target() -> None:
    chosen = chosen_rewrites("auto", ALL, "int8_static", "x86_64")
    assert chosen.names == tuple(name for name in ALL if name not in (CHANNELS_LAST, LINEARS))
    assert "NHWC order" in chosen.left_out[CHANNELS_LAST]
    other = chosen_rewrites("auto", ALL, "none", "aarch64")
    assert set(ALL) - set(other.names) == {"silu", "depthwise", CHANNELS_LAST, LINEARS}
    schemes = ", ".join(STATIC_SCHEMES)
    assert other.left_out["silu"].endswith(f" {schemes}")
    assert not lacks(other.left_out["depthwise"], "only on x86_64", "is aarch64")


def test_what_is_asked_for_runs_in_its_own_order_wherever() -> None:
    chosen = chosen_rewrites(("views", "depthwise"), ALL, "none", "aarch64")
    assert chosen.names == ("depthwise", "views")
    assert "export.rewrites" in chosen.left_out["norms"]


def test_a_choice_may_be_added_to_what_helps() -> None:
    chosen = chosen_rewrites(("auto", CHANNELS_LAST), ALL, "none", "aarch64")
    auto = chosen_rewrites("auto", ALL, "none", "aarch64")
    assert set(chosen.names) - set(auto.names) == {CHANNELS_LAST}
    assert "only on x86_64" in chosen.left_out["depthwise"]
    recipe = make_recipe(export={"rewrites": ["auto", CHANNELS_LAST]})
    choices = rewrite_choices(recipe, rewrites_of(recipe, "aarch64"), None)
    assert [choice.name for choice in choices if choice.by_hand] == [CHANNELS_LAST]


def test_a_kernel_is_for_its_architecture_and_scheme() -> None:
    asked = ("auto", LINEARS)
    for arch in ("x86_64", None):
        assert LINEARS in chosen_rewrites(asked, ALL, "8da4w", arch).names
    assert LINEARS in chosen_rewrites("auto", ALL, "8da4w", "x86_64").names
    assert "x86_64" in chosen_rewrites("auto", ALL, "8da4w", None).left_out[LINEARS]
    other = chosen_rewrites(asked, ALL, "8da4w", "aarch64").left_out[LINEARS]
    assert not lacks(other, "x86_64", "aarch64")
    assert "8da4w" in chosen_rewrites(asked, ALL, "8da8w", "x86_64").left_out[LINEARS]


def test_a_language_model_has_only_what_is_for_texts() -> None:
    recipe = make_recipe(model={"hf": "some/model"}, export={"quantization": "8da4w"})
    assert rewrites_of(recipe, "x86_64").names == (LINEARS,)
    found = rewrites_of(recipe, "aarch64")
    assert (found.names, [*found.left_out]) == ((), [LINEARS])


@pytest.mark.parametrize(
    ("model", "generation"),
    [
        ({"hf": "some/model"}, {"layout": "executorch"}),
        ({"hf": "some/model"}, {"attention": "stock"}),
        ({"hf": "some/model"}, {"context": 256}),
        ({"example": "transformer"}, None),
    ],
)
def test_a_program_that_any_runtime_can_run_gets_no_kernel_unless_it_is_named(
    model: dict[str, str], generation: dict[str, Any] | None
) -> None:
    export = {"quantization": "8da4w", **({"generation": generation} if generation else {})}
    found = rewrites_of(make_recipe(model=model, export=export), "x86_64")
    assert LINEARS not in found.names
    assert not lacks(found.left_out[LINEARS], "any runtime", "export.rewrites")
    named = make_recipe(model=model, export={**export, "rewrites": ["auto", LINEARS]})
    assert LINEARS in rewrites_of(named, "x86_64").names


def test_none_takes_none() -> None:
    chosen = chosen_rewrites("none", ALL, "none", "x86_64")
    assert chosen.names == ()
    assert set(chosen.left_out.values()) == {"export.rewrites is none"}


@pytest.mark.parametrize("model", [{"hf": "some/model"}, {"program": "/here/a.pte"}])
def test_some_models_have_no_rewrites(model: dict[str, str]) -> None:
    assert rewrites_of(make_recipe(model=model), "x86_64").names == ()


def test_the_plan_says_what_is_tried_and_then_what_was_done() -> None:
    recipe = make_recipe()
    chosen = rewrites_of(recipe, "aarch64")
    before = {choice.name: choice for choice in rewrite_choices(recipe, chosen, None)}
    assert before["norms"].value == "on"
    assert before["depthwise"].value == "off"
    left = [{"rewrite": "attention", "reason": "it drops values", "file": "m.py", "line": 3}]
    found = {"applied": {"norms": 3, "attention": 1}, "left": left}
    now = {choice.name: choice for choice in rewrite_choices(recipe, chosen, found)}
    assert (now["norms"].value, now["views"].value) == ("used 3 x", "not used")
    assert now["attention"].reason.endswith(": it drops values")
    dropped = {"applied": {}, "left": [], "dropped": "there is none with them: no shape"}
    choices = rewrite_choices(recipe, chosen, dropped)
    assert {c.value for c in choices} == {"dropped", "off"}
    [reason] = {c.reason for c in choices if c.value == "dropped"}
    assert not lacks(reason, "without rewrites", dropped["dropped"])
