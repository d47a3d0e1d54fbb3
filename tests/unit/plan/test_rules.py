"""Every rule of the derivation: which option, which value, and why."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etdeploy.backends.registry import exporting_backends, known_entries
from etdeploy.plan.cmake_options import OptionTable, is_on, known_options
from etdeploy.plan.components import NAMESPACES, OPTIMIZED_OPERATORS
from etdeploy.plan.derive import Available, CustomKernels, derive_plan
from etdeploy.plan.model import RuntimePlan
from etdeploy.program.model import Method, Program
from etdeploy.recipe.model import Recipe
from etdeploy.targets.platforms import TARGETS, find_target
from tests.support.facts import lacks
from tests.support.runtime_values import make_method, make_program, make_recipe

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


def _libraries(plan: RuntimePlan) -> set[str]:
    return _OPERATOR_LIBRARIES.intersection(plan.component_names)


_ON, _OFF = "ON", "OFF"
_POOL = ("EXECUTORCH_BUILD_PTHREADPOOL", "EXECUTORCH_BUILD_CPUINFO")
_KLEIDIAI = "EXECUTORCH_XNNPACK_ENABLE_KLEIDI"


@pytest.mark.parametrize(
    ("program", "sections", "option", "value", "facts"),
    [
        # kernels of aten: optimized if an operator has such a kernel
        (_calling(*_ADD, *_RELU), {}, "BUILD_KERNELS_OPTIMIZED", _ON, ("for aten::add.out",)),
        (_calling(*_RELU), {}, "BUILD_KERNELS_OPTIMIZED", None, ()),
        (_calling(*_RELU), {}, "BUILD_PORTABLE_OPS", _ON, ("forward", "1 operator", *_RELU)),
        (_calling(*_SDPA), {}, "BUILD_KERNELS_OPTIMIZED", _ON, ("EXECUTORCH_BUILD_KERNELS_LLM",)),
        (_calling(*_SDPA, *_RELU), {}, "BUILD_KERNELS_OPTIMIZED", _ON, ("language models",)),
        (_calling(*_ADD), {"runtime": {"optimize": "size"}}, "BUILD_KERNELS_OPTIMIZED", None, ()),
        (_calling(*_ADD), {"runtime": {"optimize": "size"}}, "OPTIMIZE_SIZE", _ON,
         ("runtime.optimize is size",)),
        # a namespace brings its library
        (_calling(*_QUANTIZE), {}, "BUILD_KERNELS_QUANTIZED", _ON, _QUANTIZE),
        (_calling(*_SDPA), {}, "BUILD_KERNELS_LLM", _ON, _SDPA),
        (_calling(*_LINEAR_4BIT), {}, "BUILD_KERNELS_TORCHAO", _ON, _LINEAR_4BIT),
        # the program decides, and the recipe before there is one
        (_calling(*_RELU), {"export": {"backend": "xnnpack"}}, "BUILD_XNNPACK", None, ()),
        (None, {"export": {"backend": "xnnpack"}}, "BUILD_XNNPACK", _ON, ("exported yet",)),
        (None, {"export": {"quantization": "int8_static"}}, "BUILD_KERNELS_QUANTIZED", _ON, ()),
        # data types are selected where all kernels are portable and all types known
        (_calling(*_RELU, dtypes=("float32", "int64")), {}, "ENABLE_DTYPE_SELECTIVE_BUILD", _ON,
         ("float32, int64",)),
        (_calling(*_ADD, dtypes=("float32",)), {}, "ENABLE_DTYPE_SELECTIVE_BUILD", None, ()),
        (_calling(*_RELU, dtypes=("float32", "float16")), {}, "ENABLE_DTYPE_SELECTIVE_BUILD", None,
         ()),
        (_calling(*_RELU), {}, "ENABLE_DTYPE_SELECTIVE_BUILD", None, ()),
        (make_program(
            make_method(operators=_RELU, dtypes=("float32",)),
            make_method("second", operators=_QUANTIZE, dtypes=("float16",)),
        ), {}, "ENABLE_DTYPE_SELECTIVE_BUILD", _ON, ()),
        # the registry of kernels has room for other libraries beside selected kernels
        *((_calling(*_RELU, *others), {}, "MAX_KERNEL_NUM", "2000", ("registry",))
          for others in (_QUANTIZE, _SDPA, _LINEAR_4BIT)),
        (_calling(*_RELU, dtypes=("float32",)),
         {"runtime": {"cmake": {"EXECUTORCH_BUILD_KERNELS_QUANTIZED": True}}},
         "MAX_KERNEL_NUM", "2000", ()),
        (_calling(*_RELU), {}, "MAX_KERNEL_NUM", None, ()),
        (_calling(*_QUANTIZE), {}, "MAX_KERNEL_NUM", None, ()),
        (_calling(*_RELU, *_QUANTIZE), {"runtime": {"selective": False}}, "MAX_KERNEL_NUM", None,
         ()),
        # XNNPACK
        *((_DELEGATED, {"export": {"quantization": scheme}}, _KLEIDIAI, _ON,
           ("export.quantization", scheme)) for scheme in ("int8_dynamic", "8da4w")),
        *((_DELEGATED, {"export": {"quantization": scheme}}, _KLEIDIAI, _OFF,
           (scheme, "runtime.kleidiai: true")) for scheme in ("none", "int8_static")),
        (_DELEGATED, {"model": {"program": "model.pte"}}, _KLEIDIAI, _ON, ()),
        (_DELEGATED, {"runtime": {"kleidiai": True}}, _KLEIDIAI, _ON, ("kleidiai is true",)),
        (_DELEGATED, {"runtime": {"kleidiai": False}, "export": {"quantization": "8da4w"}},
         _KLEIDIAI, _OFF, ("kleidiai is false",)),
        (_calling(*_RELU), {}, _KLEIDIAI, None, ()),
        (_DELEGATED, {"runtime": {"weight_cache": True}}, "XNNPACK_ENABLE_WEIGHT_CACHE", _ON, ()),
        (_DELEGATED, {}, "XNNPACK_ENABLE_WEIGHT_CACHE", None, ()),
        (_calling(*_RELU), {"runtime": {"weight_cache": True}}, "XNNPACK_ENABLE_WEIGHT_CACHE",
         None, ()),
        # threads, tracing and messages
        *((make_program(make_method(operators=_ADD, delegates=("XnnpackBackend",))), {}, name, _ON,
           ("backend_xnnpack", "kernels_optimized")) for name in _POOL),
        *((_calling(*_RELU), {}, name, _OFF, ("default is on",)) for name in _POOL),
        (_DELEGATED, {"profile": True}, "ENABLE_EVENT_TRACER", _ON, ("benchmark.profile",)),
        (_DELEGATED, {"profile": True}, "BUILD_DEVTOOLS", _ON, ("benchmark.profile",)),
        (_DELEGATED, {}, "ENABLE_EVENT_TRACER", None, ()),
        (_DELEGATED, {"runtime": {"log_level": "info"}}, "LOG_LEVEL", "Info", ("is info",)),
        (_DELEGATED, {"runtime": {"log_level": "none"}}, "ENABLE_LOGGING", _OFF, ()),
        (_DELEGATED, {"runtime": {"log_level": "none"}}, "LOG_LEVEL", None, ()),
    ],
)  # fmt: skip
def test_an_option_follows_from_the_program_and_the_recipe(
    program: Program | None,
    sections: dict[str, Any],
    option: str,
    value: str | None,
    facts: tuple[str, ...],
) -> None:
    plan = _plan(program, "linux-aarch64", **sections)
    name = option if option.startswith(("EXECUTORCH_", "MAX_")) else f"EXECUTORCH_{option}"
    assert plan.option(name) == value
    assert plan.blockers == ()
    if facts:
        assert not lacks(_reason(plan, name), *facts)
    assert plan.option("XNNPACK_ENABLE_KLEIDIAI") == plan.option(_KLEIDIAI)


@pytest.mark.parametrize(
    ("operators", "size", "library"),
    [(_ADD, False, "optimized"), (_RELU, False, "portable"), (_ADD, True, "portable"),
     (_SDPA + _RELU, False, "optimized")],
)  # fmt: skip
def test_the_selected_kernels_are_optimized_or_portable(
    operators: tuple[str, ...], size: bool, library: str
) -> None:
    plan = _plan(_calling(*operators), runtime={"optimize": "size" if size else "speed"})
    found = {component.name: component.value for component in plan.components}
    assert found["kernels_selected"] == library
    assert _libraries(plan) == {"kernels_selected"}


def test_android_has_large_pages_its_abi_and_its_api_level() -> None:
    plan = _plan(_DELEGATED, "android-arm64", runtime={"android_api": 33})
    assert plan.option("ANDROID_PLATFORM") == "android-33"
    assert "max-page-size=16384" in (plan.option("CMAKE_EXE_LINKER_FLAGS") or "")
    assert (plan.build_target, plan.portable_runner) == ("android-arm64", False)


@pytest.mark.parametrize("name", ["aten::sym_size.int", "executorch_prim::add.Scalar"])
def test_operators_of_the_runtime_itself_need_no_kernels(name: str) -> None:
    assert _libraries(_plan(_calling(name))) == set()


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


def test_custom_kernels_beside_selected_ones_get_room() -> None:
    custom = CustomKernels(frozenset({"mine::twice.out"}), "digest")
    plan = _plan(_calling(*_RELU, "mine::twice.out"), custom=custom)
    assert plan.option("MAX_KERNEL_NUM") == "2000"
    assert plan.blockers == ()
    assert plan.custom_ops == "digest"


# --- delegates


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


def test_a_runner_has_what_the_draft_needs_too() -> None:
    """Beside what the program needs, which decides alone while it is not exported."""
    program, draft = _calling(*_ADD), make_program(
        make_method(operators=(*_ADD, *_RELU, "my_ops::x.out"), delegates=("XnnpackBackend",))
    )  # fmt: skip
    target, available = find_target("linux-x86_64"), Available("1.5.1", frozenset())
    recipe = make_recipe(runtime={"provider": "source"}, benchmark={"profile": False})
    alone = derive_plan(recipe, program, target, _HOST, available)
    plan = derive_plan(recipe, program, target, _HOST, available, None, draft)
    assert "backend_xnnpack" not in alone.component_names
    assert "backend_xnnpack" in plan.component_names
    reason = next(c.reason for c in plan.components if c.name == "backend_xnnpack")
    assert reason.startswith("the draft: method forward delegates 1 partition")
    assert any("my_ops" in blocker.what for blocker in plan.blockers)
    # A build selects the kernels of one program, so those of several are not selected.
    assert (alone.selection is None, plan.selection is None) == (False, True)
    same = derive_plan(recipe, program, target, _HOST, available, None, program)
    assert same.selection == alone.selection
    early = derive_plan(recipe, None, target, _HOST, available, None, draft)
    assert "backend_xnnpack" in early.component_names
