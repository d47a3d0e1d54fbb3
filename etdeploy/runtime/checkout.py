"""A checkout of ExecuTorch: where it is, what it is, and whether it has all that a build needs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from etdeploy.core.errors import BuildError
from etdeploy.core.files import read_text
from etdeploy.core.values import Value
from etdeploy.core.workspace import Workspace
from etdeploy.program.pte import FILE_IDENTIFIER
from etdeploy.runtime.cmake_options import DEFAULTS_FILE
from etdeploy.runtime.revision import revision
from etdeploy.runtime.wheel import EXECUTORCH_VERSION

SOURCE_VARIABLE = "ETDEPLOY_EXECUTORCH_SOURCE"
REPOSITORY_VARIABLE = "ETDEPLOY_EXECUTORCH_REPOSITORY"
REPOSITORY = "https://github.com/pytorch/executorch"
OLDEST, NEWEST = (1, 3), (1, 5)
_VERSION_FILE = "version.txt"


class Checkout(Value):
    """A checkout of ExecuTorch.

    Attributes:
        path: Of its folder.
        version: As its version.txt says.
        revision: Of its files: a commit, with a digest of what differs from it.
        origin: Who named it.
    """

    path: str
    version: str
    revision: str
    origin: Literal["recipe", "environment", "cache"]

    @property
    def folder(self) -> Path:
        return Path(self.path)


def find_checkout(
    named: str | None, environ: Mapping[str, str], workspace: Workspace, version: str
) -> Checkout | None:
    """The checkout that a build takes, in the order recipe, environment, cache.

    Args:
        named: `runtime.source` of the recipe.
        environ: The environment.
        workspace: The cache, where a clone may be.
        version: The release that a clone would be of.

    Returns:
        None when none is named and none was cloned.

    Raises:
        BuildError: The folder that is named is no checkout of a release that is served.
    """
    if named:
        return examine(Path(named), "recipe")
    from_environment = environ.get(SOURCE_VARIABLE)
    if from_environment:
        return examine(Path(from_environment).expanduser().resolve(), "environment")
    cached = clone_folder(workspace, version)
    return examine(cached, "cache") if cached.is_dir() else None


def examine(folder: Path, origin: Literal["recipe", "environment", "cache"]) -> Checkout:
    """Looks at a folder that is named as a checkout.

    Raises:
        BuildError: It is none, or of a release that is not served.
    """
    said = {"environment": f"{SOURCE_VARIABLE} names", "recipe": "runtime.source names"}
    missing = next(
        (n for n in (_VERSION_FILE, "CMakeLists.txt", DEFAULTS_FILE) if not (folder / n).is_file()),
        None,
    )
    if missing:
        raise BuildError(
            f"{said.get(origin, 'the cache has')} {folder}, which is no checkout of ExecuTorch: it "
            f"has no {missing}",
            remedy=_clone_remedy(None),
        )
    version = (folder / _VERSION_FILE).read_text(encoding="utf-8", errors="replace").strip()
    numbers = release(version)
    if not numbers or not OLDEST <= numbers <= NEWEST:
        raise BuildError(
            f"{folder} is ExecuTorch {version}; 1.3 to 1.5 are known to etdeploy",
            remedy=_clone_remedy(EXECUTORCH_VERSION),
        )
    return Checkout(path=str(folder), version=version, revision=revision(folder), origin=origin)


def release(version: str) -> tuple[int, int] | None:
    """Major and minor of `1.4.1` or `1.5.0a0`."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else None


def require_readable(checkout: Checkout, exported_with: str | None) -> tuple[str, ...]:
    """Passes a checkout whose runtime reads the program; gives what to know, as sentences.

    Args:
        checkout: The sources.
        exported_with: The version of ExecuTorch that made the program, where it is known.

    Raises:
        BuildError: Its schema is another one.
    """
    schema = checkout.folder / "schema/program.fbs"
    found = re.search(r'file_identifier\s+"(\w{4})"', read_text(schema))
    identifier = FILE_IDENTIFIER.decode()
    if found and found[1] != identifier:
        raise BuildError(
            f"the program is of the schema {identifier}, and the runtime of {checkout.path} reads "
            f"{found[1]}",
            remedy=_clone_remedy(exported_with),
        )
    if exported_with and release(exported_with) != release(checkout.version):
        return (
            f"The program was exported with ExecuTorch {exported_with}, and the runtime is "
            f"{checkout.version}: the schema is the same, and operators may differ.",
        )
    return ()


def clone_folder(workspace: Workspace, version: str) -> Path:
    """Where the clone of a release is in the cache. ExecuTorch insists on the folder's name."""
    return workspace.root / "sources" / f"v{version}" / "executorch"


def _clone_remedy(version: str | None) -> str:
    branch = f"--branch v{version} " if version else ""
    return f"git clone --depth 1 {branch}{REPOSITORY}\nexport {SOURCE_VARIABLE}=$PWD/executorch"
