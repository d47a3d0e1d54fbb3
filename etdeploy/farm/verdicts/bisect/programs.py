"""Finished programs between good and bad: files, or digests of programs that the cache has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from etdeploy.cache.workspace import Workspace
from etdeploy.core.errors import UsageError
from etdeploy.core.files.basic import not_regular
from etdeploy.core.hashing import sha256_file
from etdeploy.core.text.shell import quoted
from etdeploy.farm.verdicts.bisect.model import Candidate
from etdeploy.recipe.load import LoadedRecipe, Override, Overrides, load_recipe
from etdeploy.recipe.rules import MODEL_SOURCES

_DIGEST = re.compile(r"[0-9a-f]{8,64}")
_OPTION = "--programs"
_PROGRAM = "program.pte"


def programs_named(names: Sequence[str], workspace: Workspace) -> tuple[Candidate, ...]:
    """The programs, in the order in which they are named.

    Args:
        names: Files, or the first eight or more digits of SHA-256 digests.
        workspace: Its programs are looked through for digests.

    Raises:
        UsageError: One is neither, there is no such program, or two are the same.
    """
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
def opened(recipe: str, program: Candidate, overrides: Overrides) -> Iterator[LoadedRecipe]:
    """The recipe with a program in place of its model.

    Raises:
        RecipeError: It cannot be used with a finished program.
    """
    keys = [key for key in (*MODEL_SOURCES, "weights", "arguments") if key != "program"]
    empty = [Override(f"model.{key}=null", _OPTION) for key in keys]
    named = Override(f"model.program={_yaml(program.id)}", _OPTION)
    yield load_recipe(recipe, (*overrides, *empty, named))


def _yaml(path: str) -> str:
    """A path as a YAML text in double quotes."""
    return json.dumps(path)
