"""Real programs and runners for the runner's tests, and how a runner is started in them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from etdeploy.cache.workspace import Workspace
from etdeploy.core.files.basic import new_folder
from etdeploy.core.files.locks import exclusive
from etdeploy.plan.derive import Available, derive_plan
from etdeploy.plan.model import RuntimePlan
from etdeploy.program.folder import TensorFile
from etdeploy.program.model import PlainValue, Program
from etdeploy.provider.checkout import Libraries
from etdeploy.provider.wheel import obtain_wheel
from etdeploy.runner.builder import build_runner
from etdeploy.runner.generation import GenerationResults, generation_arguments
from etdeploy.runner.model import BuiltRunner
from etdeploy.runner.protocol import RunnerResults, inputs_list, load_results, load_results_as
from etdeploy.targets.platforms import find_target, host_target
from tests.support.export import run_python
from tests.support.runtime_values import make_recipe

_TEXTS = "tests.support.generation_export"


def _export_inferences(folder: Path) -> None:
    run_python("-m", "tests.support.runtime_export", str(folder))
    for program in folder.iterdir():
        described = json.loads((program / "tensors.json").read_text())
        tensors = [
            PlainValue.model_validate(t) if "kind" in t else TensorFile.model_validate(t)
            for t in described["inputs"]
        ]
        (program / "inputs.txt").write_text(inputs_list(tensors))


def _share(folder: Path, make: Callable[[Path], object]) -> Path:
    """The folder, made once in a test run by whichever of its processes comes first."""
    with exclusive(folder.with_suffix(".lock"), folder.name):
        if not folder.is_dir():
            with new_folder(folder) as work:
                make(work)
    return folder


@pytest.fixture(scope="session")
def programs(shared_folder: Path) -> Path:
    """The folder with every program of runtime_export.py."""
    return _share(shared_folder / "runtime-programs", _export_inferences)


@pytest.fixture(scope="session")
def text_programs(shared_folder: Path) -> Path:
    """The folder with the programs of generation_export.py and the eager model's texts."""
    folder = shared_folder / "text-programs"
    return _share(folder, lambda work: run_python("-m", _TEXTS, str(work / "made"))) / "made"


def plan_here(program: Program, target: str = "", profile: bool = True) -> RuntimePlan:
    """The plan for a program on this machine, or for another target."""
    host = host_target()
    chosen = find_target(target) if target else host
    build_target = find_target(chosen.portable or chosen.name)
    wheel = obtain_wheel(build_target, host, Workspace.default())
    recipe = make_recipe(benchmark={"profile": profile})
    available = Available(wheel.version, frozenset(wheel.components))
    return derive_plan(recipe, program, chosen, host, available)


def build(plan: RuntimePlan, workspace: Workspace, log: Path | None = None) -> BuiltRunner:
    """Builds in `workspace`; wheels come from the cache of the whole test run."""
    wheel = obtain_wheel(find_target(plan.build_target), host_target(), Workspace.default())
    return build_runner(plan, Libraries(wheel=wheel), workspace, log=log)


@dataclass(frozen=True)
class Run:
    """A runner's end: exit code, what it printed, and the folder with what it wrote."""

    exit_code: int
    stderr: str
    folder: Path
    stdout: str = ""

    @property
    def error(self) -> str:
        """The runner's own line."""
        return next(line for line in self.stderr.splitlines() if line.startswith("etdeploy-"))

    @property
    def results(self) -> RunnerResults:
        return load_results(self.folder / "results.json")

    @property
    def generated(self) -> GenerationResults:
        return load_results_as(GenerationResults, self.folder / "results.json")


@dataclass(frozen=True)
class Start:
    """How a runner is started: what stands before it, and its folder as it sees it."""

    runner: BuiltRunner
    prefix: tuple[str, ...] = ()
    environment: dict[str, str] | None = field(default=None)

    def run(self, program: Path, folder: Path, *arguments: str, inputs: Path | None = None) -> Run:
        """Runs the program in a folder of exported files; `folder` gets results and outputs."""
        pte = program / "program.pte" if program.is_dir() else program
        listed = inputs or pte.parent / "inputs.txt"
        return self.start(
            folder, "--program", str(pte), "--inputs", str(listed),
            "--results", "results.json", "--outputs", "outputs", *arguments,
        )  # fmt: skip

    def generate(
        self,
        program: Path,
        folder: Path,
        request: str = "request.txt",
        draft: Path | None = None,
        **asked: Any,
    ) -> Run:
        """Generates text with a program, as a request in `folder` says."""
        arguments = generation_arguments(str(program), request, "results.json", **asked)
        return self.start(folder, *arguments, *(("--draft", str(draft)) if draft else ()))

    def start(self, folder: Path, *arguments: str, said: str = "") -> Run:
        executable = Path(self.runner.path) / self.runner.executable
        ended = subprocess.run(
            [*self.prefix, str(executable), *arguments],
            cwd=folder, env=self.environment, capture_output=True, text=True, timeout=300,
            input=said,
        )  # fmt: skip
        return Run(ended.returncode, ended.stderr, folder, ended.stdout)


def differences(program: Path, run: Run) -> list[float]:
    """The largest absolute difference of each output tensor from the eager model's."""
    expected: Sequence[dict[str, Any]] = json.loads((program / "tensors.json").read_text())[
        "expected"
    ]
    assert len(expected) == len(run.results.outputs)
    found = []
    for want, have in zip(expected, run.results.outputs, strict=True):
        if "path" not in want:
            assert have.value == want["value"]
            continue
        assert (have.dtype, list(have.shape or ())) == (want["dtype"], want["shape"])
        difference = _read(program / want["path"], want["dtype"]) - _read(
            run.folder / "outputs" / str(have.path), want["dtype"]
        )
        found.append(float(np.abs(difference).max()))
    return found


def _read(path: Path, dtype: str) -> NDArray[Any]:
    return np.fromfile(path, dtype)
