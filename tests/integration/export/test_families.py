"""Language models of many families: the program's text is that of transformers' own generate."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from etdeploy.cache.workspace import Workspace
from etdeploy.program.generation import GenerationMethod
from etdeploy.program.inspect import inspect_file
from etdeploy.runner.generation import PromptRun, Sampling, request_lines
from etdeploy.targets.platforms import host_target
from tests.support.export import (  # noqa: F401 - a fixture
    export_workspace,
    nightly_except,
    run_support,
    selected,
)
from tests.support.language_families import FAMILIES, NEW, prompt
from tests.support.runtime_runs import Start, build, plan_here

pytest.importorskip("transformers", reason="needs etdeploy[llm]")
pytestmark = pytest.mark.integration

_QEMU = shutil.which("qemu-aarch64-static")
# Their cache holds what keys and values are made of.
_COMPRESSED = ("deepseek-v3", "deepseek-v2-8da4w")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Gets the programs that `found` exports."""
    return tmp_path_factory.mktemp("families")


# One for each way through the export; the others take minutes.
_DAILY = ("llama3", "jamba", "mixtral", "mixtral-plain-8da4w")


@pytest.fixture(scope="module")
def found(folder: Path, request: pytest.FixtureRequest) -> dict[str, dict[str, Any]]:
    names = dict.fromkeys((*_DAILY, *sorted(selected(request, "name"))))
    made: dict[str, dict[str, Any]] = run_support("language_families", str(folder), *names)
    return made


@pytest.mark.parametrize("name", nightly_except(FAMILIES, *_DAILY))
def test_the_text_is_that_of_the_eager_model(found: dict[str, dict[str, Any]], name: str) -> None:
    told = found[name]
    plain = name in _COMPRESSED or FAMILIES[name].path == "plain"
    assert told["path"] == ("plain" if plain else "fast"), told["why"]
    wanted = told["wanted"]
    if FAMILIES[name].quantization != "none":  # another rounding moves logits by up to 0.06
        clear = [at for at, margin in enumerate(told["margins"]) if margin > 0.12]
        assert len(clear) >= len(wanted) / 2
        assert [told["text"][at] for at in clear] == [wanted[at] for at in clear]
    else:
        assert told["text"] == wanted
    # One token again and again would be right by chance.
    assert len(set(told["text"])) > 2


def test_a_recurrent_state_takes_one_token_at_a_time(found: dict[str, dict[str, Any]]) -> None:
    jamba = found["jamba"]
    assert [method["name"] for method in jamba["methods"]] == ["decode"]
    assert any("recurrent state" in note for note in jamba["notes"])


def test_experts_are_computed_if_they_are_chosen(found: dict[str, dict[str, Any]]) -> None:
    told = found["mixtral-plain-8da4w"]
    assert told["jumps"] == 2 * 4
    assert told["notes"] == [
        "Of the 4 experts of a layer, a token computes the 2 that its router chooses, and a part "
        "of a prompt those of all its tokens."
    ]
    # Three of the attention and three of each expert; values and output have 8 bits.
    assert "8da4w quantized 15 linear layers." in told["quantized"]


def test_without_delegates_all_experts_are_computed(found: dict[str, dict[str, Any]]) -> None:
    assert found["mixtral"]["jumps"] == 0
    assert found["mixtral"]["notes"] == [
        "Each token computes all 4 experts of a layer, 2 of which its router chooses."
    ]
    assert found["llama3"]["notes"] == []


@pytest.mark.nightly
@pytest.mark.skipif(
    host_target().name != "linux-x86_64" or not (shutil.which("aarch64-linux-gnu-g++") and _QEMU),
    reason="needs Linux x86_64, g++-aarch64-linux-gnu and qemu-user-static",
)
def test_llama_on_arm64(
    found: dict[str, dict[str, Any]],
    folder: Path,
    tmp_path: Path,
    export_workspace: Workspace,  # noqa: F811
) -> None:
    path = folder / "llama3.pte"
    built = build(plan_here(inspect_file(path), "linux-aarch64"), export_workspace)
    (tmp_path / "prompt.bin").write_bytes(np.array(prompt(), "<i8").tobytes())
    points = [PromptRun(name="p", new_tokens=NEW, path="prompt.bin")]
    methods = [GenerationMethod.model_validate(m) for m in found["llama3"]["methods"]]
    (tmp_path / "request.txt").write_text(request_lines(methods, Sampling(), (), points))
    arm64 = Start(built, prefix=(str(_QEMU), "-L", "/usr/aarch64-linux-gnu"))
    run = arm64.generate(path, tmp_path)
    assert run.exit_code == 0, run.stderr
    [text] = run.generated.generation.runs
    assert list(text.token_ids) == found["llama3"]["wanted"]
