"""Fetches ExecuTorch into the cache, with the submodules that a build compiles."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from etdeploy.cache.folder import CacheKind
from etdeploy.cache.workspace import Workspace
from etdeploy.core.commands import system_command
from etdeploy.core.errors import BuildError
from etdeploy.core.files.basic import working_folder, write_atomic
from etdeploy.core.files.locks import exclusive
from etdeploy.core.processes import process
from etdeploy.core.values import Progress, silent
from etdeploy.provider.checkout import (
    REPOSITORY,
    REPOSITORY_VARIABLE,
    SOURCE_VARIABLE,
    Checkout,
    clone_folder,
    examine,
    in_release,
    missing_submodules,
)

# Beside the clone: lists the submodules that were fetched completely.
_NOTE = "submodules.json"


def clone(
    workspace: Workspace,
    version: str,
    environ: Mapping[str, str],
    progress: Progress = silent,
    log: Path | None = None,
) -> Checkout:
    """Clones a release into the cache, without submodules.

    Raises:
        BuildError: git is not installed, or cannot fetch it.
    """
    folder = clone_folder(workspace, version)
    url = environ.get(REPOSITORY_VARIABLE) or REPOSITORY
    with exclusive(
        workspace.lock_path(CacheKind.SOURCES, version), f"ExecuTorch {version}", progress
    ):
        if not folder.is_dir():
            folder.parent.mkdir(parents=True, exist_ok=True)
            with working_folder(folder.parent, ".cloning-") as temporary:
                aside = temporary / "executorch"
                progress(f"cloning ExecuTorch {version}")
                _fetch(
                    ("clone", "--depth", "1", "--branch", f"v{version}", url, str(aside)), url, log
                )
                shutil.move(aside, folder)
    return examine(folder, "cache")


def fetch_submodules(
    checkout: Checkout,
    names: tuple[str, ...],
    workspace: Workspace,
    progress: Progress = silent,
    log: Path | None = None,
) -> None:
    """Fetches submodules of a clone in the cache; a user's own checkout is never changed.

    A submodule is fetched again unless it is noted as complete, as an interrupted fetch leaves
    only a part of its files.

    Raises:
        BuildError: git cannot fetch them.
    """
    note = checkout.folder.parent / _NOTE
    lock = workspace.lock_path(CacheKind.SOURCES, checkout.version)
    with exclusive(lock, f"ExecuTorch {checkout.version}", progress):
        complete = _complete(note) - set(missing_submodules(checkout.folder, names))
        for name in in_release(checkout.folder, names):
            if name in complete:
                continue
            progress(f"fetching {name}")
            # --force overwrites what an interrupted fetch left.
            how = ("--init", "--force", "--recursive", "--depth", "1")
            _fetch(("-C", checkout.path, "submodule", "update", *how, "--", name), name, log)
            complete.add(name)
            write_atomic(note, json.dumps(sorted(complete)))


def _complete(note: Path) -> set[str]:
    try:
        return set(json.loads(note.read_bytes()))
    except (OSError, ValueError):
        return set()


def _fetch(arguments: tuple[str, ...], what: str, log: Path | None) -> None:
    git = process.which("git")
    if git is None:
        raise BuildError(
            "ExecuTorch's sources are fetched with git, which is not installed",
            remedy=system_command("git"),
        )
    outcome = process.run(
        process.Request((str(git), *arguments), env={"GIT_TERMINAL_PROMPT": "0"}, log=log)
    )
    if not outcome.ok:
        lines = [
            line for line in outcome.stderr.splitlines() if line.startswith(("fatal", "error"))
        ]
        said = (lines or outcome.stderr.splitlines() or ["it gave no reason"])[0]
        raise BuildError(
            f"git cannot fetch {what}: {said.removeprefix('fatal: ')}",
            remedy=f"Check the network, or name a mirror or a checkout that you have:\n"
            f"export {REPOSITORY_VARIABLE}=https://mirror/executorch\n"
            f"export {SOURCE_VARIABLE}=/path/to/executorch",
            log=log,
        )
