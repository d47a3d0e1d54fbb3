"""What etdeploy keeps in an app's documents on a phone, and what a push has to send; pure.

`Documents/bundle/` has the bundle's files without the app's archive. `Documents/bundle.json` tells
their digests, so that nothing is sent twice, and which archive was installed where: iOS gives each
installation a folder of its own, so an app that was installed anew since then is recognised.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass

from pydantic import ValidationError

from etdeploy.core.values import Value
from etdeploy.devices.base import Bundle, BundleFile

FOLDER = "Documents/bundle"
"""Where the files are, from the app's home folder."""

MARKER = "Documents/bundle.json"
RESULTS = "Documents/results.json"
OUTPUTS = "Documents/outputs"


class Kept(Value):
    """A file on the phone."""

    sha256: str
    size_bytes: int


class Marker(Value):
    """bundle.json.

    Attributes:
        archive_sha256: Of the archive that was installed last.
        installed_path: Where the phone put it.
        files: By path below the folder.
    """

    schema_version: int = 1
    archive_sha256: str | None = None
    installed_path: str | None = None
    files: dict[str, Kept] = {}


@dataclass(frozen=True)
class Work:
    """What a push has to do.

    Attributes:
        archive: To install; None where it is installed.
        send: Files that the phone lacks, or has with other content.
        keep: What it has.
        stale: Paths below the folder that belong to the bundle no more.
    """

    archive: BundleFile | None
    send: tuple[BundleFile, ...]
    keep: dict[str, Kept]
    stale: tuple[str, ...]


def parse_marker(text: str) -> Marker:
    """A marker; an empty one where the text is none of this version."""
    try:
        found = Marker.model_validate_json(text)
    except ValidationError:
        return Marker()
    return found if found.schema_version == 1 else Marker()


def archive_of(bundle: Bundle) -> BundleFile:
    """The file that is installed.

    Raises:
        ValueError: The bundle starts no app, or has no such file.
    """
    if bundle.app is None:
        raise ValueError("the bundle starts no app")
    for file in bundle.files:
        if file.path == bundle.app.archive:
            return file
    raise ValueError(f"the bundle has no {bundle.app.archive}")


def work_for(bundle: Bundle, marker: Marker, installed_path: str | None) -> Work:
    """What a push has to do.

    Args:
        bundle: What is to be on the phone.
        marker: What is there.
        installed_path: Where the app is installed now; None where it is not.
    """
    archive = archive_of(bundle)
    is_installed = (
        installed_path is not None
        and marker.installed_path == installed_path
        and marker.archive_sha256 == archive.sha256
    )
    wanted = {file.path: file for file in bundle.files if file is not archive}
    keep = {
        path: kept
        for path, kept in marker.files.items()
        if path in wanted and wanted[path].sha256 == kept.sha256
    }
    return Work(
        archive=None if is_installed else archive,
        send=tuple(file for path, file in wanted.items() if path not in keep),
        keep=keep,
        stale=tuple(path for path in marker.files if path not in wanted),
    )


def bundle_folder(container: str | None) -> str:
    """Where the bundle's files are, as an app takes it: absolute, else from its documents.

    Args:
        container: The app's home folder; None where the phone does not tell it.
    """
    return f"{container}/{FOLDER}" if container else posixpath.basename(FOLDER)
