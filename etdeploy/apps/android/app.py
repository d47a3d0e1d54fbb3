"""An app to build for Android, and where its files are in a project."""

from __future__ import annotations

from pathlib import Path

from etdeploy.core import console
from etdeploy.core.errors import Blocker, BuildError
from etdeploy.core.values import Value
from etdeploy.targets.platforms import android_id_problem

# Where Gradle's rules for Android have a module's files, in a project.
SOURCES = "app/src/main"
MANIFEST = f"{SOURCES}/AndroidManifest.xml"
ASSETS = f"{SOURCES}/assets"
NATIVE = f"{SOURCES}/jniLibs"
RESOURCES = f"{SOURCES}/res"
CODE = (f"{SOURCES}/kotlin", f"{SOURCES}/java")
RULES = "app/proguard-rules.pro"
JARS = "app/libs"

# Android reads an asset's place in the APK, and its length, as signed numbers of 32 bits; the
# signer reads the whole archive so.
_MOST_BYTES = 2**31 - 1
BESIDE = "Keep the model out of the app; a run pushes it beside: --set app.bundled=false"


class AndroidApp(Value):
    """The app of a project, as far as its build needs to know; `abis` by Android's names.

    `extracted` apps have their native libraries written to files, for what opens them by path.
    """

    id: str
    name: str
    version_name: str = "1.0"
    version_code: int = 1
    min_sdk: int = 23
    compile_sdk: int = 36
    target_sdk: int = 36
    abis: tuple[str, ...] = ("arm64-v8a",)
    extracted: bool = False


def require_valid(app: AndroidApp) -> None:
    """Raises unless Android accepts the app's id."""
    problem = android_id_problem(app.id)
    if problem:
        raise BuildError(
            f"{app.id!r} is not an Android application id: {problem}",
            remedy="Choose another: --set app.id=org.example.model",
        )


def require_room(project: Path) -> None:
    """Raises unless Android can read each asset of a project."""
    folder = project / ASSETS
    sizes = {path: path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()}
    for path, size_bytes in sizes.items():
        blocker = too_large(path.relative_to(folder).as_posix(), size_bytes)
        if blocker:
            raise BuildError(blocker.why, place=str(path), remedy=blocker.remedy)
    blocker = too_large("all assets", sum(sizes.values()))
    if blocker:
        raise BuildError(blocker.why, place=str(folder), remedy=blocker.remedy)


def too_large(name: str, size_bytes: int) -> Blocker | None:
    """Return the blocker if a file of that size does not fit into an APK."""
    if size_bytes <= _MOST_BYTES:
        return None
    return Blocker(
        what=name,
        why=f"{name}: {console.size(size_bytes)} do not fit into an app, which holds 2 GiB at most",
        remedy=BESIDE,
    )
