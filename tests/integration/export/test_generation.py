"""Language models: every step of the program gives the logits of the model's own forward."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.export import nightly_except, run_support, selected

pytest.importorskip("transformers", reason="needs etdeploy[llm]")
pytestmark = pytest.mark.integration

_STOCK = ("Llama", "Qwen3", "Gemma3Text")
_KERNEL = tuple(f"{name}-kernel" for name in _STOCK)
_MODELS = (*_STOCK, *_KERNEL)
# With a cache of so many bits: how far that alone moves logits at least, and the program's at most.
_PACKED = {"Gemma3Text-kernel8": (0.01, 3e-3), "Llama-kernel16": (1e-3, 2e-4)}
_SMOKE = ("Llama", "Llama-kernel")
_WINDOWED = ("Llama-window", "Llama-kernel-window")
_SMOKE_PACKED = "Gemma3Text-kernel8"
_SMOKE_WINDOWED = "Llama-kernel-window"
# What copies a cache, or makes a mask of it outside of a delegate.
_SLOW = {"aten::copy_", "aten::index_put.out", "aten::where.self_out"}


@pytest.fixture(scope="module")
def found(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    models = sorted(selected(request, "name") | {*_SMOKE, _SMOKE_PACKED, _SMOKE_WINDOWED})
    folder = str(tmp_path_factory.mktemp("generation"))
    made: dict[str, dict[str, Any]] = run_support("generation_run", folder, *models)
    return made


@pytest.mark.parametrize("name", nightly_except(_MODELS, *_SMOKE))
def test_every_step_gives_the_logits_of_the_models_own_forward(
    found: dict[str, dict[str, Any]], name: str
) -> None:
    told = found[name]
    assert (told["path"], told["attention"]) == (
        "fast", "kernel" if name in _KERNEL else "stock"
    )  # fmt: skip
    # In float32, of logits between -10 and 10; a wrong cache or mask moves them by ones.
    assert told["prefill"] < 1e-4
    assert told["decode"] < 1e-4
    assert told["again"] < 1e-4
    assert told["furthest"] > (512 if name.startswith("Llama") else 128)


@pytest.mark.parametrize("name", nightly_except(tuple(_PACKED), _SMOKE_PACKED))
def test_a_small_cache_gives_the_logits_of_the_model_with_rounded_keys_and_values(
    found: dict[str, dict[str, Any]], name: str
) -> None:
    told, (least, most) = found[name], _PACKED[name]
    assert (told["path"], told["attention"]) == ("fast", "kernel")
    assert told["rounding"] > least
    assert max(told["prefill"], told["decode"], told["again"]) < most
    for operators in told["operators"].values():
        assert {"etdeploy::pack.out", "aten::index_put_"} < set(operators)
    # Two heads of 16 numbers each, keys and values; a row of bytes has a scale.
    row = {"Gemma3Text-kernel8": 16 + 4, "Llama-kernel16": 2 * 16}[name]
    assert told["cache_bytes"] == sum(told["places"]) * 2 * 2 * row


@pytest.mark.parametrize("name", nightly_except(_WINDOWED, _SMOKE_WINDOWED))
def test_tokens_see_a_window_and_the_first_ones(
    found: dict[str, dict[str, Any]], name: str
) -> None:
    told = found[name]
    assert told["path"] == "fast"
    # Far from what the model gives of all positions.
    assert told["rounding"] > 0.1
    assert max(told["prefill"], told["decode"], told["again"]) < 1e-4
    # Three sinks, and a ring of 24 positions, 15 more for a part of a prompt, and a full block.
    assert told["places"] == [3 + 64]
    assert told["rewind"] == 41


def test_methods_look_at_a_part_of_a_long_cache(found: dict[str, dict[str, Any]]) -> None:
    assert found["methods"] == {
        "64": ["prefill", "decode"],
        "256": ["prefill", "decode"],
        "512": ["prefill_128", "prefill", "decode_128", "decode"],
        "2048": [
            *("prefill_128", "prefill_512", "prefill"),
            *("decode_128", "decode_512", "decode"),
        ],
        "4096": [
            *("prefill_256", "prefill_1024", "prefill"),
            *("decode_256", "decode_1024", "decode"),
        ],
    }


@pytest.mark.parametrize("name", nightly_except(_KERNEL, *_SMOKE))
def test_the_kernel_needs_one_method_for_each_role_and_no_mask(
    found: dict[str, dict[str, Any]], name: str
) -> None:
    operators = found[name]["operators"]
    assert sorted(operators) == ["decode", "prefill"]
    for called in operators.values():
        assert "etdeploy::attention.out" in called
    windowed = name.startswith("Gemma3")
    # The positions of a ring's places are for the mask alone.
    assert found[name]["places"] == ([64, 512] if windowed else [2048 if "Llama" in name else 512])
    assert found[name]["rewind"] == (41 if windowed else None)


@pytest.mark.nightly
def test_layers_with_a_window_keep_no_more_than_a_ring(found: dict[str, dict[str, Any]]) -> None:
    told = found["Gemma3Text"]
    # 24 positions of the window, 15 more for a part of a prompt, and what fills a block; then the
    # segments of the other layer, with a place more for what is written to the others.
    assert told["places"] == [64, 129, 385]
    assert told["rewind"] == 41
    assert {"aten::floor.out", "aten::div.out", "aten::clamp.out"}.isdisjoint(
        told["operators"]["decode"]
    )
    assert (found["Llama"]["places"], found["Llama"]["rewind"]) == ([129, 385, 1537], None)


@pytest.mark.parametrize("name", nightly_except(_MODELS, *_SMOKE))
def test_the_memory_of_the_cache_is_planned_once(
    found: dict[str, dict[str, Any]], name: str
) -> None:
    cache = found[name]["cache_bytes"]
    for planned in found[name]["planned_bytes"].values():
        # A prompt's part of 16 tokens has activations of some kilobytes.
        assert cache <= planned < cache + 100_000 < 2 * cache


@pytest.mark.parametrize("name", nightly_except(_MODELS, *_SMOKE))
def test_the_cache_is_written_in_place_and_never_copied(
    found: dict[str, dict[str, Any]], name: str
) -> None:
    for operators in found[name]["operators"].values():
        assert "aten::index_put_" in operators
        assert not _SLOW & set(operators)
    for method, outside in found[name]["operators"].items():
        if method.startswith("prefill"):
            continue
        assert not any(name in each for each in outside for name in ("expand", "slice", "split"))


@pytest.mark.parametrize("name", nightly_except(_MODELS, *_SMOKE))
def test_norms_part_no_delegate(found: dict[str, dict[str, Any]], name: str) -> None:
    assert not any("aten::mean.out" in each for each in found[name]["operators"].values())
