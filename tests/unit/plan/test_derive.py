"""The plan follows the program, and every choice has its reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from etdeploy.backends.values import CompiledFor
from etdeploy.core.errors import BuildError, CheckError
from etdeploy.plan.derive import CustomKernels, require_feasible
from etdeploy.plan.model import RuntimePlan
from etdeploy.program.model import Program
from etdeploy.recipe.model import Recipe
from tests.support import golden_plans
from tests.support.facts import lacks
from tests.support.runtime_values import make_method, make_plan, make_program, make_recipe

_GOLDEN = Path(__file__).parents[2] / "data" / "plans"
_MIXED = make_program(
    make_method(
        operators=(
            "aten::add.out",
            "aten::mul.out",
            "aten::sum.IntList_out",
            "aten::relu.out",
            "aten::sym_size.int",
            "dim_order_ops::_to_dim_order_copy.out",
        ),
        delegates=("XnnpackBackend",) * 3,
    )
)
_DELEGATED = make_program(make_method(delegates=("XnnpackBackend",)))
_PORTABLE = make_program(make_method(operators=("aten::addmm.out", "aten::relu.out")))
_QUANTIZED = make_program(
    make_method(
        "encode",
        operators=("quantized_decomposed::quantize_per_tensor.out",),
        delegates=("XnnpackBackend",),
    ),
    make_method("decode", operators=("aten::mul.out",)),
)
_NO_PROFILE = make_recipe(benchmark={"profile": False})

_CASES: dict[str, tuple[Recipe, Program | None, str]] = {
    "mixed-host": (make_recipe(), _MIXED, "linux-x86_64"),
    "delegated-cross": (_NO_PROFILE, _DELEGATED, "linux-aarch64"),
    "portable-android": (_NO_PROFILE, _PORTABLE, "android-arm64"),
    "quantized-android-native": (_NO_PROFILE, _QUANTIZED, "android-x86_64"),
    "provisional-int8": (
        make_recipe(export={"backend": "xnnpack", "quantization": "int8_static"}),
        None,
        "linux-x86_64",
    ),
    "vulkan-android": (make_recipe(export={"backend": "vulkan"}), None, "android-arm64"),
    "qnn-android": (
        _NO_PROFILE,
        make_program(make_method(delegates=("QnnBackend",))),
        "android-arm64",
    ),
}


@pytest.mark.parametrize("name", _CASES)
def test_plan_is_the_recorded_one(name: str) -> None:
    recipe, program, target = _CASES[name]
    plan = make_plan(recipe, program, target)
    recorded = json.loads((_GOLDEN / f"{name}.json").read_text())
    assert plan.model_dump(mode="json") == recorded


@pytest.mark.parametrize(("recipe", "target"), golden_plans.CASES)
def test_plan_from_source_is_the_recorded_one(recipe: str, target: str) -> None:
    recorded = golden_plans.path_of(recipe, target).read_text()
    assert golden_plans.render(recipe, target) == recorded


def test_same_needs_have_one_build_digest() -> None:
    other = make_program(make_method(operators=("aten::mm.out",), delegates=("XnnpackBackend",)))
    plans = [make_plan(_NO_PROFILE, program) for program in (_MIXED, other)]
    assert plans[0] != plans[1]
    assert plans[0].build_digest == plans[1].build_digest
    there = make_plan(_NO_PROFILE, _MIXED, "linux-aarch64")
    assert there.build_digest != plans[0].build_digest


def _blockers(plan: RuntimePlan) -> str:
    return "; ".join(o.why for o in plan.blockers)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("thread_pool", "all_cores"),
        ("optimize", "size"),
        ("log_level", "debug"),
        ("kleidiai", False),
        ("weight_cache", True),
        ("cmake", {"EXECUTORCH_FLATBUFFERS_MAX_ALIGNMENT": 64}),
    ],
)
def test_auto_builds_when_the_recipe_asks_how(key: str, value: object) -> None:
    plan = make_plan(make_recipe(runtime={key: value}), _DELEGATED)
    assert plan.provider.value == "source"
    assert f"required for runtime.{key}" in plan.provider.reason


def test_wheel_asked_for_stays_the_provider_and_the_lack_a_blocker() -> None:
    recipe = make_recipe(runtime={"provider": "wheel"})
    plan = make_plan(recipe, _DELEGATED, shipped=frozenset({"runtime"}))
    assert plan.provider.value == "wheel"
    assert "runtime.provider" in plan.provider.reason
    assert "backend_xnnpack" in _blockers(plan)


_CUSTOM = make_program(make_method(operators=("my_ops::glu.out", "my_ops::rms.out")))


def test_operator_that_the_recipes_own_kernels_lack_is_named() -> None:
    own = CustomKernels(frozenset({"my_ops::glu.out"}), "1")
    plan = make_plan(_NO_PROFILE, _CUSTOM, custom=own)
    assert "calls my_ops::rms.out;" in _blockers(plan)
    # Without a list only the built runner can tell.
    assert make_plan(_NO_PROFILE, _CUSTOM, custom=CustomKernels(None, "1")).blockers == ()
    (blocker,) = make_plan(_NO_PROFILE, _CUSTOM).blockers
    assert "runtime.custom_ops=" in blocker.remedy


@pytest.mark.parametrize("provider", ["wheel", "source", "auto"])
def test_an_emulator_has_no_htp(provider: str) -> None:
    program = make_program(make_method(delegates=("QnnBackend",)))
    recipe = make_recipe(runtime={"provider": provider})
    (blocker,) = make_plan(recipe, program, "android-x86_64").blockers
    assert not lacks(blocker.why, "Snapdragon", "android-x86_64")
    assert "runtime.provider=source" not in blocker.remedy
    assert "HTP" not in str(make_plan(recipe, program, "android-arm64").blockers)


def test_qnn_is_for_phones_and_for_this_machines_simulator() -> None:
    program = make_program(make_method(delegates=("QnnBackend",)))
    portable = make_plan(_NO_PROFILE, program, "linux-x86_64-portable")
    assert "Qualcomm's own libraries" in _blockers(portable)
    assert make_plan(_NO_PROFILE, program, "android-arm64").blockers == ()
    static = make_plan(_NO_PROFILE, program, "linux-aarch64-musl")
    assert "for glibc: a static runner with musl" in _blockers(static)
    # Qualcomm's libraries for Linux on Arm are not deployed.
    assert "--target linux-aarch64" not in str([each.remedy for each in static.blockers])
    here = make_plan(_NO_PROFILE, program)
    assert here.blockers == ()
    assert (here.provider.value, "backend_qnn" in here.component_names) == ("wheel", True)
    assert any("simulator" in note for note in here.notes)


@pytest.mark.parametrize(
    ("soc", "program", "told"),
    [
        ("auto", None, False),
        ("sm8350", None, True),
        ("SM8350", "SM8650", False),  # what was compiled counts
        ("auto", "SM8350", True),
    ],
)
def test_notes_know_the_soc(soc: str, program: str | None, told: bool) -> None:
    made = None
    if program:
        method = make_method(delegates=("QnnBackend",))
        delegate = method.delegates[0].model_copy(
            update={"compiled_for": CompiledFor(soc_id=0, soc=program)}
        )
        made = make_program(method.model_copy(update={"delegates": (delegate,)}))
    recipe = make_recipe(export={"backend": "qnn", "quantization": "fp16", "soc": soc})
    notes = make_plan(recipe, made, "android-arm64").notes
    assert any("The HTP of SM8350 (V68)" in note for note in notes) == told


@pytest.mark.parametrize(("target", "told"), [("linux-x86_64", False), ("android-arm64", True)])
def test_a_program_with_kernels_of_another_processor_has_a_note(target: str, told: bool) -> None:
    program = make_program(make_method(operators=("etdeploy::channelwise_linear.out",)))
    notes = make_plan(_NO_PROFILE, program, target).notes
    slow = [note for note in notes if "slow" in note]
    assert len(slow) == told
    assert not any(lacks(note, "x86_64", "aarch64", target) for note in slow)


def test_mac_runners_are_built_on_a_mac() -> None:
    plan = make_plan(_NO_PROFILE, _DELEGATED, "macos-arm64")
    assert "on linux-x86_64" in _blockers(plan)


def test_ios_is_built_from_source_on_a_mac() -> None:
    plan = make_plan(_NO_PROFILE, _DELEGATED, "ios-arm64", "macos-arm64")
    assert plan.blockers == ()
    assert plan.provider.value == "source"
    assert "on Macs only" in _blockers(make_plan(_NO_PROFILE, _DELEGATED, "ios-arm64"))


def test_finished_program_waits_for_its_inspection() -> None:
    plan = make_plan(make_recipe(model={"program": "model.pte"}), None)
    assert "model.pte" in plan.components[0].reason
    assert plan.blockers == ()


_UNKNOWN = {
    "backend": make_program(make_method(delegates=("MadeUpBackend",))),
    "operator": make_program(make_method(operators=("my_ops::glu.out",))),
}
_FINISHED = {"program": "/models/net.pte"}


@pytest.mark.parametrize("provider", ["wheel", "source"])
@pytest.mark.parametrize("name", _UNKNOWN)
def test_what_no_executorch_has_fails_the_check_and_not_the_build(name: str, provider: str) -> None:
    recipe = make_recipe(model=_FINISHED, runtime={"provider": provider})
    with pytest.raises(CheckError) as caught:
        require_feasible(make_plan(recipe, _UNKNOWN[name]))
    assert caught.value.exit_code == 5
    assert "export.backend" not in (caught.value.remedy or "")


def test_a_plan_that_cannot_be_built_either_fails_the_build() -> None:
    recipe = make_recipe(model=_FINISHED, runtime={"provider": "wheel"})
    with pytest.raises(BuildError):
        require_feasible(make_plan(recipe, _UNKNOWN["operator"], target="ios-arm64"))


@pytest.mark.parametrize(
    ("model", "remedy"),
    [
        ({"example": "mlp"}, "Lower to another backend: --set export.backend=xnnpack"),
        (
            _FINISHED,
            "Export the model for another backend: the program is finished, and keeps its own.",
        ),
    ],
)
def test_a_finished_program_is_not_told_to_be_lowered_anew(
    model: dict[str, str], remedy: str
) -> None:
    recipe = make_recipe(model=model)
    (blocker,) = make_plan(recipe, _UNKNOWN["backend"]).blockers
    assert blocker.remedy == remedy


_ATTENTION = ("llama::custom_sdpa.out", "llama::update_cache.out")


@pytest.mark.parametrize(
    ("operators", "dtypes", "provider", "component"),
    [
        (_ATTENTION, ("float32",), "wheel", "kernels_etdeploy"),
        # What etdeploy's kernels do not have, or do not compute with.
        ((*_ATTENTION, "llama::sdpa_with_kv_cache.out"), ("float32",), "source", "kernels_llm"),
        (_ATTENTION, ("float16",), "source", "kernels_llm"),
    ],
)
def test_etdeploys_kernels_stand_in_for_those_that_the_wheel_lacks(
    operators: tuple[str, ...], dtypes: tuple[str, ...], provider: str, component: str
) -> None:
    plan = make_plan(_NO_PROFILE, make_program(make_method(operators=operators, dtypes=dtypes)))
    assert plan.provider.value == provider
    assert {"kernels_etdeploy", "kernels_llm"} & set(plan.component_names) == {component}


def test_a_wheel_with_executorchs_kernels_needs_no_stand_in() -> None:
    program = make_program(make_method(operators=_ATTENTION, dtypes=("float32",)))
    shipped = frozenset({"runtime", "threadpool", "kernels_llm"})
    plan = make_plan(_NO_PROFILE, program, shipped=shipped)
    assert "kernels_llm" in plan.component_names
    assert "kernels_etdeploy" not in plan.component_names


def test_a_wheel_that_is_asked_for_and_lacks_an_operator_is_refused() -> None:
    program = make_program(make_method(operators=("llama::sdpa_with_kv_cache.out",)))
    plan = make_plan(make_recipe(runtime={"provider": "wheel"}), program)
    assert "llama::sdpa_with_kv_cache.out" in _blockers(plan)


def test_before_the_export_the_layout_says_whose_kernel_it_is() -> None:
    export = {"generation": {"layout": "executorch"}}
    recipe = make_recipe(model={"hf": "m"}, export=export)
    assert "kernels_etdeploy" in make_plan(recipe, None).component_names
    source = make_recipe(model={"hf": "m"}, export=export, runtime={"provider": "source"})
    assert "kernels_llm" in make_plan(source, None).component_names
