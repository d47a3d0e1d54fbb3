"""The runner with memory that the HTP shares, on stand-ins of ExecuTorch's backend and the driver.

A runner for `llm-qnn` is built as for the simulator, and gets other libraries beside it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from etdeploy.cache.workspace import Workspace
from etdeploy.program.inspect import inspect_file
from etdeploy.provider.wheel import obtain_wheel
from etdeploy.runner.generation import PromptRun, Sampling, request_lines
from etdeploy.runner.missing import check_program
from etdeploy.targets.platforms import host_target
from tests.support.export import export_workspace
from tests.support.qnn_shared_memory import CACHE, CONTEXT, METHODS, PART, continued
from tests.support.runtime_runs import Run, Start, build, plan_here, text_programs

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        host_target().name != "linux-x86_64", reason="the wheel for Linux x86_64 has the backend"
    ),
]
__all__ = ["export_workspace", "text_programs"]

SOURCE = Path(__file__).parents[3] / "data/qnn/shared_memory.cpp"
BACKEND, DRIVER = "libexecutorch_backend_qnn.so", "libcdsprpc.so"
# A prompt of two parts, one that fills the parts, and one of a single token.
PROMPTS = ((5, 9, 2, 40, 7, 11), tuple(range(2 * PART)), (3,))
NEW = 3
# Tokens, positions and a mask of both methods, logits and new keys and values; keys and values.
TENSORS = 2 * (3 + 3) + 2


@pytest.fixture(scope="module")
def program(text_programs: Path) -> Path:
    return text_programs / "delegated.pte"


@pytest.fixture(scope="module")
def runner(
    program: Path, export_workspace: Workspace, tmp_path_factory: pytest.TempPathFactory
) -> Start:
    """One whose folder has the stand-ins."""
    found = inspect_file(program)
    built = build(plan_here(found), export_workspace)
    assert check_program(found, built) == ()
    folder = tmp_path_factory.mktemp("runner") / "runner"
    shutil.copytree(built.path, folder)
    wheel = obtain_wheel(host_target(), host_target(), Workspace.default())
    _compile(folder / BACKEND, SOURCE, Path(wheel.root) / "include")
    _compile(folder / DRIVER)
    return Start(built.model_copy(update={"path": str(folder)}))


def _compile(library: Path, source: Path | None = None, headers: Path | None = None) -> None:
    library.unlink(missing_ok=True)
    options: list[str | Path] = ["-shared", "-fPIC", f"-Wl,-soname,{library.name}"]
    if source and headers:
        c10 = headers / "executorch/runtime/core/portable_type/c10"
        options += ["-std=c++17", "-O1", "-DC10_USING_CUSTOM_GENERATED_MACROS"]
        options += [f"-I{headers}", f"-I{c10}", source]
    else:
        options += ["-xc", "/dev/null"]
    subprocess.run(["g++", *options, "-o", library], check=True)


def _generate(runner: Start, program: Path, folder: Path, log: str) -> tuple[Run, list[str]]:
    """A run, and what the stand-in was asked for."""
    points = []
    for i, prompt in enumerate(PROMPTS):
        (folder / f"{i}.bin").write_bytes(np.array(prompt, "<i8").tobytes())
        points.append(PromptRun(name=f"p{i}", path=f"{i}.bin", new_tokens=NEW))
    text = request_lines(METHODS, Sampling(), (), points, None, static_cache=CACHE)
    (folder / "request.txt").write_text(text)
    started = Start(runner.runner, environment={"STAND_IN_LOG": log})
    run = started.generate(program, folder)
    assert run.exit_code == 0, run.stderr
    texts = [list(text.token_ids) for text in run.generated.generation.runs]
    assert texts == [continued(prompt, NEW) for prompt in PROMPTS]
    return run, (folder / log).read_text().splitlines()


def test_tensors_are_registered_once_and_keys_and_values_written_in_place(
    runner: Start, program: Path, tmp_path: Path
) -> None:
    run, lines = _generate(runner, program, tmp_path, "asked.txt")
    kinds = [line.split()[0] for line in lines]
    calls = [line for line in lines if line.startswith("execute")]
    assert kinds == [
        *("load", "load", "allocate"),
        *(["add"] * TENSORS),
        *(["execute"] * len(calls)),
        # The backend ends before the memory does.
        *("destroy", "destroy", "free"),
    ]
    assert "add again" not in lines
    size = int(lines[2].split()[1])
    assert run.generated.generation.shared_memory_bytes == size
    assert CONTEXT * 4 * 4 < size < 1 << 16
    # Prompts in parts of the prefill's length, the last with padding; one token by `decode`.
    methods = [re.findall(r"execute (\w+)", call)[0] for call in calls]
    decoded = ["decode"] * (NEW - 1)
    assert methods == [
        *("prefill", "prefill", *decoded),
        *("prefill", "prefill", *decoded),
        *("decode", *decoded),
    ]
    assert all(" shared 8 of 8 " in call for call in calls)
    # Each call finds what the one before it wrote, at its tokens' positions and nowhere else.
    wrote = ""
    for call, places in zip(calls, _places(), strict=True):
        keys, values = re.findall(r"changed([:\d]*)", call)
        assert set(keys.split(":")) | set(values.split(":")) <= set(wrote.split(":")) | {""}
        wrote = places
    first = [re.findall(r"changed([:\d]*)", call) for call in calls[:4]]
    assert first == [["", ""], [":0:1:2:3"] * 2, [":4:5"] * 2, [":6"] * 2]


def _places() -> list[str]:
    """The positions of each call's tokens."""
    found = []
    for prompt in PROMPTS:
        ends = [*range(PART, len(prompt), PART), *range(len(prompt), len(prompt) + NEW)]
        for start, end in zip([0, *ends], ends, strict=False):
            found.append(":".join(map(str, range(start, end))))
    return found


def test_without_shared_memory_tensors_are_copied(
    runner: Start, program: Path, tmp_path: Path
) -> None:
    run, lines = _generate(runner, program, tmp_path, "refuse.txt")
    assert "note: the HTP shares no" in run.stderr
    assert "each call copies its tensors" in run.stderr
    assert run.generated.generation.shared_memory_bytes == 0
    assert {line.split()[0] for line in lines} == {"load", "allocate", "execute", "destroy"}
    assert all(" shared 0 of 8 " in line for line in lines if line.startswith("execute"))


def test_without_a_driver_nothing_is_asked_for(
    runner: Start, program: Path, tmp_path: Path
) -> None:
    """As in the simulator, where ExecuTorch's function would call the driver all the same."""
    folder = tmp_path / "runner"
    shutil.copytree(runner.runner.path, folder)
    (folder / DRIVER).unlink()
    bare = Start(runner.runner.model_copy(update={"path": str(folder)}))
    run, lines = _generate(bare, program, tmp_path, "asked.txt")
    assert "copies its tensors" not in run.stderr
    assert run.generated.generation.shared_memory_bytes == 0
    assert {line.split()[0] for line in lines} == {"load", "execute", "destroy"}
