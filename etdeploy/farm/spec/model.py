"""The sections of farm.yaml, as frozen values with their defaults."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Any

from pydantic import Field

from etdeploy.core.values import Kind, Value
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
    """Devices by their properties.

    Attributes:
        conditions: All have to hold.
        take: How many of those that match are measured; None for each of them. With a number, a
            visit goes to whichever is free.
    """

    conditions: tuple[Condition, ...]
    take: int | None = None


class Baseline(Kind):
    """Which earlier runs a night is judged by; the words of `etdeploy check --against`."""

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
    """Certificates between hosts, as PEM files.

    Attributes:
        ca: Of the authority that both sides trust.
        cert: Of this host.
        key: The certificate's private key.
        crl: The authority's list of revoked certificates; None if nothing is checked.
    """

    ca: Path
    cert: Path
    key: Path
    crl: Path | None = None


class Hosts(Value):
    """Several hosts; None of it is needed for one.

    Attributes:
        listen: tls://ADDRESS:PORT or tcp://ADDRESS:PORT that workers connect to.
        tls: Certificates; needed for tls.
        here: Whether devices of the coordinator's own host take part.
    """

    listen: str
    tls: Tls | None = None
    here: bool = True


class Farm(Value):
    """A farm.yaml with defaults filled in and absolute paths.

    Attributes:
        name: Of the farm, for reports and the store.
        groups: Entries of `devices` by name.
        apps: Apps that are built already, for devices that run apps only, by the label of a recipe.
        pairs: (label of a recipe, name of a group) of the matrix, excluded ones left out.
        repeats: How often each pair is measured in a night.
        spread: Whether repeats are spread over the window.
        retries: Further attempts after a failure.
        stop_after: A recipe that fails on so many devices in a row, and on none succeeded, is
            stopped for the night.
        quarantine_after: A device on which so many attempts in a row fail is set aside.
        limit_s: Of one attempt.
        max_slowdown_percent: How much worse a number may be.
        results: The folder for records, one folder each night.
        on_end: A program and its arguments, started at the end of a night.
        store: The history; None for that of `ETDEPLOY_STORE`.
        pools: Names of the coordinator's own devices by pool; boards that groups name are in
            `named`.
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


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches the address."""
    try:
        return ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return address == "localhost"
