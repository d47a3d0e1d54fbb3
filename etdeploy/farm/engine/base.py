"""What the night asks of an engine, which knows hosts and processes and decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from etdeploy.farm.model import Ending, Offer, Order


class Engine(Protocol):
    """Brings orders to devices.

    Every method but `recover` returns soon. One thread calls them all but `recover`, which may take
    minutes and is called in a thread of its own, for several devices at once.
    """

    def offers(self) -> Sequence[Offer]:
        """All devices that are plugged in now, over all hosts; one that two hosts have is twice."""
        ...

    def start(self, order: Order) -> None:
        """Begins an attempt; the caller gives a device one at a time."""
        ...

    def ended(self, wait_s: float) -> Sequence[Ending]:
        """Attempts that ended since the last call; waits so long for the first.

        Each started attempt ends here once, whatever happens to its worker or host.
        """
        ...

    def cancel(self, visit: str) -> None:
        """Ends an attempt that is under way; it still comes out of `ended`."""
        ...

    def recover(self, offer: Offer, step: str, tell: Callable[[str], None]) -> Offer:
        """Takes a step of the recovery ladder on the device's host: reconnect, restart, reboot.

        Returns:
            The device as it is afterwards.
        """
        ...

    def close(self) -> None:
        """Ends what is under way."""
        ...
