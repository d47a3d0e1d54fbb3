"""Programs of the exporter verify: with speculation, they give the same text."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from etdeploy.cache.workspace import Workspace
from etdeploy.core.hashing import sha256_file
from tests.support.cli import Cli
from tests.support.export import export_workspace, run_support

pytest.importorskip("transformers", reason="needs etdeploy[llm]")
pytestmark = [pytest.mark.integration, pytest.mark.nightly]
__all__ = ["export_workspace"]

# Repeated, so that what follows is proposed; the second one is beyond Gemma's window.
_PROMPTS = tuple(
    " ".join(str(3 + i % n) for i in range(length)) for n, length in ((6, 14), (9, 60))
)
_WAYS = ((), ("--temperature", "0.7", "--seed", "3"), ("--repetition-penalty", "1.2"))


def _answer(cli: Cli, recipe: str, prompt: str, *options: str) -> dict[str, Any]:
    said: dict[str, Any] = cli.ok(
        "generate", "--recipe", recipe, "--device", "host", "--json",
        "--prompt", prompt, "--max-new-tokens", "64", *options,
    ).json  # fmt: skip
    return said


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", ["Llama", "Gemma3Text", "Llama-stock"])
def test_the_text_is_the_same_with_speculation(
    case: str, threads: int, export_workspace: Workspace, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """With the kernel's attention, a ring of a sliding window, and stock operators."""
    kind, _, stock = case.partition("-")
    folder = tmp_path_factory.mktemp("speculation")
    cli = Cli(export_workspace.root, folder, {})
    run_support("layout_models", kind, str(folder / "model"))
    context = 128 if stock else 512
    cli.recipe(
        "model: {hf: ./model}\nexport:\n  generation: "
        f"{{context: {context}, prefill_tokens: 16}}\nruntime: {{threads: {threads}}}\n"
    )

    answer = partial(_answer, cli, "recipe.yaml")
    verified = 0
    for prompt in _PROMPTS:
        for way in _WAYS:
            plain, found = answer(prompt, *way), answer(prompt, *way, "--speculate", "lookup")
            assert found["token_ids"] == plain["token_ids"], (prompt, way)
            assert plain["speculation"] is None
            told = found["speculation"]
            assert told["calls"] + told["accepted"] == len(found["token_ids"]) - 1
            verified += told["verified_calls"]
    assert verified > 0


def test_the_text_is_the_same_with_a_draft(
    export_workspace: Workspace, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The draft is the same model in fewer bits, so it is often right."""
    folder = tmp_path_factory.mktemp("draft")
    cli = Cli(export_workspace.root, folder, {})
    run_support("layout_models", "Llama", str(folder / "model"))
    for name, scheme, context in (("small", "8da4w", 256), ("large", "8da8w", 256)):
        cli.recipe(
            "model: {hf: ./model}\nruntime: {threads: 1}\nexport:\n"
            f"  quantization: {scheme}\n  generation: {{context: {context}, prefill_tokens: 16}}\n"
            "benchmark: {iterations: 40, profile: false, generation: {new_tokens: [40]}}\n",
            f"{name}.yaml",
        )
    cli.ok("export", "--recipe", "small.yaml", "--output", "small")
    drafting = ("--speculate", "model:small")

    answer = partial(_answer, cli, "large.yaml")
    proposed = 0
    for prompt in _PROMPTS:
        for way in _WAYS:
            plain, found = answer(prompt, *way), answer(prompt, *way, *drafting)
            assert found["token_ids"] == plain["token_ids"], (prompt, way)
            told = found["speculation"]
            assert told["calls"] + told["accepted"] == len(found["token_ids"]) - 1
            assert told["draft_ms"] > 0
            proposed += told["proposed"]
    assert proposed > 0
    saved = answer(_PROMPTS[0], "--save-cache", "a.cache", *drafting)
    again = answer(f"{_PROMPTS[0]} 7 8", "--load-cache", "a.cache", *drafting)
    assert again["token_ids"] == answer(f"{_PROMPTS[0]} 7 8")["token_ids"]
    assert again["cached_tokens"] == len(_PROMPTS[0].split())
    assert saved["token_ids"] == answer(_PROMPTS[0], "--load-cache", "a.cache")["token_ids"]

    benchmark = ("--recipe", "large.yaml", "--device", "host", "--json")
    record = cli.ok(
        "run", *benchmark, "--set", "benchmark.generation.speculation=model:small"
    ).json  # fmt: skip
    draft, path = record["workload"]["draft"], folder / "small" / "program.pte"
    assert draft == {
        "name": "small", "sha256": sha256_file(path), "size_bytes": path.stat().st_size,
    }  # fmt: skip
    assert record["workload"]["points"][0]["speculation"]["draft_ms"] > 0
    assert record["workload"]["texts"]
    failed = cli(
        "generate", "--recipe", "large.yaml", "--prompt", "1 2", "--context", "512", *drafting
    )
    assert failed.code == 2
    assert "it has a context of 256 tokens, and the program one of 512" in failed.stderr
