"""The engine over several hosts: its scheduler runs in a thread of the coordinator's process."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from etdeploy.farm.engine.dask.answers import Coordinator
from etdeploy.farm.engine.dask.settings import apply_settings, require_safe, security_of
from etdeploy.farm.model import AttemptResult, Offer, Order
from etdeploy.farm.spec.model import Hosts

GRACE_S = 15.0
"""How long a host may be gone before its attempts count as lost."""

T = TypeVar("T")


class ClusterEngine:
    """Brings orders to devices of several hosts.

    Attributes:
        address: Where hosts on this machine reach the scheduler.

    Args:
        hosts: Where to listen, with what certificates.
        results: The folder for records, made if missing.
        grace_s: How long a host may be gone before its attempts count as lost.

    Raises:
        UsageError: Nothing can listen there, a certificate does not work, or others than the own
            network could connect without TLS.
    """

    def __init__(self, hosts: Hosts, results: Path, grace_s: float = GRACE_S) -> None:
        require_safe(hosts.listen, hosts.tls)
        security = security_of(hosts.tls)
        apply_settings()
        self._ended: queue.SimpleQueue[AttemptResult] = queue.SimpleQueue()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="farm", daemon=True)
        self._thread.start()
        self._closed = False
        try:
            self._coordinator = self._do(self._made(results, grace_s))
            self.address = self._do(self._coordinator.open(hosts.listen, security))
        except BaseException:
            self._end_loop()
            raise

    def offers(self) -> Sequence[Offer]:
        """All devices of all hosts; one that two hosts have is twice, NIGHT decides."""
        return self._do(self._coordinator.offers())

    def start(self, order: Order) -> None:
        """Begins an attempt on the device's host."""
        self._do(self._coordinator.start(order))

    def ended(self, wait_s: float) -> Sequence[AttemptResult]:
        """Attempts that ended since the last call; waits so long for the first."""
        found = []
        try:
            found.append(self._ended.get(timeout=max(0.0, wait_s)))
            while True:
                found.append(self._ended.get_nowait())
        except queue.Empty:
            return found

    def cancel(self, visit: str) -> None:
        """Ends an attempt that is under way; it still comes out of `ended`."""
        self._do(self._coordinator.cancel(visit))

    def recover(self, offer: Offer, step: str, tell: Callable[[str], None]) -> Offer:
        """Takes a step of the recovery ladder on the device's host."""
        return self._do(self._coordinator.recover(offer, step, tell))

    def close(self) -> None:
        """Ends what is under way, and the scheduler; `ended` may be asked once more."""
        if self._closed:
            return
        self._closed = True
        try:
            self._do(self._coordinator.close())
        finally:
            self._end_loop()

    async def _made(self, results: Path, grace_s: float) -> Coordinator:
        return Coordinator(results, grace_s, self._ended.put)

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _end_loop(self) -> None:
        self._do(_cancel_others())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _cancel_others() -> None:
    """Ends what Dask left in the loop, so that nothing is destroyed while it waits."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_default_executor()
