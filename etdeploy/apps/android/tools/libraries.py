"""Finds the Android libraries of an app: ExecuTorch's, and what that needs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from etdeploy.apps.android.tools.maven import Artifact, fetch_command, find_artifact
from etdeploy.backends.values import Workstation
from etdeploy.core.blocker import Blocker
from etdeploy.core.files.basic import read_text

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
    """The libraries of an app, and what is absent.

    Args:
        station: This machine.
        coordinates: ExecuTorch's, `org.pytorch:executorch-android:1.5.1`; empty if it is built.
        aar: A file in place of the one with these coordinates.
    """
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
    """What ExecuTorch's library needs besides Android, in the versions that its poms name.

    Args:
        poms: Their text; empty for one that is not here.
    """
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
