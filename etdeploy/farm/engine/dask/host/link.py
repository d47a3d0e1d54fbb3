"""A host's questions to the coordinator, from any thread, across losses of the connection."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

from distributed.core import rpc

from etdeploy.core import cancel
from etdeploy.core.errors import DeviceError

_POLL_S = 0.2
# The coordinator counts from when it notices a loss, which may be later.
_MARGIN_S = 5.0


class LinkLostError(DeviceError):
    """The coordinator was away for longer than it waits for a host."""


class Link:
    """The connection of a host, while there is one.

    Attributes:
        keep_s: How long the coordinator waits for attempts of a host that is gone.
    """

    def __init__(self) -> None:
        self.keep_s = 0.0
        self._lock = threading.Lock()
        self._coordinator: rpc | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._parted_s = time.monotonic()

    def connected(self, coordinator: rpc, keep_s: float) -> None:
        """Lets questions through; called in the loop that asks them."""
        with self._lock:
            self._coordinator, self.keep_s = coordinator, keep_s
            self._loop = asyncio.get_running_loop()

    def parted(self) -> None:
        """Holds questions back until there is a connection again."""
        with self._lock:
            if self._coordinator is not None:
                self._parted_s = time.monotonic()
            self._coordinator = None

    @property
    def is_lost(self) -> bool:
        """Whether the coordinator no longer waits for what was begun for it."""
        with self._lock:
            away_s = time.monotonic() - self._parted_s
            return self._coordinator is None and away_s > self.keep_s + _MARGIN_S

    def ask(self, op: str, *, to_the_end: bool = False, **message: Any) -> Any:
        """The coordinator's answer; waits for a connection that was lost, and asks again.

        Must not be called in the loop's thread.

        Args:
            op: Name of the question.
            to_the_end: Whether to ask also while this process is being stopped.
            message: Plain values.

        Raises:
            LinkLostError: There was none for longer than the coordinator waits.
            Interrupted: The run was asked to stop.
        """
        while True:
            if not to_the_end:
                cancel.checkpoint()
            with self._lock:
                coordinator, loop = self._coordinator, self._loop
            if coordinator is not None and loop is not None:
                try:
                    work = _asked(coordinator, op, message)
                    return asyncio.run_coroutine_threadsafe(work, loop).result()
                except (OSError, asyncio.CancelledError):
                    pass  # the connection is lost; `parted` follows
            if self.is_lost or (to_the_end and loop is None):
                raise LinkLostError("the connection to the coordinator is lost")
            time.sleep(_POLL_S)


async def _asked(coordinator: rpc, op: str, message: dict[str, Any]) -> Any:
    return await getattr(coordinator, op)(**message)
