"""Persistent build folders, where ExecuTorch is compiled together with the runner.

    builds/<target>-<digest>/cmake/       what cmake and ninja made
    builds/<target>-<digest>/definitions.json   cmake's last definitions

All plans for one target, checkout and compiler share a folder. A plan with other options
reconfigures it, and ninja compiles what they affect; an interrupted build continues. The finished
runner of each plan is kept (`runners/`), so going back to a plan costs nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from etdeploy.cache.folder import CacheKind
from etdeploy.cache.workspace import Workspace
from etdeploy.core.files.basic import write_atomic
from etdeploy.core.files.locks import exclusive, exclusive_folder
from etdeploy.core.hashing import digest_json, sha256_bytes
from etdeploy.core.values import Progress
from etdeploy.provider.checkout import Checkout

# The folder in a build folder that cmake configures.
CMAKE = "cmake"
_NAME = "executorch"


@dataclass(frozen=True)
class BuildTree:
    """One build folder, locked while it is used; its checkout's path ends in `executorch`."""

    root: Path
    checkout: Checkout

    @property
    def cmake(self) -> Path:
        """The folder that cmake configures."""
        return self.root / CMAKE

    def is_configured(self, definitions: Mapping[str, str]) -> bool:
        """Whether cmake last succeeded with exactly these definitions."""
        try:
            known = json.loads((self.root / "definitions.json").read_bytes())
        except (OSError, ValueError):
            return False
        return bool(known == dict(definitions)) and (self.cmake / "build.ninja").is_file()

    def forget(self) -> None:
        """Call this before cmake runs: until it succeeds, nothing is configured."""
        (self.root / "definitions.json").unlink(missing_ok=True)

    def remember(self, definitions: Mapping[str, str]) -> None:
        """Call this after cmake has succeeded."""
        write_atomic(self.root / "definitions.json", json.dumps(dict(definitions), indent=1))

    def select(self, program: Path, selection: str) -> Path:
        """A link to the program, named by what is selected from it."""
        # ExecuTorch regenerates its list of operators only when the path changes.
        link = self.root / f"selected-{selection[:16]}.pte"
        if not link.is_symlink() or link.resolve() != program.resolve():
            aside = link.with_suffix(f".{os.getpid()}")
            aside.symlink_to(program)
            aside.replace(link)
        return link


def tree_folder(workspace: Workspace, target: str, checkout: Checkout, compiler: str) -> Path:
    """Return the path of the build folder, which may not exist."""
    name = f"{target}-{digest_json([checkout.path, compiler])[:16]}"
    return workspace.folder(CacheKind.BUILDS) / name


@contextmanager
def open_tree(
    workspace: Workspace, target: str, checkout: Checkout, compiler: str, progress: Progress
) -> Iterator[BuildTree]:
    """Lock the build folder for a target, a checkout, and a compiler with its flags."""
    root = tree_folder(workspace, target, checkout, compiler)
    name = root.name
    of_sources = workspace.lock_path("checkout", sha256_bytes(checkout.path.encode())[:16])
    with (
        exclusive(
            workspace.lock_path(CacheKind.BUILDS, name), f"the build folder {name}", progress
        ),
        # flatcc's tool is built in the source tree by every build that configures it, with this
        # cache or another.
        exclusive(of_sources, f"the checkout {checkout.path}", progress),
        exclusive_folder(checkout.folder, f"the checkout {checkout.path}", progress),
    ):
        root.mkdir(parents=True, exist_ok=True)
        yield BuildTree(root, _named(checkout, root))


def _named(checkout: Checkout, root: Path) -> Checkout:
    """The checkout by a path that ends in `executorch`, as its CMakeLists.txt requires."""
    if checkout.folder.name == _NAME:
        return checkout
    link = root / _NAME
    if not link.is_symlink():
        link.symlink_to(checkout.path, target_is_directory=True)
    return checkout.model_copy(update={"path": str(link)})
