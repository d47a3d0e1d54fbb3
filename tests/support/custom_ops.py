"""Builds runners with custom kernels against the wheel."""

from __future__ import annotations

from pathlib import Path

from etdeploy.core.workspace import Workspace
from etdeploy.program.model import Program
from etdeploy.runtime.build import build_runner
from etdeploy.runtime.custom_ops import CustomOps
from etdeploy.runtime.libraries import Libraries
from etdeploy.runtime.plan import Available, CustomKernels, derive_plan
from etdeploy.runtime.plan_model import BuiltRunner
from etdeploy.runtime.wheel import obtain_wheel
from etdeploy.targets.platforms import host_target
from tests.support.runtime_values import make_method, make_program, make_recipe


def build_custom(ops: CustomOps, folder: Path, *operators: str) -> BuiltRunner:
    """Builds a runner for this machine and a program with these operators.

    Raises:
        BuildError: The plan has obstacles, or the build fails.
    """
    host = host_target()
    wheel = obtain_wheel(host, host, Workspace.default())
    plan = derive_plan(
        make_recipe(benchmark={"profile": False}),
        _program(operators),
        host,
        host,
        Available(wheel.version, frozenset(wheel.components)),
        CustomKernels(ops.operators, ops.digest),
    )
    return build_runner(
        plan,
        Libraries(wheel=wheel),
        Workspace(folder / "cache"),
        log=folder / "build.log",
        custom_ops=ops,
    )


def _program(operators: tuple[str, ...]) -> Program:
    return make_program(make_method(operators=operators))
