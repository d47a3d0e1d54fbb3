"""A checkout of ExecuTorch: its location, release, revision and submodules."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Literal

from etdeploy.backends.registry import backends_built_with
from etdeploy.cache.folder import CacheKind
from etdeploy.cache.workspace import Workspace
from etdeploy.core.commands import quoted
from etdeploy.core.errors import BuildError
from etdeploy.core.files.basic import read_text
from etdeploy.core.hashing import digest_json, sha256_file, stat_signature
from etdeploy.core.processes.process import run_git
from etdeploy.core.values import Value
from etdeploy.plan.cmake_options import DEFAULTS_FILE, OptionTable, parse_options
from etdeploy.program.pte import FILE_IDENTIFIER
from etdeploy.provider.wheel import EXECUTORCH_VERSION, WheelRuntime
from etdeploy.provider.wheel import fingerprint as wheel_fingerprint

# Checking every file of a large checkout may take long on a slow disk.
_GIT_TIMEOUT_S = 60.0
# Requests explicitly what the user's git configuration may hide.
_STATUS = (
    "status", "--porcelain=v2", "-z", "--untracked-files=all", "--ignore-submodules=none",
    "--no-renames",
)  # fmt: skip
# The mode of a submodule in git's index.
_LINK = "160000"
# Where a build writes into the checkout: flatcc's library and tool, Python's compiled modules.
_BUILT = re.compile(r"(^|/)(__pycache__|flatcc/(lib|bin))(/|$)")
# A folder with such a file holds what was built or installed: thousands of files, compared by date
# because reading them all would take longer than the build.
_BUILD_MARKERS = ("CMakeCache.txt", "pyvenv.cfg")
# Larger files are not sources but weights or archives. They are compared by date, too.
_READ_BYTES = 16 << 20


def revision(folder: Path) -> str:
    """Return the state of a checkout."""
    return _of_repository(folder) or "files-" + digest_json(dict(_stamps(folder)))[:32]


def submodule_paths(folder: Path) -> frozenset[str] | None:
    """The submodules that the checkout's .gitmodules names; None without such a file."""
    text = read_text(folder / ".gitmodules")
    return frozenset(re.findall(r"^\s*path\s*=\s*(\S+)", text, re.MULTILINE)) if text else None


def _of_repository(folder: Path) -> str | None:
    # Otherwise git would answer for a repository that contains the folder.
    if not (folder / ".git").exists():
        return None
    head = run_git(folder, "rev-parse", "--verify", "HEAD", timeout_s=_GIT_TIMEOUT_S)
    status = run_git(folder, *_STATUS, timeout_s=_GIT_TIMEOUT_S) if head else None
    if head is None or status is None:
        return None
    changed = {**dict(_changes(status)), **dict.fromkeys(_without_git(folder))}
    # The folder's own name is needed where it is flatcc's.
    sources = [n for n in sorted(changed) if not _BUILT.search(f"{folder.name}/{n}")]
    built_folders = {
        str(PurePosixPath(n).parent) for n in sources if PurePosixPath(n).name in _BUILD_MARKERS
    }
    states = {n: _state(folder / n, _is_below(n, built_folders)) for n in sources}
    # A submodule that only a build has written into still counts as its commit.
    details = {name: state for name, state in states.items() if state != changed[name]}
    return head.strip() + (f"+{digest_json(details)[:16]}" if details else "")


def _changes(status: str) -> Iterator[tuple[str, str | None]]:
    """Each name in `git status --porcelain=v2 -z`, with what HEAD has there if it is tracked."""
    for entry in filter(None, status.split("\0")):
        if entry[0] == "1":
            *_, in_head, _, name = entry.split(" ", 8)
            yield name, in_head
        elif entry[0] == "u":
            yield entry.split(" ", 10)[10], None
        elif entry[0] == "?":
            yield entry[2:], None


def _without_git(folder: Path) -> Iterator[str]:
    """Submodules whose files were unpacked there: git does not examine their folders."""
    names = [
        name
        for name in sorted(submodule_paths(folder) or ())
        if (folder / name).is_dir()
        and not (folder / name / ".git").exists()
        and any((folder / name).iterdir())
    ]
    if names:
        # A fork may have committed them as ordinary files, which git does examine.
        tracked = run_git(folder, "ls-files", "-s", "-z", "--", *names, timeout_s=_GIT_TIMEOUT_S)
        links = (e.partition("\t")[2] for e in (tracked or "").split("\0") if e[:6] == _LINK)
        yield from links


def _is_below(name: str, folders: set[str]) -> bool:
    return any(str(parent) in folders for parent in PurePosixPath(name).parents)


def _state(path: Path, is_built: bool) -> str:
    """Return the present state of a path; `is_built` says that it was built or installed."""
    if path.is_symlink():
        return f"link to {path.readlink()}"
    if path.is_file():
        by_date = is_built or path.stat().st_size > _READ_BYTES
        try:
            return digest_json(stat_signature(path)) if by_date else sha256_file(path)
        except OSError:  # another user's, or deleted meanwhile: no compiler reads it either
            return "unreadable"
    # A submodule, or another repository.
    return revision(path) if path.is_dir() else "gone"


def _stamps(folder: Path) -> Iterator[tuple[str, tuple[int, int, int, int]]]:
    for root, folders, files in os.walk(folder):
        here = Path(root)
        relative = here.relative_to(folder.parent).as_posix()
        folders[:] = sorted(
            name for name in folders if name != ".git" and not _BUILT.search(f"{relative}/{name}")
        )
        for name in sorted(files):
            if not (here / name).is_symlink():
                yield str((here / name).relative_to(folder)), stat_signature(here / name)


SOURCE_VARIABLE = "ETDEPLOY_EXECUTORCH_SOURCE"
REPOSITORY_VARIABLE = "ETDEPLOY_EXECUTORCH_REPOSITORY"
REPOSITORY = "https://github.com/pytorch/executorch"
OLDEST, NEWEST = (1, 3), (1, 5)
_VERSION_FILE = "version.txt"
# The version of a package, and the release that its tag names.
_TAG = re.compile(r"(\d+\.\d+\.\d+)(\+.*)?")


Origin = Literal["recipe", "environment", "cache"]
_NAMED_BY: Mapping[Origin, str] = {
    "recipe": "runtime.source names",
    "environment": f"{SOURCE_VARIABLE} names",
    "cache": "the cache has",
}


class Checkout(Value):
    """A checkout of ExecuTorch.

    Attributes:
        path: Of its folder.
        version: From its version.txt.
        revision: Of its files: a commit, with a digest of what differs from it.
        origin: What named it.
    """

    path: str
    version: str
    revision: str
    origin: Origin

    @property
    def folder(self) -> Path:
        return Path(self.path)


def find_checkout(
    named: str | None, environ: Mapping[str, str], workspace: Workspace, version: str
) -> Checkout | None:
    """Return the checkout that a build uses, by recipe, environment or cache; None without one.

    `named` is `runtime.source` of the recipe, `version` the release of a clone in the cache. A
    folder that is not a checkout, or of an unsupported release, raises BuildError.
    """
    if named:
        return examine(Path(named), "recipe")
    from_environment = environ.get(SOURCE_VARIABLE)
    if from_environment:
        return examine(Path(from_environment).expanduser().resolve(), "environment")
    cached = clone_folder(workspace, version)
    return examine(cached, "cache") if cached.is_dir() else None


def examine(folder: Path, origin: Origin) -> Checkout:
    """Return the checkout in a folder; raise BuildError for another folder or release."""
    defect = _defect(folder)
    if defect:
        raise BuildError(
            f"{_NAMED_BY[origin]} {folder}, {defect}",
            remedy=checkout_remedy(origin, EXECUTORCH_VERSION, folder),
        )
    version = (folder / _VERSION_FILE).read_text(encoding="utf-8", errors="replace").strip()
    if not _is_supported(version):
        raise BuildError(
            f"{_NAMED_BY[origin]} {folder}, which is ExecuTorch {version}; etdeploy supports 1.3 "
            "to 1.5",
            remedy=checkout_remedy(origin, EXECUTORCH_VERSION, folder),
        )
    return Checkout(path=str(folder), version=version, revision=revision(folder), origin=origin)


def checkout_remedy(origin: Origin, version: str | None, folder: Path) -> str:
    """Return how to get a usable checkout, and how to name it so that it takes effect."""
    if origin == "cache" and version == EXECUTORCH_VERSION:
        return f"Delete it; the next run clones it again:\nrm -r {quoted(folder.parent)}"
    found = _TAG.fullmatch(version or "")
    clonable = found[1] if found and _is_supported(found[1]) else EXECUTORCH_VERSION
    # Not `executorch`, which may be the unusable folder itself.
    name = f"executorch-{clonable}"
    clone = f"git clone --depth 1 --branch v{clonable} {REPOSITORY} {name}"
    by_run = "" if clonable != EXECUTORCH_VERSION else "Or let a run clone that release: "
    if origin == "recipe":
        # The recipe overrides the environment, and the command line overrides the recipe.
        named = f"and add --set runtime.source={name}, or change runtime.source in the recipe"
        otherwise = by_run and f"{by_run}remove runtime.source from the recipe"
    else:
        named = f'export {SOURCE_VARIABLE}="$PWD/{name}"'
        otherwise = by_run and f"{by_run}unset {SOURCE_VARIABLE}"
    return "\n".join(filter(None, (clone, named, otherwise)))


def _defect(folder: Path) -> str | None:
    """Return why a folder is not a checkout, as the end of a sentence."""
    if not folder.is_dir():
        return "which is not a folder"
    files = (_VERSION_FILE, "CMakeLists.txt", DEFAULTS_FILE)
    missing = next((name for name in files if not (folder / name).is_file()), None)
    return f"which is not a checkout of ExecuTorch: it has no {missing}" if missing else None


def _is_supported(version: str) -> bool:
    numbers = release(version)
    return numbers is not None and OLDEST <= numbers <= NEWEST


def release(version: str) -> tuple[int, int] | None:
    """Major and minor of `1.4.1` or `1.5.0a0`."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else None


def read_options(folder: Path) -> OptionTable:
    """Read the options of a checkout; other projects and very old releases raise BuildError."""
    try:
        defaults = (folder / DEFAULTS_FILE).read_text(encoding="utf-8")
        main = (folder / "CMakeLists.txt").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BuildError(
            f"{folder} is not a checkout of ExecuTorch 1.0 or newer: its options cannot be read "
            f"({DEFAULTS_FILE})",
            remedy="Name a checkout of ExecuTorch 1.3 to 1.5: "
            "--set runtime.source=/path/to/executorch",
        ) from error
    return parse_options(defaults, f"the checkout {folder}", main)


def require_readable(checkout: Checkout, exported_with: str | None) -> tuple[str, ...]:
    """Return notes about running a program on another release; another schema raises BuildError.

    `exported_with` is the release of ExecuTorch that exported the program, if it is known.
    """
    schema = checkout.folder / "schema/program.fbs"
    found = re.search(r'file_identifier\s+"(\w{4})"', read_text(schema))
    identifier = FILE_IDENTIFIER.decode()
    if found and found[1] != identifier:
        raise BuildError(
            f"the program has the schema {identifier}, and the runtime in {checkout.path} reads "
            f"{found[1]}",
            remedy=checkout_remedy(checkout.origin, exported_with, checkout.folder),
        )
    if exported_with and release(exported_with) != release(checkout.version):
        return (
            f"The program was exported with ExecuTorch {exported_with}, and the runtime is "
            f"{checkout.version}: the schema is the same, and operators may differ.",
        )
    return ()


def clone_folder(workspace: Workspace, version: str) -> Path:
    """Where the cache keeps the clone of a release."""
    # ExecuTorch insists on the folder's name.
    return workspace.folder(CacheKind.SOURCES) / f"v{version}" / "executorch"


# Which option needs which submodules; None stands for every build. Taken from 1.3 to 1.5. Backends
# say themselves what they need.
_SUBMODULES: tuple[tuple[str | None, tuple[str, ...]], ...] = (
    (
        None,
        (
            "third-party/flatbuffers",
            "third-party/flatcc",
            "third-party/gflags",
            "third-party/json",
            "backends/xnnpack/third-party/FXdiv",
        ),
    ),
    ("EXECUTORCH_BUILD_PTHREADPOOL", ("backends/xnnpack/third-party/pthreadpool",)),
    ("EXECUTORCH_BUILD_CPUINFO", ("backends/xnnpack/third-party/cpuinfo",)),
    (
        "EXECUTORCH_BUILD_KERNELS_OPTIMIZED",
        ("kernels/optimized/third-party/eigen", "third-party/pocketfft"),
    ),
    ("EXECUTORCH_BUILD_KERNELS_LLM", ("third-party/ao",)),
    ("EXECUTORCH_BUILD_KERNELS_TORCHAO", ("third-party/ao",)),
    ("EXECUTORCH_BUILD_EXTENSION_LLM", ("extension/llm/tokenizers",)),
    ("EXECUTORCH_BUILD_PYBIND", ("third-party/pybind11",)),
)
_APPLE_SUBMODULE = "third-party/ios-cmake"


def needed_submodules(options: Mapping[str, str | None], *, apple: bool = False) -> tuple[str, ...]:
    """The submodules that a build with these options compiles, in a fixed order."""
    names = [
        name
        for option, submodules in _SUBMODULES
        if option is None or options.get(option) == "ON"
        for name in submodules
    ]
    for backend in backends_built_with(options):
        names += backend.submodules
    return tuple(dict.fromkeys([*names, *([_APPLE_SUBMODULE] if apple else [])]))


def missing_submodules(folder: Path, needed: Iterable[str]) -> tuple[str, ...]:
    """Those with empty folders. A submodule that this release does not have is not missing."""
    return tuple(name for name in in_release(folder, needed) if not _has_files(folder / name))


def in_release(folder: Path, names: Iterable[str]) -> tuple[str, ...]:
    """The submodules that this release has; all of them if it has no .gitmodules."""
    known = submodule_paths(folder)
    return tuple(name for name in names if known is None or name in known)


def require_complete(checkout: Checkout, needed: Iterable[str]) -> None:
    """Raises unless a checkout has all needed submodules.

    Raises:
        BuildError: Some are missing; the remedy fetches them.
    """
    missing = missing_submodules(checkout.folder, needed)
    if missing:
        raise BuildError(
            f"the checkout {checkout.path} does not have submodules that the build compiles: "
            + ", ".join(missing),
            remedy=submodule_remedy(checkout, missing),
        )


def submodule_remedy(checkout: Checkout, names: Iterable[str]) -> str:
    """How to get submodules: with git if the checkout was cloned, otherwise from a new clone."""
    if not (checkout.folder / ".git").exists():
        return (
            f"{checkout.path} was not cloned with git, so unpack each of them into its folder "
            "there, or clone:\n"
            + checkout_remedy(checkout.origin, checkout.version, checkout.folder)
        )
    return (
        f"git -C {quoted(checkout.path)} submodule update --init --recursive --depth 1 -- "
        f"{' '.join(map(quoted, names))}"
    )


def _has_files(folder: Path) -> bool:
    return folder.is_dir() and any(path.name != ".git" for path in folder.iterdir())


class Libraries(Value):
    """What the provider of a plan supplies; exactly one of `wheel` and `checkout` is set.

    Attributes:
        wheel: For the provider `wheel`.
        checkout: For the provider `source`.
        notes: What to know about it, as sentences.
    """

    wheel: WheelRuntime | None = None
    checkout: Checkout | None = None
    notes: tuple[str, ...] = ()

    @property
    def version(self) -> str:
        """The release of ExecuTorch."""
        source = self.wheel or self.checkout
        if source is None:
            raise ValueError("neither wheel nor checkout is given")
        return source.version

    @property
    def fingerprint(self) -> str:
        """A digest of their content, wherever they are stored."""
        if self.wheel:
            return wheel_fingerprint(self.wheel)
        return digest_json([self.version, self.checkout.revision if self.checkout else None])
