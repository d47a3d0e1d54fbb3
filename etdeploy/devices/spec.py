"""Reads the value of `--device`: host, qemu, android[:SERIAL or :HOST:PORT], ios[:UDID]."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from etdeploy.core.errors import UsageError

KINDS = ("host", "qemu", "android", "ios")
_FORMS = "host, qemu, android, android:SERIAL, android:HOST:PORT, ios[:UDID]"


@dataclass(frozen=True)
class DeviceSpec:
    """A device as the user names it.

    Attributes:
        kind: host, qemu, android or ios.
        serial: What follows the colon, if anything: a serial number, or HOST:PORT.
    """

    kind: str
    serial: str | None = None

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port where the serial is such an address (IPv6 in brackets)."""
        match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]+):(\d{1,5})", self.serial or "")
        if not match or not 0 < int(match[2]) < 65536:
            return None
        return match[1].strip("[]"), int(match[2])


def parse_spec(text: str) -> DeviceSpec:
    """Reads a device specification.

    Raises:
        UsageError: There is no such kind of device, or it takes no serial number.
    """
    kind, colon, serial = text.strip().partition(":")
    if kind not in KINDS:
        raise UsageError(f"there is no device {text!r}", remedy=_suggestion(kind, colon + serial))
    if colon and not serial:
        raise UsageError(
            f"{text!r} has no serial number after the colon", remedy=f"--device {kind}"
        )
    if serial and kind in ("host", "qemu"):
        raise UsageError(
            f"{text!r}: the device {kind} takes no serial number", remedy=f"--device {kind}"
        )
    return DeviceSpec(kind, serial or None)


def _suggestion(kind: str, rest: str) -> str:
    close = difflib.get_close_matches(kind.lower(), KINDS, n=1, cutoff=0.6)
    if close:
        return f"Did you mean {close[0]}{rest}?"
    if re.fullmatch(r"[A-Za-z0-9._-]{6,}", kind):
        return f"A serial number is written android:{kind}{rest}. Devices: {_FORMS}"
    return f"Devices: {_FORMS}"
