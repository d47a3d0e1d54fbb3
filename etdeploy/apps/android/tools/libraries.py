"""Finds the Android libraries of an app: ExecuTorch's, and what that needs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from etdeploy.backends.values import Workstation
from etdeploy.core.errors import Blocker
from etdeploy.core.files.basic import read_text

_GRADLE_HOME = "GRADLE_USER_HOME"
_NUMBERS = re.compile(r"\d+")


@dataclass(frozen=True)
class Artifact:
    """A file of Maven: `org.pytorch:executorch-android:1.5.1`, as an aar, jar or pom."""

    group: str
    name: str
    version: str
    kind: str = "jar"

    @property
    def coordinates(self) -> str:
        return f"{self.group}:{self.name}:{self.version}"

    @property
    def file(self) -> str:
        return f"{self.name}-{self.version}.{self.kind}"


def fetch_command(artifact: Artifact) -> str:
    """The command that fetches it into Maven's folder, without what it depends on."""
    wanted = f"{artifact.coordinates}:{artifact.kind}"
    return f"mvn dependency:get -Dtransitive=false -Dartifact={wanted}"


def find_artifact(station: Workstation, artifact: Artifact) -> Path | None:
    """The file in Gradle's cache or Maven's folder; None where neither has it."""
    return next((p for f in _folders(station, artifact) for p in f if p.is_file()), None)


def versions_of(station: Workstation, group: str, name: str) -> tuple[str, ...]:
    """The versions of an artifact that are there, the newest first."""
    folders = (_gradle(station) / group / name, _maven(station, group) / name)
    found = {path.name for folder in folders for path in folder.glob("*") if path.is_dir()}
    return tuple(sorted(found, key=version_key, reverse=True))


def version_key(version: str) -> tuple[tuple[int, ...], bool]:
    """Orders versions; a release comes after its previews."""
    release, _, preview = version.partition("-")
    return tuple(int(n) for n in _NUMBERS.findall(release)), not preview


def _folders(station: Workstation, artifact: Artifact) -> Iterator[Iterator[Path]]:
    gradle = _gradle(station) / artifact.group / artifact.name / artifact.version
    # A folder for each digest.
    yield iter(sorted(gradle.glob(f"*/{artifact.file}")))
    maven = _maven(station, artifact.group) / artifact.name / artifact.version
    yield iter([maven / artifact.file])


def _gradle(station: Workstation) -> Path:
    named = station.environ.get(_GRADLE_HOME)
    home = Path(named).expanduser() if named else station.home / ".gradle"
    return home / "caches/modules-2/files-2.1"


def _maven(station: Workstation, group: str) -> Path:
    return station.home.joinpath(".m2/repository", *group.split("."))


# What ExecuTorch's library needs to run, as its releases 1.0 to 1.5 name it. It also names
# androidx.core, of which it uses nothing.
FBJNI = Artifact("com.facebook.fbjni", "fbjni", "0.7.0", "aar")
NATIVE_LOADER = Artifact("com.facebook.soloader", "nativeloader", "0.10.5", "jar")
_NEEDED = (FBJNI, NATIVE_LOADER)


@dataclass(frozen=True)
class Library:
    """A library of an app: its name, and its aar or jar."""

    name: str
    path: Path


def find_libraries(
    station: Workstation, coordinates: Sequence[str], aar: Path | None = None
) -> tuple[tuple[Library, ...], tuple[Blocker, ...]]:
    """The libraries of an app, and what is absent."""
    found: list[Library] = []
    absent: list[Blocker] = []
    poms: list[str] = []
    for each in coordinates:
        group, name, version = each.split(":")
        artifact = Artifact(group, name, version, "aar")
        result = _named(aar) if aar else _fetched(station, artifact)
        if isinstance(result, Blocker):
            absent.append(result)
        else:
            found.append(Library(artifact.name, result))
            poms.append(_pom(station, artifact))
    for artifact in needed(poms):
        result = _fetched(station, artifact)
        if isinstance(result, Blocker):
            absent.append(result)
        else:
            found.append(Library(artifact.name, result))
    return tuple(found), tuple(absent)


def needed(poms: Sequence[str]) -> Iterator[Artifact]:
    """What ExecuTorch's library needs besides Android, in the versions that its poms name."""
    for artifact in _NEEDED:
        entry = rf"<artifactId>\s*{artifact.name}\s*</artifactId>\s*<version>\s*([\w.-]+)\s*<"
        versions = [found[1] for pom in poms if (found := re.search(entry, pom))]
        version = versions[0] if versions else artifact.version
        yield Artifact(artifact.group, artifact.name, version, artifact.kind)


def _pom(station: Workstation, artifact: Artifact) -> str:
    pom = Artifact(artifact.group, artifact.name, artifact.version, "pom")
    path = find_artifact(station, pom)
    return read_text(path) if path else ""


def _named(aar: Path) -> Path | Blocker:
    if aar.is_file():
        return aar
    why = f"app.aar names {aar}, which does not exist"
    return Blocker("AAR of ExecuTorch", why, "Name an .aar that is there, or remove app.aar.")


def _fetched(station: Workstation, artifact: Artifact) -> Path | Blocker:
    path = find_artifact(station, artifact)
    if path:
        return path
    why = (
        f"{artifact.coordinates} ({artifact.kind}) is not here: neither Gradle's cache nor "
        "Maven's folder ~/.m2 has it"
    )
    remedy = fetch_command(artifact)
    if artifact.group == "org.pytorch":
        remedy += "\nor name a file of it: --set app.aar=/path/to/executorch-android.aar"
    return Blocker(artifact.file, why, remedy)
