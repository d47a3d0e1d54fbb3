"""The engine of one host: its own devices, a thread and a child process for each attempt."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from etdeploy.cache.workspace import Workspace
from etdeploy.core import cancel
from etdeploy.core.errors import DeviceError, Interrupted
from etdeploy.core.files.locks import exclusive
from etdeploy.core.values import Progress, silent
from etdeploy.devices.kinds import Recovery
from etdeploy.devices.registry import recover_device
from etdeploy.farm.model import AttemptResult, AvailableDevice, Fate, Order
from etdeploy.farm.work.artifact import failure_of
from etdeploy.farm.work.child import run_attempt
from etdeploy.farm.work.local_devices import LocalDevices
from etdeploy.graph.tasks.steps import Load, Slots, heavy_at_once

# How long offers last: they are asked for every few seconds.
_FRESH_S = 3.0
_END_S = 30.0
# A person's run has the device, which must not be restarted under it.
_LOCK_S = 5.0


@dataclass
class _Running:
    """An attempt that is under way."""

    order: Order
    flag: cancel.Flag
    thread: threading.Thread | None = None


class LocalEngine:
    """Brings orders to the devices of this host.

    What is measured on this host's own processors is measured alone: nothing else is measured
    there, pushed from here or exported here meanwhile.
    """

    def __init__(
        self,
        output: Path,
        *,
        host: str | None = None,
        pools: Mapping[str, Collection[str]] | None = None,
        slots: Slots | None = None,
        workspace: Workspace | None = None,
        told: Callable[[str, str, float | None], None] = lambda *_: None,
    ) -> None:
        self._output = output
        self._workspace = workspace or Workspace.opened()
        self._shelf = LocalDevices(self._workspace, host, pools)
        self._slots = slots or Slots(heavy_at_once())
        self._told = told
        # The flag of the night: a stop of it ends every attempt.
        self._above = cancel.current()
        self._running: dict[str, _Running] = {}
        self._endings: queue.SimpleQueue[AttemptResult] = queue.SimpleQueue()
        self._offers: tuple[float, tuple[AvailableDevice, ...]] | None = None
        # A recovery looks at the devices in a thread of its own.
        self._looking = threading.RLock()

    @property
    def host(self) -> str:
        """What this host is called."""
        return self._shelf.host

    def offers(self) -> Sequence[AvailableDevice]:
        """The devices that are plugged in, each once.

        A device under way is not asked anything.
        """
        with self._looking:
            if self._offers is None or time.monotonic() - self._offers[0] > _FRESH_S:
                found = self._shelf.look(self._busy())
                self._offers = (time.monotonic(), found)
            return self._offers[1]

    def start(self, order: Order) -> None:
        """Begins an attempt in a thread and a process of its own."""
        if order.visit in self._running:
            raise ValueError(f"the visit {order.visit} is under way")
        running = _Running(order, cancel.Flag(self._above))
        running.thread = threading.Thread(
            target=lambda: self._endings.put(self._measured(running)),
            name=f"visit {order.visit}",
            daemon=True,
        )
        self._running[order.visit] = running
        running.thread.start()

    def perform(self, order: Order, flag: cancel.Flag) -> AttemptResult:
        """Do an attempt in this thread, until the flag is raised."""
        key = f"{order.visit}#{order.attempt}"
        self._running[key] = running = _Running(order, flag)
        try:
            ending = self._measured(running)
        finally:
            del self._running[key]
        if ending.failure:
            self._forget(ending.identity)
        return ending

    def ended(self, wait_s: float) -> Sequence[AttemptResult]:
        """Attempts that ended since the last call; waits so long for the first."""
        found: list[AttemptResult] = []
        deadline = time.monotonic() + wait_s
        while True:
            try:
                left_s = 0.0 if found else max(0.0, deadline - time.monotonic())
                ending = self._endings.get(timeout=left_s) if left_s else self._endings.get_nowait()
            except queue.Empty:
                return found
            self._running.pop(ending.visit, None)
            if ending.failure:
                # What failed may be another device now, or none.
                self._forget(ending.identity)
            found.append(ending)

    def cancel(self, visit: str) -> None:
        """Ends an attempt that is under way; it comes out of `ended` as put off."""
        if visit in self._running:
            self._running[visit].flag.set()

    def recover(self, offer: AvailableDevice, step: str) -> AvailableDevice:
        """Takes a step to get a device back; the device as it is afterwards.

        A device that somebody else uses is left alone, and so is an adb server over which other
        phones are measured.
        """
        with suppress(DeviceError):  # the look afterwards says what is wrong
            self._take(offer, Recovery(step))
        with self._looking:
            self._shelf.expect(offer.name)
        self._forget(offer.identity)
        now = next((each for each in self.offers() if each.identity == offer.identity), None)
        gone = offer.model_copy(update={"problem": f"it is not back after {step}"})
        return now or gone

    def close(self) -> None:
        """Ends what is under way, and waits for it."""
        for running in self._running.values():
            running.flag.set()
        deadline = time.monotonic() + _END_S
        for running in self._running.values():
            if running.thread:
                running.thread.join(max(0.0, deadline - time.monotonic()))
        self._shelf.close()

    def _take(self, offer: AvailableDevice, step: Recovery) -> None:
        beside = any(
            each.order.offer.facts.kind == offer.facts.kind
            for each in tuple(self._running.values())
        )
        if step is Recovery.RESTART and beside:
            return
        lock = self._workspace.lock_path("device", offer.lock)
        with suppress(TimeoutError), exclusive(lock, f"device {offer.name}", silent, _LOCK_S):
            recover_device(offer.name, step, lambda _: None)

    def _busy(self) -> set[str]:
        return {running.order.offer.identity for running in tuple(self._running.values())}

    def _forget(self, identity: str) -> None:
        with self._looking:
            self._shelf.forget(identity)
            self._offers = None

    def _measured(self, running: _Running) -> AttemptResult:
        """How the attempt ended, whatever happens."""
        begun_s = time.monotonic()
        try:
            return self._attempted(running)
        except BaseException as error:
            fate = Fate.PUT_OFF if isinstance(error, Interrupted) else Fate.LOST
            return running.order.end(fate, failure_of(error, self._workspace.root), begun_s)

    def _attempted(self, running: _Running) -> AttemptResult:
        order = running.order

        def progress(text: str, fraction: float | None = None) -> None:
            self._told(order.visit, text, fraction)

        with cancel.bound(running.flag), self._cores(order.offer, progress) as idle:
            return run_attempt(
                order, Path(order.artifact.folder), self._output, order.limit_s, running.flag,
                progress, idle,
            )  # fmt: skip

    @contextmanager
    def _cores(self, offer: AvailableDevice, progress: Progress) -> Iterator[Callable[[], None]]:
        """Waits for this host's processors; gives what lets go of them."""
        measures = offer.capabilities.shares_cores
        progress("waiting for this host's processors")
        with ExitStack() as stack:
            stack.enter_context(self._slots.load(Load.MEASURES if measures else Load.BUSY))
            # A measurement on them needs them to its end.
            yield (lambda: None) if measures else stack.close
