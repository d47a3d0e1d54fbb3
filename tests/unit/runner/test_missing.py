"""What a machine lacks for a build, and a runner for a program, is named with what brings it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from etdeploy.core.errors import Blocker, BuildError, CheckError
from etdeploy.plan.model import RuntimePlan
from etdeploy.program.model import Method
from etdeploy.provider.checkout import (
    SOURCE_VARIABLE,
    Checkout,
    examine,
)
from etdeploy.runner.missing import (
    check_program,
    find_missing,
    list_submodules,
    require_present,
    require_runnable,
)
from etdeploy.targets.platforms import find_target
from tests.support.machine import bare_machine, equip
from tests.support.runtime_values import (
    make_method,
    make_plan,
    make_program,
    make_recipe,
    make_runner,
)

_STAND_IN = Path(__file__).parents[2] / "data" / "checkout"
_HOST = find_target("linux-x86_64")
_XNNPACK = make_program(make_method(delegates=("XnnpackBackend",)))
_VULKAN = make_program(make_method(delegates=("VulkanBackend",)))
_QNN = make_program(make_method(delegates=("QnnBackend",)))
_KERNELS = make_program(make_method(operators=("aten::relu.out",)))


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return bare_machine(tmp_path, monkeypatch)


@pytest.fixture
def equipped(bare: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    equip(bare, monkeypatch)
    return bare


def _plan(program: Any = _XNNPACK, target: str = "linux-x86_64") -> RuntimePlan:
    recipe = make_recipe(runtime={"provider": "source"}, benchmark={"profile": False})
    return make_plan(recipe, program, target)


def _found(plan: RuntimePlan, checkout: Checkout | BuildError | None) -> dict[str, Blocker]:
    missing = find_missing(plan, _HOST, checkout)
    assert all(m.why and m.remedy for m in missing)
    return {m.what: m for m in missing}


def _checkout(folder: Path, origin: Any = "recipe") -> Checkout:
    shutil.copytree(_STAND_IN, folder)
    return examine(folder, origin)


def test_a_bare_machine_lacks_everything_and_is_told_all_of_it(bare: Path) -> None:
    found = _found(_plan(_KERNELS), None)
    assert set(found) == {
        "cmake and ninja",
        "toolchain",
        "ExecuTorch's sources",
        "git",
        "Python packages",
    }
    assert "cmake" in found["cmake and ninja"].remedy
    assert found["toolchain"].remedy == "apt-get install g++"
    assert found["Python packages"].remedy.endswith("[export]'")
    assert "torch and executorch" in found["Python packages"].why


def test_an_equipped_machine_lacks_only_what_a_run_clones(equipped: Path) -> None:
    found = _found(_plan(_KERNELS), None)
    assert list(found) == ["ExecuTorch's sources"]
    assert found["ExecuTorch's sources"].fetched
    assert "v1.5.1" in found["ExecuTorch's sources"].why
    assert SOURCE_VARIABLE in found["ExecuTorch's sources"].remedy
    require_present(tuple(found.values()))


def test_a_named_folder_that_cannot_be_used_is_missing_and_not_fetched(equipped: Path) -> None:
    error = BuildError("it is no checkout", remedy="name another")
    found = _found(_plan(), error)
    assert found["ExecuTorch's sources"] == Blocker(
        what="ExecuTorch's sources", why="it is no checkout", remedy="name another"
    )


@pytest.mark.parametrize(("origin", "fetched"), [("recipe", False), ("cache", True)])
def test_missing_submodules_are_fetched_for_a_clone_of_ours_only(
    origin: str, fetched: bool, equipped: Path, tmp_path: Path
) -> None:
    checkout = _checkout(tmp_path / "my sources" / "executorch", origin)
    (checkout.folder / ".git").mkdir()
    shutil.rmtree(checkout.folder / "third-party/json")
    found = _found(_plan(), checkout)["submodules"]
    assert found.fetched == fetched
    assert found.why.endswith(": third-party/json")
    assert found.remedy.startswith(f"git -C '{checkout.path}' submodule")


def test_generated_code_alone_needs_python_packages(bare: Path) -> None:
    assert "Python packages" not in _found(_plan(_XNNPACK), None)
    quantized = make_program(make_method(operators=("quantized_decomposed::add.out",)))
    assert "Python packages" in _found(_plan(quantized), None)


def test_vulkan_needs_glslc(equipped: Path) -> None:
    plan = _plan(_VULKAN, "android-x86_64")
    assert any("glslc" in what for what in _found(plan, None))
    assert not any("glslc" in what for what in _found(_plan(), None))


def test_a_static_runner_is_offered_only_to_what_it_can_run(equipped: Path) -> None:
    remedies = {
        name: _found(_plan(program, "android-arm64"), None)["toolchain"].remedy
        for name, program in (("xnnpack", _XNNPACK), ("qnn", _QNN))
    }
    assert "linux-aarch64-musl" in remedies["xnnpack"]
    assert "linux-aarch64-musl" not in remedies["qnn"]
    assert "etdeploy run --as app" in remedies["qnn"]
    # An app with kernels of the recipe is built from source, with an NDK.
    custom = _plan(_QNN, "android-arm64").model_copy(update={"custom_ops": "0" * 32})
    assert "--as app" not in _found(custom, None)["toolchain"].remedy


def test_what_is_missing_is_refused_all_at_once() -> None:
    two = tuple(Blocker(what=w, why=f"no {w}", remedy=f"get {w}") for w in ("a", "b"))
    fetched = Blocker(what="c", why="no c", remedy="get c", fetched=True)
    with pytest.raises(BuildError) as raised:
        require_present((*two, fetched))
    assert raised.value.message == "no a; no b"
    assert raised.value.remedy == "a:\n  get a\nb:\n  get b"
    assert raised.value.exit_code == 4
    require_present((fetched,))


def test_submodules_follow_the_plans_options() -> None:
    assert "backends/xnnpack/third-party/XNNPACK" in list_submodules(_plan(_XNNPACK))
    assert "backends/xnnpack/third-party/XNNPACK" not in list_submodules(_plan(_KERNELS))
    assert "third-party/ios-cmake" in list_submodules(_plan(target="ios-arm64"))


_TWO_METHODS = make_program(
    make_method(
        "forward",
        operators=("aten::add.out", "executorch_prim::add.Scalar"),
        delegates=("XnnpackBackend", "XnnpackBackend"),
    ),
    make_method("encode", operators=("aten::add.out", "my_ops::glu.out")),
)
_OPERATORS = ("aten::add.out", "executorch_prim::add.Scalar")


def test_each_missing_operator_and_backend_is_named_once() -> None:
    missing = check_program(_TWO_METHODS, make_runner(("executorch_prim::add.Scalar",)))
    assert [(*m.what.split(), m.why.partition(" by ")[2]) for m in missing] == [
        ("backend", "XnnpackBackend", "method forward"),
        ("operator", "aten::add.out", "methods forward, encode"),
        ("operator", "my_ops::glu.out", "method encode"),
    ]


def test_a_kernel_of_another_release_of_etdeploy_is_named_as_such() -> None:
    program = make_program(make_method(operators=("etdeploy::later.out",)))
    [missing] = check_program(program, make_runner(_OPERATORS))
    assert "etdeploy::later.out" in missing.remedy
    assert "custom_ops" not in missing.remedy


def test_overload_counts() -> None:
    program = make_program(make_method(operators=("aten::add.Scalar_out",)))
    [missing] = check_program(program, make_runner(_OPERATORS))
    assert missing.what.split() == ["operator", "aten::add.Scalar_out"]


def test_error_names_all_and_the_way_out() -> None:
    with pytest.raises(CheckError) as raised:
        require_runnable(_TWO_METHODS, make_runner(_OPERATORS))
    error = raised.value
    assert error.exit_code == 5
    assert all(name in error.message for name in ("XnnpackBackend", "my_ops::glu.out", "encode"))
    assert all(name in str(error.remedy) for name in ("backend_xnnpack", "my_ops::"))


def test_the_error_says_that_it_is_the_draft() -> None:
    with pytest.raises(CheckError, match="does not have what the draft uses"):
        require_runnable(_TWO_METHODS, make_runner(_OPERATORS), finished=True, noun="the draft")


@pytest.mark.parametrize("backend_id", ["VulkanBackend", "MadeUpBackend"])
def test_backend_of_no_wheel_has_a_remedy(backend_id: str) -> None:
    program = make_program(make_method(delegates=(backend_id,)))
    (missing,) = check_program(program, make_runner())
    assert missing.what == f"backend {backend_id}"
    assert "export.backend=xnnpack" in missing.remedy


def test_who_builds_from_source_already_is_not_told_to() -> None:
    program = make_program(make_method(delegates=("QnnBackend",)))
    runner = make_runner().model_copy(update={"provider": "source"})
    (missing,) = check_program(program, runner)
    assert "runtime.provider" not in missing.remedy
    assert "clean builds runners" in missing.remedy


@pytest.mark.parametrize(
    "method",
    [
        make_method(delegates=("VulkanBackend",)),
        make_method(delegates=("MadeUpBackend",)),
        make_method(operators=("aten::add.out",)),
    ],
)
def test_a_finished_program_is_not_told_to_be_lowered_anew(method: Method) -> None:
    (missing,) = check_program(make_program(method), make_runner(), finished=True)
    assert "export." not in missing.remedy


def test_the_wheel_needs_no_sources(bare: Path) -> None:
    plan = make_plan(make_recipe(benchmark={"profile": False}), _XNNPACK)
    assert set(_found(plan, None)) == {"cmake and ninja"}
