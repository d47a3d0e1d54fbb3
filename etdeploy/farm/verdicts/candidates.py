"""Candidates of a bisection: commits, each in a separate work tree, or finished programs.

The user's work tree is not touched: git makes another one in a temporary folder, runs no hooks of
the repository, and forgets it afterwards.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from etdeploy.cache.workspace import Workspace
from etdeploy.core.commands import quoted
from etdeploy.core.errors import BuildError, UsageError
from etdeploy.core.files.basic import not_regular, remove_tree
from etdeploy.core.hashing import sha256_file
from etdeploy.core.processes import process
from etdeploy.core.processes.process import run_git
from etdeploy.farm.verdicts.bisect import Candidate
from etdeploy.recipe.load import LoadedRecipe, Override, Overrides, load_recipe
from etdeploy.recipe.rules.common import MODEL_SOURCES

_PREFIX = "etdeploy-bisect-"
_SHORT = 12
_GIT_S = 600.0


@dataclass(frozen=True)
class Repository:
    """The repository of a recipe: its work tree, and the recipe's path in it."""

    root: Path
    recipe: Path

    @contextmanager
    def open_commit(self, overrides: Overrides, commit: Candidate) -> Iterator[LoadedRecipe]:
        """Check out a commit for the time of the block, and load its recipe."""
        with self._work_tree(commit) as folder:
            yield load_recipe(str(folder / self.recipe), overrides)

    @contextmanager
    def _work_tree(self, commit: Candidate) -> Iterator[Path]:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        # The name is a part of messages and of the recipe's path.
        tree = folder / commit.id[:_SHORT]
        try:
            done = self._git("worktree", "add", "--detach", "--quiet", str(tree), commit.id)
            if not done.ok:
                said = done.stderr.strip().splitlines()
                raise BuildError(
                    f"git cannot check it out: {said[-1] if said else f'exit {done.exit_code}'}",
                    place=commit.label,
                )
            yield tree
        finally:
            remove_tree(folder)
            self._git("worktree", "prune", outlives_stop=True)

    def _git(self, *arguments: str, outlives_stop: bool = False) -> process.Outcome:
        argv = ("git", "-C", str(self.root), "-c", "core.hooksPath=/dev/null", *arguments)
        env = {"GIT_TERMINAL_PROMPT": "0"}
        request = process.Request(
            argv, env=env, timeout_s=_GIT_S, outlives_stop=outlives_stop, cwd=self.root
        )
        return process.run(request)


def find_repository(recipe: Path) -> Repository:
    """Find the repository that a recipe's file is in; a UsageError if there is none."""
    if process.which("git") is None:
        raise UsageError("git is not installed", remedy="Install git: https://git-scm.com")
    root = run_git(recipe.parent, "rev-parse", "--show-toplevel")
    if root is None:
        raise UsageError(
            "the recipe is not in a git repository",
            place=str(recipe),
            remedy="Name a recipe's file in one, or programs: --programs GOOD.pte ... BAD.pte",
        )
    folder = Path(root.rstrip("\n")).resolve()
    return Repository(folder, recipe.resolve().relative_to(folder))


def list_commits(repository: Repository, good: str, bad: str) -> tuple[Candidate, ...]:
    """List good and every commit after it up to bad; a merge is one step."""
    first, last = (_commit(repository, text, option)
                   for text, option in ((good, "--good"), (bad, "--bad")))  # fmt: skip
    if run_git(repository.root, "merge-base", "--is-ancestor", first, last) is None:
        raise UsageError(
            f"{good} is not an ancestor of {bad}",
            place=str(repository.root),
            remedy="Name the commit where the two parted as --good: "
            f"git merge-base {quoted(good)} {quoted(bad)}",
        )
    listed = run_git(
        repository.root, "log", "--reverse", "--first-parent", "--format=%H %s", f"{first}..{last}",
        timeout_s=60.0,
    )  # fmt: skip
    subject = run_git(repository.root, "log", "-1", "--format=%H %s", first) or first
    lines = [subject, *(listed or "").splitlines()]
    return tuple(_candidate(line) for line in lines if line.strip())


def _candidate(line: str) -> Candidate:
    commit, _, subject = line.strip().partition(" ")
    return Candidate(id=commit, label=f"{commit[:_SHORT]} {subject}".strip())


def _commit(repository: Repository, text: str, option: str) -> str:
    arguments = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{text}^{{commit}}")
    found = run_git(repository.root, *arguments)
    if not found or not found.strip():
        raise UsageError(
            f"there is no commit {text!r}",
            place=f"{option} in {repository.root}",
            remedy=f"See which there are: git -C {quoted(repository.root)} log --oneline",
        )
    return found.strip()


_DIGEST = re.compile(r"[0-9a-f]{8,64}")
_OPTION = "--programs"
_PROGRAM = "program.pte"


def find_programs(names: Sequence[str], workspace: Workspace) -> tuple[Candidate, ...]:
    """Find programs by files, or by eight or more digits of SHA-256 digests in the cache."""
    if len(names) < 2:
        raise UsageError(
            "a bisection needs a good and a bad program",
            place=_OPTION,
            remedy="Name them in their order, the good one first: --programs GOOD.pte BAD.pte",
        )
    files = [_file(name, workspace) for name in names]
    seen: dict[str, str] = {}
    for name, file in zip(names, files, strict=True):
        digest = sha256_file(file)
        if digest in seen:
            raise UsageError(f"{name} is the same program as {seen[digest]}", place=_OPTION)
        seen[digest] = name
    return tuple(
        Candidate(id=str(file), label=f"{digest[:12]} {name}")
        for (digest, name), file in zip(seen.items(), files, strict=True)
    )


def _file(name: str, workspace: Workspace) -> Path:
    path = Path(name)
    try:
        if not_regular(path) is None:
            return path.absolute()
    except (OSError, ValueError):
        if _DIGEST.fullmatch(name):
            return _cached(name, workspace)
    inside = path / _PROGRAM
    raise UsageError(
        f"{name!r} is neither a file nor a digest of a program",
        place=_OPTION,
        remedy=f"Name its program: {quoted(inside)}"
        if inside.is_file()
        else "Name .pte files, or digests as records have them in program.sha256.",
    )


def _cached(digest: str, workspace: Workspace) -> Path:
    found = {
        sha256: path
        for path in sorted((workspace.root / "programs").glob(f"*/{_PROGRAM}"))
        if (sha256 := sha256_file(path)).startswith(digest)
    }
    if len(found) == 1:
        return next(iter(found.values()))
    raise UsageError(
        f"{len(found)} programs in the cache have a digest that begins with {digest}",
        place=_OPTION,
        remedy="Name more of its digits." if found else "Export it again, and name its file.",
    )


@contextmanager
def open_program(recipe: str, overrides: Overrides, program: Candidate) -> Iterator[LoadedRecipe]:
    """Load the recipe with a program in place of its model."""
    keys = [key for key in (*MODEL_SOURCES, "weights", "arguments") if key != "program"]
    empty = [Override(f"model.{key}=null", _OPTION) for key in keys]
    named = Override(f"model.program={json.dumps(program.id)}", _OPTION)
    yield load_recipe(recipe, (*overrides, *empty, named))
