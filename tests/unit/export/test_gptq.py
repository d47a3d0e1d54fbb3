"""GPTQ: how weights are rounded on the inputs of their layer."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.failures import WorkerError
from etdeploy.export.worker.language.activations import activations
from etdeploy.export.worker.lowering import scales
from etdeploy.export.worker.lowering.linear_notes import rounding_notes
from etdeploy.export.worker.lowering.linears import Layer, LayerQuantization, _round_in_turn
from etdeploy.export.worker.lowering.scales import (
    FEWEST_TOKENS,
    InputMoments,
    gptq_in_groups,
    quantized_in_groups,
)
from tests.support.export import spec_of
from tests.support.facts import lacks


def inputs_of(tokens: int, size: int, seed: int = 0) -> torch.Tensor:
    """Inputs that vary together, as those of a layer do, and of different sizes."""
    random = torch.Generator().manual_seed(seed)
    mixed = torch.randn(size, size // 4, generator=random)
    own = torch.randn(tokens, size, generator=random)
    return (torch.randn(tokens, size // 4, generator=random) @ mixed.T + 0.3 * own).contiguous()


def error(weight: torch.Tensor, quantized: Any, inputs: torch.Tensor) -> float:
    return float((inputs @ (quantized.dequantize() - weight).T).square().sum())


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """One candidate for a scale, and moments as the inputs have them."""
    monkeypatch.setattr(scales, "_FACTORS", (1.0,))
    monkeypatch.setattr(scales, "_NEAR", ())
    monkeypatch.setattr(scales, "_DAMPING", 0.0)
    monkeypatch.setattr(scales, "_SHRUNK", 0.0)


@pytest.mark.usefixtures("exact")
def test_the_next_column_makes_up_for_an_error() -> None:
    # E[x0 x0] = E[x1 x1] = 1, E[x0 x1] = 0.9; the third says that the scale is 1.
    first, second = torch.tensor([1.0, 1.0]), torch.tensor([1.0, -1.0])
    pairs = torch.stack([first * 0.95**0.5, second * 0.05**0.5]) * 2**0.5 / 2**0.5
    rows = torch.cat([pairs, torch.zeros(2, 1)], 1) * 2**0.5
    rows = torch.cat([rows, torch.tensor([[0.0, 0.0, 1.0]])]).repeat(FEWEST_TOKENS, 1)
    moments = InputMoments.of(rows)
    assert moments
    torch.testing.assert_close(
        moments.factor.T @ moments.factor @ (rows.T @ rows / len(rows)), torch.eye(3)
    )
    weight = torch.tensor([[2.4, 3.3, 7.0], [-2.4, 3.3, 7.0], [2.0, 3.3, 7.0]])
    nearest = quantized_in_groups(weight, 3, moments.mean_squares)
    assert nearest.scale.flatten().tolist() == [1, 1, 1]
    assert nearest.qdata.tolist() == [[2, 3, 7], [-2, 3, 7], [2, 3, 7]]
    # 2.4 is rounded to 2, so 3.3 becomes 3.3 + 0.9 * 0.4 = 3.66; of -2.4, 3.3 - 0.36 = 2.94.
    rounded = gptq_in_groups(weight, 3, moments)
    assert rounded.qdata.tolist() == [[2, 4, 7], [-2, 3, 7], [2, 3, 7]]
    assert rounded.scale.flatten().tolist() == [1, 1, 1]


@pytest.mark.usefixtures("exact")
def test_values_are_those_of_least_squares_for_the_columns_that_are_left() -> None:
    size, group = 64, 32
    inputs = inputs_of(400, size).double()
    weight = torch.randn(6, size, generator=torch.Generator().manual_seed(1)).double()
    moments = InputMoments.of(inputs)
    assert moments
    values = torch.empty(6, size, dtype=torch.int8)
    left, importance = weight.clone(), torch.ones(1, 1, group)
    for column in range(size):
        if column % group == 0:
            part = left[:, column : column + group].float().unsqueeze(1)
            scale = scales._searched(part, importance)[0].flatten().double()
        values[:, column] = (left[:, column] / scale).round().clamp(-8, 7)
        lost = left[:, column] - values[:, column] * scale
        if column + 1 < size:
            given = inputs[:, column : column + 1] @ lost.unsqueeze(0)
            left[:, column + 1 :] += torch.linalg.lstsq(inputs[:, column + 1 :], given).solution.T
    rounded = gptq_in_groups(weight.float(), group, InputMoments.of(inputs.float()) or moments)
    assert (rounded.qdata != values).float().mean() < 0.01  # ties, in another precision


@pytest.mark.parametrize("group_size", [32, 64, 128])
def test_errors_on_the_inputs_are_smaller(group_size: int) -> None:
    inputs, others = inputs_of(1024, 128).split(512)
    weight = torch.randn(96, 128, generator=torch.Generator().manual_seed(2))
    moments = InputMoments.of(inputs)
    assert moments
    rounded = gptq_in_groups(weight, group_size, moments)
    nearest = quantized_in_groups(weight, group_size, moments.mean_squares)
    assert error(weight, rounded, inputs) < 0.5 * error(weight, nearest, inputs)
    assert error(weight, rounded, others) < 0.6 * error(weight, nearest, others)
    assert rounded.shape == weight.shape
    assert rounded.block_size == (1, group_size)
    assert rounded.qdata.is_contiguous()
    assert rounded.scale.is_contiguous()
    assert (rounded.scale > 0).all()
    assert (int(rounded.qdata.min()), int(rounded.qdata.max())) == (-8, 7)
    # Rows are rounded on several threads.
    alone = gptq_in_groups(weight[90:], group_size, moments)
    assert torch.equal(alone.qdata, rounded.qdata[90:])


def test_an_input_that_is_always_zero_changes_no_other() -> None:
    inputs = inputs_of(256, 64)
    inputs[:, 40] = 0
    weight = torch.randn(8, 64, generator=torch.Generator().manual_seed(3))
    moments = InputMoments.of(inputs)
    assert moments
    rounded = gptq_in_groups(weight, 64, moments)
    changed = weight.clone()
    changed[:, 40] *= 0.5
    other = gptq_in_groups(changed, 64, moments)
    kept = [i for i in range(64) if i != 40]
    assert torch.equal(rounded.qdata[:, kept], other.qdata[:, kept])
    nearest = (weight[:, 40] / rounded.scale.flatten()).round().clamp(-8, 7)
    assert torch.equal(rounded.qdata[:, 40].float(), nearest)


def test_inputs_that_depend_on_each_other_are_damped() -> None:
    inputs = inputs_of(128, 64)
    inputs[:, 32:] = inputs[:, :32]
    weight = torch.randn(8, 64, generator=torch.Generator().manual_seed(4))
    moments = InputMoments.of(inputs)
    assert moments
    rounded = gptq_in_groups(weight, 32, moments)
    nearest = quantized_in_groups(weight, 32, moments.mean_squares)
    assert error(weight, rounded, inputs) < error(weight, nearest, inputs)


@pytest.mark.parametrize(
    "inputs",
    [
        inputs_of(FEWEST_TOKENS - 1, 32),
        torch.zeros(FEWEST_TOKENS, 32),
        torch.full((FEWEST_TOKENS, 32), torch.nan),
        torch.full((FEWEST_TOKENS, 32), 3e38),
        torch.empty(0, 32),
    ],
    ids=["few tokens", "zeros", "NaN", "overflow", "no tokens"],
)
def test_inputs_that_say_too_little(inputs: torch.Tensor) -> None:
    assert InputMoments.of(inputs) is None


def test_a_layer_may_have_too_many_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scales, "_MOST_INPUTS", 31)
    assert InputMoments.of(inputs_of(256, 32)) is None


def read_later(
    calibration: Any, *, tokenizer: bool = True, kind: str = "llama", context: int = 256
) -> scales.Activations:
    """What is known before the text is read, with a tokenizer that has a token for each word."""
    generation = {"context": context, "prefill_tokens": 16}
    export = {"quantization": "8da4w", "rounding": "gptq", "calibration": calibration}
    export |= {"scaling": "none"}
    spec = spec_of({"model": {"hf": "org/model"}, "export": {**export, "generation": generation}})
    words = SimpleNamespace(
        loaded=(lambda text: {"input_ids": [1] * len(text.split())}) if tokenizer else None,
        bos_id=None,
    )
    model = SimpleNamespace(config=SimpleNamespace(model_type=kind))
    loaded: Any = SimpleNamespace(tokenizer=words, vocabulary=9, model=model)
    return activations(spec, loaded, "sdpa")


def parts_of(found: scales.Activations) -> list[int]:
    text = found.read.args[2]  # type: ignore[union-attr]
    return [len(part) for part in text.parts]


def test_a_text_is_read_when_the_layers_are_quantized(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("a " * 700)
    found = read_later(str(text))
    assert found.origin == "700 tokens of text.txt"
    assert parts_of(found) == [256, 256, 188]
    assert not found.mean_squares
    text.write_text("a " * 9000)
    assert parts_of(read_later(str(text))) == [256] * 16
    assert read_later(str(text)).origin == "4,096 tokens of text.txt"
    assert parts_of(read_later({"text": str(text), "prompts": 5})) == [16] * 5
    assert parts_of(read_later({"text": str(text), "prompts": 600})) == [16] * 256
    # Its states are those of one text.
    assert parts_of(read_later(str(text), kind="rwkv")) == [4096]


@pytest.mark.parametrize(
    ("words", "tokenizer", "facts"),
    [
        (63, True, ("63 tokens of text.txt are too few for gptq", "at least 64", "4,096")),
        (100, False, ("no tokenizer",)),
    ],
)
def test_a_text_that_cannot_be_used_is_an_error(
    tmp_path: Path, words: int, tokenizer: bool, facts: tuple[str, ...]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("a " * words)
    with pytest.raises(WorkerError) as raised:
        read_later(str(text), tokenizer=tokenizer)
    failure = raised.value.failure
    assert failure.kind == "calibration"
    assert not lacks(failure.message, *facts)
    assert failure.file in ("export.rounding", "export.calibration")
    assert failure.remedy


def test_a_model_without_a_tokenizer_is_rounded_to_the_nearest_only() -> None:
    with pytest.raises(WorkerError) as raised:
        read_later(None, tokenizer=False)
    failure = raised.value.failure
    assert "gptq needs a text, and the model has no tokenizer" in failure.message
    assert "export.rounding=nearest" in str(failure.remedy)
    assert failure.file == "export.rounding"


def test_layers_that_the_text_says_too_little_of_are_rounded_to_the_nearest() -> None:
    torch.manual_seed(0)
    modules = {name: torch.nn.Linear(64, 8, bias=False) for name in ("q", "k", "few", "never")}
    before = {name: module.weight.detach().clone() for name, module in modules.items()}
    inputs, few = inputs_of(256, 64), inputs_of(FEWEST_TOKENS - 1, 64, seed=1)
    asked: list[str] = []

    def read(wanted: Any, seen: scales.Seen) -> None:
        asked.extend(name for name, module in modules.items() if module in wanted)
        for name, given in (("q", inputs), ("k", inputs), ("few", few)):
            seen(modules[name], given)
            assert type(modules[name].weight.data).__name__ == "IntxUnpackedToInt8Tensor"

    layers = [Layer(module, (name,)) for name, module in modules.items()]
    sizes = {"q": 32, "k": 64, "few": 32, "never": 32}
    wishes = {name: LayerQuantization("8da4w", size) for name, size in sizes.items()}
    found = _round_in_turn(wishes, layers, scales.Activations(origin="a.txt", read=read), None)
    assert asked == list(modules)
    assert found == ["few", "never"]
    moments = InputMoments.of(inputs)
    assert moments
    expected = {
        "q": gptq_in_groups(before["q"], 32, moments),
        "k": gptq_in_groups(before["k"], 64, moments),
        "few": quantized_in_groups(before["few"], 32, few.square().mean(0)),
        "never": quantized_in_groups(before["never"], 32, None),
    }
    for name, wanted in expected.items():
        assert torch.equal(modules[name].weight.qdata, wanted.qdata)
        assert torch.equal(modules[name].weight.scale, wanted.scale)


@pytest.mark.parametrize(
    ("asked", "nearest", "facts"),
    [
        (3, [], [("GPTQ", "of 3 linear layers", "90 tokens of a.txt")]),
        (3, ["x"], [("GPTQ", "of 2 linear layers"), ("nearest", "too little", "inputs: x.")]),
        (1, ["x"], [("nearest", "90 tokens of a.txt")]),
        (0, [], [("GPTQ rounded nothing", "checkpoint")]),
    ],
)
def test_notes_of_rounding(asked: int, nearest: list[str], facts: list[tuple[str, ...]]) -> None:
    read = scales.Activations(origin="90 tokens of a.txt")
    notes = list(rounding_notes(ExportSpec(), read, asked, nearest))
    assert len(notes) == len(facts)
    for note, each in zip(notes, facts, strict=True):
        assert not lacks(note, *each)
