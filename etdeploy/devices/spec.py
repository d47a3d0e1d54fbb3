"""Reads the value of `--device`: a kind, and after a colon what names one device of that kind."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class DeviceSpec:
    """A device as the user names it.

    Attributes:
        kind: host, qemu, android, ssh, ios, or one of another package.
        serial: What follows the colon, if anything: a serial number, HOST:PORT, a host.
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


def split_spec(text: str) -> DeviceSpec:
    """Splits it at its first colon; whether there is such a kind is the registry's to say."""
    kind, _, serial = text.strip().partition(":")
    return DeviceSpec(kind, serial or None)
