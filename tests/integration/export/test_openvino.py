"""OpenVINO on this machine: exported, run, and refused, through the command line."""

from __future__ import annotations

import json
import platform
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import Cli, CliResult
from tests.support.export import ROOT, nightly_except, run_python, selected
from tests.support.facts import lacks

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        (sys.platform, platform.machine()) != ("linux", "x86_64")
        or not (find_spec("openvino") and find_spec("nncf")),
        reason="needs OpenVINO and NNCF, on Linux x86_64",
    ),
]

MODELS = ROOT / "tests/data/export/openvino.py"
SMALL = "example: convnet, arguments: {width: 8, image: 32}"
_SAVE = """
import sys
from pathlib import Path
from tests.support.language_models import LLAMA, save_tokenizer, spread_model
folder = Path(sys.argv[1])
spread_model("Llama", LLAMA, std=0.15).save_pretrained(folder)
save_tokenizer(folder)
"""
_ATTENTION = """
import torch
from torch import nn
from etdeploy.export.worker.backends.openvino import _has_attention
for layer in (nn.MultiheadAttention(8, 2), nn.Softmax(-1)):
    inputs = (torch.randn(1, 4, 8),) * (3 if isinstance(layer, nn.MultiheadAttention) else 1)
    print(_has_attention(torch.export.export(layer.eval(), inputs).module().graph))
"""
_OBSERVE = """
import torch
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from etdeploy.export.worker.backends import openvino
from etdeploy.export.worker.failures import WorkerError
from etdeploy.export.worker.lowering.quantize import _blaming_observers
from openvino_models import observed
module, inputs = observed()
wanted = module.eval()(*inputs)[0]
exported = torch.export.export(module, inputs)
for vnni in (True, False):
    openvino.has_vnni = lambda: vnni
    prepared = prepare_pt2e(exported.module(), openvino.LOWERING.quantizer(None))
    prepared(*inputs)
    found = convert_pt2e(prepared, fold_quantize=False)
    cosine = torch.cosine_similarity(found(*inputs)[0].flatten(), wanted.flatten(), 0).item()
    values = [
        found.get_parameter(str(node.args[0].target)) / found.get_buffer(str(node.args[1].target))
        .reshape(-1, *[1] * (node.args[0].meta["val"].dim() - 1))
        for node in found.graph.nodes
        if "quantize_per_channel.default" in str(node.target) and node.args[0].op == "get_attr"
    ]
    print(f"vnni {cosine} {max(value.abs().max().item() for value in values)}")
try:
    with _blaming_observers("the quantizer raised"):
        exec(compile("raise AttributeError('numel')", "/torchao/observer.py", "exec"))
except WorkerError as error:
    print("blamed", error.failure.kind, error.failure.message)
"""
# By the recipe's name: the model, and the scheme.
RUN = {
    "floats": (SMALL, "none"),
    "halves": (SMALL, "fp16"),
    "bytes": (SMALL, "int8_static"),
    "observed": (f"python: '{MODELS}:observed'", "int8_static"),
    "keywords": (f"python: '{MODELS}:keywords'", "none"),
    "methods": (f"python: '{MODELS.with_name('methods.py')}:heads'", "none"),
}
_SMOKE = ("floats", "halves", "bytes")
REFUSED = {"dynamic": "dynamic shapes", "single": "a tensor without dimensions"}


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    """The tests that export share a cache."""
    return Cli(tmp_path_factory.mktemp("cache"), tmp_path_factory.mktemp("work"), {})


@pytest.fixture(scope="module")
def ran(request: pytest.FixtureRequest, cli: Cli) -> tuple[CliResult, dict[str, Any]]:
    """One command for all, so that they share what an export imports; and its records."""
    names = {*_SMOKE} | selected(request, "name")
    recipes = {n: RUN[n] for n in sorted(names)} | {
        name: (f"python: '{MODELS}:{name}'", "none") for name in REFUSED
    }
    arguments = ["run"]
    for name, (model, scheme) in recipes.items():
        path = cli.folder / f"{name}.yaml"
        path.write_text(
            f"model: {{{model}}}\nexport: {{backend: openvino, quantization: {scheme}}}\n"
            "benchmark: {iterations: 5, warmup: 1}\n"
        )
        arguments += ["--recipe", str(path)]
    if find_spec("transformers"):
        arguments += ["--recipe", str(_write_text_recipe(cli.folder))]
    result = cli(*arguments)
    records = map(
        json.loads, (p.read_text() for p in cli.folder.glob("etdeploy-out/*/record.json"))
    )
    return result, {record["recipe"]["name"]: record for record in records}


def _write_text_recipe(folder: Path) -> Path:
    """A language model with random weights, large enough that its text is no one token."""
    model = folder / "llama"
    run_python("-c", _SAVE, str(model))
    recipe = {
        "model": {"hf": str(model)},
        "export": {"backend": "openvino", "generation": {"context": 64, "prefill_tokens": 8}},
        "benchmark": {"runs": 1, "generation": {"prompt_tokens": [20], "new_tokens": [2]}},
    }
    (folder / "text.yaml").write_text(json.dumps(recipe))
    return folder / "text.yaml"


@pytest.mark.skipif(not find_spec("transformers"), reason="needs etdeploy[llm]")
def test_prompts_are_taken_in_parts_of_one_length(ran: tuple[CliResult, dict[str, Any]]) -> None:
    record = ran[1]["text"]
    texts = record["workload"]["texts"]
    assert len(texts) == 2  # the second is longer than a part
    assert all(text["within_tolerance"] for text in texts)
    assert all(text["original_ids"] is None for text in texts)  # nothing is quantized
    assert len({token for text in texts for token in text["token_ids"]}) > 2


@pytest.mark.parametrize("name", nightly_except(RUN, *_SMOKE))
def test_outputs_are_the_models(ran: tuple[CliResult, dict[str, Any]], name: str) -> None:
    result, records = ran
    assert name in records, result.stderr
    outputs = records[name]["workload"]["outputs"]
    assert all(output["within_tolerance"] for output in outputs)
    if name == "keywords":
        assert [output["dtype"] for output in outputs] == ["float32", "int64", "bool"]


def test_no_quantization_means_32_bit_floats(ran: tuple[CliResult, dict[str, Any]]) -> None:
    [output] = ran[1]["floats"]["workload"]["outputs"]
    assert output["max_abs_error"] < 1e-5
    [output] = ran[1]["halves"]["workload"]["outputs"]
    assert output["max_abs_error"] > 1e-5


@pytest.mark.parametrize("name", nightly_except(["methods"]))
def test_weights_that_methods_share_are_in_the_partitions_of_each(
    ran: tuple[CliResult, dict[str, Any]], name: str
) -> None:
    record = ran[1][name]
    assert record["program"]["method"] == "forward"
    [note] = [note for note in record["notes"] if note.startswith("The methods share")]
    assert "openvino stores them" in note


def test_what_the_delegate_cannot_run_is_refused(ran: tuple[CliResult, dict[str, Any]]) -> None:
    result, _ = ran
    assert result.code != 0
    for words in REFUSED.values():
        assert words in result.stderr + result.stdout
    assert "Traceback" not in result.stderr


def test_attention_is_told_from_a_softmax_alone() -> None:
    assert run_python("-c", _ATTENTION).split()[-2:] == ["True", "False"]


@pytest.mark.nightly
def test_the_quantizer_observes_only_what_it_can_and_is_named_where_it_fails() -> None:
    load = "import importlib.util as u; s = u.spec_from_file_location('openvino_models', "
    load += f"{str(MODELS)!r}); m = u.module_from_spec(s); s.loader.exec_module(m); "
    load += "import sys; sys.modules['openvino_models'] = m\n"
    lines = run_python("-c", load + _OBSERVE).splitlines()
    found = [line.split()[1:] for line in lines if line.startswith("vnni")]
    assert [float(cosine) > 0.98 for cosine, _ in found] == [True] * 2
    # Without VNNI, sums of two products with activations up to 255 have to fit in 16 bits.
    assert [round(float(largest)) for _, largest in found] == [128, 64]
    assert lines[-1] == "blamed quantization the quantizer raised AttributeError: numel"


def test_a_library_that_is_not_there_is_told_before_anything_starts(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "cache", tmp_path, {})
    result = cli("run", "--recipe", "openvino", OPENVINO_LIB_PATH="/nowhere/libopenvino_c.so")
    assert result.code == 3
    assert not lacks(result.stderr, "OPENVINO_LIB_PATH", " /nowhere/libopenvino_c.so,")
    assert "export     ..." not in result.stderr


@pytest.mark.parametrize("target", ["linux-aarch64", "android-arm64"])
def test_other_targets_are_refused_before_anything_starts(tmp_path: Path, target: str) -> None:
    result = Cli(tmp_path / "cache", tmp_path, {})("build", "-r", "openvino", "--target", target)
    assert result.code == 4
    assert not lacks(result.stderr, "OpenvinoBackend", "linux on x86_64", f"target is {target}")
