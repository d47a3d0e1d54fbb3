"""Builds from the stand-in for a checkout of ExecuTorch (tests/data/checkout)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etdeploy.cache.workspace import Workspace
from etdeploy.core.values import Progress, silent
from etdeploy.plan.derive import Available, derive_plan
from etdeploy.plan.model import RuntimePlan
from etdeploy.program.model import Program
from etdeploy.provider.checkout import Libraries, examine, read_options
from etdeploy.runner.builder import build_runner
from etdeploy.runner.model import BuiltRunner
from etdeploy.targets.platforms import find_target, host_target
from tests.support.runtime_values import make_method, make_program, make_recipe

STAND_IN = Path(__file__).parent.parent / "data" / "checkout"
# What its libraries register beside those of the wheel, when they are linked whole.
KERNELS = "standin::kernels.out"
QUANTIZED = "standin::quantized.out"
# Calls operators of two libraries, and has a delegate.
PROGRAM = make_program(
    make_method(
        operators=("aten::relu.out", "quantized_decomposed::quantize_per_tensor.out"),
        delegates=("XnnpackBackend",),
    )
)
_STEP = re.compile(r"^\[\d+/\d+\] (.*)", re.MULTILINE)


def copy_stand_in(folder: Path, version: str | None = None) -> Path:
    """A checkout of one's own; another release where `version` says so."""
    shutil.copytree(STAND_IN, folder)
    if version:
        (folder / "version.txt").write_text(f"{version}\n")
    return folder


def git(folder: Path, *arguments: str) -> str:
    """Runs git as somebody, with local submodules allowed."""
    done = subprocess.run(
        ["git", "-c", "user.name=A", "-c", "user.email=a@example.org", *arguments],
        cwd=folder, env={**os.environ, **LOCAL_SUBMODULES}, check=True, capture_output=True,
        text=True,
    )  # fmt: skip
    return done.stdout.strip()


# git refuses submodules of this machine's own folders unless it is told otherwise.
LOCAL_SUBMODULES: Mapping[str, str] = {
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "protocol.file.allow",
    "GIT_CONFIG_VALUE_0": "always",
}


@dataclass(frozen=True)
class SourceBuilds:
    """Builds of one checkout in one cache."""

    source: Path
    workspace: Workspace
    logs: Path

    def plan(
        self, target: str = "", program: Program = PROGRAM, profile: bool = False, **runtime: Any
    ) -> RuntimePlan:
        """A plan without selection, so that no program file is needed."""
        host = host_target()
        recipe = make_recipe(
            runtime={"provider": "source", "selective": False, **runtime},
            benchmark={"profile": profile},
        )
        chosen = find_target(target) if target else host
        available = Available("1.4.1", frozenset(), read_options(self.source))
        return derive_plan(recipe, program, chosen, host, available)

    def build(
        self, plan: RuntimePlan, log: str = "build", progress: Progress = silent
    ) -> BuiltRunner:
        """Builds the runner of a plan; the log is for `steps`."""
        libraries = Libraries(checkout=examine(self.source, "recipe"))
        return build_runner(plan, libraries, self.workspace, progress, self.log(log))

    def log(self, name: str) -> Path:
        """The log of a build."""
        return self.logs / f"{name}.log"

    def steps(self, name: str) -> list[str]:
        """What ninja did in the build with that log: one line for each step."""
        log = self.log(name)
        return _STEP.findall(log.read_text()) if log.is_file() else []
