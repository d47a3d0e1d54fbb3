"""When an app has the published library of ExecuTorch, and the reasons why it cannot."""

from __future__ import annotations

from typing import Any

import pytest

from etdeploy.apps.android.runtime import choose_runtime
from etdeploy.apps.platform import AppRuntime
from etdeploy.core.errors import BuildError
from etdeploy.program.model import Program
from tests.support.runtime_values import make_method, make_program, make_recipe

ARM = ("arm64-v8a",)
SOURCE = "--set app.runtime=source"


def program(*operators: str, delegates: tuple[str, ...] = ("XnnpackBackend",)) -> Program:
    return make_program(make_method(operators=operators, delegates=delegates))


def delegating(*names: str) -> Program:
    return program(delegates=names)


def chosen(
    which: Program,
    choice: str = "auto",
    version: str = "1.5.1",
    abis: tuple[str, ...] = ARM,
    **sections: Any,
) -> AppRuntime:
    recipe = make_recipe(app={"runtime": choice}, **sections)
    return choose_runtime(recipe, which, version, abis)


@pytest.mark.parametrize(
    ("delegates", "artifact"),
    [
        (["XnnpackBackend"], "org.pytorch:executorch-android:1.5.1"),
        (["QnnBackend"], "org.pytorch:executorch-android-qnn:1.5.1"),
        (["VulkanBackend"], "org.pytorch:executorch-android-vulkan:1.5.1"),
        # Each variant has the backend of the plain one.
        (["XnnpackBackend", "VulkanBackend"], "org.pytorch:executorch-android-vulkan:1.5.1"),
    ],
)
def test_the_variant_is_the_one_with_the_backend(delegates: list[str], artifact: str) -> None:
    runtime = chosen(program("aten::add.out", delegates=tuple(delegates)))
    assert runtime.name.value == "prebuilt"
    assert [package.value for package in runtime.packages] == [artifact]


@pytest.mark.parametrize(
    "operator",
    [
        "aten::add.out", "aten::sym_size.int", "dim_order_ops::_to_dim_order_copy.out",
        "executorch_prim::et_view.default", "quantized_decomposed::dequantize_per_tensor.out",
        "llama::update_cache.out",
    ],
)  # fmt: skip
def test_the_library_has_all_kernels_of_executorch_but_torchaos(operator: str) -> None:
    assert chosen(program(operator)).name.value == "prebuilt"


@pytest.mark.parametrize(
    ("which", "others", "named", "remedies"),
    [
        # No variant has two backends more than the plain one.
        (delegating("QnnBackend", "VulkanBackend"), {}, ["QnnBackend", "VulkanBackend"], [SOURCE]),
        (delegating("NeuropilotBackend"), {}, ["NeuropilotBackend"], [SOURCE]),
        (delegating("FooBackend"), {}, ["FooBackend"], [SOURCE]),
        # A phone's processor is not in an emulator.
        (delegating("QnnBackend"), {"abis": (*ARM, "x86_64")},
         ["executorch-android-qnn", "x86_64"], ["--set app.abis=[arm64-v8a]"]),
        (program(), {"abis": ("armeabi-v7a",)}, ["armeabi-v7a"], ["--set app.abis=[arm64-v8a]"]),
        (program("torchao::_linear_8bit_act_4bit_weight.out"), {}, ["kernels_torchao"], [SOURCE]),
        (program("etdeploy::attention.out", "etdeploy::rotate.out"), {},
         ["etdeploy::attention.out, etdeploy::rotate.out"],
         ["--set export.generation.attention=stock", SOURCE]),
        (program("etdeploy::grouped_linear.out"), {}, ["etdeploy::grouped_linear.out"],
         ["--set export.rewrites=auto", SOURCE]),
        (program("etdeploy::channelwise_linear.out", "etdeploy::rotate.out"), {},
         ["etdeploy::channelwise_linear.out, etdeploy::rotate.out"],
         ["--set export.rewrites=auto", "--set export.generation.attention=stock", SOURCE]),
        (program("my::gelu.out"), {}, ["my::gelu.out"], [SOURCE]),
        (program(), {"version": "1.6.0a0+0ff1ce"}, ["1.6.0a0+0ff1ce", "1.2"], [SOURCE]),
        (program(), {"version": "1.1.0"}, ["1.1.0", "1.2"], [SOURCE]),
        (program(), {"version": "main"}, ["main", "1.2"], [SOURCE]),
        (program(), {"version": "1.5"}, ["1.5", "1.2"], [SOURCE]),
        # All reasons at once.
        (program("my::gelu.out", delegates=("FooBackend",)), {"version": "1.0.0"},
         ["my::gelu.out", "FooBackend", "1.0.0"], [SOURCE]),
    ],
)  # fmt: skip
def test_the_published_library_is_refused_with_the_reason_and_a_way_out(
    which: Program, others: dict[str, Any], named: list[str], remedies: list[str]
) -> None:
    with pytest.raises(BuildError) as caught:
        chosen(which, "prebuilt", **others)
    assert all(name in caught.value.message for name in named)
    assert all(remedy in str(caught.value.remedy) for remedy in remedies)


def test_a_language_model_leaves_all_rewrites_out_for_the_published_library() -> None:
    with pytest.raises(BuildError) as caught:
        chosen(program("etdeploy::grouped_linear.out"), "prebuilt", model={"hf": "some/model"})
    assert "--set export.rewrites=none" in str(caught.value.remedy)


@pytest.mark.parametrize("choice", ["auto", "prebuilt", "source"])
def test_a_backend_that_runs_on_no_android_is_refused_however_it_is_built(
    choice: str,
) -> None:
    with pytest.raises(BuildError, match=r"CoreMLBackend.* macos or ios") as known:
        chosen(delegating("CoreMLBackend"), choice)
    assert "--set export.backend=xnnpack" in str(known.value.remedy)
    with pytest.raises(BuildError) as finished:
        chosen(delegating("CoreMLBackend"), choice, model={"program": "/models/net.pte"})
    assert "--set" not in str(finished.value.remedy)


@pytest.mark.parametrize(
    ("which", "choice", "runtime", "value", "reason"),
    [
        (program("my::gelu.out"), "auto", {"custom_ops": "kernels"}, "source", "my::gelu.out"),
        (program(), "auto", {"optimize": "size"}, "source", "runtime.optimize"),
        (program(), "source", {}, "source", "app.runtime is source"),
        # The published library shares packed weights already.
        (program(), "auto", {"weight_cache": True}, "prebuilt", "executorch-android 1.5.1"),
    ],
)
def test_the_choice_has_its_reason(
    which: Program, choice: str, runtime: dict[str, Any], value: str, reason: str
) -> None:
    found = chosen(which, choice, runtime=runtime)
    assert found.name.value == value
    assert bool(found.packages) == (value == "prebuilt")
    assert reason in found.name.reason
