"""What the night asks of an engine, which knows hosts and processes and decides nothing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Protocol

from etdeploy.farm.model import AttemptResult, AvailableDevice, Order


class Engine(Protocol):
    """Brings orders to devices.

    Every method but `recover` returns soon. One thread calls them all but `recover`, which may take
    minutes and is called in a thread of its own, for several devices at once.
    """

    def offers(self) -> Sequence[AvailableDevice]:
        """All devices that are plugged in now, over all hosts; one that two hosts have is twice."""
        ...

    def start(self, order: Order) -> None:
        """Begins an attempt; the caller gives a device one at a time."""
        ...

    def ended(self, wait_s: float) -> Sequence[AttemptResult]:
        """Attempts that ended since the last call; waits so long for the first.

        Each started attempt ends here once, whatever happens to its worker or host.
        """
        ...

    def cancel(self, visit: str) -> None:
        """Ends an attempt that is under way; it still comes out of `ended`."""
        ...

    def recover(self, offer: AvailableDevice, step: str) -> AvailableDevice:
        """Takes a step of the recovery ladder on the device's host: reconnect, restart, reboot."""
        ...

    def close(self) -> None:
        """Ends what is under way."""
        ...


# Endings of either engine are noticed after so long.
_SLICE_S = 0.2


class JoinedEngine:
    """Brings orders to the engine that offers the device."""

    def __init__(self, here: Engine, host: str, others: Engine) -> None:
        self._here, self._host, self._others = here, host, others
        self._of: dict[str, Engine] = {}

    def offers(self) -> Sequence[AvailableDevice]:
        """All devices; those of this host first."""
        # A worker on this host offers the same devices as this process does.
        others = [each for each in self._others.offers() if each.host != self._host]
        return (*self._here.offers(), *others)

    def start(self, order: Order) -> None:
        """Begins an attempt on the device's host."""
        engine = self._engine(order.offer)
        engine.start(order)
        self._of[order.visit] = engine

    def ended(self, wait_s: float) -> Sequence[AttemptResult]:
        """Attempts that ended on any host."""
        until = time.monotonic() + wait_s
        while True:
            left = max(0.0, until - time.monotonic())
            found = (*self._here.ended(0.0), *self._others.ended(min(_SLICE_S, left)))
            if found or left == 0.0:
                return found

    def cancel(self, visit: str) -> None:
        """Ends an attempt that is under way."""
        if visit in self._of:
            self._of[visit].cancel(visit)

    def recover(self, offer: AvailableDevice, step: str) -> AvailableDevice:
        """Takes a step of the recovery ladder on the device's host."""
        return self._engine(offer).recover(offer, step)

    def close(self) -> None:
        """Ends what is under way on every host."""
        with ExitStack() as stack:
            stack.callback(self._here.close)
            stack.callback(self._others.close)

    def _engine(self, offer: AvailableDevice) -> Engine:
        return self._here if offer.host == self._host else self._others
