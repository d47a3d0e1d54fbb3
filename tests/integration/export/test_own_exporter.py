"""`export.llm_config` gives the program of ExecuTorch's own exporter, which etdeploy runs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from etdeploy.core.processes import process
from etdeploy.program.folder import PROGRAM_FILE, load_provenance
from tests.support.cli import Cli
from tests.support.export import run_support

pytest.importorskip("executorch.examples.models.llama.model_args")
pytestmark = pytest.mark.integration

EXPORT_LLM = "executorch.extension.llm.export.export_llm"
PROMPT = (1, 17, 40, 9)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("own-exporter")


@pytest.fixture(scope="module")
def cli(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Cli:
    cli = Cli(tmp_path_factory.mktemp("cache"), folder, {})
    cli.recipe("export: {llm_config: config.yaml}\n")
    return cli


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[int]:
    ids: list[int] = run_support("own_exporter", str(folder), *map(str, PROMPT))
    return ids


def test_the_program_is_that_of_export_llm(cli: Cli, folder: Path, expected: list[int]) -> None:
    generated = cli.ok(
        "generate", "--recipe", "recipe.yaml", "--device", "host", "--json",
        "--prompt", " ".join(map(str, PROMPT)), "--max-new-tokens", str(len(expected)),
    ).json  # fmt: skip
    assert generated["token_ids"] == expected
    process.run(
        process.Request(
            (sys.executable, "-m", EXPORT_LLM, "--config", str(folder / "config.yaml")), cwd=folder
        )
    )
    [program] = (cli.cache / "programs").glob(f"*/{PROGRAM_FILE}")
    assert program.read_bytes() == (folder / "reference.pte").read_bytes()
    made = load_provenance(program.parent)
    assert made.generation
    assert (made.backend, made.generation.context, made.generation.stop_ids) == (
        "xnnpack", 32, (2, 3)
    )  # fmt: skip
    assert any("export.output_name" in note for note in made.notes)
