"""Compares what a program needs with what a runner has, before anything goes to a device."""

from __future__ import annotations

from typing import Literal

from etdeploy.core.errors import CheckError
from etdeploy.core.values import Value
from etdeploy.plan.components import backend_component, operator_component
from etdeploy.plan.model import BuiltRunner, Provider
from etdeploy.program.model import Program


class Missing(Value):
    """An operator or backend that the program uses and the runner does not have."""

    kind: Literal["operator", "backend"]
    name: str
    needed_by: str
    remedy: str


def check_program(
    program: Program, runner: BuiltRunner, *, finished: bool = False
) -> tuple[Missing, ...]:
    """Everything that the runner lacks for the program; empty when it can run it.

    Args:
        program: What is to be run.
        runner: What is to run it.
        finished: Whether the program was given as a file, so that no recipe can change it.
    """
    operators, backends = set(runner.operators), set(runner.backends)
    missing = []
    for name in program.backend_ids:
        if name not in backends:
            methods = [
                m.name for m in program.methods if any(d.backend_id == name for d in m.delegates)
            ]
            missing.append(
                Missing(
                    kind="backend",
                    name=name,
                    needed_by=_methods(methods),
                    remedy=_backend_remedy(name, runner.provider, finished=finished),
                )
            )
    for name in program.operators:
        if name not in operators:
            methods = [m.name for m in program.methods if any(o.name == name for o in m.operators)]
            missing.append(
                Missing(
                    kind="operator",
                    name=name,
                    needed_by=_methods(methods),
                    remedy=_operator_remedy(name, finished=finished),
                )
            )
    return tuple(missing)


def require_runnable(program: Program, runner: BuiltRunner, *, finished: bool = False) -> None:
    """Makes sure that the runner can run the program.

    Raises:
        CheckError: Something is missing; all of it is named.
    """
    missing = check_program(program, runner, finished=finished)
    if missing:
        raise CheckError(
            f"the runner for {runner.target} lacks what the program uses:\n"
            + "\n".join(f"  {m.kind} {m.name}, used by {m.needed_by}" for m in missing),
            remedy="\n".join(dict.fromkeys(m.remedy for m in missing)),
        )


def _methods(names: list[str]) -> str:
    return ("method " if len(names) == 1 else "methods ") + ", ".join(names)


_FINISHED = "export the model for another backend: the program is finished, and keeps its own"


def _backend_remedy(backend_id: str, provider: str, *, finished: bool) -> str:
    component = backend_component(backend_id)
    if component is None:
        if finished:
            return f"No runtime of ExecuTorch has {backend_id}; {_FINISHED}."
        return "Lower to a backend that ExecuTorch's runtime has: --set export.backend=xnnpack"
    other = _FINISHED if finished else "lower to another backend: --set export.backend=xnnpack"
    if provider == Provider.SOURCE:
        return (
            f"The build was to have the component {component}. Build it again: etdeploy clean "
            f"builds runners\nor {other}"
        )
    return f"Link the component {component} (--set runtime.provider=source builds it), or {other}"


def _operator_remedy(name: str, *, finished: bool) -> str:
    component = operator_component(name)
    if component is None:
        namespace = name.split("::", 1)[0]
        return (
            f"Give the kernels of {namespace}:: in a folder of C++ sources, and register {name} "
            "there by just that name: --set runtime.custom_ops=path/to/kernels"
        )
    take_it = "" if finished else ": --set export.backend=xnnpack"
    return (
        f"The component {component} has no {name}: replace it in the model, or let a backend take "
        f"it{take_it}"
    )
