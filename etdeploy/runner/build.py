"""Builds the runner of a plan and keeps it in the cache."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from etdeploy.backends.registry import code_of
from etdeploy.backends.values import Workstation
from etdeploy.cache.folder import CacheKind
from etdeploy.cache.workspace import Workspace
from etdeploy.core.files.disk import full_disk, no_room_in
from etdeploy.core.hashing import digest_json
from etdeploy.core.progress import Progress, silent
from etdeploy.custom_ops.kernels import CustomOps, names_to_find
from etdeploy.plan.components import built_backends, linked_backends
from etdeploy.plan.derive import require_feasible
from etdeploy.plan.model import RuntimePlan
from etdeploy.provider.libraries import Libraries
from etdeploy.runner.builder import RUNNER_INFO, Builder
from etdeploy.runner.fingerprint import rules_digest, runner_fingerprint
from etdeploy.runner.model import BuiltRunner
from etdeploy.targets.platforms import Target, find_target, host_target


def build_runner(
    plan: RuntimePlan,
    libraries: Libraries,
    workspace: Workspace,
    progress: Progress = silent,
    log: Path | None = None,
    program: Path | None = None,
    custom_ops: CustomOps | None = None,
) -> BuiltRunner:
    """Builds the runner of a plan, or takes an intact one from the cache.

    Args:
        plan: What to build; plans with the same requirements share one runner.
        libraries: ExecuTorch for `plan.build_target`.
        workspace: The cache.
        progress: Reports each step, and the completed fraction of the compilation.
        log: Receives every command with its output.
        program: Its operators are selected, for a plan with a selection, and searched for, for
            kernels that register themselves.
        custom_ops: The recipe's own kernels, if the plan has them.

    Raises:
        BuildError: The plan has blockers, a tool is missing, or the build failed; the message has
            the compiler's first error.
        Interrupted: The run was stopped; the cache has no partial entry, and the next build from
            source continues from there.
    """
    require_feasible(plan)
    host = host_target()
    target = find_target(plan.build_target)
    # A runner that cannot be started here is searched for the names that the program calls.
    names = names_to_find(custom_ops, program)
    entry = workspace.entry(CacheKind.RUNNERS, runner_key(plan, libraries, host, names))

    def build(folder: Path) -> None:
        Builder(
            plan, libraries, target, host, workspace, folder, progress, log, program, custom_ops
        ).build()

    try:
        workspace.obtain(entry, build, progress, _is_readable)
    except OSError as error:
        full = no_room_in(error)
        if full is None:
            raise
        raise full_disk(full, workspace.root, log, "storing the runner") from error
    stored = BuiltRunner.load(entry.path / RUNNER_INFO)
    return stored.model_copy(update={"path": str(entry.path)})


def _is_readable(folder: Path) -> bool:
    """Whether the runner's description has today's format; other releases may differ."""
    return BuiltRunner.load_or_none(folder / RUNNER_INFO) is not None


def runner_key(
    plan: RuntimePlan, libraries: Libraries, host: Target, names: Sequence[str] = ()
) -> str:
    """The cache key: equal for everything that gives the same runner.

    Args:
        plan: What is built.
        libraries: What it is linked against.
        host: The building machine.
        names: Operators that are searched for in it.
    """
    target = find_target(plan.build_target)
    parts = [
        plan.build_digest,
        libraries.fingerprint,
        runner_fingerprint(host, target),
        # Etdeploy's code decides what is linked, collected beside the runner, and listed for it.
        rules_digest(),
        *names,
    ]
    keys = [backend.build_key(Workstation.this()) for backend in built_backends(plan)]
    codes = [code_of(backend) for backend in linked_backends(plan)]
    return digest_json([*parts, *filter(None, [*keys, *codes])])
