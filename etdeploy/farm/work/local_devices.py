"""The devices of this host, as a farm offers them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from etdeploy.cache.workspace import Workspace
from etdeploy.core import cancel
from etdeploy.core.errors import DeviceError, EtdeployError
from etdeploy.core.plugins import attributed, call_hook
from etdeploy.device_pool import this_host
from etdeploy.devices.base import Capabilities, Device, DeviceFacts, DeviceListing
from etdeploy.devices.registry import open_device, plugged_in
from etdeploy.farm.model import AvailableDevice, is_network_name
from etdeploy.history.nights import is_of_one_start

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

USABLE = "device"
# How long a look waits for devices that it asks; ssh gives up a board after 10 s.
_SOON_S = 12.0
# How long the answer of a device lasts that is known only by asking, or that failed.
_AGAIN_S = 30.0


def derive_identity(device: Device, host: str) -> str:
    """The same by every name of a device, and on every host that it is plugged into.

    Devices that compute with their host's own processors are told apart by the host: `host` is
    another machine on each. For all others this is what a run locks (`devices.base.lock_name`).
    """
    if device.capabilities.shares_cores:
        return f"{device.identity}@{host}"
    return device.identity


@dataclass(frozen=True)
class _Answer:
    """What a device said when it was asked: what it is, or why it does not say.

    Attributes:
        at_s: When.
        identity: That it is offered by.
        locked: That runs lock now, if it is another one.
        facts, capabilities: What it is.
        problem, remedy: Why it does not say.
    """

    at_s: float
    identity: str = ""
    locked: str = ""
    facts: DeviceFacts | None = None
    capabilities: Capabilities = field(default_factory=Capabilities)
    problem: str = ""
    remedy: str = ""


_SILENT = _Answer(0.0, problem=f"it did not answer within {_SOON_S:g} s")


class LocalDevices:
    """The devices of this host. Each is asked once, until it is unplugged or forgotten.

    So a phone is left alone while it is measured: to look is to ask the adb server or the system.
    """

    def __init__(
        self,
        workspace: Workspace,
        host: str | None = None,
        pools: Mapping[str, Collection[str]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.host = host or this_host()
        self._workspace, self._pools, self._clock = workspace, dict(pools or {}), clock
        self._answers: dict[str, _Answer] = {}
        # What each name was when it last said so: a phone that is offline is still that phone.
        self._known: dict[str, _Answer] = {}
        self._expected: set[str] = set()
        # A board that was restarted is the same one: by its name, the identity that it had first.
        self._first: dict[str, str] = {}
        self._listed: frozenset[str] = frozenset()
        self._chosen: dict[str, str] = {}
        self._asking: dict[str, Future[_Answer]] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._stop = cancel.Flag(cancel.current())

    def close(self) -> None:
        """Asks nothing more; devices that have not answered are given up."""
        self._stop.set()

    def look(self, busy: Collection[str] = ()) -> tuple[AvailableDevice, ...]:
        """Every connected device, once; one that cannot be used with its problem.

        Devices that are `busy` (identities) are not asked anything.
        """
        listed = {each.name: each for each in plugged_in(self._workspace)}
        wanted = [*(name for pool in self._pools.values() for name in pool), *self._expected]
        named = [name for name in wanted if name not in listed]
        unlisted = {name: DeviceListing(name=name, kind="", status=USABLE) for name in named}
        self._answers = {
            name: answer
            for name, answer in self._answers.items()
            if (name in unlisted and name not in self._listed)
            or (name in listed and listed[name].status == USABLE)
        }
        self._listed = frozenset(listed)
        everyone = [*listed.values(), *unlisted.values()]
        to_ask = [each.name for each in everyone if self._is_due(each, each.name in listed, busy)]
        self._ask_all(to_ask)
        offers = merge_names([self._offer(each) for each in everyone], self._chosen)
        self._chosen = {offer.identity: offer.name for offer in offers}
        return offers

    def expect(self, name: str) -> None:
        """Looks for a phone on the network by its name from now on.

        An adb server that was restarted while the phone was away never lists it again.
        """
        if is_network_name(name):
            self._expected.add(name)

    def forget(self, identity: str) -> None:
        """Asks a device again at the next look: it was restarted, or it failed."""
        self._answers = {n: said for n, said in self._answers.items() if said.identity != identity}

    def _is_due(self, listing: DeviceListing, is_listed: bool, busy: Collection[str]) -> bool:
        answer = self._answers.get(listing.name)
        if listing.status != USABLE or (answer and answer.identity in busy):
            return False
        if answer is None:
            return True
        # Whether a board is there is known only by asking; a phone that fails may do so no longer.
        lasts = is_listed and not answer.problem
        return not lasts and self._clock() - answer.at_s > _AGAIN_S

    def _ask_all(self, names: Sequence[str]) -> None:
        """Asks devices at once; one that does not answer soon is asked on while others are used."""
        from concurrent.futures import ThreadPoolExecutor, wait

        if self._pool is None:
            self._pool = ThreadPoolExecutor(cancel.MOST_THREADS, thread_name_prefix="shelf")
        for name in names:
            if name not in self._asking:
                self._asking[name] = self._pool.submit(self._ask, name)
        wait(self._asking.values(), _SOON_S)
        for name in [name for name, asked in self._asking.items() if asked.done()]:
            answer = self._answers[name] = self._asking.pop(name).result()
            if answer.identity:
                self._known[name] = answer

    def _ask(self, name: str) -> _Answer:
        try:
            with (
                cancel.bound(self._stop),
                attributed(),
                closing(open_device(name, self._workspace)) as device,
            ):
                cancel.checkpoint()
                facts = call_hook(device.facts, DeviceFacts)
                now = derive_identity(device, self.host)
                first = self._first.setdefault(name, now) if is_of_one_start(now) else now
                locked = now if now != first else ""
                return _Answer(self._clock(), first, locked, facts, device.capabilities)
        except EtdeployError as error:
            return _Answer(self._clock(), problem=error.message, remedy=error.remedy or "")

    def _offer(self, listing: DeviceListing) -> AvailableDevice:
        name, said = listing.name, self._answers.get(listing.name, _SILENT)
        known = said if said.identity else self._known.get(name, said)
        problem = said.problem if listing.status == USABLE else f"its state is {listing.status}"
        return AvailableDevice(
            identity=known.identity or _presumed(name, self.host),
            name=name,
            host=self.host,
            facts=known.facts or DeviceFacts(name=name, kind=name.partition(":")[0], target=""),
            capabilities=known.capabilities,
            pools=tuple(pool for pool, names in self._pools.items() if name in names),
            problem=problem,
            remedy=(said.remedy or listing.remedy or "") if problem else "",
            locked=known.locked,
        )


def merge_names(
    offers: Sequence[AvailableDevice], kept: Mapping[str, str]
) -> tuple[AvailableDevice, ...]:
    """One offer for each identity.

    Of several names of one device, one that can be used; the one that was chosen before, or that of
    a cable before an address on the network.
    """
    best: dict[str, AvailableDevice] = {}
    pools: dict[str, tuple[str, ...]] = {}
    names: dict[str, list[str]] = {}
    for offer in offers:
        identity = offer.identity
        pools[identity] = tuple(dict.fromkeys((*pools.get(identity, ()), *offer.pools)))
        names.setdefault(identity, []).append(offer.name)
        before = best.get(identity)
        if before is None or _rank(offer, kept) < _rank(before, kept):
            best[identity] = offer
    return tuple(
        offer.model_copy(
            update={
                "pools": pools[offer.identity],
                "also": tuple(n for n in names[offer.identity] if n != offer.name),
            }
        )
        for offer in best.values()
    )


def _rank(offer: AvailableDevice, kept: Mapping[str, str]) -> tuple[bool, bool, bool]:
    is_other = kept.get(offer.identity) != offer.name
    return bool(offer.problem), is_other, is_network_name(offer.name)


def _presumed(name: str, host: str) -> str:
    """The identity of a device that was never asked, by its name: most are named by a serial."""
    kind, _, serial = name.partition(":")
    return f"{kind}-{serial}" if serial else f"{kind}@{host}"


def require_same(device: Device, offer: AvailableDevice) -> None:
    """Raises unless the device behind an offer's name is the one that was offered."""
    identity, planned = derive_identity(device, offer.host), offer.locked or offer.identity
    if identity != planned:
        raise DeviceError(
            f"{offer.name} is another device than was planned: {identity}, not {planned}",
            place=offer.name,
            remedy="It was exchanged meanwhile: the night finds it again by itself.",
        )
