"""The values of the farm: what is offered, what is to be measured, and how that ended.

A *night* is one run of a farm.yaml. It has *visits*: each measures one recipe once on one device.
A visit may take several *attempts*; at most one of them counts.
"""

from __future__ import annotations

import time

from etdeploy.core.values import StrEnum, Value
from etdeploy.devices.base import Bundle, Capabilities, DeviceFacts


def is_network_name(name: str) -> bool:
    """Whether a device is named by an address: KIND:HOST:PORT."""
    return name.count(":") > 1


class AvailableDevice(Value):
    """A device that a host offers now.

    Attributes:
        identity: The same on every host and by every name. KIND@HOST for one that computes with
            the processors of its host.
        name: As the host's `--device` takes it.
        host: The host that it is plugged into.
        facts: What it reported.
        capabilities: What can be done with it.
        pools: The names that its owner gave it.
        problem: Why it cannot be used now; empty where it can.
        remedy: What to do about that.
        locked: What runs lock now, if that is not its identity: a board has another one after each
            start, and keeps the first one in a night.
        also: Other names on its host that report the same identity: one phone by cable and network,
            or another phone with the same serial number.
    """

    identity: str
    name: str
    host: str
    facts: DeviceFacts
    capabilities: Capabilities = Capabilities()
    pools: tuple[str, ...] = ()
    problem: str = ""
    remedy: str = ""
    locked: str = ""
    also: tuple[str, ...] = ()

    @property
    def lock(self) -> str:
        """What runs on its host lock, and what is reserved (`etdeploy.devices.base.lock_name`)."""
        return "host" if self.capabilities.shares_cores else self.locked or self.identity


class Visit(Value):
    """One measurement of a night.

    Attributes:
        id: Unique in the store, and the same after a restart: NIGHT-NUMBER.
        recipe: The label of the recipe.
        group: The entry of `devices` in farm.yaml that asked for it.
        device: Identity of the device that it has to run on; None for any of `among`.
        among: Identities that it may run on.
        name: What `device` is called, for one that is never measured. Where it is None, the device
            that is expected and was never there; empty for any.
        repeat: Counts from 1.
        not_before_s: Seconds after the beginning of the night, so that repeats are spread.
    """

    id: str
    recipe: str
    group: str
    device: str | None
    among: tuple[str, ...]
    name: str = ""
    repeat: int = 1
    not_before_s: float = 0.0


class BuildArtifact(Value):
    """What is measured, ready for a device: made once, and shared by all devices of its class.

    Attributes:
        key: A digest of everything below.
        recipe: The label of the recipe.
        target: What its runner is built for.
        soc: The system on a chip that the program was compiled for; None where any will do.
        folder: Where the coordinator has it: recipe, program folder, runner, plan (JSON), as
            `etdeploy.farm.work.artifact` writes and reads them.
        bundle: What goes to the device.
        files: SHA-256 of each file of the folder and of the bundle, by relative path: what another
            host has to fetch.
    """

    key: str
    recipe: str
    target: str
    soc: str | None
    folder: str
    bundle: Bundle
    files: dict[str, str]


class Gates(Value):
    """What a device has to be before it is measured; None for anything.

    Attributes:
        battery_percent: At least so full.
        temperature_celsius: At most so warm, by the battery, or the warmest sensor without one.
        free_bytes: At least so much room.
        wait_s: How long a gate may take to open before the visit is put off.
    """

    battery_percent: int | None = None
    temperature_celsius: float | None = None
    free_bytes: int | None = None
    wait_s: float = 600.0


class Order(Value):
    """A request for one attempt.

    Attributes:
        visit: Its id.
        attempt: Counts from 1.
        offer: The device, on the host that is to do it.
        artifact: What is measured.
        gates: What the device has to be.
        limit_s: After so long the attempt is ended from outside.
    """

    visit: str
    attempt: int
    offer: AvailableDevice
    artifact: BuildArtifact
    gates: Gates = Gates()
    limit_s: float = 3600.0

    def end(
        self, fate: Fate, failure: AttemptFailure | None = None, begun_s: float | None = None
    ) -> AttemptResult:
        """Return the result of the attempt; `begun_s` is when it began, in monotonic time."""
        return AttemptResult(
            visit=self.visit,
            attempt=self.attempt,
            identity=self.offer.identity,
            host=self.offer.host,
            fate=fate,
            failure=failure,
            seconds=0.0 if begun_s is None else round(time.monotonic() - begun_s, 3),
        )


class AttemptFailure(Value):
    """Why an attempt failed, as an `EtdeployError` says it."""

    kind: str
    exit_code: int
    message: str
    place: str | None = None
    remedy: str | None = None


class Health(Value):
    """What a device was like at the end of an attempt; None where it does not say."""

    battery_percent: int | None = None
    temperature_celsius: float | None = None
    free_bytes: int | None = None
    thermal_status: str | None = None


class Fate(StrEnum):
    """How an attempt ended."""

    DONE = "done"
    """It was measured; the record may still say that outputs differ."""
    FAILED = "failed"
    """The program, the recipe or the device failed."""
    PUT_OFF = "put off"
    """A gate did not open: nobody's failure, and no attempt is used up."""
    LOST = "lost"
    """Nothing is known: the worker or its host is gone."""


class AttemptResult(Value):
    """How an attempt ended.

    Attributes:
        visit: Its id.
        attempt: Of the order.
        identity: Of the device.
        host: That did it.
        fate: What happened.
        run_id: Of the record, for DONE.
        record: Path of the record on the coordinator's disk, for DONE.
        failure: For FAILED and PUT_OFF, and for DONE where outputs differ.
        health: What the device was like.
        seconds: Wall time of the attempt.
    """

    visit: str
    attempt: int
    identity: str
    host: str
    fate: Fate
    run_id: str | None = None
    record: str | None = None
    failure: AttemptFailure | None = None
    health: Health | None = None
    seconds: float = 0.0


class Standing(StrEnum):
    """Where a visit stands."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    """All attempts failed, or the recipe was stopped."""
    MISSED = "missed"
    """It could not run: no device, reserved, quarantined, the window closed. Says why."""


UNPLUGGED, NOT_PLUGGED_IN = "unplugged since ", "not plugged in since the night went on"
"""How the reason of visits begins whose device went away, or was away after a restart."""
STOPPED = "the recipe is stopped for this night"
"""How the reason of visits begins whose recipe fails everywhere."""


class VisitState(Value):
    """A visit with what became of it.

    Attributes:
        visit: The visit.
        standing: Where it stands.
        attempts: Endings, the earliest first; those that were put off or lost included.
        reason: Why it failed or was missed.
    """

    visit: Visit
    standing: Standing = Standing.WAITING
    attempts: tuple[AttemptResult, ...] = ()
    reason: str = ""

    @property
    def result(self) -> AttemptResult | None:
        """The attempt that counts."""
        return next((end for end in self.attempts if end.fate is Fate.DONE), None)
