"""Crash reports of iOS: two JSON objects, the first on a line of its own; all pure.

An app's own report (bug type 309) says how it ended. When memory ran out, there is a report of the
whole system (298, JetsamEvent) instead, in which the process that was ended has a reason.
https://developer.apple.com/documentation/xcode/interpreting-the-json-format-of-a-crash-report and
https://developer.apple.com/documentation/xcode/identifying-high-memory-use-with-jetsam-event-reports
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

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
    """How an app ended.

    Attributes:
        report: Name of the report on the phone.
        signal: SIGSEGV and the like.
        out_of_memory: Whether the system ended it because memory ran out.
        text: For people, in several lines.
        unix_s: When, by the phone's clock.
    """

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
