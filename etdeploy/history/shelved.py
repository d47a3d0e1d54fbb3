"""What the history's database says of devices: who has one, and which are set aside."""

from __future__ import annotations

from datetime import datetime

from etdeploy.core.values import Value

# A device that is the host itself has the same identity on every host.
_OF_EVERY_HOST = "host"
# A board is known by the start of its kernel, so by another identity after each start.
_OF_ONE_START = "ssh-"


class Shelved(Value):
    """A device as the shelf knows it.

    Attributes:
        identity: As `etdeploy.devices.base.lock_name` has it.
        device: Its name, as `--device` took it.
        host: The host that the device itself is; empty for one that is plugged into a host.
    """

    identity: str
    device: str
    host: str = ""

    def is_of(self, identity: str, host: str, device: str = "") -> bool:
        """Whether this is the device with that identity, on that host, with that name."""
        if self.identity == identity:
            return self.host in ("", host)
        boards = is_of_one_start(self.identity) and is_of_one_start(identity)
        return boards and self.device == device

    def is_of_night(self, identity: str, device: str = "") -> bool:
        """The same for a device as a night has it, where hosts are told apart by their names."""
        return self.is_of(locked_as(identity, self.host), self.host, device)

    @property
    def night_identity(self) -> str:
        """What a night calls the device; of those that are a host themselves, the host."""
        return f"{self.identity}@{self.host}" if self.host else self.identity


class Reservation(Shelved):
    """That a device is somebody's for a while.

    Attributes:
        owner: USER@HOST, or USER for one on every host.
        until: When it ends, by the database's clock.
        note: What for.
    """

    owner: str
    until: datetime
    note: str = ""


class Quarantined(Shelved):
    """That no night uses a device.

    Attributes:
        reason: Why.
        since: From when on, by the database's clock.
        by: Who set it aside: USER@HOST, or a night.
    """

    reason: str
    since: datetime
    by: str


def is_of_one_start(identity: str) -> bool:
    """Whether a device with this identity has another one after it was restarted."""
    return identity.startswith(_OF_ONE_START)


def locked_as(identity: str, host: str) -> str:
    """The identity of a device here, from that in a night: there, hosts are told apart by name."""
    is_host_itself = bool(host) and identity.endswith(f"@{host}")
    return _OF_EVERY_HOST if is_host_itself else identity


def host_of(identity: str, host: str) -> str:
    """What `Shelved.host` is for a device with this identity on that host."""
    return host if identity == _OF_EVERY_HOST else ""
