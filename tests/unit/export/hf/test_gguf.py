"""GGUF files as far as their headers: what they say, and which are refused."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from etdeploy.cache.workspace import Workspace
from etdeploy.core.errors import ExportError, RecipeError, UsageError
from etdeploy.export.cache import ExportContext
from etdeploy.export.derive import export_spec
from etdeploy.export.hf.check import checkpoint_refusals
from etdeploy.export.hf.gguf import GgufError, config_of, read_header
from etdeploy.export.needs import check_language_model
from etdeploy.export.spec import ExportSpec, HfModel
from etdeploy.recipe.load import load_recipe
from tests.support.gguf_files import (
    CONTEXT,
    HIDDEN,
    LAYERS,
    VOCABULARY,
    byte_tokens,
    tensors,
    write_gguf,
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "m.gguf")


def spec_of(path: object, **changes: Any) -> ExportSpec:
    loaded = load_recipe("llm-xnnpack", [f"--model={path}", f"--context={CONTEXT}"])
    return export_spec(loaded.recipe, loaded.places).model_copy(update=changes)


def test_a_header(model: Path) -> None:
    header = read_header(model)
    queries = header.tensors["blk.1.attn_q.weight"]
    assert (queries.shape, queries.type.name) == ((HIDDEN, HIDDEN), "Q4_0")
    assert queries.size_bytes == HIDDEN * HIDDEN // 32 * 18
    assert header.tensors["blk.0.attn_norm.weight"].type.is_float
    assert header.parameters == sum(weight.size for weight in tensors().values())
    assert header.has_tokenizer
    assert header.has_chat_template
    config = config_of(header)
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["max_position_embeddings"] == CONTEXT
    assert (config["num_hidden_layers"], config["vocab_size"]) == (LAYERS, VOCABULARY)


def _changed(place: int, content: bytes) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[place : place + len(content)] = content
        path.write_bytes(data)

    return change


def _shortened(to: float) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        path.write_bytes(path.read_bytes()[: int(path.stat().st_size * to)])

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_changed(0, b"<htm"), "does not begin with GGUF"),
        (_shortened(0), "does not begin with GGUF"),
        (_changed(4, struct.pack("<I", 1)), "version 1"),
        (_changed(4, struct.pack("<I", 9)), "version 9"),
        (_changed(4, struct.pack(">I", 3)), "big-endian"),
        (_shortened(0.99), r"ends too early: [\d,]+ of [\d,]+ bytes"),
        (_shortened(0.05), "ends in its header"),
        (_changed(8, struct.pack("<Q", 2**60)), "damaged"),
        (_changed(24, struct.pack("<Q", 2**60)), "header"),
    ],
)  # fmt: skip
def test_a_damaged_file(model: Path, change: Callable[[Path], None], message: str) -> None:
    change(model)
    with pytest.raises(GgufError, match=message) as found:
        read_header(model)
    assert found.value.remedy
    [refusal] = checkpoint_refusals(model, CONTEXT)
    assert (refusal.place, refusal.message) == (str(model), found.value.message)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ({"architecture": "mamba"}, r"architecture 'mamba'.* llama, qwen2"),
        ({"architecture": "clip"}, "mmproj"),
        ({"metadata": {"general.type": "adapter"}}, "an adapter"),
        ({"metadata": {"general.type": "imatrix"}}, "importance matrix"),
        ({"weights": {}}, "token_embd.weight is missing"),
        ({"tokens": [*byte_tokens(), *"αβ"]}, r"tokenizer has 260 tokens, .* 258 rows"),
        ({"metadata": {"split.count": 3}}, "3 files"),
    ],
)
def test_a_file_that_is_not_a_model_which_is_read(
    tmp_path: Path, written: dict[str, Any], message: str
) -> None:
    path = write_gguf(tmp_path / "m.gguf", **written)
    with pytest.raises(GgufError, match=message) as found:
        read_header(path)
    assert found.value.remedy


def test_the_tensor_of_a_type_that_is_not_read_is_named(model: Path) -> None:
    data = model.read_bytes()
    name = b"blk.1.ffn_up.weight"
    place = data.index(name) + len(name) + 4 + 2 * 8
    assert struct.unpack_from("<I", data, place) == (2,)  # Q4_0
    for number, shown in ((31, "Q4_0_4_4"), (99, "number 99")):
        _changed(place, struct.pack("<I", number))(model)
        with pytest.raises(GgufError, match=re.escape(f"{name.decode()} ({shown})")):
            read_header(model)


def test_a_model_in_several_files(model: Path) -> None:
    names = [f"m-{n:05}-of-00003.gguf" for n in (1, 2, 3)]
    first = model.rename(model.with_name(names[0]))
    with pytest.raises(GgufError, match=f"{names[1]} and 1 more is missing") as found:
        read_header(first)
    assert f"llama-gguf-split --merge {names[0]} m.gguf" in str(found.value.remedy)
    for name in names[1:]:
        model.with_name(name).touch()
    with pytest.raises(GgufError, match="3 files, and one file is read"):
        read_header(first)


def test_a_context_beyond_the_positions_of_the_file_is_refused(model: Path) -> None:
    [refusal] = checkpoint_refusals(model, 2 * CONTEXT)
    assert refusal.key == ("export", "generation", "context")
    assert f"{CONTEXT} positions" in refusal.message


def test_the_recipe_names_a_file(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model.parent)
    for name in ("m.gguf", "./m.gguf", model):
        spec = spec_of(name)
        assert spec.hf == HfModel(folder=str(model.parent), gguf="m.gguf")
        assert spec.source == "m.gguf"
        assert check_language_model(spec) is None
    assert load_recipe("llm-xnnpack", ["--model=m.gguf"]).named_model == str(model)


@pytest.mark.parametrize("address", ["", "https://huggingface.co/"])
def test_the_recipe_names_a_file_on_the_hub(address: str) -> None:
    named = f"{address}org/name/{'blob/v1/' if address else ''}q4/m-Q4_0.gguf"
    found = spec_of(named).hf
    revision = "v1" if address else "main"
    assert found == HfModel(id="org/name", gguf="q4/m-Q4_0.gguf", revision=revision)
    assert found.name == "org/name/q4/m-Q4_0.gguf"


@pytest.mark.parametrize(
    ("override", "facts"),
    [
        ("--model=m.gguf", ("model.gguf", "does not exist", "ORG/NAME")),
        ("--model=../org/name/m.gguf", ("model.gguf", "does not exist")),
        ("--model=org/../../m.gguf", ("model.gguf", "does not exist")),
        ("model.hf=there.gguf", ("model.hf", "not a folder", "model.gguf")),
        ("model.gguf=.", ("model.gguf", "a folder", "ends in .gguf")),
    ],
)
def test_a_name_that_is_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, override: str, facts: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.gguf").touch()
    with pytest.raises(RecipeError) as found:
        load_recipe("llm-xnnpack", [override])
    assert all(fact in str(found.value.problems[0]) for fact in facts)


def test_code_and_revisions_of_a_file(model: Path) -> None:
    for setting, fact in (("remote_code=a/b", "no code"), ("revision=v1", "no revisions")):
        with pytest.raises(RecipeError, match=fact):
            load_recipe("llm-xnnpack", [f"--model={model}", f"model.{setting}"])


def test_the_name_of_a_file_is_not_in_the_key_and_its_content_is(
    model: Path, tmp_path: Path
) -> None:
    workspace = Workspace(tmp_path / "cache")

    def first(path: Path) -> str:
        return ExportContext.now(spec_of(path), workspace).first

    before = first(model)
    assert first(model.rename(model.with_name("n.gguf"))) == before
    assert first(write_gguf(model, weights=tensors(seed=1))) != before


def test_a_model_without_a_template_does_not_chat(tmp_path: Path) -> None:
    silent = write_gguf(tmp_path / "m.gguf", template=None)
    assert check_language_model(spec_of(silent, speech="text")) is None
    with pytest.raises(UsageError, match="no chat template"):
        check_language_model(spec_of(silent, speech="chat"))
    mute = write_gguf(tmp_path / "n.gguf", tokens=[])
    with pytest.raises(UsageError, match="no tokenizer"):
        check_language_model(spec_of(mute, speech="text"))


def test_a_refusal_names_the_file(model: Path) -> None:
    _shortened(0.5)(model)
    with pytest.raises(ExportError, match="ends too early") as found:
        check_language_model(spec_of(model))
    assert found.value.place == str(model)


def test_types_have_the_sizes_of_the_package(tmp_path: Path) -> None:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
    from gguf.quants import dequantize

    from etdeploy.export.hf.gguf import TENSOR_TYPES

    for number, kind in TENSOR_TYPES.items():
        own = GGMLQuantizationType(number)
        assert (own.name, GGML_QUANT_SIZES[own]) == (kind.name, (kind.block, kind.block_bytes))
        zeros = np.zeros((1, kind.block_bytes), np.uint8)
        if not kind.is_float:
            assert dequantize(zeros, own).shape == (1, kind.block)
