"""Which keys apply to a recipe, and the valid combinations of their values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from etdeploy.core.errors import UsageError
from etdeploy.recipe.load import load_recipe
from etdeploy.targets.platforms import TARGETS
from etdeploy.tune.search import NOT_APPLICABLE
from etdeploy.tune.space import (
    KnobCost,
    changed_recipe,
    parse_varied,
    require_key,
)
from tests.support.facts import lacks
from tests.support.runtime_values import make_recipe
from tests.support.tune_bench import make_space


def test_the_recipe_as_it_is_comes_first() -> None:
    space = make_space()
    assert space.candidates[0].changes == ()
    assert space.candidates[0].label == "the recipe as it is"
    assert len({candidate.features for candidate in space.candidates}) == len(space.candidates)


def test_every_combination_is_a_valid_recipe_with_its_values() -> None:
    given = load_recipe("xnnpack").recipe.model_dump(mode="json", exclude_unset=True)
    for candidate in make_space(layers=("0.0", "13")).candidates:
        recipe = changed_recipe(given, dict(candidate.changes))
        for key, value in candidate.changes:
            section: object = recipe.model_dump(mode="json")
            for part in key.split("."):
                assert isinstance(section, dict)
                section = section[part]
            assert value is None or section == value


def test_threads_share_a_program_and_schemes_do_not() -> None:
    space = make_space()
    [threads] = [knob for knob in space.knobs if knob.key == "runtime.threads"]
    assert threads.cost == KnobCost.RUN
    assert threads.values == (0, 1, 2)
    assert space.programs * len(threads.values) == len(space.candidates)


def test_a_group_size_is_tried_only_where_there_are_groups() -> None:
    space = make_space()
    place = [knob.key for knob in space.knobs].index("export.group_size")
    scheme = [knob.key for knob in space.knobs].index("export.quantization")
    sizes = {c.features[place] for c in space.candidates if c.features[scheme] == '"8da4w"'}
    others = {c.features[place] for c in space.candidates if c.features[scheme] != '"8da4w"'}
    assert (sizes, others) == ({"32", "64", "128"}, {"-"})


def test_a_key_of_the_recipe_goes_where_it_does_not_apply(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("model: {example: mlp}\nexport: {quantization: 8da4w, group_size: 64}\n")
    space = make_space(str(path))
    none = [c for c in space.candidates if ("export.quantization", "none") in c.changes]
    assert none
    assert all(("export.group_size", None) in c.changes for c in none)


def test_layers_that_are_known_are_left_in_floats() -> None:
    without, known = make_space(), make_space(layers=("0.0", "13"))
    assert any(out.key == "export.overrides" for out in without.left_out)
    [knob] = [knob for knob in known.knobs if knob.key == "export.overrides"]
    assert knob.values == ({}, {"13": "none"}, {"0.0": "none", "13": "none"})


def test_a_language_model_has_its_own_keys() -> None:
    space = make_space("llm-xnnpack", ["perplexity"])
    keys = {knob.key for knob in space.knobs}
    assert {"export.generation.cache", "export.generation.attention", "export.rounding"} <= keys
    bits = {dict(c.changes).get("export.target_bits") for c in space.candidates}
    assert bits == {None, 5, 5.5}
    schemes = {dict(c.changes).get("export.quantization", "8da4w") for c in space.candidates}
    assert schemes == {"8da4w", "8da8w", "none"}
    assert "export.quantization=int8_dynamic" in {out.key for out in space.left_out}
    varied = {"export.quantization": ("8da8w", "int8_dynamic")}
    named = make_space("llm-xnnpack", ["perplexity"], varied=varied)
    assert "export.quantization=int8_dynamic" not in {out.key for out in named.left_out}
    assert any("int8_dynamic" in each.label for each in named.candidates)
    [scheme] = [knob for knob in space.knobs if knob.key == "export.quantization"]
    assert (scheme.values[0], scheme.values[-1]) == ("8da4w", "none")
    # The default is a value, which only 8da4w has.
    place = [knob.key for knob in space.knobs].index("export.target_bits")
    by_scheme: dict[str, set[str]] = {}
    for each in space.candidates:
        scheme = dict(each.changes).get("export.quantization", "8da4w")
        by_scheme.setdefault(scheme, set()).add(each.features[place])
    assert by_scheme.pop("8da4w") == {"null", "5", "5.5"}
    assert set().union(*by_scheme.values()) == {NOT_APPLICABLE}
    # Only the kernel reads keys and values of less than 32 bits.
    assert not any(
        dict(c.changes).get("export.generation.attention") == "stock"
        and dict(c.changes).get("export.generation.cache", "float32") != "float32"
        for c in space.candidates
    )
    assert "export.generation.prefill_tokens" not in keys
    with_ttft = make_space("llm-xnnpack", ["ttft"], fixed={"export.quantization": "fixed"})
    assert "export.generation.prefill_tokens" in {knob.key for knob in with_ttft.knobs}


def test_backends_that_cannot_run_there_are_named_with_the_reason() -> None:
    reasons = {out.key: out.reason for out in make_space().left_out}
    assert reasons["export.backend=openvino"] == "it is not installed"
    assert "it runs on macos or ios" in reasons["export.backend=coreml"]


def test_a_language_model_has_the_kernel_of_its_architecture_to_try() -> None:
    space = make_space("llm-xnnpack", target=TARGETS["linux-x86_64"])
    [rewrites] = [knob.values for knob in space.knobs if knob.key == "export.rewrites"]
    assert rewrites == ("auto", "none")
    schemes = {
        dict(each.changes).get("export.quantization", "8da4w")
        for each in space.candidates
        if dict(each.changes).get("export.rewrites", "auto") != "auto"
    }
    assert schemes == {"8da4w"}
    other = make_space("llm-xnnpack", target=TARGETS["linux-aarch64"])
    [reason] = [out.reason for out in other.left_out if out.key == "export.rewrites"]
    assert not lacks(reason, "linears", "x86_64", "aarch64")


@pytest.mark.parametrize(
    ("scheme", "target", "more"),
    [
        ("8da4w", "linux-x86_64", [["auto", "linears"]]),
        ("8da4w", "linux-aarch64", []),
        ("8da8w", "linux-x86_64", []),
    ],
)
def test_a_model_of_any_runtime_has_the_kernel_to_try(
    scheme: str, target: str, more: list[Any]
) -> None:
    recipe = make_recipe(model={"example": "transformer"}, export={"quantization": scheme})
    space = make_space(target=TARGETS[target], recipe=recipe)
    [rewrites] = [knob.values for knob in space.knobs if knob.key == "export.rewrites"]
    assert rewrites == ("auto", "none", *more)


def test_a_fixed_key_stays() -> None:
    space = make_space(fixed={"export.rewrites": "fixed with --fix"})
    assert "export.rewrites" not in {knob.key for knob in space.knobs}
    assert all("export.rewrites" not in dict(c.changes) for c in space.candidates)


def test_no_layers_are_looked_for_where_overrides_are_fixed() -> None:
    space = make_space(fixed={"export.overrides": "fixed with --fix"})
    assert [out.reason for out in space.left_out if out.key == "export.overrides"] == [
        "fixed with --fix"
    ]


def test_schemes_are_those_of_the_backends_that_are_tried() -> None:
    usable = make_space(unusable={})
    only = make_space(unusable={}, fixed={"export.backend": "fixed with --fix"})
    offered = [
        next(knob.values for knob in space.knobs if knob.key == "export.quantization")
        for space in (usable, only)
    ]
    assert "fp16" in offered[0]
    assert offered[1] == ("none", "int8_static", "int8_dynamic", "8da4w", "8da8w")


def test_values_of_vary_replace_those_of_a_key_and_add_one() -> None:
    varied = parse_varied(["export.quantization=int8_static", "export.seed=1,2"])
    assert varied == {"export.quantization": ("int8_static",), "export.seed": (1, 2)}
    space = make_space(varied=varied)
    values = {knob.key: knob.values for knob in space.knobs}
    assert values["export.quantization"] == ("none", "int8_static")
    assert values["export.seed"] == (0, 1, 2)


def test_a_value_of_vary_that_no_recipe_can_have_is_refused() -> None:
    with pytest.raises(UsageError, match=r"quantization=fp16 is in no valid combination"):
        make_space(varied={"export.quantization": ("fp16",)})


@pytest.mark.parametrize("text", ["export.group_size", "export.group_size="])
def test_vary_needs_values(text: str) -> None:
    with pytest.raises(UsageError, match="names no values"):
        parse_varied([text])


@pytest.mark.parametrize("key", ["model.hf", "benchmark.iterations", "export", "nothing"])
def test_other_keys_are_not_varied(key: str) -> None:
    with pytest.raises(UsageError, match="is not a key that can be varied"):
        require_key(key, "--fix")


def test_too_many_combinations_are_refused_with_what_to_fix() -> None:
    with pytest.raises(UsageError, match="more than 3000 combinations") as caught:
        make_space(varied={"export.seed": tuple(range(400))})
    assert "--fix export.seed" in str(caught.value.remedy)


def test_a_finished_program_has_threads_only(tmp_path: Path) -> None:
    (tmp_path / "m.pte").write_bytes(b"x")
    path = tmp_path / "r.yaml"
    path.write_text("model: {program: m.pte}\n")
    space = make_space(str(path))
    assert [knob.key for knob in space.knobs] == ["runtime.threads"]
