"""The devices of a host and the attempts on them: what the engine of one host does, in threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from etdeploy.cache.workspace import Workspace
from etdeploy.core import cancel
from etdeploy.farm.engine.dask.host.link import HostDependencies
from etdeploy.farm.engine.local import LocalEngine
from etdeploy.farm.model import AttemptResult, Offer, Order

# Stands for the devices that were named, among the pools.
_NAMED = "named"
_POLL_S = 0.1


class LocalParts:
    """Lets several threads use the engine of this host.

    Args:
        workspace: The cache.
        folder: For records, until they were sent.
        host: Name of this host.
        names: Devices to offer, as `--device` takes them; empty for all that are plugged in, except
            the host itself, which has enough to do.
        pools: Names that the owner gave to these devices.
    """

    def __init__(
        self,
        workspace: Workspace,
        folder: Path,
        host: str,
        names: Sequence[str],
        pools: Sequence[str],
    ) -> None:
        named = {_NAMED: tuple(names)} if names else {}
        self._engine = LocalEngine(folder, host=host, pools=named, workspace=workspace)
        self._by_name, self._pools = bool(names), tuple(pools)
        self._lock = threading.Lock()
        self._ended: dict[tuple[str, int], AttemptResult] = {}

    def parts(self) -> HostDependencies:
        """What the host does."""
        return HostDependencies(self.plugged, self.attempt, self.recover)

    def plugged(self) -> tuple[Offer, ...]:
        """What is offered now."""
        with self._lock:
            found = self._engine.offers()
        return tuple(
            offer.model_copy(update={"pools": self._pools})
            for offer in found
            if (_NAMED in offer.pools if self._by_name else not offer.capabilities.shares_cores)
        )

    def attempt(self, order: Order, parcel: Path, flag: cancel.Flag) -> AttemptResult:
        """Does an order, and waits for its end."""
        moved = order.parcel.model_copy(update={"folder": str(parcel)})
        self._start(order.model_copy(update={"parcel": moved}))
        told = False
        while True:
            time.sleep(_POLL_S)
            with self._lock:
                if flag.is_set() and not told:
                    self._engine.cancel(order.visit)
                    told = True
                for ending in self._engine.ended(0):
                    self._ended[ending.visit, ending.attempt] = ending
                mine = self._ended.pop((order.visit, order.attempt), None)
            if mine is not None:
                return mine

    def recover(self, offer: Offer, step: str, tell: Callable[[str], None]) -> Offer:
        """Takes a step of the recovery ladder; other attempts go on meanwhile."""
        after = self._engine.recover(offer, step, tell)
        return after.model_copy(update={"pools": self._pools})

    def _start(self, order: Order) -> None:
        """Waits for an attempt of the same visit that was given up and is still ending."""
        while True:
            cancel.checkpoint()
            with self._lock:
                try:
                    return self._engine.start(order)
                except ValueError:
                    pass
            time.sleep(_POLL_S)
