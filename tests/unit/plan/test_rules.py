"""Every rule of the derivation: which option, which value, and why."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etdeploy.backends.registry import backend_of, exporting_backends, known_backends, known_entries
from etdeploy.plan.cmake_options import OptionTable, is_on, known_options
from etdeploy.plan.components import NAMESPACES, OPTIMIZED_OPERATORS
from etdeploy.plan.derive import Available, CustomKernels, derive_plan
from etdeploy.plan.model import RuntimePlan
from etdeploy.program.model import Method, Program
from etdeploy.recipe.model import Recipe
from etdeploy.targets.platforms import TARGETS, find_target
from tests.support.facts import lacks
from tests.support.runtime_values import make_method, make_plan, make_program, make_recipe

_HOST = find_target("linux-x86_64")
_DELEGATE_IDS = [str(entry.delegate_id) for entry in known_entries().values() if entry.component]
_ADD = ("aten::add.out",)
_RELU = ("aten::relu.out",)
_QUANTIZE = ("quantized_decomposed::quantize_per_tensor.out",)
_SDPA = ("llama::custom_sdpa.out",)
_LINEAR_4BIT = ("torchao::_linear_8bit_act_4bit_weight.out",)
_OPERATOR_LIBRARIES = {"kernels_portable", "kernels_optimized", "kernels_selected"}
_DELEGATED = make_program(make_method(delegates=("XnnpackBackend",) * 2))


def _plan(
    program: Program | None,
    target: str = "linux-x86_64",
    *,
    runtime: dict[str, Any] | None = None,
    profile: bool = False,
    version: str = "1.5.1",
    table: OptionTable | None = None,
    custom: CustomKernels | None = None,
    **sections: Any,
) -> RuntimePlan:
    """A plan of the provider `source`, without the profile pass where it is not asked for."""
    recipe = make_recipe(
        runtime={"provider": "source", **(runtime or {})},
        benchmark={"profile": profile},
        **sections,
    )
    available = Available(version, frozenset(), table)
    return derive_plan(recipe, program, find_target(target), _HOST, available, custom)


def _calling(*operators: str, dtypes: tuple[str, ...] = ()) -> Program:
    return make_program(make_method(operators=operators, dtypes=dtypes))


def _reason(plan: RuntimePlan, name: str) -> str:
    return next(option.reason for option in plan.options if option.name == name)


def _component(plan: RuntimePlan, name: str) -> str | None:
    return next(c.value for c in plan.components if c.name == name)


def _libraries(plan: RuntimePlan) -> set[str]:
    return _OPERATOR_LIBRARIES.intersection(plan.component_names)


# --- what every build has


def test_every_build_is_optimised_and_has_what_the_runner_uses() -> None:
    plan = _plan(_DELEGATED)
    assert plan.option("CMAKE_BUILD_TYPE") == "Release"
    for part in ("MODULE", "DATA_LOADER", "FLAT_TENSOR", "NAMED_DATA_MAP", "TENSOR"):
        assert plan.option(f"EXECUTORCH_BUILD_EXTENSION_{part}") == "ON"
    assert plan.option("EXECUTORCH_ENABLE_PROGRAM_VERIFICATION") == "ON"
    assert "damaged" in _reason(plan, "EXECUTORCH_ENABLE_PROGRAM_VERIFICATION")


def test_what_the_runner_has_no_use_for_and_is_on_by_default_is_switched_off() -> None:
    plan = _plan(_DELEGATED)
    for name in ("EXECUTOR_RUNNER", "EXTENSION_EVALUE_UTIL", "EXTENSION_RUNNER_UTIL"):
        assert plan.option(f"EXECUTORCH_BUILD_{name}") == "OFF"
        assert "default is on" in _reason(plan, f"EXECUTORCH_BUILD_{name}")


def test_the_components_are_told_to_cmake_in_their_order() -> None:
    plan = _plan(_calling(*_ADD), profile=True)
    linked = plan.option("ETDEPLOY_COMPONENTS")
    assert linked == "runtime;threadpool;kernels_selected;etdump"
    assert linked == ";".join(plan.component_names)


# --- kernels


def test_a_fully_delegated_program_has_no_kernel_library_at_all() -> None:
    plan = _plan(_DELEGATED)
    assert not any(name.startswith("kernels_") for name in plan.component_names)
    assert plan.option("EXECUTORCH_BUILD_PORTABLE_OPS") == "OFF"
    assert "outside the delegates" in _reason(plan, "EXECUTORCH_BUILD_PORTABLE_OPS")
    assert plan.option("EXECUTORCH_SELECT_OPS_MODEL") is None
    assert plan.selection is None


@pytest.mark.parametrize("name", ["aten::sym_size.int", "executorch_prim::add.Scalar"])
def test_operators_of_the_runtime_itself_need_no_kernels(name: str) -> None:
    assert _libraries(_plan(_calling(name))) == set()


def test_selected_kernels_are_the_default() -> None:
    plan = _plan(_calling(*_ADD, *_RELU))
    assert _libraries(plan) == {"kernels_selected"}
    assert plan.option("EXECUTORCH_SELECT_OPS_MODEL") == "program.pte"
    reason = _reason(plan, "EXECUTORCH_SELECT_OPS_MODEL")
    assert not lacks(reason, "runtime.selective", "aten::add.out", "aten::relu.out")
    assert plan.selection is not None


def test_kernels_are_optimised_where_an_operator_has_an_optimised_one() -> None:
    plan = _plan(_calling(*_ADD, *_RELU))
    assert _component(plan, "kernels_selected") == "optimized"
    assert plan.option("EXECUTORCH_BUILD_KERNELS_OPTIMIZED") == "ON"
    reason = _reason(plan, "EXECUTORCH_BUILD_KERNELS_OPTIMIZED")
    assert reason.endswith("for aten::add.out")


def test_kernels_are_portable_where_no_operator_has_an_optimised_one() -> None:
    plan = _plan(_calling(*_RELU))
    assert _component(plan, "kernels_selected") == "portable"
    assert plan.option("EXECUTORCH_BUILD_KERNELS_OPTIMIZED") is None
    assert plan.option("EXECUTORCH_BUILD_PORTABLE_OPS") == "ON"
    reason = _reason(plan, "EXECUTORCH_BUILD_PORTABLE_OPS")
    assert not lacks(reason, "forward", "1 operator", "aten::relu.out")


def test_size_takes_portable_kernels() -> None:
    plan = _plan(_calling(*_ADD), runtime={"optimize": "size"})
    assert _component(plan, "kernels_selected") == "portable"
    assert plan.option("EXECUTORCH_BUILD_KERNELS_OPTIMIZED") is None
    assert plan.option("EXECUTORCH_OPTIMIZE_SIZE") == "ON"
    assert _reason(plan, "EXECUTORCH_OPTIMIZE_SIZE") == "runtime.optimize is size"
    assert _plan(_calling(*_ADD)).option("EXECUTORCH_OPTIMIZE_SIZE") is None


@pytest.mark.parametrize(
    ("operators", "library"), [(_ADD, "kernels_optimized"), (_RELU, "kernels_portable")]
)
def test_without_selection_the_whole_library_is_linked(
    operators: tuple[str, ...], library: str
) -> None:
    plan = _plan(_calling(*operators), runtime={"selective": False})
    assert _libraries(plan) == {library}
    assert plan.selection is None
    for name in ("EXECUTORCH_SELECT_OPS_MODEL", "EXECUTORCH_ENABLE_DTYPE_SELECTIVE_BUILD"):
        assert plan.option(name) is None


def test_before_the_export_nothing_can_be_selected() -> None:
    plan = _plan(None, export={"backend": "xnnpack"})
    assert plan.provisional
    assert _libraries(plan) == {"kernels_optimized"}
    assert "may call operators" in _reason(plan, "EXECUTORCH_BUILD_KERNELS_OPTIMIZED")
    assert plan.selection is None


@pytest.mark.parametrize(
    ("operators", "component", "option"),
    [
        (_QUANTIZE, "kernels_quantized", "EXECUTORCH_BUILD_KERNELS_QUANTIZED"),
        (_SDPA, "kernels_llm", "EXECUTORCH_BUILD_KERNELS_LLM"),
        (_LINEAR_4BIT, "kernels_torchao", "EXECUTORCH_BUILD_KERNELS_TORCHAO"),
    ],
)
def test_a_namespace_brings_its_library(
    operators: tuple[str, ...], component: str, option: str
) -> None:
    plan = _plan(_calling(*operators), "linux-aarch64")
    assert component in plan.component_names
    assert plan.option(option) == "ON"
    assert operators[0] in _reason(plan, option)
    assert _libraries(plan) == set()
    assert _plan(_DELEGATED, "linux-aarch64").option(option) is None


def test_kernels_for_language_models_bring_the_optimised_ones_for_aten() -> None:
    plan = _plan(_calling(*_SDPA, *_RELU))
    assert _component(plan, "kernels_selected") == "optimized"
    assert "language models" in _reason(plan, "EXECUTORCH_BUILD_KERNELS_OPTIMIZED")


def test_kernels_for_language_models_alone_have_what_they_require() -> None:
    plan = _plan(_calling(*_SDPA))
    assert plan.option("EXECUTORCH_BUILD_KERNELS_OPTIMIZED") == "ON"
    reason = _reason(plan, "EXECUTORCH_BUILD_KERNELS_OPTIMIZED")
    assert "EXECUTORCH_BUILD_KERNELS_LLM" in reason


# --- data types


def test_portable_kernels_are_selected_by_data_type_too() -> None:
    plan = _plan(_calling(*_RELU, dtypes=("float32", "int64")))
    assert plan.option("EXECUTORCH_ENABLE_DTYPE_SELECTIVE_BUILD") == "ON"
    assert "float32, int64 only" in _reason(plan, "EXECUTORCH_ENABLE_DTYPE_SELECTIVE_BUILD")


@pytest.mark.parametrize(
    ("operators", "dtypes"),
    [
        (_ADD, ("float32",)),  # optimised kernels do not compile so
        (_RELU, ("float32", "float16")),  # ExecuTorch's selection does not know it
        (_RELU, ("bfloat16",)),
        (_RELU, ()),  # not known
    ],
)
def test_otherwise_they_are_not(operators: tuple[str, ...], dtypes: tuple[str, ...]) -> None:
    plan = _plan(_calling(*operators, dtypes=dtypes))
    assert plan.option("EXECUTORCH_ENABLE_DTYPE_SELECTIVE_BUILD") is None
    assert plan.option("EXECUTORCH_SELECT_OPS_MODEL") == "program.pte"


def test_data_types_of_other_libraries_do_not_count() -> None:
    program = make_program(
        make_method(operators=_RELU, dtypes=("float32",)),
        make_method("second", operators=_QUANTIZE, dtypes=("float16",)),
    )
    assert _plan(program).option("EXECUTORCH_ENABLE_DTYPE_SELECTIVE_BUILD") == "ON"


def test_equal_needs_have_one_selection_and_others_another() -> None:
    base = _plan(_calling(*_RELU, dtypes=("float32", "int64"))).selection
    assert _plan(_calling(*_RELU, dtypes=("int64", "float32"))).selection == base
    split = make_program(
        make_method("one", operators=_RELU, dtypes=("int64",)),
        make_method("two", operators=(*_RELU, "aten::sym_size.int"), dtypes=("float32",)),
    )
    assert _plan(split).selection == base
    assert _plan(_calling(*_RELU, dtypes=("float32",))).selection != base
    assert _plan(_calling(*_RELU, *_ADD, dtypes=("float32", "int64"))).selection != base


def test_plans_with_equal_needs_have_one_build_digest() -> None:
    one = _plan(_calling(*_RELU, dtypes=("float32",)))
    two = _plan(make_program(make_method("encode", operators=_RELU, dtypes=("float32",))))
    assert one != two
    assert one.build_digest == two.build_digest
    assert _plan(_calling(*_RELU, dtypes=("int8",))).build_digest != one.build_digest


# --- the registry


@pytest.mark.parametrize("operators", [_QUANTIZE, _SDPA, _LINEAR_4BIT])
def test_other_libraries_beside_selected_kernels_get_room(operators: tuple[str, ...]) -> None:
    plan = _plan(_calling(*_RELU, *operators), "linux-aarch64")
    assert plan.option("MAX_KERNEL_NUM") == "2000"
    assert "registry" in _reason(plan, "MAX_KERNEL_NUM")


def test_custom_kernels_beside_selected_ones_get_room() -> None:
    custom = CustomKernels(frozenset({"mine::twice.out"}), "digest")
    plan = _plan(_calling(*_RELU, "mine::twice.out"), custom=custom)
    assert plan.option("MAX_KERNEL_NUM") == "2000"
    assert plan.blockers == ()
    assert plan.custom_ops == "digest"


@pytest.mark.parametrize("operators", [_RELU, _QUANTIZE])
def test_the_registry_is_left_alone_otherwise(operators: tuple[str, ...]) -> None:
    assert _plan(_calling(*operators)).option("MAX_KERNEL_NUM") is None


def test_the_registry_has_its_full_size_without_selection() -> None:
    plan = _plan(_calling(*_RELU, *_QUANTIZE), runtime={"selective": False})
    assert plan.option("MAX_KERNEL_NUM") is None


# --- delegates


@pytest.mark.parametrize("delegate_id", _DELEGATE_IDS)
def test_a_delegate_brings_its_backend(delegate_id: str) -> None:
    backend = backend_of(delegate_id)
    assert backend is not None
    assert backend.switch is not None
    plan = _plan(make_program(make_method(delegates=(delegate_id,))))
    assert plan.option(backend.switch) == "ON"
    reason = _reason(plan, backend.switch)
    assert not lacks(reason, "forward", "1 partition", delegate_id)
    assert backend.component in plan.component_names
    for other in known_backends():
        assert (plan.option(str(other.switch)) == "ON") == (other is backend)


def test_the_program_is_the_truth_and_the_recipe_the_wish() -> None:
    plan = _plan(_calling(*_RELU), export={"backend": "xnnpack"})
    assert plan.option("EXECUTORCH_BUILD_XNNPACK") is None
    assert "backend_xnnpack" not in plan.component_names


def test_the_recipe_counts_before_the_export() -> None:
    plan = _plan(None, export={"backend": "xnnpack", "quantization": "int8_static"})
    assert "nothing is exported yet" in _reason(plan, "EXECUTORCH_BUILD_XNNPACK")
    assert plan.option("EXECUTORCH_BUILD_KERNELS_QUANTIZED") == "ON"


# --- XNNPACK


def _kleidiai(program: Program = _DELEGATED, **more: Any) -> tuple[str | None, str]:
    plan = _plan(program, "linux-aarch64", **more)
    own, xnnpacks = "EXECUTORCH_XNNPACK_ENABLE_KLEIDI", "XNNPACK_ENABLE_KLEIDIAI"
    assert plan.option(own) == plan.option(xnnpacks)
    assert _reason(plan, own) == _reason(plan, xnnpacks)
    return plan.option(own), _reason(plan, own)


@pytest.mark.parametrize("scheme", ["int8_dynamic", "8da4w"])
def test_kleidiai_is_taken_for_dynamically_quantised_weights(scheme: str) -> None:
    value, reason = _kleidiai(export={"backend": "xnnpack", "quantization": scheme})
    assert value == "ON"
    assert not lacks(reason, "export.quantization", scheme)


@pytest.mark.parametrize("scheme", ["none", "int8_static"])
def test_kleidiai_is_left_out_for_others(scheme: str) -> None:
    value, reason = _kleidiai(export={"backend": "xnnpack", "quantization": scheme})
    assert value == "OFF"
    assert scheme in reason
    assert "runtime.kleidiai: true" in reason


def test_kleidiai_is_taken_for_a_program_of_unknown_origin() -> None:
    assert _kleidiai(model={"program": "model.pte"})[0] == "ON"


@pytest.mark.parametrize(("wanted", "value"), [(True, "ON"), (False, "OFF")])
def test_kleidiai_as_the_recipe_says(wanted: bool, value: str) -> None:
    scheme = "none" if wanted else "8da4w"
    found = _kleidiai(
        runtime={"kleidiai": wanted}, export={"backend": "xnnpack", "quantization": scheme}
    )
    assert found == (value, f"runtime.kleidiai is {str(wanted).lower()}")


def test_kleidiai_is_for_arm_and_xnnpack_only() -> None:
    name = "EXECUTORCH_XNNPACK_ENABLE_KLEIDI"
    assert _plan(_DELEGATED, "linux-x86_64").option(name) is None
    assert _plan(_calling(*_RELU), "linux-aarch64").option(name) is None


def test_the_weight_cache_is_on_where_it_is_asked_for_and_xnnpack_is_linked() -> None:
    name = "EXECUTORCH_XNNPACK_ENABLE_WEIGHT_CACHE"
    assert _plan(_DELEGATED, runtime={"weight_cache": True}).option(name) == "ON"
    assert _plan(_DELEGATED).option(name) is None
    assert _plan(_calling(*_RELU), runtime={"weight_cache": True}).option(name) is None


# --- threads

_POOL = ("EXECUTORCH_BUILD_PTHREADPOOL", "EXECUTORCH_BUILD_CPUINFO")


def test_a_thread_pool_is_built_for_what_runs_on_it() -> None:
    plan = _plan(make_program(make_method(operators=_ADD, delegates=("XnnpackBackend",))))
    assert "threadpool" in plan.component_names
    for name in _POOL:
        assert plan.option(name) == "ON"
        assert not lacks(_reason(plan, name), "backend_xnnpack", "kernels_optimized")


def test_no_thread_pool_is_built_where_nothing_runs_on_it() -> None:
    plan = _plan(_calling(*_RELU))
    assert "threadpool" not in plan.component_names
    for name in _POOL:
        assert plan.option(name) == "OFF"
        assert "default is on" in _reason(plan, name)


@pytest.mark.parametrize(
    ("policy", "option"),
    [
        ("performance_cores", "EXECUTORCH_THREADPOOL_USE_PERFORMANCE_CORES"),
        ("all_cores", "EXECUTORCH_THREADPOOL_USE_ALL_LOGICAL_CORES"),
    ],
)
@pytest.mark.parametrize("program", [_DELEGATED, _calling(*_RELU)])
def test_a_thread_policy_is_one_option_and_has_what_it_requires(
    policy: str, option: str, program: Program
) -> None:
    plan = _plan(program, runtime={"thread_pool": policy})
    chosen = [o.name for o in plan.options if o.name.startswith("EXECUTORCH_THREADPOOL_")]
    assert chosen == [option]
    assert _reason(plan, option) == f"runtime.thread_pool is {policy}"
    assert [plan.option(name) for name in _POOL] == ["ON", "ON"]
    assert plan.blockers == ()


def test_by_default_executorch_chooses_the_number_of_threads() -> None:
    names = [o.name for o in _plan(_DELEGATED).options]
    assert not [name for name in names if name.startswith("EXECUTORCH_THREADPOOL_")]


# --- tracing, messages, platform


def test_the_profile_pass_brings_the_tracer() -> None:
    plan = _plan(_DELEGATED, profile=True)
    assert "etdump" in plan.component_names
    for name in ("EXECUTORCH_BUILD_DEVTOOLS", "EXECUTORCH_ENABLE_EVENT_TRACER"):
        assert plan.option(name) == "ON"
        assert "benchmark.profile is on" in _reason(plan, name)


def test_without_a_profile_pass_there_is_no_tracer() -> None:
    plan = _plan(_DELEGATED)
    assert "etdump" not in plan.component_names
    assert plan.option("EXECUTORCH_BUILD_DEVTOOLS") is None
    assert plan.option("EXECUTORCH_ENABLE_EVENT_TRACER") is None


@pytest.mark.parametrize("level", ["fatal", "error", "info", "debug"])
def test_the_log_level_is_executorchs_own_word(level: str) -> None:
    plan = _plan(_DELEGATED, runtime={"log_level": level})
    assert plan.option("EXECUTORCH_ENABLE_LOGGING") == "ON"
    assert plan.option("EXECUTORCH_LOG_LEVEL") == level.capitalize()
    assert _reason(plan, "EXECUTORCH_LOG_LEVEL") == f"runtime.log_level is {level}"


def test_no_messages_at_all() -> None:
    plan = _plan(_DELEGATED, runtime={"log_level": "none"})
    assert plan.option("EXECUTORCH_ENABLE_LOGGING") == "OFF"
    assert plan.option("EXECUTORCH_LOG_LEVEL") is None


@pytest.mark.parametrize("target", TARGETS)
def test_messages_go_to_stderr_on_every_target(target: str) -> None:
    assert _plan(_DELEGATED, target).option("EXECUTORCH_PAL_DEFAULT") == "posix"


def test_android_has_large_pages_its_abi_and_its_api_level() -> None:
    plan = _plan(_DELEGATED, "android-arm64", runtime={"android_api": 33})
    assert plan.option("ANDROID_ABI") == "arm64-v8a"
    assert plan.option("ANDROID_PLATFORM") == "android-33"
    assert plan.option("ANDROID_STL") == "c++_static"
    assert "max-page-size=16384" in (plan.option("CMAKE_EXE_LINKER_FLAGS") or "")
    assert "logcat" in _reason(plan, "EXECUTORCH_PAL_DEFAULT")
    assert not plan.portable_runner
    assert plan.build_target == "android-arm64"


# --- releases


def test_a_release_with_the_old_name_gets_it() -> None:
    table = known_options("1.3.0")
    new, old = "EXECUTORCH_BUILD_KERNELS_LLM", "EXECUTORCH_BUILD_KERNELS_CUSTOM"
    renamed = OptionTable((table.names - {new}) | {old}, (), (), "the old release")
    plan = _plan(_calling(*_SDPA), table=renamed)
    assert plan.option(old) == "ON"
    assert plan.option(new) is None
    assert f"the old release calls {new} this" in _reason(plan, old)


@pytest.mark.parametrize("version", ["1.3.0", "1.4.1", "1.5.1"])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("backend", exporting_backends())
def test_every_plan_is_known_to_every_release(version: str, target: str, backend: str) -> None:
    plan = _plan(None, target, version=version, profile=True, export={"backend": backend})
    names = {o.name for o in plan.options if o.name.startswith("EXECUTORCH_")}
    assert names <= known_options(version).names


# --- by hand


def _hand(program: Program, **options: str | bool | int) -> RuntimePlan:
    return _plan(program, runtime={"cmake": options})


def test_an_option_by_hand_is_shown_as_such() -> None:
    plan = _hand(_DELEGATED, EXECUTORCH_LOG_LEVEL="Debug", EXECUTORCH_FOO=True)
    assert plan.option("EXECUTORCH_LOG_LEVEL") == "Debug"
    assert _reason(plan, "EXECUTORCH_LOG_LEVEL") == "recipe"
    assert plan.option("EXECUTORCH_FOO") == "ON"
    assert not lacks(_reason(plan, "EXECUTORCH_FOO"), "recipe", "ExecuTorch 1.5")
    assert plan.blockers == ()


def test_a_library_by_hand_is_linked_and_has_what_it_requires() -> None:
    plan = _hand(_calling(*_RELU), EXECUTORCH_BUILD_XNNPACK=True)
    assert "backend_xnnpack" in plan.component_names
    assert [plan.option(name) for name in _POOL] == ["ON", "ON"]
    assert "EXECUTORCH_BUILD_XNNPACK" in _reason(plan, _POOL[0])


@pytest.mark.parametrize("value", [False, 0, "OFF", "off", "0", "NO"])
@pytest.mark.parametrize(
    ("program", "name", "component"),
    [
        (_DELEGATED, "EXECUTORCH_BUILD_XNNPACK", "backend_xnnpack"),
        (_calling(*_QUANTIZE), "EXECUTORCH_BUILD_KERNELS_QUANTIZED", "kernels_quantized"),
        (_calling(*_SDPA), "EXECUTORCH_BUILD_KERNELS_LLM", "kernels_llm"),
    ],
)
def test_a_switch_off_by_hand_that_the_program_needs_is_a_blocker(
    program: Program, name: str, component: str, value: str | bool | int
) -> None:
    plan = _hand(program, **{name: value})
    found = [o for o in plan.blockers if o.what == f"{name}=OFF"]
    assert len(found) == 1
    assert f"the runner needs {component}: method forward" in found[0].why
    assert found[0].remedy == f"Remove {name} from runtime.cmake."


@pytest.mark.parametrize(
    "name",
    [
        "EXECUTORCH_BUILD_EXTENSION_MODULE",
        "EXECUTORCH_BUILD_EXTENSION_TENSOR",
        "EXECUTORCH_BUILD_PORTABLE_OPS",
        "EXECUTORCH_BUILD_PTHREADPOOL",
        "EXECUTORCH_BUILD_DEVTOOLS",
    ],
)
def test_a_part_that_every_such_runner_links_cannot_be_set_off(name: str) -> None:
    program = make_program(make_method(operators=_ADD, delegates=("XnnpackBackend",)))
    assert _plan(program, profile=True).blockers == ()
    plan = _plan(program, profile=True, runtime={"cmake": {name: False}})
    assert any(name in o.what for o in plan.blockers)


def test_off_by_hand_is_a_blocker_by_the_old_name_too() -> None:
    table = known_options("1.3.0")
    new, old = "EXECUTORCH_BUILD_KERNELS_LLM", "EXECUTORCH_BUILD_KERNELS_CUSTOM"
    renamed = OptionTable((table.names - {new}) | {old}, (), (), "the old release")
    plan = _plan(_calling(*_SDPA), table=renamed, runtime={"cmake": {old: False}})
    assert [o.what for o in plan.blockers] == [f"{old}=OFF"]


def test_what_the_plan_tells_the_runner_cannot_be_set() -> None:
    with pytest.raises(ValueError, match="ETDEPLOY_COMPONENTS"):
        _hand(_DELEGATED, ETDEPLOY_COMPONENTS="runtime")


def test_what_no_component_needs_may_be_set_off() -> None:
    plan = _hand(_DELEGATED, EXECUTORCH_ENABLE_LOGGING=False, EXECUTORCH_BUILD_QNN=False)
    assert plan.option("EXECUTORCH_ENABLE_LOGGING") == "OFF"
    assert plan.blockers == ()


def test_options_that_exclude_each_other_by_hand_are_a_blocker() -> None:
    plan = _plan(
        _DELEGATED,
        runtime={
            "thread_pool": "all_cores",
            "cmake": {"EXECUTORCH_THREADPOOL_USE_PERFORMANCE_CORES": True},
        },
    )
    (blocker,) = plan.blockers
    assert "exclude each other" in blocker.why
    assert not lacks(blocker.remedy, "EXECUTORCH_THREADPOOL_USE_PERFORMANCE_CORES", "runtime.cmake")


def test_another_way_to_select_excludes_the_derived_one() -> None:
    plan = _hand(_calling(*_RELU), EXECUTORCH_SELECT_OPS_LIST="aten::relu.out")
    (blocker,) = plan.blockers
    assert blocker.what.split()[::2] == [
        "EXECUTORCH_SELECT_OPS_LIST", "EXECUTORCH_SELECT_OPS_MODEL"
    ]  # fmt: skip


def test_a_program_to_select_from_that_is_named_by_hand_is_kept() -> None:
    plan = _hand(_calling(*_RELU), EXECUTORCH_SELECT_OPS_MODEL="/other/model.pte")
    assert plan.option("EXECUTORCH_SELECT_OPS_MODEL") == "/other/model.pte"
    assert plan.blockers == ()
    assert plan.selection is None
    other = _hand(_calling(*_RELU), EXECUTORCH_SELECT_OPS_MODEL="/third/model.pte")
    assert other.build_digest != plan.build_digest


# --- any program, any recipe

_NAMES = st.one_of(
    st.sampled_from(sorted(OPTIMIZED_OPERATORS)),
    st.builds("{}::op_{}.out".format, st.sampled_from([*NAMESPACES, "mine"]), st.integers(0, 9)),
)
_DTYPES = st.lists(st.sampled_from(["float32", "float16", "int64", "uint8", "bool"]), unique=True)


@st.composite
def _methods(draw: st.DrawFn) -> Method:
    return make_method(
        draw(st.sampled_from(["forward", "encode"])),
        tuple(draw(st.lists(_NAMES, max_size=6, unique=True))),
        tuple(draw(st.lists(st.sampled_from([*_DELEGATE_IDS, "OtherBackend"]), max_size=3))),
        tuple(draw(_DTYPES)),
    )


@st.composite
def _recipes(draw: st.DrawFn) -> Recipe:
    backend = draw(st.sampled_from(list(exporting_backends().values())))
    return make_recipe(
        model=draw(st.sampled_from([{"example": "mlp"}, {"program": "m.pte"}])),
        export={
            "backend": backend.name,
            "quantization": draw(st.sampled_from(backend.quantizations)),
        },
        runtime={
            "provider": "source",
            "thread_pool": draw(st.sampled_from(["default", "performance_cores", "all_cores"])),
            "selective": draw(st.booleans()),
            "optimize": draw(st.sampled_from(["speed", "size"])),
            "log_level": draw(st.sampled_from(["none", "fatal", "error", "info", "debug"])),
            "kleidiai": draw(st.sampled_from([None, True, False])),
            "weight_cache": draw(st.booleans()),
        },
        benchmark={"profile": draw(st.booleans())},
    )


@settings(deadline=None, max_examples=150, derandomize=True)
@given(
    recipe=_recipes(),
    methods=st.none() | st.lists(_methods(), min_size=1, max_size=2),
    target=st.sampled_from(sorted(TARGETS)),
    version=st.sampled_from(["1.3.0", "1.4.1", "1.5.1"]),
)
def test_what_is_derived_is_closed_free_of_conflicts_and_has_one_operator_library(
    recipe: Recipe, methods: list[Method] | None, target: str, version: str
) -> None:
    program = make_program(*methods) if methods else None
    plan = derive_plan(recipe, program, find_target(target), _HOST, Available(version, frozenset()))
    table = known_options(version)
    options = {option.name: option for option in plan.options}
    assert len(options) == len(plan.options)
    assert all(option.reason and option.value is not None for option in plan.options)
    for relation in table.requires:
        if is_on(options.get(relation.if_on)):
            assert all(is_on(options.get(other)) for other in relation.others)
    for relation in table.conflicts:
        if is_on(options.get(relation.if_on)):
            assert not any(is_on(options.get(other)) for other in relation.others)
    assert not any("exclude" in o.why or "requires" in o.why for o in plan.blockers)
    assert len(_libraries(plan)) <= 1
    assert (plan.option("EXECUTORCH_SELECT_OPS_MODEL") is None) == (plan.selection is None)


def test_registry_has_room_for_a_library_that_is_switched_on_by_hand() -> None:
    program = make_program(make_method(operators=("aten::relu.out",), dtypes=("float32",)))
    by_hand = {"EXECUTORCH_BUILD_KERNELS_QUANTIZED": True}
    plan = make_plan(make_recipe(runtime={"provider": "source", "cmake": by_hand}), program)
    assert "kernels_quantized" in plan.component_names
    assert plan.option("MAX_KERNEL_NUM") == "2000"
