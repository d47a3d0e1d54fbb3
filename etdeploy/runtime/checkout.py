"""A checkout of ExecuTorch: where it is, what it is, and whether it has all that a build needs."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from etdeploy.core import process
from etdeploy.core.errors import BuildError
from etdeploy.core.hashing import digest_json, sha256_bytes, sha256_file, stamp
from etdeploy.core.locks import exclusive
from etdeploy.core.progress import Progress, silent
from etdeploy.core.values import Value
from etdeploy.core.workspace import Workspace
from etdeploy.program.pte import FILE_IDENTIFIER
from etdeploy.runtime.cmake_options import DEFAULTS_FILE
from etdeploy.runtime.wheel import EXECUTORCH_VERSION

SOURCE_VARIABLE = "ETDEPLOY_EXECUTORCH_SOURCE"
REPOSITORY_VARIABLE = "ETDEPLOY_EXECUTORCH_REPOSITORY"
REPOSITORY = "https://github.com/pytorch/executorch"
OLDEST, NEWEST = (1, 3), (1, 5)
_VERSION_FILE = "version.txt"
_XNNPACK = "backends/xnnpack/third-party"
# Which option needs which submodule; None stands for every build. Read in 1.3 to 1.5.
_SUBMODULES: tuple[tuple[str | None, tuple[str, ...]], ...] = (
    (
        None,
        (
            "third-party/flatbuffers",
            "third-party/flatcc",
            "third-party/gflags",
            "third-party/json",
            f"{_XNNPACK}/FXdiv",
        ),
    ),
    ("EXECUTORCH_BUILD_PTHREADPOOL", (f"{_XNNPACK}/pthreadpool",)),
    ("EXECUTORCH_BUILD_CPUINFO", (f"{_XNNPACK}/cpuinfo",)),
    ("EXECUTORCH_BUILD_XNNPACK", (f"{_XNNPACK}/XNNPACK", f"{_XNNPACK}/FP16")),
    (
        "EXECUTORCH_BUILD_KERNELS_OPTIMIZED",
        ("kernels/optimized/third-party/eigen", "third-party/pocketfft"),
    ),
    ("EXECUTORCH_BUILD_KERNELS_LLM", ("third-party/ao",)),
    ("EXECUTORCH_BUILD_KERNELS_TORCHAO", ("third-party/ao",)),
    ("EXECUTORCH_BUILD_EXTENSION_LLM", ("extension/llm/tokenizers",)),
    (
        "EXECUTORCH_BUILD_VULKAN",
        tuple(
            f"backends/vulkan/third-party/{name}"
            for name in ("Vulkan-Headers", "VulkanMemoryAllocator", "volk")
        ),
    ),
    ("EXECUTORCH_BUILD_MLX", ("backends/mlx/third-party/mlx",)),
    ("EXECUTORCH_BUILD_PYBIND", ("third-party/pybind11",)),
)
# Folders that a build writes into: flatcc's libraries and Python's compiled modules.
_NOT_SOURCES = frozenset({".git", "flatcc", "__pycache__"})
_APPLE_SUBMODULE = "third-party/ios-cmake"


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


def revision(folder: Path) -> str:
    """What the files of a checkout are: the same string means the same sources.

    With git, the commit and the state of every file that differs from it, submodules included.
    Without git, the sizes and dates of all files.
    """
    head = _git(folder, "rev-parse", "HEAD")
    status = _git(folder, "status", "--porcelain=v1", "-z") if head and _is_root(folder) else None
    if head is None or status is None:
        return "files-" + digest_json(_stamps(folder))[:32]
    # flatcc's own build leaves libraries and programs in its submodule.
    changed = [entry[3:] for entry in status.split("\0") if entry and "flatcc" not in entry]
    commit = head.strip()
    if not changed:
        return commit
    details = {name: _state(folder / name) for name in changed}
    return f"{commit}+{digest_json(details)[:16]}"


def needed_submodules(options: Mapping[str, str | None], *, apple: bool = False) -> tuple[str, ...]:
    """The submodules that a build with these options compiles, in a fixed order."""
    names = [
        name
        for option, submodules in _SUBMODULES
        if option is None or options.get(option) == "ON"
        for name in submodules
    ]
    return tuple(dict.fromkeys([*names, *([_APPLE_SUBMODULE] if apple else [])]))


def missing_submodules(folder: Path, needed: Iterable[str]) -> tuple[str, ...]:
    """Those whose folders are empty. A submodule that this release does not have is not missing."""
    known = _known_submodules(folder)
    return tuple(
        name
        for name in needed
        if (known is None or name in known) and not _has_files(folder / name)
    )


def require_complete(checkout: Checkout, needed: Iterable[str]) -> None:
    """Passes a checkout that has all needed submodules.

    Raises:
        BuildError: Some are missing; the remedy brings them.
    """
    missing = missing_submodules(checkout.folder, needed)
    if missing:
        raise BuildError(
            f"the checkout {checkout.path} lacks what the build compiles: {', '.join(missing)}",
            remedy=submodule_command(checkout.folder, missing),
        )


def submodule_command(folder: Path, names: Iterable[str]) -> str:
    """The command that brings submodules."""
    return f"git -C {folder} submodule update --init --recursive --depth 1 -- {' '.join(names)}"


def require_readable(checkout: Checkout, exported_with: str | None) -> tuple[str, ...]:
    """Passes a checkout whose runtime reads the program; gives what to know, as sentences.

    Args:
        checkout: The sources.
        exported_with: The version of ExecuTorch that made the program, where it is known.

    Raises:
        BuildError: Its schema is another one.
    """
    schema = checkout.folder / "schema/program.fbs"
    found = re.search(r'file_identifier\s+"(\w{4})"', _text(schema))
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


def clone(
    workspace: Workspace,
    version: str,
    environ: Mapping[str, str],
    progress: Progress = silent,
    log: Path | None = None,
) -> Checkout:
    """Clones a release into the cache, without submodules.

    Raises:
        BuildError: git is missing, or cannot fetch it.
    """
    folder = clone_folder(workspace, version)
    url = environ.get(REPOSITORY_VARIABLE) or REPOSITORY
    with exclusive(workspace.lock_path("sources", version), f"ExecuTorch {version}", progress):
        if not folder.is_dir():
            folder.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".cloning-", dir=folder.parent) as temporary:
                aside = Path(temporary) / "executorch"
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
    """Fetches submodules of a clone of ours; a user's own checkout is never changed.

    Raises:
        BuildError: git cannot fetch them.
    """
    lock = workspace.lock_path("sources", checkout.version)
    with exclusive(lock, f"ExecuTorch {checkout.version}", progress):
        for name in names:
            progress(f"fetching {name}")
            arguments = ("submodule", "update", "--init", "--recursive", "--depth", "1", "--", name)
            _fetch(("-C", checkout.path, *arguments), name, log)


def _fetch(arguments: tuple[str, ...], what: str, log: Path | None) -> None:
    git = process.which("git")
    if git is None:
        raise BuildError("git is missing, which fetches ExecuTorch", remedy="apt-get install git")
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
            remedy="Check the network, or name a checkout that is there:\n"
            f"export {SOURCE_VARIABLE}=/path/to/executorch",
            log=log,
        )


def _clone_remedy(version: str | None) -> str:
    branch = f"--branch v{version} " if version else ""
    return f"git clone --depth 1 {branch}{REPOSITORY}\nexport {SOURCE_VARIABLE}=$PWD/executorch"


def _git(folder: Path, *arguments: str) -> str | None:
    git = process.which("git")
    if git is None:
        return None
    outcome = process.run(process.Request((str(git), "-C", str(folder), *arguments), timeout_s=60))
    return outcome.stdout if outcome.ok else None


def _is_root(folder: Path) -> bool:
    """Whether git's files are the folder's own, not those of a repository around it."""
    return (folder / ".git").exists()


def _state(path: Path) -> str:
    if path.is_file():
        return sha256_file(path)
    if path.is_dir():  # a submodule at another commit, or with changes
        head = _git(path, "rev-parse", "HEAD") or ""
        difference = _git(path, "diff", "HEAD") or ""
        return sha256_bytes(f"{head}\n{difference}".encode())
    return "gone"


def _stamps(folder: Path) -> list[tuple[str, tuple[int, int, int, int]]]:
    found = []
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _NOT_SOURCES)
        for name in sorted(files):
            path = Path(root) / name
            if not path.is_symlink():
                found.append((str(path.relative_to(folder)), stamp(path)))
    return found


def _known_submodules(folder: Path) -> frozenset[str] | None:
    text = _text(folder / ".gitmodules")
    return frozenset(re.findall(r"^\s*path\s*=\s*(\S+)", text, re.MULTILINE)) if text else None


def _has_files(folder: Path) -> bool:
    return folder.is_dir() and any(path.name != ".git" for path in folder.iterdir())


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
