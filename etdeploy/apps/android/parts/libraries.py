"""Takes apart the libraries of an app: their classes, native libraries and rules."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from etdeploy.apps.android.tools.libraries import Library
from etdeploy.core.errors import BuildError
from etdeploy.core.files.basic import inside, write_atomic

_CHUNK_BYTES = 1 << 20
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError)


def unpack_libraries(libraries: Sequence[Library], abis: Sequence[str], folder: Path) -> None:
    """Writes `NAME.jar`, `NAME.pro` and `ABI/*.so` of each library into a folder.

    Raises:
        BuildError: A library is damaged, or has nothing for an ABI.
    """
    for library in libraries:
        try:
            if library.path.suffix == ".jar":
                # A jar is a library whole; what it keeps is in META-INF, where R8 finds it.
                (folder / f"{library.name}.jar").write_bytes(library.path.read_bytes())
            else:
                _unpack_aar(library, abis, folder)
        except (*_DAMAGED, OSError) as error:
            raise BuildError(
                f"{library.path} cannot be read as an Android library: {error}",
                remedy="Remove the file, and fetch it again.",
            ) from error


def _unpack_aar(library: Library, abis: Sequence[str], folder: Path) -> None:
    with zipfile.ZipFile(library.path) as archive:
        names = archive.namelist()
        if "classes.jar" not in names:
            raise ValueError("it has no classes.jar")
        if any(name.startswith("res/") and not name.endswith("/") for name in names):
            raise BuildError(
                f"{library.path} has resources, which only Gradle merges into an app",
                remedy="Build it with Gradle: --set app.build=gradle",
            )
        _extract(archive, "classes.jar", folder / f"{library.name}.jar")
        if "proguard.txt" in names:
            _extract(archive, "proguard.txt", folder / f"{library.name}.pro")
        for name in _native(names, abis, library):
            target = inside(folder, name.removeprefix("jni/"))
            target.parent.mkdir(parents=True, exist_ok=True)
            _extract(archive, name, target)


def _native(names: Sequence[str], abis: Sequence[str], library: Library) -> Iterator[str]:
    """The native libraries for the ABIs; a library may have none at all."""
    found = [n for n in names if n.startswith("jni/") and n.endswith(".so") and n.count("/") == 2]
    for abi in abis:
        each = [name for name in found if name.startswith(f"jni/{abi}/")]
        if found and not each:
            known = ", ".join(sorted({name.split("/")[1] for name in found}))
            raise BuildError(
                f"{library.path} has native libraries for {known} and none for {abi}",
                remedy=f"Build the app for these: --set app.abis=[{known}]",
            )
        yield from each


def _extract(archive: zipfile.ZipFile, name: str, target: Path) -> None:
    with archive.open(name) as source, target.open("wb") as file:
        while chunk := source.read(_CHUNK_BYTES):
            file.write(chunk)


def unpack_native_module(aar: Path, abi: str, folder: Path) -> None:
    """Writes an AAR's headers and its libraries for an ABI into a folder; known files stay.

    Raises:
        BuildError: The AAR is damaged, or has none of them.
    """
    try:
        with zipfile.ZipFile(aar) as archive:
            kept = [n for n in archive.namelist() if _of_module(n, abi) and not n.endswith("/")]
            if not kept:
                raise ValueError(f"it has no headers and no libraries for {abi}")
            for name in kept:
                target = inside(folder, name)
                content = archive.read(name)
                # An unchanged header keeps its date, so that nothing is compiled again.
                if not target.is_file() or target.read_bytes() != content:
                    write_atomic(target, content)
    except (*_DAMAGED, OSError) as error:
        raise BuildError(
            f"{aar} cannot be read as an Android library: {error}",
            remedy="Remove the file, and fetch it again.",
        ) from error


def _of_module(name: str, abi: str) -> bool:
    return name.startswith(f"jni/{abi}/") or (
        name.startswith("prefab/modules/") and "/include/" in name
    )
