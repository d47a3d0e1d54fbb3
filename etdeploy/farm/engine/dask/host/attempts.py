"""Attempts of a host: each in a thread of its own, which outlives the connection."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field

from etdeploy.core import cancel
from etdeploy.farm.engine.dask.wire import Key, key_of
from etdeploy.farm.model import Order


@dataclass(eq=False)
class Attempt:
    """An attempt under way.

    Attributes:
        order: What was asked for.
        flag: Ends it when it is raised.
        done: Over when the coordinator has its ending, or no longer wants it.
    """

    order: Order
    flag: cancel.Flag
    done: Future[None] = field(default_factory=Future)


class Attempts:
    """All that were begun and have not ended, by visit and number.

    Args:
        work: Does an order, and delivers its ending. It runs in a thread that is bound to the
            attempt's flag.
    """

    def __init__(self, work: Callable[[Order, cancel.Flag], None]) -> None:
        self._work = work
        self._above = cancel.current()
        self._lock = threading.Lock()
        self._attempts: dict[Key, Attempt] = {}
        self._phones: dict[str, threading.Lock] = {}

    def begin(self, order: Order) -> Attempt:
        """Begins an attempt, or finds it: the coordinator asks again after a lost connection."""
        with self._lock:
            known = self._attempts.get(key_of(order))
            if known is not None:
                return known
            attempt = Attempt(order, cancel.Flag(self._above))
            self._attempts[key_of(order)] = attempt
            phone = self._phones.setdefault(order.offer.identity, threading.Lock())
        name = f"{order.visit}#{order.attempt}"
        threading.Thread(target=self._do, args=(attempt, phone), name=name, daemon=True).start()
        return attempt

    def running(self) -> tuple[Key, ...]:
        """Those that have not ended."""
        with self._lock:
            return tuple(self._attempts)

    def busy(self) -> frozenset[str]:
        """Identities of devices on which one is under way."""
        with self._lock:
            return frozenset(a.order.offer.identity for a in self._attempts.values())

    def cancel(self, keys: Iterable[Key]) -> None:
        """Has those end, as far as they are under way."""
        with self._lock:
            for key in keys:
                if key in self._attempts:
                    self._attempts[key].flag.set()

    def _do(self, attempt: Attempt, phone: threading.Lock) -> None:
        """One at a time on a phone, even while one that was given up is still ending there."""
        try:
            with phone, cancel.bound(attempt.flag):
                self._work(attempt.order, attempt.flag)
        finally:
            with self._lock:
                del self._attempts[key_of(attempt.order)]
            attempt.done.set_result(None)
