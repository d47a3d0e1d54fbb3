"""What etdeploy does with the apps of a device: installs, sends, cleans up."""

from __future__ import annotations

import posixpath
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pydantic import ValidationError

from etdeploy.core import console
from etdeploy.core.files.basic import inside
from etdeploy.core.values import Progress, Value
from etdeploy.devices.base import Bundle, BundleFile, PushReport
from etdeploy.devices.ios.crashes import Crash
from etdeploy.devices.ios.launch import LaunchResult


@dataclass(frozen=True)
class InstalledApp:
    """An app on the phone.

    Attributes:
        id: Its bundle id.
        path: Its folder there; another one after each installation.
        container: Its home folder there; None where that is not told.
        executable: Name of its process.
        is_development: Whether its files can be read and written.
    """

    id: str
    path: str
    container: str | None
    executable: str
    is_development: bool


class Apps(Protocol):
    """The apps of a phone, or of what stands for one.

    Every method raises DeviceError where the device refuses, or went away.
    """

    @property
    def name(self) -> str:
        """Of the device, as `--device` takes it."""
        ...

    def query(self, app: str) -> InstalledApp | None:
        """An app; None where it is not installed."""
        ...

    def development_apps(self) -> list[InstalledApp]:
        """The apps whose files can be read: those that developers installed."""
        ...

    def install(self, archive: BundleFile) -> None:
        """Installs an archive; the app's documents stay."""
        ...

    def put(self, app: str, source: Path, path: str) -> None:
        """Copies a file, or a folder's content, to a path below the app's home folder."""
        ...

    def remove(self, app: str, path: str) -> bool:
        """Removes a file or folder of an app; False where there is none."""
        ...

    def pull(self, app: str, path: str, to: Path) -> bool:
        """Copies a file; a folder goes into the folder `to`. False where there is none."""
        ...

    def launch(self, app: str, words: Sequence[str], run_id: str, timeout_s: float) -> LaunchResult:
        """Starts an app, ending an earlier start of it, and waits until its results are there."""
        ...

    def find_crash(self, app: str, since_unix_s: float) -> Crash | None:
        """The report of a crash since then, by this machine's clock."""
        ...


def read_marker(apps: Apps, app: str) -> Marker:
    """What etdeploy left in an app's documents; an empty marker where that is nothing."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "bundle.json"
        if not apps.pull(app, MARKER, copy):
            return Marker()
        return parse_marker(copy.read_text(errors="replace"))


def write_marker(apps: Apps, app: str, marker: Marker) -> None:
    """Says what is in an app's documents."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "bundle.json"
        marker.save(copy)
        apps.put(app, copy, MARKER)


def send_files(apps: Apps, app: str, files: tuple[BundleFile, ...]) -> None:
    """Sends files to the app's folder, all at once; folders are made."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / Path(FOLDER).name
        for file in files:
            link = inside(root, file.path)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(Path(file.source).absolute())
        apps.put(app, root, FOLDER)


def push_bundle(apps: Apps, bundle: Bundle, progress: Progress) -> PushReport:
    """Installs the app where another one is installed, and sends the files that differ."""
    started = time.monotonic()
    app = bundle.app.id if bundle.app else ""
    installed = apps.query(app)
    path = installed.path if installed else None
    marker = read_marker(apps, app) if installed else Marker()
    work = work_for(bundle, marker, path)
    if work.archive:
        progress(f"installing {app} ({console.size(work.archive.size_bytes)})")
        apps.install(work.archive)
        now = apps.query(app)
        path = now.path if now else None
    archive = archive_of(bundle).sha256
    overwritten = [file.path for file in work.send if file.path in marker.files]
    if overwritten or work.stale:
        # A push that is cut off must not leave a marker that tells of files as they were.
        before = Marker(archive_sha256=archive, installed_path=path, files=work.keep)
        write_marker(apps, app, before)
        for stale in work.stale:
            apps.remove(app, f"{FOLDER}/{stale}")
    if work.send:
        total = sum(file.size_bytes for file in work.send)
        progress(f"pushing {_named(work.send)} ({console.size(total)})")
        send_files(apps, app, work.send)
    sent = {f.path: PhoneFile(sha256=f.sha256, size_bytes=f.size_bytes) for f in work.send}
    after = Marker(archive_sha256=archive, installed_path=path, files={**work.keep, **sent})
    if after != marker:
        write_marker(apps, app, after)
    moved = [*work.send, *([work.archive] if work.archive else [])]
    return PushReport(
        pushed_files=len(moved),
        pushed_bytes=sum(file.size_bytes for file in moved),
        kept_files=len(bundle.files) - len(moved),
        seconds=time.monotonic() - started,
    )


def clean_apps(apps: Apps) -> dict[str, int]:
    """Removes what etdeploy put into apps; bytes by app.

    The apps stay, whoever installed them: their data are the user's.
    """
    freed: dict[str, int] = {}
    for app in apps.development_apps():
        marker = read_marker(apps, app.id)
        if marker == Marker():
            continue
        freed[app.id] = sum(kept.size_bytes for kept in marker.files.values())
        for path in (FOLDER, MARKER):
            apps.remove(app.id, path)
    return freed


def _named(files: tuple[BundleFile, ...]) -> str:
    return files[0].path if len(files) == 1 else f"{len(files)} files"


FOLDER = "Documents/bundle"
"""Where the files are, from the app's home folder."""

MARKER = "Documents/bundle.json"
RESULTS = "Documents/results.json"
OUTPUTS = "Documents/outputs"


class PhoneFile(Value):
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
    files: dict[str, PhoneFile] = {}


@dataclass(frozen=True)
class PushPlan:
    """What a push has to do.

    Attributes:
        archive: To install; None where it is installed.
        send: Files that the phone lacks, or has with other content.
        keep: What it has.
        stale: Paths below the folder that belong to the bundle no more.
    """

    archive: BundleFile | None
    send: tuple[BundleFile, ...]
    keep: dict[str, PhoneFile]
    stale: tuple[str, ...]


def parse_marker(text: str) -> Marker:
    """A marker; an empty one where the text is none of this version."""
    try:
        found = Marker.model_validate_json(text)
    except ValidationError:
        return Marker()
    return found if found.schema_version == 1 else Marker()


def archive_of(bundle: Bundle) -> BundleFile:
    """The file that is installed."""
    if bundle.app is None:
        raise ValueError("the bundle starts no app")
    for file in bundle.files:
        if file.path == bundle.app.archive:
            return file
    raise ValueError(f"the bundle has no {bundle.app.archive}")


def work_for(bundle: Bundle, marker: Marker, installed_path: str | None) -> PushPlan:
    """What a push has to do."""
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
    return PushPlan(
        archive=None if is_installed else archive,
        send=tuple(file for path, file in wanted.items() if path not in keep),
        keep=keep,
        stale=tuple(path for path in marker.files if path not in wanted),
    )


def bundle_folder(container: str | None) -> str:
    """Where the bundle's files are, as an app takes it: absolute, else from its documents."""
    return f"{container}/{FOLDER}" if container else posixpath.basename(FOLDER)
