"""Reads the sections of a farm.yaml, and collects everything that is wrong with them."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from re import fullmatch
from urllib.parse import urlsplit

from etdeploy.core.errors import EtdeployError, Problem, StoreError, UsageError
from etdeploy.core.files.basic import not_regular
from etdeploy.core.layout import parse_size
from etdeploy.devices.registry import device_names, parse_spec
from etdeploy.farm.model import Gates
from etdeploy.farm.spec.conditions import (
    ConditionError,
    is_pattern,
    matches,
    parse_group,
    parse_time,
    zone_problem,
)
from etdeploy.farm.spec.model import DeviceGroup, Hosts, Reports, Tls, Window, is_loopback
from etdeploy.farm.spec.written import (
    NAME,
    Certificates,
    FarmFile,
    GateValues,
    Group,
    HostsSection,
    ReportFiles,
    WindowTimes,
    results_problem,
)
from etdeploy.recipe.document import Document, KeyPath, SourceLocation
from etdeploy.recipe.find import resolved
from etdeploy.recipe.problems import Found, in_order, place_of
from etdeploy.targets.platforms import TARGETS


class Findings:
    """Problems of a file with their places; reading goes on after each."""

    def __init__(self, document: Document, folder: Path) -> None:
        self.document, self.folder = document, folder
        self._found: list[Found] = []
        self._others: list[Problem] = []
        self._remedies: dict[str, None] = {}
        self._bad: list[KeyPath] = []

    def add(self, keys: KeyPath, message: str, hint: str | None = None) -> None:
        """Add a problem at a key, or at the nearest section around it."""
        self._found.append((self.place(keys), message, hint))

    def of_types(self, found: Iterable[Found], keys: Iterable[KeyPath]) -> None:
        """Add values of a wrong type, which are not read further, and their keys."""
        self._found += found
        self._bad += keys

    def is_bad(self, keys: KeyPath) -> bool:
        """Whether a value in a section, or around it, has a wrong type and was left out."""
        return any(bad[: len(keys)] == keys[: len(bad)] for bad in self._bad)

    def of_another_file(self, problems: Iterable[Problem], remedy: str | None) -> None:
        """Add the problems of a recipe."""
        self._others += [problem for problem in problems if problem not in self._others]
        if remedy:
            self._remedies[remedy] = None

    def place(self, keys: KeyPath) -> SourceLocation:
        return place_of(self.document, keys)

    def path(self, keys: KeyPath, text: str) -> Path | None:
        """The absolute path of a key; None for a text that cannot be one."""
        try:
            return resolved(self.folder, text)
        except OSError as error:
            self.add(keys, f"{dotted(keys)}: {text!r} cannot be a path ({error.strerror})")
            return None

    @property
    def problems(self) -> list[Problem]:
        """Those of the file in its order, then those of recipes."""
        return [*self.document.problems, *in_order(self._found), *self._others]

    @property
    def remedy(self) -> str | None:
        """The remedies of recipes' problems."""
        return "\n".join(self._remedies) or None


def dotted(keys: KeyPath) -> str:
    """A key as messages name it: `recipes.0.set`."""
    return ".".join(map(str, keys))


def read_window(written: WindowTimes | None, findings: Findings) -> Window | None:
    if written is None:
        return None
    minutes = {}
    for key, text in (("from", written.from_), ("until", written.until)):
        found = parse_time(text) if text is not None else None
        if findings.is_bad(("window", key)):
            continue
        if text is None:
            findings.add(("window",), f"window.{key} is missing", f'e.g. {key}: "22:00"')
        elif found is None:
            findings.add(("window", key), f"window.{key}: {text!r} is not a time", 'e.g. "22:00"')
        else:
            minutes[key] = found
    if written.timezone and (problem := zone_problem(written.timezone)):
        findings.add(("window", "timezone"), f"window.timezone: {problem[0]}", problem[1])
    if len(minutes) < 2:
        return None
    if minutes["from"] == minutes["until"]:
        hint = 'for any time leave window out; for whole days: from "00:00" until "24:00"'
        findings.add(("window", "until"), "the window has no length", hint)
    return Window(
        from_minute=minutes["from"], until_minute=minutes["until"], timezone=written.timezone
    )


def read_gates(written: GateValues, findings: Findings) -> Gates:
    free = None
    try:
        free = parse_size(str(written.free)) if written.free is not None else None
    except UsageError as error:
        findings.add(("gates", "free"), f"gates.free: {error.message}", "e.g. 2 GB")
    return Gates(
        battery_percent=written.battery_percent,
        temperature_celsius=written.temperature_celsius,
        free_bytes=free,
        wait_s=written.wait_s,
    )


# The pool of devices that groups name and no list finds.
NAMED = "named"


def read_groups(written: Mapping[str, Group], findings: Findings) -> dict[str, DeviceGroup]:
    """Read the groups; those with problems are left out."""
    found = {}
    for name, group in written.items():
        keys = ("devices", name)
        require_name(keys, findings)
        try:
            found[name] = parse_group(group)
        except ConditionError as error:
            if not error.key and findings.is_bad(keys):
                continue
            where = (*keys, error.key) if error.key else keys
            findings.add(where, f"{dotted(keys)}: {error}", error.hint)
        _require_known((*keys, "kind"), group.kind, device_names(), findings)
        _require_known((*keys, "target"), group.target, TARGETS, findings)
        if group.name and not is_pattern(group.name) and group.name not in device_names():
            _require_device((*keys, "name"), group.name, findings)
    return found


def read_pools(
    written: Mapping[str, Sequence[str]],
    groups: Mapping[str, Group],
    alone: bool,
    findings: Findings,
) -> dict[str, tuple[str, ...]]:
    """Read the pools of this machine's devices, also those that groups name and no list finds."""
    for name, devices in written.items():
        require_name(("pools", name), findings)
        for number, device in enumerate(devices):
            if device not in device_names():
                _require_device(("pools", name, number), device, findings)
    for name, group in groups.items():
        if alone and group.pool and not findings.is_bad(("pools",)):
            _require_known(("devices", name, "pool"), group.pool, written, findings)
    pools = {name: tuple(devices) for name, devices in written.items()}
    named = [g.name for g in groups.values() if alone and g.name and _is_unlisted(g.name)]
    return {**pools, NAMED: (*pools.get(NAMED, ()), *named)} if named else pools


def _is_unlisted(name: str) -> bool:
    """Whether a device is found by its name only: boards and devices on a network are."""
    if is_pattern(name):
        return False
    try:
        kind, spec = parse_spec(name)
    except EtdeployError:
        return False
    return kind.address == "required" or spec.address is not None


def require_name(keys: KeyPath, findings: Findings) -> None:
    """Reject a name that reports and the command line could not show."""
    if not fullmatch(NAME, str(keys[-1])):
        findings.add(
            keys,
            f"{keys[-1]!r} cannot be a name in {keys[0]}",
            "use letters, digits, dot, dash and underscore",
        )


def _require_known(
    keys: KeyPath, value: str | None, known: Collection[str], findings: Findings
) -> None:
    if value is None or any(matches(each, value) for each in known):
        return
    near = get_close_matches(value, known, n=1)
    there = ", ".join(known) or "none"
    findings.add(
        keys,
        f"{dotted(keys)}: there is no {keys[-1]} {value!r}",
        f"did you mean {near[0]!r}?" if near else f"there are: {there}",
    )


def _require_device(keys: KeyPath, name: str, findings: Findings) -> None:
    try:
        parse_spec(name)
    except EtdeployError as error:
        findings.add(keys, f"{dotted(keys)}: {error.message}", error.remedy)


_STORE = ("store",)
_ON_END = ("on_end",)


def read_results(written: FarmFile, findings: Findings) -> Path:
    folder = findings.path(("results",), written.results)
    if folder is None:
        return findings.folder
    if problem := results_problem(folder, findings.folder):
        findings.add(("results",), f"results: {folder} {problem}", "name a folder of its own")
    return folder


def read_reports(written: ReportFiles, results: Path, findings: Findings) -> Reports:
    """Read the absolute paths of the reports, all different, and of the dashboard's folder."""
    found: dict[str, Path] = {}
    for key, text in written.model_dump(exclude_none=True).items():
        keys = ("reports", key)
        path = findings.path(keys, text)
        if path is None:
            continue
        if same := next((other for other in found if found[other] == path), None):
            findings.add(keys, f"reports.{key} and reports.{same} are the same file")
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


def read_command(words: Sequence[str], findings: Findings) -> tuple[str, ...]:
    """Read a command; its program has to exist, and a path is made absolute."""
    if not words:
        return ()
    program, *arguments = words
    path = findings.path(_ON_END, program) if "/" in program else None
    if shutil.which(path or program) is None:
        is_line = " " in program
        hint = "the first word is the program" if is_line else "install it, or write its path"
        findings.add((*_ON_END, 0), f"on_end: the program {program!r} does not exist", hint)
    return str(path or program), *arguments


def read_store(written: str | None, findings: Findings) -> str | None:
    """Read the history as `--store` takes it; a path is made absolute."""
    from etdeploy.history.location import OFF, resolve_location

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
        resolve_location(written)
    except StoreError as error:
        findings.add(_STORE, f"store: {error.message}", "e.g. postgresql://USER@HOST/DATABASE")
    return written


_LISTEN = ("hosts", "listen")
_EXAMPLE = "e.g. tls://0.0.0.0:8786, or tcp://127.0.0.1:8786 for this machine alone"
_SECTION = "tls: {ca: ca.pem, cert: host.pem, key: host-key.pem, crl: crl.pem}"


def read_hosts(written: HostsSection | None, findings: Findings) -> Hosts | None:
    if written is None:
        return None
    tls = _certificates(written.tls, findings) if written.tls else None
    scheme, address = _address(written.listen, findings)
    if scheme == "tls" and written.tls is None:
        findings.add(_LISTEN, "hosts.listen: TLS needs certificates", f"add {_SECTION} to hosts")
    if scheme == "tcp" and written.tls is not None:
        findings.add(
            _LISTEN, "hosts.listen: tcp:// uses no certificates, and hosts.tls names some",
            f"write tls://{written.listen.partition('://')[2]}",
        )  # fmt: skip
    elif scheme == "tcp" and not is_loopback(address):
        findings.add(
            _LISTEN,
            f"hosts.listen: tcp:// lets whoever reaches {address} run code on this machine",
            f"write tls:// and add {_SECTION}; or listen on tcp://127.0.0.1 only",
        )
    return Hosts(listen=written.listen, tls=tls, here=written.here)


def _address(listen: str, findings: Findings) -> tuple[str, str]:
    """Split `listen` into scheme and address; empty where it cannot be read."""
    try:
        parts = urlsplit(listen)
        port, address = parts.port, parts.hostname
    except ValueError:
        port, address, parts = None, None, urlsplit("")
    rest = parts.path or parts.query or parts.fragment or parts.username
    if parts.scheme not in ("tls", "tcp") or not address or not port or rest:
        findings.add(_LISTEN, f"hosts.listen takes tls://ADDRESS:PORT, not {listen!r}", _EXAMPLE)
        return "", ""
    return parts.scheme, address


def _certificates(written: Certificates, findings: Findings) -> Tls | None:
    found: dict[str, Path] = {}
    texts = written.model_dump(exclude_none=True)
    for key, text in texts.items():
        keys = ("hosts", "tls", key)
        path = findings.path(keys, text)
        if path is None:
            continue
        if what := not_regular(path) if path.exists() else "missing":
            findings.add(keys, f"hosts.tls.{key}: the file {path} is {what}")
        found[key] = path
    return Tls(**found) if len(found) == len(texts) else None
