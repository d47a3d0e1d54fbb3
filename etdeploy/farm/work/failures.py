"""Errors as the values that travel between processes and hosts."""

from __future__ import annotations

from pathlib import Path

from etdeploy.core.errors import BuildError, DeviceError, EtdeployError, Interrupted
from etdeploy.core.files.disk import full_disk, no_room_in
from etdeploy.farm.model import AttemptFailure

BUG = "bug"
DISK_FULL = "disk full"
"""On the device's host: neither the device nor the recipe is at fault."""
GATE = "gate"
IN_USE = "in use"
"""Another run, or a person, has the device."""
HOST = "host"
"""The process that measured is gone, or a parcel on this host is damaged."""
TIME_LIMIT = "time limit"


def failure_of(error: BaseException, cache: Path) -> AttemptFailure:
    """An error as a value.

    Args:
        error: Of etdeploy, of a full disk, or any other, which is a bug.
        cache: The cache folder, for what to do about a full disk.
    """
    if isinstance(error, EtdeployError):
        message = f"{error.message}\nlog: {error.log}" if error.log else error.message
        return AttemptFailure(
            kind=error.kind,
            exit_code=error.exit_code,
            message=message or str(error),
            place=error.place,
            remedy=error.remedy,
        )
    full = no_room_in(error)
    if full:
        told = full_disk(full, cache)
        return AttemptFailure(
            kind=DISK_FULL,
            exit_code=told.exit_code,
            message=told.message,
            place=told.place,
            remedy="Make room on this host: the night tries again by itself.",
        )
    if isinstance(error, KeyboardInterrupt):
        return failure_of(Interrupted(), cache)
    return AttemptFailure(
        kind=BUG, exit_code=EtdeployError.exit_code, message=f"{type(error).__name__}: {error}"
    )


def host_failure(
    message: str, place: str | None = None, remedy: str | None = None
) -> AttemptFailure:
    """What went wrong on the device's host, with neither the device nor the recipe to blame."""
    return AttemptFailure(
        kind=HOST, exit_code=BuildError.exit_code, message=message, place=place, remedy=remedy
    )


def late(limit_s: float, name: str, doing: str) -> AttemptFailure:
    """An attempt that had to be ended from outside."""
    return AttemptFailure(
        kind=TIME_LIMIT,
        exit_code=DeviceError.exit_code,
        message=f"the attempt did not end within {limit_s:g} s{f': {doing}' if doing else ''}",
        place=name,
        remedy="Allow more time with limit_s in farm.yaml, or ask for fewer runs or iterations in "
        "the recipe.",
    )
