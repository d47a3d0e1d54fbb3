"""Where results and reports go, and who is told: what can be checked before a night."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from etdeploy.core.errors import StoreError
from etdeploy.farm.spec.findings import Findings, dotted
from etdeploy.farm.spec.model import Notify, Reports
from etdeploy.farm.spec.results import results_problem
from etdeploy.farm.spec.written import FarmFile, ReportFiles, Told
from etdeploy.recipe.place import KeyPath

_STORE = ("store",)


def read_results(written: FarmFile, findings: Findings) -> Path:
    """The folder for records, absolute."""
    folder = findings.path(("results",), written.results)
    if folder is None:
        return findings.folder
    if problem := results_problem(folder, findings.folder):
        findings.add(("results",), f"results: {folder} {problem}", "name a folder of its own")
    return folder


def read_reports(written: ReportFiles, results: Path, findings: Findings) -> Reports:
    """The files of reports and the folder of the dashboard, absolute; each is another one."""
    found: dict[str, Path] = {}
    for key, text in written.model_dump(exclude_none=True).items():
        keys = ("reports", key)
        path = findings.path(keys, text)
        if path is None:
            continue
        if same := next((other for other in found if found[other] == path), None):
            findings.add(keys, f"reports.{key}: this is the file of reports.{same}, too")
        wants_folder = key == "dashboard"
        if path.exists() and path.is_dir() != wants_folder:
            takes, is_now = ("folder", "file") if wants_folder else ("file", "folder")
            example = "name another" if wants_folder else f"{text.rstrip('/')}/night.{_SUFFIX[key]}"
            findings.add(keys, f"reports.{key} takes a {takes}, and {path} is a {is_now}", example)
        elif not path.parent.is_dir() and path.parent != results:  # a night makes that one
            findings.add(
                keys, f"reports.{key}: the folder {path.parent} does not exist",
                f"create it, or name a {'folder' if wants_folder else 'file'} in {results.name}/",
            )  # fmt: skip
        found[key] = path
    return Reports(**found)


_SUFFIX = {"html": "html", "markdown": "md", "junit": "xml"}


def read_notify(written: Sequence[Told], findings: Findings) -> tuple[Notify, ...]:
    """Who is told; a command that cannot be found would be noticed only in the morning."""
    return tuple(_told(("notify", i), told, findings) for i, told in enumerate(written))


def _told(keys: KeyPath, told: Told, findings: Findings) -> Notify:
    command = told.command
    if bool(command) == bool(told.webhook) and not findings.is_bad(keys):
        what = "has both a command and a webhook" if command else "names nobody"
        findings.add(keys, f"{dotted(keys)} {what}", "an entry has one: command or webhook")
    if command:
        command = (_program((*keys, "command"), command[0], findings), *command[1:])
    if told.webhook:
        _require_https((*keys, "webhook"), told.webhook, findings)
    return Notify(command=command, webhook=told.webhook, when=told.when)


def _program(keys: KeyPath, name: str, findings: Findings) -> str:
    """The program, absolute where it is named by a path."""
    path = findings.path(keys, name) if "/" in name else None
    found = shutil.which(path or name)
    if found is None:
        hint = "its first word is the program" if " " in name else "install it, or name its path"
        findings.add(keys, f"{dotted(keys)}: there is no program {name!r}", hint)
    return str(path or name)


def _require_https(keys: KeyPath, url: str, findings: Findings) -> None:
    """Notes a URL that would tell everybody on the way, or nobody; it may contain a secret."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        findings.add(keys, f"{dotted(keys)} is not a URL", "e.g. https://HOST/PATH")
        return
    if parts.scheme != "https":
        sent = "http:// is read by everybody on the way"
        what = sent if parts.scheme == "http" else "this is not an https URL"
        findings.add(keys, f"{dotted(keys)}: {what}", "write https://")
    elif not host:
        findings.add(keys, f"{dotted(keys)}: the URL names no host", "e.g. https://HOST/PATH")


def read_store(written: str | None, findings: Findings) -> str | None:
    """The history as `--store` takes it, a path made absolute."""
    from etdeploy.history.place import OFF, place_of

    if written is None:
        return None
    if written.lower() == OFF:
        findings.add(
            _STORE, "store: a farm keeps its nights in the history", "leave it out, or name one"
        )
        return None
    if "://" not in written:
        path = findings.path(_STORE, written)
        return str(path) if path else None
    try:
        place_of(written)
    except StoreError as error:
        findings.add(_STORE, f"store: {error.message}", "e.g. postgresql://USER@HOST/DATABASE")
    return written
