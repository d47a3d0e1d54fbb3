"""Apps on a phone and the files in their documents."""

from __future__ import annotations

import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etdeploy.core import console
from etdeploy.core.errors import DeviceError
from etdeploy.core.files.basic import inside
from etdeploy.core.progress import Progress
from etdeploy.devices.base import Bundle, BundleFile, PushReport
from etdeploy.devices.ios.command import Command
from etdeploy.devices.ios.documents import (
    FOLDER,
    MARKER,
    Kept,
    Marker,
    archive_of,
    parse_marker,
    work_for,
)
from etdeploy.devices.ios.errors import explained
from etdeploy.devices.ios.facts import UnreadableError, parse_object

_MISSING = "OBJECT_NOT_FOUND"


@dataclass(frozen=True)
class Installed:
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


class Apps:
    """The apps of one phone.

    Args:
        command: The way to it.
    """

    def __init__(self, command: Command) -> None:
        self._command = command

    def query(self, app: str) -> Installed | None:
        """An app; None where it is not installed.

        Raises:
            DeviceError: The phone went away.
        """
        found = self._listed(["apps", "query", app], "looking for the app")
        return next((one for one in found if one.id == app), None)

    def development_apps(self) -> list[Installed]:
        """The apps whose files can be read: those that developers installed."""
        found = self._listed(["apps", "list", "--type", "User"], "listing its apps")
        return [app for app in found if app.is_development]

    def install(self, archive: BundleFile) -> None:
        """Installs an archive; the app's documents stay.

        Raises:
            DeviceError: The phone refuses it, or went away.
        """
        self._done(["apps", "install", "--developer", archive.source], "installing the app", None)

    def uninstall(self, app: str) -> None:
        """Removes an app and its documents."""
        self._done(["apps", "uninstall", app], "removing the app")

    def marker(self, app: str) -> Marker:
        """What etdeploy left in an app's documents; an empty marker where that is nothing."""
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "bundle.json"
            if not self.pull(app, MARKER, copy):
                return Marker()
            return parse_marker(copy.read_text(errors="replace"))

    def write_marker(self, app: str, marker: Marker) -> None:
        """Says what is in an app's documents."""
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "bundle.json"
            marker.save(copy)
            self._done(["apps", "push", app, str(copy), MARKER], "writing to the app's documents")

    def send(self, app: str, files: tuple[BundleFile, ...]) -> None:
        """Sends files to the app's folder, all with one command, which makes the folders too.

        Raises:
            DeviceError: There is no room, or the phone went away.
        """
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder) / Path(FOLDER).name
            for file in files:
                link = inside(root, file.path)
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(Path(file.source).absolute())
            words = ["apps", "push", app, str(root), str(Path(FOLDER).parent)]
            self._done(words, "sending the files", None)

    def remove(self, app: str, path: str) -> bool:
        """Removes a file or folder of an app; False where there is none."""
        answer = self._command.ask(["apps", "rm", app, path])
        if answer.ok:
            return True
        if _MISSING in answer.said:
            return False
        raise explained(answer, self._command, f"removing {path}")

    def pull(self, app: str, path: str, to: Path) -> bool:
        """Copies a file of an app; a folder goes into the folder `to`. False where there is none.

        Raises:
            DeviceError: The phone went away, or does not open the app's files.
        """
        answer = self._command.ask(["apps", "pull", app, path, str(to)], None)
        if answer.ok:
            return True
        if _MISSING in answer.said:
            return False
        raise explained(answer, self._command, f"reading {path}")

    def _done(self, words: list[str], doing: str, limit_s: float | None = 90.0) -> None:
        answer = self._command.ask(words, limit_s)
        if not answer.ok:
            raise explained(answer, self._command, doing)

    def _listed(self, words: list[str], doing: str) -> list[Installed]:
        answer = self._command.ask(words)
        if not answer.ok:
            raise explained(answer, self._command, doing)
        try:
            return parse_apps(parse_object(answer.stdout))
        except UnreadableError as error:
            raise DeviceError(
                f"pymobiledevice3 answers with something unknown while {doing}: {error}",
                place=self._command.name,
            ) from error


def parse_apps(answer: dict[str, Any]) -> list[Installed]:
    """The apps of an answer to `apps query` or `apps list`."""
    found = []
    for app, information in answer.items():
        if isinstance(information, dict) and isinstance(information.get("Path"), str):
            entitlements = information.get("Entitlements")
            allowed = isinstance(entitlements, dict) and entitlements.get("get-task-allow") is True
            container = information.get("Container")
            found.append(
                Installed(
                    id=app,
                    path=information["Path"],
                    container=container if isinstance(container, str) else None,
                    executable=str(information.get("CFBundleExecutable") or ""),
                    is_development=allowed,
                )
            )
    return found


def push_bundle(apps: Apps, bundle: Bundle, progress: Progress) -> PushReport:
    """Installs the app where another one is installed, and sends the files that differ.

    Raises:
        DeviceError: The phone refuses the app, has no room, or went away.
    """
    started = time.monotonic()
    app = bundle.app.id if bundle.app else ""
    installed = apps.query(app)
    path = installed.path if installed else None
    marker = apps.marker(app) if installed else Marker()
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
        apps.write_marker(app, before)
        for stale in work.stale:
            apps.remove(app, f"{FOLDER}/{stale}")
    if work.send:
        total = sum(file.size_bytes for file in work.send)
        progress(f"pushing {_named(work.send)} ({console.size(total)})")
        apps.send(app, work.send)
    sent = {f.path: Kept(sha256=f.sha256, size_bytes=f.size_bytes) for f in work.send}
    after = Marker(archive_sha256=archive, installed_path=path, files={**work.keep, **sent})
    if after != marker:
        apps.write_marker(app, after)
    moved = [*work.send, *([work.archive] if work.archive else [])]
    return PushReport(
        pushed_files=len(moved),
        pushed_bytes=sum(file.size_bytes for file in moved),
        kept_files=len(bundle.files) - len(moved),
        seconds=time.monotonic() - started,
    )


def clean_apps(apps: Apps) -> dict[str, int]:
    """Removes what etdeploy left in apps, and the apps that it installed; bytes by app.

    An app that somebody installed anew since then, from Xcode for instance, stays.
    """
    freed: dict[str, int] = {}
    for app in apps.development_apps():
        marker = apps.marker(app.id)
        if marker == Marker():
            continue
        freed[app.id] = sum(kept.size_bytes for kept in marker.files.values())
        if marker.installed_path == app.path:
            apps.uninstall(app.id)
        else:
            for path in (FOLDER, MARKER):
                apps.remove(app.id, path)
    return freed


def copy_tree(source: Path, to: Path) -> None:
    """Copies a folder; what is there stays."""
    shutil.copytree(source, to, dirs_exist_ok=True)


def _named(files: tuple[BundleFile, ...]) -> str:
    return files[0].path if len(files) == 1 else f"{len(files)} files"
