"""When an app has the published library of ExecuTorch, and what it is told when it cannot."""

from __future__ import annotations

from typing import Any

import pytest

from etdeploy.apps.android.runtime import AndroidRuntime, RuntimeWish, choose_runtime
from etdeploy.core.errors import BuildError
from etdeploy.program.model import Program
from tests.support.runtime_values import make_method, make_program, make_recipe

ARM = ("arm64-v8a",)


def program(*operators: str, delegates: tuple[str, ...] = ("XnnpackBackend",)) -> Program:
    return make_program(make_method(operators=operators, delegates=delegates))


def chosen(
    which: Program,
    wish: RuntimeWish = "auto",
    version: str = "1.5.1",
    abis: tuple[str, ...] = ARM,
    **sections: Any,
) -> AndroidRuntime:
    return choose_runtime(wish, make_recipe(**sections), which, version, abis)


def refusal(which: Program, **others: Any) -> BuildError:
    with pytest.raises(BuildError) as caught:
        chosen(which, "prebuilt", **others)
    return caught.value


@pytest.mark.parametrize(
    ("delegate", "artifact"),
    [
        ("XnnpackBackend", "org.pytorch:executorch-android:1.5.1"),
        ("QnnBackend", "org.pytorch:executorch-android-qnn:1.5.1"),
        ("VulkanBackend", "org.pytorch:executorch-android-vulkan:1.5.1"),
    ],
)
def test_the_variant_is_the_one_with_the_backend(delegate: str, artifact: str) -> None:
    runtime = chosen(program("aten::add.out", delegates=(delegate,)))
    assert runtime.name.value == "prebuilt"
    assert runtime.artifacts == (artifact,)
    assert "has everything" in runtime.name.reason


def test_each_variant_has_the_backend_of_the_plain_one() -> None:
    runtime = chosen(program(delegates=("XnnpackBackend", "VulkanBackend")))
    assert runtime.artifacts == ("org.pytorch:executorch-android-vulkan:1.5.1",)
    assert runtime.backends == ("vulkan", "xnnpack")


def test_no_variant_has_two_backends_more() -> None:
    error = refusal(program(delegates=("QnnBackend", "VulkanBackend")))
    assert "no variant of executorch-android has more than one" in error.message
    assert "--set app.runtime=source" in str(error.remedy)


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


def test_an_operator_of_torchao_is_refused() -> None:
    error = refusal(program("torchao::_linear_8bit_act_4bit_weight.out"))
    assert "of kernels_torchao, which executorch-android does not have" in error.message


def test_etdeploys_own_attention_is_refused_with_the_way_to_the_stock_one() -> None:
    error = refusal(program("etdeploy::attention.out", "etdeploy::rotate.out"))
    assert "etdeploy::attention.out, etdeploy::rotate.out, etdeploy's own kernel" in error.message
    assert "--set export.generation.attention=stock" in str(error.remedy)
    assert "--set app.runtime=source" in str(error.remedy)


def test_auto_builds_for_the_recipes_own_kernels_and_says_why() -> None:
    runtime = chosen(program("my::gelu.out"), runtime={"custom_ops": "kernels"})
    assert runtime.name.value == "source"
    assert runtime.artifacts == ()
    assert "my::gelu.out, of runtime.custom_ops (kernels)" in runtime.name.reason


def test_an_operator_of_nobody_is_named() -> None:
    assert "which no library of ExecuTorch has" in refusal(program("my::gelu.out")).message


def test_a_backend_that_no_variant_has_is_refused() -> None:
    error = refusal(program(delegates=("NeuropilotBackend",)))
    assert "NeuropilotBackend, which no variant" in error.message


def test_an_unknown_backend_is_refused() -> None:
    assert "FooBackend, which no variant" in refusal(program(delegates=("FooBackend",))).message


@pytest.mark.parametrize("wish", ["auto", "prebuilt", "source"])
def test_a_backend_that_runs_on_no_android_is_refused_however_it_is_built(
    wish: RuntimeWish,
) -> None:
    with pytest.raises(BuildError, match="CoreMLBackend, which runs on macos or ios only") as known:
        chosen(program(delegates=("CoreMLBackend",)), wish)
    assert "--set export.backend=xnnpack" in str(known.value.remedy)
    with pytest.raises(BuildError) as finished:
        chosen(program(delegates=("CoreMLBackend",)), wish, model={"program": "/models/net.pte"})
    assert "--set" not in str(finished.value.remedy)


def test_a_phones_processor_is_not_in_an_emulator() -> None:
    error = refusal(program(delegates=("QnnBackend",)), abis=("arm64-v8a", "x86_64"))
    assert error.message.endswith("executorch-android-qnn has no libraries for x86_64")
    assert error.remedy == "--set app.abis=[arm64-v8a]"


def test_an_abi_that_is_not_published_is_refused() -> None:
    assert "the app is for armeabi-v7a" in refusal(program(), abis=("armeabi-v7a",)).message


@pytest.mark.parametrize("version", ["1.6.0a0+0ff1ce", "1.1.0", "main", "1.5"])
def test_what_is_no_published_release_is_refused(version: str) -> None:
    assert "published for releases from 1.2 on" in refusal(program(), version=version).message


def test_a_key_that_needs_a_build_gets_one() -> None:
    runtime = chosen(program(), runtime={"optimize": "size"})
    assert runtime.name.value == "source"
    assert "runtime.optimize changes how ExecuTorch is built" in runtime.name.reason


def test_the_library_shares_packed_weights_already() -> None:
    assert chosen(program(), runtime={"weight_cache": True}).name.value == "prebuilt"


def test_all_reasons_are_told_at_once() -> None:
    error = refusal(program("my::gelu.out", delegates=("FooBackend",)), version="1.0.0")
    assert all(word in error.message for word in ("my::gelu.out", "FooBackend", "1.0.0"))


def test_source_is_taken_when_asked_for() -> None:
    runtime = chosen(program(), "source")
    assert (runtime.name.value, runtime.name.reason) == ("source", "app.runtime is source")


def test_the_oldest_android_is_that_of_the_native_library() -> None:
    assert chosen(program()).min_sdk == 26
    assert chosen(program(), "source", runtime={"android_api": 31}).min_sdk == 31
