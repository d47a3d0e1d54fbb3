"""The sections of farm.yaml, as frozen values with their defaults."""

from __future__ import annotations

import hashlib
import ipaddress
from pathlib import Path
from typing import Any

from pydantic import Field

from etdeploy.core.hashing import sha256_file
from etdeploy.core.values import StrEnum, Value
from etdeploy.farm.model import Gates
from etdeploy.recipe.load import LoadedRecipe


class Condition(Value):
    """One property that a device has to have.

    Attributes:
        key: name, kind, model, manufacturer, soc, os, target, abi, pool, host, cpu_count,
            memory_bytes.
        operator: `=` with * and ? as wildcards, or one of >= > <= < for numbers and versions.
        value: As it was written.
    """

    key: str
    operator: str
    value: str


class DeviceGroup(Value):
    """Devices that meet all conditions; with `take`, so many of them, whichever are free."""

    conditions: tuple[Condition, ...]
    take: int | None = None


class Baseline(StrEnum):
    """Which earlier runs a night is judged by, as in `etdeploy check --against`."""

    ALL = "all"
    MAIN = "main"
    LAST_GOOD = "last-good"


class Window(Value):
    """When measurements may begin, in minutes after midnight of the time zone."""

    from_minute: int
    until_minute: int
    timezone: str | None = None


class Reports(Value):
    """Files that are written at the end of a night; None for those that are not."""

    html: Path | None = None
    markdown: Path | None = None
    junit: Path | None = None
    dashboard: Path | None = None


class Tls(Value):
    """Certificates between hosts, as PEM files: of the authority, of this host, revoked ones."""

    ca: Path
    cert: Path
    key: Path
    crl: Path | None = None


class Hosts(Value):
    """Several hosts: the address that workers connect to, and whether this host takes part."""

    listen: str
    tls: Tls | None = None
    here: bool = True


class Farm(Value):
    """A farm.yaml with defaults filled in and absolute paths; `FarmFile` documents the keys.

    Attributes:
        groups: Entries of `devices` by name.
        apps: Apps that are built already, by the label of a recipe.
        pairs: (label of a recipe, name of a group) of the matrix, excluded ones left out.
        store: The history; None for that of `ETDEPLOY_STORE`.
        pools: Names of this machine's devices by pool; boards that groups name are in `named`.
    """

    name: str
    groups: dict[str, DeviceGroup]
    apps: dict[str, Path] = Field(default_factory=dict)
    pairs: tuple[tuple[str, str], ...]
    repeats: int = 3
    spread: bool = True
    window: Window | None = None
    gates: Gates = Gates()
    retries: int = 2
    stop_after: int = 3
    quarantine_after: int = 3
    limit_s: float = 3600.0
    baseline: Baseline = Baseline.ALL
    max_slowdown_percent: float = 5.0
    results: Path
    reports: Reports = Reports()
    on_end: tuple[str, ...] = ()
    store: str | None = None
    hosts: Hosts | None = None
    pools: dict[str, tuple[str, ...]] = Field(default_factory=dict)


class LoadedFarm:
    """A farm.yaml that was read, with its recipes by label."""

    def __init__(
        self, path: Path, farm: Farm, recipes: dict[str, LoadedRecipe], places: dict[Any, Any]
    ) -> None:
        self.path, self.farm, self.recipes, self.places = path, farm, recipes, places

    def digest(self) -> str:
        """SHA-256 of the farm's values and of every file of its recipes and their apps.

        A night is only resumed while both are the same: else two of its repeats would measure
        different things. A comment in farm.yaml changes nothing.
        """
        found = hashlib.sha256(self.farm.model_dump_json().encode())
        for label, recipe in sorted(self.recipes.items()):
            found.update(f"\n{label}\n{recipe.recipe.model_dump_json()}".encode())
            for _, sha256 in recipe.files:
                found.update(f"\n{sha256}".encode())
            if label in self.farm.apps:
                found.update(f"\n{sha256_file(self.farm.apps[label])}".encode())
        return found.hexdigest()


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches the address."""
    try:
        return ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return address == "localhost"
