"""The provider `wheel`: ExecuTorch's prebuilt C++ libraries, from the PyPI wheel of a platform.

For this machine, the installed wheel is used. For another platform, or if none is installed, pip
fetches the wheel, and its C++ parts are unpacked into the cache.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
import sys
import tempfile
import zipfile
from pathlib import Path

from etdeploy.cache.folder import CacheKind
from etdeploy.cache.workspace import CacheEntry, Workspace
from etdeploy.core.commands import pip_command, quoted
from etdeploy.core.errors import BuildError
from etdeploy.core.files.basic import inside
from etdeploy.core.hashing import sha256_bytes, sha256_file
from etdeploy.core.processes import process
from etdeploy.core.values import Progress, Value, silent
from etdeploy.plan.components import RUNTIME
from etdeploy.targets.platforms import Target

# Another release than the tested one, for `etdeploy upgrade-check`.
VERSION_VARIABLE = "ETDEPLOY_EXECUTORCH_VERSION"
# pyproject.toml pins the same for export.
EXECUTORCH_VERSION = os.environ.get(VERSION_VARIABLE) or "1.5.1"

_INFO = "wheel.json"
_PACKAGE = "executorch"
_WANTED = re.compile(r"executorch/(include|lib|share)/|executorch-[^/]+\.dist-info/")
_LIBRARY = re.compile(r"libexecutorch(?:_(?P<component>\w+))?\.(?:so|dylib)")


class WheelRuntime(Value):
    """ExecuTorch's libraries for one target.

    Attributes:
        root: The folder with include/, lib/ and share/: cmake's prefix.
        version: Of ExecuTorch.
        target: What the libraries were built for.
        sha256: Of the fetched wheel, or of the list of digests (RECORD) of the installed one.
        origin: `installed` or `fetched`.
        components: What it carries, sorted.
    """

    root: str
    version: str
    target: str
    sha256: str
    origin: str
    components: tuple[str, ...]


def executorch_version() -> str:
    """The ExecuTorch release whose libraries are used."""
    return EXECUTORCH_VERSION


def obtain_wheel(
    build_target: Target,
    host: Target,
    workspace: Workspace,
    progress: Progress = silent,
    log: Path | None = None,
) -> WheelRuntime:
    """Finds the libraries for a target on this machine, or fetches them.

    Raises:
        BuildError: There is no wheel for the target, or pip cannot fetch it.
        Interrupted: The run was stopped; the cache has no partial entry.
    """
    if build_target.wheel_platform is None:
        raise BuildError(
            f"no ExecuTorch wheel carries libraries for {build_target.name}",
            remedy="Choose another device: etdeploy devices",
        )
    if known := known_wheel(build_target, host, workspace):
        return known
    entry = _entry(build_target.wheel_platform, workspace)
    workspace.obtain(
        entry,
        lambda folder: _fetch(build_target, folder, progress, log),
        progress,
        lambda folder: WheelRuntime.load_or_none(folder / _INFO) is not None,
    )
    return _stored(entry, WheelRuntime.load(entry.path / _INFO))


def known_wheel(build_target: Target, host: Target, workspace: Workspace) -> WheelRuntime | None:
    """The libraries for a target, if this machine has them; nothing is fetched."""
    installed = find_installed(build_target) if build_target.name == host.name else None
    if installed or build_target.wheel_platform is None:
        return installed
    entry = _entry(build_target.wheel_platform, workspace)
    stored = WheelRuntime.load_or_none(entry.path / _INFO) if entry.is_sound() else None
    return _stored(entry, stored) if stored else None


def _stored(entry: CacheEntry, wheel: WheelRuntime) -> WheelRuntime:
    """The wheel with its folder in the cache."""
    return wheel.model_copy(update={"root": str(entry.path / wheel.root)})


def wheel_problem(wheel: WheelRuntime, workspace: Workspace) -> str | None:
    """Why `wheel` can no longer be used; None if it can."""
    if wheel.origin == "installed":
        record = _record(Path(wheel.root), wheel.version)
        if record is None or sha256_file(record) != wheel.sha256:
            return "the installed ExecuTorch has changed"
        return None
    folder = Path(wheel.root).parent
    if workspace.entry(CacheKind.WHEELS, folder.name).path != folder:
        return "the cache is in another folder now"
    return (
        None
        if workspace.entry(CacheKind.WHEELS, folder.name).is_sound()
        else "the cached ExecuTorch libraries are damaged or gone"
    )


def find_installed(build_target: Target) -> WheelRuntime | None:
    """This Python's ExecuTorch wheel, if it is the tested release and has libraries."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        found = distribution(_PACKAGE)
    except PackageNotFoundError:
        return None
    if found.version.split("+")[0] != EXECUTORCH_VERSION:
        return None
    root = Path(str(found.locate_file(_PACKAGE)))
    record = _record(root, found.version)
    components = read_components(root)
    if record is None or RUNTIME not in components:
        return None
    return WheelRuntime(
        root=str(root),
        version=found.version,
        target=build_target.name,
        sha256=sha256_file(record),
        origin="installed",
        components=components,
    )


def read_components(root: Path) -> tuple[str, ...]:
    """The components with libraries in `root/lib`, sorted; empty without a CMake package."""
    if not (root / "share/cmake/executorch-config.cmake").is_file():
        return ()
    matches = (_LIBRARY.fullmatch(path.name) for path in (root / "lib").iterdir())
    return tuple(sorted(m["component"] or RUNTIME for m in matches if m))


def unpack_wheel(wheel: Path, folder: Path) -> None:
    """Unpacks headers, libraries, the CMake package and the metadata."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            for info in archive.infolist():
                if _WANTED.match(info.filename) and not info.is_dir():
                    _unpack_file(archive, info, folder)
    except zipfile.BadZipFile as error:
        raise BuildError(
            f"{wheel.name} is damaged: {error}",
            remedy=f"Clear pip's cache and run again:\n{quoted(sys.executable)} -m pip cache purge",
        ) from error


def _unpack_file(archive: zipfile.ZipFile, info: zipfile.ZipInfo, folder: Path) -> None:
    mode = info.external_attr >> 16
    if mode and not stat.S_ISREG(mode) and stat.S_IFMT(mode):
        raise BuildError(f"the wheel has an entry that is not a plain file: {info.filename}")
    try:
        path = inside(folder, info.filename)
    except ValueError as error:
        raise BuildError(f"the wheel has an entry outside its folder: {error}") from error
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(archive.read(info))


def _entry(wheel_platform: str, workspace: Workspace) -> CacheEntry:
    return workspace.entry(CacheKind.WHEELS, f"{_PACKAGE}-{EXECUTORCH_VERSION}-{wheel_platform}")


def _record(root: Path, version: str) -> Path | None:
    path = root.parent / f"{_PACKAGE}-{version}.dist-info" / "RECORD"
    return path if path.is_file() else None


def _fetch(build_target: Target, folder: Path, progress: Progress, log: Path | None) -> None:
    progress(f"fetching ExecuTorch {EXECUTORCH_VERSION} for {build_target.name}")
    with tempfile.TemporaryDirectory(prefix="etdeploy-wheel-") as temporary:
        wheel = _download(build_target, Path(temporary), log)
        unpack_wheel(wheel, folder)
        digest = sha256_file(wheel)
    components = read_components(folder / _PACKAGE)
    if RUNTIME not in components:
        raise BuildError(f"{wheel.name} has no C++ libraries", log=log)
    WheelRuntime(
        root=_PACKAGE,
        version=EXECUTORCH_VERSION,
        target=build_target.name,
        sha256=digest,
        origin="fetched",
        components=components,
    ).save(folder / _INFO)


def _download(build_target: Target, folder: Path, log: Path | None) -> Path:
    arguments = (
        "-m", "pip", "download", "--no-deps", "--only-binary=:all:",
        "--platform", str(build_target.wheel_platform), "--python-version", "3.11",
        f"{_PACKAGE}=={EXECUTORCH_VERSION}",
    )  # fmt: skip
    outcome = process.run(
        process.Request(
            (sys.executable, *arguments, "--dest", str(folder)),
            env={"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"},
            log=log,
        )
    )
    found = sorted(folder.glob("*.whl"))
    if not outcome.ok or len(found) != 1:
        raise BuildError(
            f"pip cannot fetch ExecuTorch {EXECUTORCH_VERSION} for {build_target.name}: "
            + _pip_reason(outcome.stderr),
            remedy=pip_command("pip")
            if "No module named pip" in outcome.stderr
            else "Check the network and pip's settings (pip config list); this command must work:\n"
            + shlex.join((sys.executable, *arguments)),
            log=log,
        )
    return found[0]


def _pip_reason(stderr: str) -> str:
    """The most informative line of pip's output."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    informative = [line for line in lines if "No module named" in line or line.startswith("ERROR:")]
    connection = [line for line in lines if "Connection" in line or "resolution" in line]
    return (connection + informative + lines + ["it gave no reason"])[0].removeprefix("ERROR: ")


def fingerprint(wheel: WheelRuntime) -> str:
    """A digest of the libraries, wherever they are stored."""
    return sha256_bytes(f"{wheel.version} {wheel.target} {wheel.sha256}".encode())
