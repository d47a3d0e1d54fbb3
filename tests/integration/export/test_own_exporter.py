"""`export.llm_config` gives the program of ExecuTorch's own exporter, which etdeploy runs."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from etdeploy.core.processes import process
from etdeploy.program.folder import PROGRAM_FILE, load_provenance
from etdeploy.program.inspect import inspect_file
from tests.support.cli import Cli
from tests.support.export import run_support

pytest.importorskip("executorch.examples.models.llama.model_args")
pytestmark = pytest.mark.integration

EXPORT_LLM = "executorch.extension.llm.export.export_llm"
PROMPT = "the king is"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("own-exporter")


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[int]:
    ids: list[int] = run_support("own_exporter", str(folder), PROMPT)
    return ids


@pytest.fixture(scope="module")
def generated(folder: Path, expected: list[int], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The program folder, and what the program generates."""
    cli = Cli(tmp_path_factory.mktemp("cache"), folder, {})
    cli.recipe("export: {llm_config: config.yaml}\n")
    answer = cli.ok(
        "generate", "--recipe", "recipe.yaml", "--device", "host", "--json",
        "--prompt", PROMPT, "--max-new-tokens", str(len(expected)),
    ).json  # fmt: skip
    [program] = (cli.cache / "programs").glob(f"*/{PROGRAM_FILE}")
    return program, answer


@pytest.mark.nightly
def test_the_runner_gives_the_models_own_tokens(generated: Any, expected: list[int]) -> None:
    program, answer = generated
    assert answer["token_ids"] == expected
    made = load_provenance(program.parent)
    assert made.generation
    assert (made.backend, made.generation.context, made.generation.stop_ids) == (
        "xnnpack", 32, (2, 3)
    )  # fmt: skip
    assert any("export.output_name" in note for note in made.notes)


@pytest.mark.nightly
def test_a_finished_program_with_executorchs_attention_needs_no_build_from_source(
    folder: Path, expected: list[int], tmp_path: Path
) -> None:
    for name in ("consolidated.00.pth", "params.json", "tokenizer.model"):
        shutil.copy(folder / name, tmp_path)
    config = (folder / "config.yaml").read_text()
    custom = config.replace("model:\n", "model:\n  use_sdpa_with_kv_cache: true\n", 1)
    (tmp_path / "config.yaml").write_text(custom)
    command = (sys.executable, "-m", EXPORT_LLM, "--config", "config.yaml")
    assert process.run(process.Request(command, cwd=tmp_path)).ok
    assert "llama::custom_sdpa.out" in inspect_file(tmp_path / "reference.pte").operators
    answer = Cli(tmp_path / "cache", tmp_path, {}).ok(
        "generate", "--model", "reference.pte", "--device", "host", "--json", "--set",
        "runtime.provider=wheel", "--prompt", PROMPT, "--max-new-tokens", str(len(expected)),
    ).json  # fmt: skip
    assert answer["token_ids"] == expected


@pytest.mark.nightly
def test_the_program_is_that_of_export_llm(generated: Any, folder: Path) -> None:
    program, _ = generated
    command = (sys.executable, "-m", EXPORT_LLM, "--config", str(folder / "config.yaml"))
    process.run(process.Request(command, cwd=folder))
    assert program.read_bytes() == (folder / "reference.pte").read_bytes()
