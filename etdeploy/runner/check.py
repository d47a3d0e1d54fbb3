"""Compares what a program needs with what a runner has, before anything goes to a device."""

from __future__ import annotations

from collections.abc import Iterator

from etdeploy.backends.registry import backend_of
from etdeploy.backends.schemes import DEFAULT
from etdeploy.core.errors import Blocker, CheckError
from etdeploy.plan.components import KERNELS_ETDEPLOY, backend_component, operator_component
from etdeploy.plan.model import Provider
from etdeploy.program.model import Program
from etdeploy.runner.model import BuiltRunner


def check_program(
    program: Program, runner: BuiltRunner, *, finished: bool = False
) -> tuple[Blocker, ...]:
    """The backends and operators that the program uses and the runner does not have.

    Args:
        program: What is to be run.
        runner: What is to run it.
        finished: Whether the program was given as a file, so that no recipe can change it.
    """
    return (
        *_missing_backends(program, runner, finished=finished),
        *_missing_operators(program, runner, finished=finished),
    )


def require_runnable(program: Program, runner: BuiltRunner, *, finished: bool = False) -> None:
    """Raises unless the runner can run the program.

    Raises:
        CheckError: Names everything that is missing.
    """
    missing = check_program(program, runner, finished=finished)
    if missing:
        raise CheckError(
            f"the runner for {runner.target} does not have what the program uses:\n"
            + "\n".join(f"  {m.what}, {m.why}" for m in missing),
            remedy="\n".join(dict.fromkeys(m.remedy for m in missing)),
        )


def _missing_backends(
    program: Program, runner: BuiltRunner, *, finished: bool
) -> Iterator[Blocker]:
    for name in program.backend_ids:
        if name not in runner.backends:
            users = [
                m.name for m in program.methods if any(d.backend_id == name for d in m.delegates)
            ]
            remedy = _backend_remedy(name, runner.provider, finished=finished)
            yield Blocker(f"backend {name}", _used_by(users), remedy)


def _missing_operators(
    program: Program, runner: BuiltRunner, *, finished: bool
) -> Iterator[Blocker]:
    available = set(runner.operators)
    for name in program.operators:
        if name not in available:
            users = [m.name for m in program.methods if any(o.name == name for o in m.operators)]
            remedy = _operator_remedy(name, finished=finished)
            yield Blocker(f"operator {name}", _used_by(users), remedy)


def _used_by(methods: list[str]) -> str:
    return f"used by method{'' if len(methods) == 1 else 's'} {', '.join(methods)}"


_FINISHED = "export the model for another backend: the program is finished, and keeps its own"


def _backend_remedy(backend_id: str, provider: str, *, finished: bool) -> str:
    component = backend_component(backend_id)
    if component is None:
        known = backend_of(backend_id)
        if known and known.get:
            return known.get
        if finished:
            return f"No runtime of ExecuTorch has {backend_id}; {_FINISHED}."
        return f"Lower to a backend that ExecuTorch's runtime has: --set export.backend={DEFAULT}"
    other = _FINISHED if finished else f"lower to another backend: --set export.backend={DEFAULT}"
    if provider == Provider.SOURCE:
        return (
            f"The build should have had the component {component}. Build it again: etdeploy clean "
            f"builds runners\nor {other}"
        )
    return f"Link the component {component} (--set runtime.provider=source builds it), or {other}"


def _operator_remedy(name: str, *, finished: bool) -> str:
    component = operator_component(name)
    if component is None:
        namespace = name.split("::", 1)[0]
        return (
            f"Put the kernels of {namespace}:: into a folder of C++ sources, and register {name} "
            "there by exactly that name: --set runtime.custom_ops=path/to/kernels"
        )
    if component == KERNELS_ETDEPLOY:
        return f"This release of etdeploy has no {name}: export the program with it."
    other = "" if finished else " Another backend helps only if it takes this operator."
    return (
        f"ExecuTorch's component {component} has no {name}: replace it in the model, or compute it "
        f"outside of the program.{other}"
    )
