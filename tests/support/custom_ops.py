"""Runners with custom kernels, and programs that call them."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from etdeploy.core.progress import silent
from etdeploy.core.resources import resource_folder
from etdeploy.core.workspace import Workspace
from etdeploy.program.folder import PROGRAM_FILE, load_provenance
from etdeploy.program.model import Program
from etdeploy.runtime.compile import compile_runner, configure, wheel_definitions
from etdeploy.runtime.custom_ops import CustomOps, write_registration
from etdeploy.runtime.exchange import RunnerResults, inputs_list, load_results
from etdeploy.runtime.plan import Available, CustomKernels, derive_plan, require_feasible
from etdeploy.runtime.tools import find_tools
from etdeploy.runtime.wheel import obtain_wheel
from etdeploy.targets.platforms import find_target, host_target
from tests.support.runtime_values import make_recipe


@dataclass(frozen=True)
class CustomRunner:
    """A runner in its build folder, with how it is started."""

    executable: Path
    prefix: tuple[str, ...]
    environment: dict[str, str]

    def __call__(
        self, *arguments: str, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.prefix, str(self.executable), *arguments],
            cwd=cwd, env=self.environment, capture_output=True, text=True, timeout=300,
        )  # fmt: skip

    def run_program(self, program: Path, folder: Path) -> RunnerResults:
        """Runs an exported program; `folder` gets results and outputs."""
        inputs = folder / "inputs.txt"
        inputs.write_text(
            inputs_list(
                [
                    t.model_copy(update={"path": str(program / t.path)})
                    for t in load_provenance(program).inputs
                ]
            )
        )
        ended = self(
            "--program", str(program / PROGRAM_FILE), "--inputs", str(inputs),
            "--results", "results.json", "--outputs", "outputs", "--iterations", "2", cwd=folder,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr
        return load_results(folder / "results.json")


def build_custom(
    ops: CustomOps, program: Program, folder: Path, target: str = "", *, profile: bool = False
) -> CustomRunner:
    """Builds a runner for the program against the wheel.

    Raises:
        BuildError: The plan has obstacles, or the build fails.
    """
    host = host_target()
    chosen = find_target(target) if target else host
    wheel = obtain_wheel(chosen, host, Workspace.default())
    plan = derive_plan(
        make_recipe(benchmark={"profile": profile}),
        program,
        chosen,
        host,
        Available(wheel.version, frozenset(wheel.components)),
        CustomKernels(ops.operators, ops.digest),
    )
    require_feasible(plan)
    tools = find_tools(chosen, host)
    write_registration(ops, folder)
    definitions = wheel_definitions(plan, wheel, tools) | ops.definitions(folder)
    sources = resource_folder("templates") / "runner"
    configure(definitions, tools, sources, folder, silent, folder / "build.log")
    executable = compile_runner(tools, folder, silent, folder / "build.log")
    libraries = f"{wheel.root}/lib"
    if chosen.name == host.name:
        return CustomRunner(executable, (), {**os.environ, "LD_LIBRARY_PATH": libraries})
    qemu = (f"qemu-{chosen.arch}-static", "-L", "/usr/aarch64-linux-gnu")
    return CustomRunner(executable, (*qemu, "-E", f"LD_LIBRARY_PATH={libraries}"), dict(os.environ))
