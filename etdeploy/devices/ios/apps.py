"""The apps of a phone: installing, sending files, cleaning up, and reading reports of crashes.

A crash report of iOS is two JSON objects, the first on a line of its own. An app's own report (bug
type 309) says how it ended. When memory ran out, there is a report of the whole system (298,
JetsamEvent) instead, in which the process that was ended has a reason.
https://developer.apple.com/documentation/xcode/interpreting-the-json-format-of-a-crash-report and
https://developer.apple.com/documentation/xcode/identifying-high-memory-use-with-jetsam-event-reports
"""

from __future__ import annotations

import json
import posixpath
import re
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError

from etdeploy.core import console
from etdeploy.core.files.basic import inside
from etdeploy.core.values import Progress, Value
from etdeploy.devices.base import Bundle, BundleFile, PushReport


@dataclass(frozen=True)
class LaunchResult:
    """How a start went."""

    text: str
    seconds: float
    timed_out: bool
    announced: bool


@dataclass(frozen=True)
class InstalledApp:
    """An app on the phone."""

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
    archive = find_archive(bundle).sha256
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
    """bundle.json."""

    schema_version: int = 1
    archive_sha256: str | None = None
    installed_path: str | None = None
    files: dict[str, PhoneFile] = {}


@dataclass(frozen=True)
class PushPlan:
    """What a push has to do."""

    archive: BundleFile | None
    send: tuple[BundleFile, ...]
    keep: dict[str, PhoneFile]
    stale: tuple[str, ...]


def parse_marker(text: str) -> Marker:
    """A marker; an empty one where the text is not of this version."""
    try:
        found = Marker.model_validate_json(text)
    except ValidationError:
        return Marker()
    return found if found.schema_version == 1 else Marker()


def find_archive(bundle: Bundle) -> BundleFile:
    """The file that is installed."""
    if bundle.app is None:
        raise ValueError("the bundle does not start an app")
    for file in bundle.files:
        if file.path == bundle.app.archive:
            return file
    raise ValueError(f"the bundle lacks {bundle.app.archive}")


def work_for(bundle: Bundle, marker: Marker, installed_path: str | None) -> PushPlan:
    """What a push has to do."""
    archive = find_archive(bundle)
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


_JETSAM = "JetsamEvent"
_FRAMES = 8
# Codes by which the system ends an app (https://developer.apple.com/documentation/xcode/sigkill).
_CODES = {
    0x8BADF00D: "it did not answer the system in time (a watchdog)",
    0xDEAD10CC: "it held a lock on a file while it was suspended",
    0xBAADCA11: "it did not answer a call notification",
    0xC00010FF: "the phone became too hot",
    0xDEADFA11: "somebody closed it on the phone",
    0xBADDD15C: "the system needed its storage",
}
_WRONG_MEMORY = {"EXC_BAD_ACCESS": "SIGSEGV", "EXC_BREAKPOINT": "SIGTRAP", "EXC_CRASH": "SIGABRT"}


@dataclass(frozen=True)
class Crash:
    """How an app ended."""

    report: str
    signal: str
    out_of_memory: bool
    text: str
    unix_s: float | None


def candidates(paths: Iterable[str], process: str, most: int = 3) -> list[str]:
    """The reports that may be about a process, newest first: names end in date and time."""
    named = re.compile(rf"({re.escape(process)}|{_JETSAM})-(\d{{4}}-\d\d-\d\d-\d{{6}})\S*\.ips")
    found = []
    for path in paths:
        match = named.fullmatch(posixpath.basename(path.strip()))
        if match:
            found.append((match[2], path.strip()))
    return [path for _, path in sorted(found, reverse=True)[:most]]


def parse_crash(text: str, report: str, process: str, app: str) -> Crash | None:
    """How a process ended; None where the report is about others, or cannot be read."""
    head, _, rest = text.partition("\n")
    try:
        header, body = json.loads(head), json.loads(rest)
    except ValueError:
        return None
    if not isinstance(header, dict) or not isinstance(body, dict):
        return None
    when = _unix_seconds(header.get("timestamp"))
    if str(header.get("bug_type")) == "298" or "largestProcess" in body:
        return _jetsam(body, report, {process, app}, when)
    return _ended(body, report, when)


def _jetsam(body: dict[str, Any], report: str, names: set[str], when: float | None) -> Crash | None:
    for process in _objects(body.get("processes")):
        reason = process.get("reason")
        if process.get("name") not in names or not reason:
            continue
        page = _object(body.get("memoryStatus")).get("pageSize", 16384)
        pages = process.get("lifetimeMax") or process.get("rpages") or 0
        size = f"; it had {pages * page / 1e9:.2f} GB" if pages else ""
        limit = " (the limit of one app)" if reason == "per-process-limit" else ""
        text = f"iOS ended the app because memory ran out: {reason}{limit}{size}\nreport: {report}"
        return Crash(report, "SIGKILL", True, text, when)
    return None


def _ended(body: dict[str, Any], report: str, when: float | None) -> Crash:
    exception, termination = _object(body.get("exception")), _object(body.get("termination"))
    kind = str(exception.get("type") or "EXC_CRASH")
    signal = str(exception.get("signal") or _WRONG_MEMORY.get(kind, "SIGABRT"))
    lines = [f"the app crashed: {' '.join(filter(None, (kind, signal, exception.get('subtype'))))}"]
    code = termination.get("code")
    known = _CODES.get(code) if isinstance(code, int) else None
    said = [termination.get("indicator"), *_texts(termination.get("details"))]
    said += _texts(termination.get("reasons"))
    if known:
        signal = "SIGKILL"
        lines = [f"iOS ended the app: {known}, code 0x{code:x}"]
    elif termination.get("namespace") not in (None, "SIGNAL"):
        lines.append(f"ended by {termination['namespace']}")
    lines += [str(line) for line in said if line]
    lines += [line for texts in _object(body.get("asi")).values() for line in _texts(texts)]
    lines += _frames(body)
    lines.append(f"report: {report}")
    return Crash(report, signal, False, "\n".join(lines), when)


def _frames(body: dict[str, Any]) -> list[str]:
    """The last calls of the thread that crashed."""
    images = _objects(body.get("usedImages"))
    threads = _objects(body.get("threads"))
    crashed = next((t for t in threads if t.get("triggered")), None)
    lines = []
    for frame in _objects(crashed.get("frames") if crashed else None)[:_FRAMES]:
        index = frame.get("imageIndex")
        inside = isinstance(index, int) and 0 <= index < len(images)
        image = images[int(str(index))].get("name") if inside else None
        where = frame.get("symbol") or f"+{frame.get('imageOffset', '?')}"
        lines.append(f"  at {image or '?'} {where}")
    return lines


def _unix_seconds(stamp: Any) -> float | None:
    """`2026-11-23 01:02:03.00 +0100`, or with four digits of a second's fraction."""
    found = re.fullmatch(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(\.\d+)? ([+-]\d{4})", str(stamp))
    if not found:
        return None
    fraction = float(found[2]) if found[2] else 0.0
    try:
        whole = datetime.strptime(f"{found[1]} {found[3]}", "%Y-%m-%d %H:%M:%S %z")
    except ValueError:
        return None
    return whole.timestamp() + fraction


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _objects(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _texts(value: Any) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
