"""A language model whose linear layers etdeploy's kernel computes, from the export to its text."""

from __future__ import annotations

import platform
from typing import Any

import pytest

from etdeploy.cache.workspace import Workspace
from tests.support.cli import Cli
from tests.support.export import export_workspace, run_support

pytest.importorskip("transformers", reason="needs etdeploy[llm]")
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the kernel is for x86-64"),
]
__all__ = ["export_workspace"]

_RECIPE = """\
model: {hf: ./model}
export:
  quantization: 8da4w
  rewrites: [auto, linears]
  generation: {context: 512, prefill_tokens: 16}
benchmark:
  profile: false
  runs: 1
  generation: {prompt_tokens: [20], new_tokens: [24]}
"""


@pytest.fixture(scope="module")
def cli(export_workspace: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Cli:
    folder = tmp_path_factory.mktemp("linears")
    run_support("layout_models", "Llama", str(folder / "model"))
    made = Cli(export_workspace.root, folder, {})
    made.recipe(_RECIPE)
    return made


def test_the_program_gives_the_models_text(cli: Cli) -> None:
    record: dict[str, Any] = cli.ok("run", "--recipe", "recipe.yaml", "--json").json
    program = record["program"]
    # The values and the output layer have 8 bits.
    kernels = {"etdeploy::grouped_linear.out", "etdeploy::channelwise_linear.out"}
    assert kernels <= {*program["operators"]}
    assert program["rewrites"]["applied"] == {"linears": 8}
    for text in record["workload"]["texts"]:
        assert text["token_ids"] == text["expected_ids"]
        assert text["min_cosine"] > 0.999


def test_speculation_gives_the_same_text(cli: Cli) -> None:
    prompt = " ".join(str(3 + i % 6) for i in range(30))

    def said(*options: str) -> Any:
        return cli.ok(
            "generate", "--recipe", "recipe.yaml", "--json", "--prompt", prompt,
            "--max-new-tokens", "48", *options,
        ).json  # fmt: skip

    plain, found = said(), said("--speculate", "lookup")
    assert found["token_ids"] == plain["token_ids"]


def test_another_architecture_has_no_kernel(cli: Cli) -> None:
    planned = cli.ok("plan", "--recipe", "recipe.yaml", "--target", "linux-aarch64", "--json").json
    [linears] = [each for each in planned["rewrites"] if each["name"] == "linears"]
    assert linears["value"] == "off"
    assert "x86_64" in linears["reason"]
