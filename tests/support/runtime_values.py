"""Small programs and recipes, written by hand, for tests of the runtime plan."""

from __future__ import annotations

from typing import Any

from etdeploy.plan.derive import Available, CustomKernels, derive_plan
from etdeploy.plan.model import RuntimePlan
from etdeploy.program.model import Delegate, Method, Operator, Program
from etdeploy.recipe.model import Recipe
from etdeploy.runner.model import BuiltRunner
from etdeploy.targets.platforms import find_target


def make_method(
    name: str = "forward",
    operators: tuple[str, ...] = (),
    delegates: tuple[str, ...] = (),
    dtypes: tuple[str, ...] = (),
) -> Method:
    return Method(
        name=name,
        inputs=(),
        outputs=(),
        operators=tuple(Operator(name=o, calls=1, dtypes=dtypes) for o in operators),
        delegates=tuple(Delegate(backend_id=d, size_bytes=1) for d in delegates),
        instructions=len(operators) + len(delegates),
        planned_memory_bytes=0,
    )


def make_program(*methods: Method) -> Program:
    return Program(
        sha256="0" * 64, size_bytes=1, schema_version=0, constant_bytes=0, methods=methods
    )


def make_recipe(**sections: Any) -> Recipe:
    return Recipe.model_validate({"model": {"example": "mlp"}} | sections)


def make_plan(
    recipe: Recipe,
    program: Program | None,
    target: str = "linux-x86_64",
    host: str = "linux-x86_64",
    shipped: frozenset[str] | None = None,
    custom: CustomKernels | None = None,
) -> RuntimePlan:
    """A plan from names; by default the wheel carries what it is known to carry."""
    chosen = find_target(target)
    return derive_plan(
        recipe, program, chosen, find_target(host), Available("1.5.1", shipped), custom
    )


def make_runner(operators: tuple[str, ...] = (), backends: tuple[str, ...] = ()) -> BuiltRunner:
    return BuiltRunner(
        path="/nowhere",
        executable="etdeploy-runner",
        libraries=(),
        loader=None,
        target="linux-x86_64",
        sha256="0" * 64,
        operators=operators,
        backends=backends,
        executorch_version="1.5.1",
    )
