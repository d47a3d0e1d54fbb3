"""When the steps of two jobs do the same work: the same export, the same libraries, one runner."""

from __future__ import annotations

from pathlib import Path

from etdeploy.core.hashing import digest_json
from etdeploy.graph.resolve import Resolved
from etdeploy.graph.stage_values import load_program
from etdeploy.plan.model import Provider
from etdeploy.program.folder import PROGRAM_FILE


def export_work(resolved: Resolved) -> str:
    """Equal for jobs that need the same program.

    By its key in the cache; where only an export can give that, by what is known before one.
    """
    return resolved.program_key or resolved.export_known


def now_planned(resolved: Resolved) -> Resolved:
    """The job with the plan for its program, which an earlier step of this run exported."""
    if not resolved.plan.provisional:
        return resolved
    _, program = load_program(resolved.job)
    return resolved.with_program(program)


def libraries_work(resolved: Resolved) -> str | None:
    """Equal for jobs that need the same libraries or sources of ExecuTorch; None if unknown."""
    return None if resolved.plan.provisional else expected_libraries(resolved)


def runner_work(resolved: Resolved) -> str | None:
    """Equal for jobs that need the same runner; None if unknown."""
    return None if resolved.plan.provisional else expected_runner(resolved)


def expected_libraries(resolved: Resolved) -> str:
    """The same as `libraries_work`, even if the plan is derived from the recipe alone."""
    plan = resolved.plan
    if plan.provider.value != Provider.SOURCE:
        return digest_json([plan.provider.value, plan.build_target])
    from etdeploy.runner.missing import submodules_of

    where = resolved.checkout.path if resolved.checkout else plan.executorch_version
    return digest_json([plan.provider.value, where, *submodules_of(plan)])


def expected_runner(resolved: Resolved) -> str:
    """The same as `runner_work`, even if the plan is derived from the recipe alone."""
    names = () if resolved.plan.provisional else _names_to_find(resolved)
    return digest_json([resolved.plan.build_digest, expected_libraries(resolved), *names])


def checkout_in_use(resolved: Resolved) -> str | None:
    """The checkout that a build works in: builds in one wait for each other anyway."""
    if resolved.plan.provider.value != Provider.SOURCE:
        return None
    where = resolved.checkout.path if resolved.checkout else resolved.plan.executorch_version
    return f"checkout {where}"


def _names_to_find(resolved: Resolved) -> tuple[str, ...]:
    """The operators that are searched for in a runner with the recipe's own kernels."""
    if resolved.custom_ops is None:
        return ()
    from etdeploy.custom_ops.kernels import names_to_find

    return names_to_find(resolved.custom_ops, _program_file(resolved))


def _program_file(resolved: Resolved) -> Path:
    finished = resolved.job.loaded.recipe.model.program
    if resolved.exported:
        return resolved.exported.path
    if finished:
        return Path(finished)
    exported, _ = load_program(resolved.job)
    return Path(exported.folder) / PROGRAM_FILE
