"""Language models with a static cache, compiled for the HTP and run in Qualcomm's simulator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from etdeploy.cache.workspace import Workspace
from tests.support.cli import Cli
from tests.support.export import export_workspace, nightly_except, run_python, selected
from tests.support.facts import lacks
from tests.support.qnn_language import FAMILIES
from tests.support.qnn_simulator import NEEDS_SIMULATOR

pytestmark = [pytest.mark.integration, NEEDS_SIMULATOR]
__all__ = ["export_workspace"]

CONTEXT, PART = 48, 8
# What every change compiles.
_SMOKE = ("llama-16a8w-hybrid",)
# Of the calibration text, each of PART tokens.
_SECTIONS = 40
CASES = [
    *_SMOKE,
    "llama-fp16-kv",
    *(f"{name}-fp16-hybrid" for name in FAMILIES),
    "llama-fp16-prefill",
    "llama-16a4w-hybrid",
    "llama-16a4w_block-hybrid",
    "phi3-16a8w-hybrid",
    "gemma3-16a8w-hybrid",
]


@pytest.fixture(scope="module")
def names(request: pytest.FixtureRequest) -> list[str]:
    return sorted({*_SMOKE} | selected(request, "name"))


@pytest.fixture(scope="module")
def folder(names: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models")
    families = sorted({name.split("-")[0] for name in names})
    run_python("-m", "tests.support.qnn_language", str(made), *families)
    return made


@pytest.fixture(scope="module")
def cli(export_workspace: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Cli:
    return Cli(export_workspace.root, tmp_path_factory.mktemp("work"), {})


@pytest.fixture(scope="module")
def records(cli: Cli, names: list[str], folder: Path) -> dict[str, Any]:
    """One command for all; by the recipe's name."""
    options = []
    for name in names:
        family, scheme, methods = name.split("-")
        recipe: dict[str, Any] = {
            "model": {"hf": str(folder / family)},
            "export": {
                "backend": "qnn",
                "soc": "SM8750",
                "quantization": scheme,
                "generation": {
                    "context": CONTEXT, "prefill_tokens": PART, "methods": methods,
                    "evaluate": "none",
                },
            },
            "benchmark": {"generation": {"prompt_tokens": [PART + 3], "new_tokens": [2]}},
        }  # fmt: skip
        if name in _SMOKE:
            recipe["export"]["calibration"] = {"prompts": _SECTIONS}
        options += ["--recipe", cli.recipe(json.dumps(recipe), f"{name}.yaml")]
    found = cli.ok("run", "--device", "host", *options, "--json").json
    found = found if isinstance(found, list) else [found]  # of one recipe, the record alone
    return {record["recipe"]["name"]: record for record in found}


@pytest.mark.parametrize("name", nightly_except(dict.fromkeys(CASES), *_SMOKE))
def test_the_text_is_the_models(records: dict[str, Any], name: str) -> None:
    _, scheme, methods = name.split("-")
    record = records[name]
    assert record["simulated"]["soc"] == "SM8750"
    ranges = f"{_SECTIONS * PART} tokens of calibration.txt set the ranges of activations."
    assert (ranges in record["notes"]) is (name in _SMOKE)
    texts = record["workload"]["texts"]
    assert texts
    for text in texts:
        assert text["within_tolerance"] is True
        assert scheme != "fp16" or text["min_cosine"] > 0.999
    # All is one partition, and what passes to and from it is what the program takes and gives.
    assert record["program"]["operator_calls"] == []
    assert record["program"]["method"] == ("prefill" if methods == "prefill" else "decode")
    assert len(record["workload"]["points"]) == 1
    assert record["workload"]["points"][0]["generations"] == 1
    partitions = [each["nodes"] for each in record["program"]["delegates"]]
    assert len(partitions) == 1


@pytest.mark.parametrize("name", nightly_except(dict.fromkeys(CASES), *_SMOKE))
def test_keys_and_values_are_integers_in_a_quantized_model(
    records: dict[str, Any], cli: Cli, name: str
) -> None:
    _, scheme, methods = name.split("-")
    folder = cli.folder / "etdeploy-out" / records[name]["run_id"]
    program = json.loads((folder / "program.json").read_text())
    kinds = {"hybrid": ["decode", "prefill"], "kv": ["decode"], "prefill": ["prefill"]}[methods]
    generating = {m["name"]: m for m in program["methods"] if m["delegates"]}
    assert sorted(generating) == kinds
    for method in generating.values():
        caches = [each for each in method["inputs"] if each["shape"][-1] == CONTEXT - 1]
        new = method["outputs"][1:]
        assert {each["dtype"] for each in (*caches, *new)} == {
            "float32" if scheme == "fp16" else "uint8"
        }


@pytest.mark.nightly
def test_a_program_with_shared_weights_is_for_phones(cli: Cli, folder: Path) -> None:
    recipe = {
        "extends": "llm-qnn",
        "model": {"hf": str(folder / "llama")},
        "export": {"soc": "SM8750"},
    }
    path = cli.recipe(json.dumps(recipe), "shared.yaml")
    refused = cli("run", "--recipe", path, "--device", "host")
    assert refused.code != 0
    facts = ("share weights", "--set export.options.weight_sharing=false", "--device android")
    assert not lacks(refused.stderr, *facts)


@pytest.mark.nightly
def test_each_node_is_as_exact_as_its_quantization_allows(cli: Cli, folder: Path) -> None:
    """Of 4-bit weights in blocks, whose scales have to be those that the HTP stores."""
    recipe = {
        "extends": "llm-qnn",
        "model": {"hf": str(folder / "llama")},
        "export": {
            "soc": "SM8750",
            "generation": {"context": CONTEXT, "prefill_tokens": PART, "evaluate": "none"},
        },
    }
    path = cli.recipe(json.dumps(recipe), "observed.yaml")
    report = cli.ok("diff", "--recipe", path, "--device", "host", "--json").json
    assert report["stage"] == "none"
    layers = [e for e in report["errors"] if e["node"]["operator"] == "aten.conv2d.default"]
    assert len(layers) == 8  # of the one layer, and the output
    assert max(each["local_error"] / each["largest"] for each in layers) < 1e-3


@pytest.mark.nightly
def test_a_cache_that_passes_through_the_cpu(cli: Cli, tmp_path: Path) -> None:
    """As exact as a static one; angles of rotary embeddings in 16 bits gave errors of 0.04."""
    run_python("-m", "tests.support.qnn_language", str(tmp_path), "llama", "lfm2")
    options = []
    for name, path in (("llama", "fast"), ("lfm2", "auto")):
        recipe = {
            "model": {"hf": str(tmp_path / name)},
            "export": {
                "backend": "qnn",
                "soc": "SM8750",
                "quantization": "fp16",
                "generation": {
                    "path": path, "context": CONTEXT, "prefill_tokens": PART, "evaluate": "none",
                },
            },
            "benchmark": {"generation": {"prompt_tokens": [PART + 3], "new_tokens": [2]}},
        }  # fmt: skip
        options += ["--recipe", cli.recipe(json.dumps(recipe), f"{name}-cpu.yaml")]
    for record in cli.ok("run", "--device", "host", *options, "--json").json:
        for text in record["workload"]["texts"]:
            assert text["within_tolerance"] is True
            name = record["recipe"]["name"]
            assert name != "llama-cpu" or text["max_logit_error"] < 0.02
