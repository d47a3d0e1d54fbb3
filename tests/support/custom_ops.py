"""Builds runners with custom kernels against the wheel."""

from __future__ import annotations

from pathlib import Path

from etdeploy.cache.workspace import Workspace
from etdeploy.custom_ops.kernels import CustomOps
from etdeploy.plan.derive import Available, CustomKernels, derive_plan
from etdeploy.program.model import Program
from etdeploy.provider.checkout import Libraries
from etdeploy.provider.wheel import obtain_wheel
from etdeploy.runner.builder import build_runner
from etdeploy.runner.model import BuiltRunner
from etdeploy.targets.platforms import find_target, host_target
from tests.support.program_files import Plan, pte
from tests.support.runtime_values import make_method, make_program, make_recipe


def build_custom(
    ops: CustomOps, folder: Path, *operators: str, target: str | None = None
) -> BuiltRunner:
    """Builds a runner for a program with these operators.

    Args:
        ops: The kernels.
        folder: For program, cache and log.
        operators: With their overloads.
        target: What it is built for; this machine when None.

    Raises:
        BuildError: The plan has blockers, or the build fails.
    """
    host = host_target()
    chosen = find_target(target) if target else host
    wheel = obtain_wheel(find_target(chosen.portable or chosen.name), host, Workspace.default())
    parts = (name.partition(".") for name in operators)
    calls = tuple((name, overload, 0) for name, _, overload in parts)
    program = folder / "program.pte"
    program.write_bytes(pte(Plan(operators=calls)))
    plan = derive_plan(
        make_recipe(benchmark={"profile": False}),
        _program(operators),
        chosen,
        host,
        Available(wheel.version, frozenset(wheel.components)),
        CustomKernels(ops.operators, ops.digest),
    )
    return build_runner(
        plan,
        Libraries(wheel=wheel),
        Workspace(folder / "cache"),
        log=folder / "build.log",
        program=program,
        custom_ops=ops,
    )


def _program(operators: tuple[str, ...]) -> Program:
    return make_program(make_method(operators=operators))
