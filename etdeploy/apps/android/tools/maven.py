"""Finds what Gradle or Maven fetched before. Files are read, nothing is started or fetched."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from etdeploy.backends.values import Workstation

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
