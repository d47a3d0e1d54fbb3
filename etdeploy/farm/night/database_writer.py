"""Sends events to the database; while that is down, to the spool, in their order."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, Queue
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from etdeploy.core import cancel
from etdeploy.core.commands import quoted
from etdeploy.core.errors import BuildError, EtdeployError
from etdeploy.core.files.basic import no_room_in
from etdeploy.farm.night.rules import Began, Event, Opened, Planned, event_of
from etdeploy.farm.night.writing import DatabaseConnection, Fence, TakenError, write
from etdeploy.history.nights import KeptVisit
from etdeploy.history.place import HistoryLocation

if TYPE_CHECKING:
    from etdeploy.history.store.store import Connection, Store


R = TypeVar("R")
# How long a caller waits for the database, in seconds.
_WAIT_S = 4.0
# The same for thousands of visits.
_PLAN_S = 20.0
_TICK_S = 1.0
# How often the farm's coordinator says that it lives.
_BEAT_S = 10.0
_FIRST_S, _LONGEST_S = 1.0, 30.0


class Post:
    """The way to the database.

    Args:
        place: The history.
        tell: Is told what a person should know.
        snapshot: Gives all that is known of the night, for the beginning of a spool.
    """

    def __init__(
        self,
        place: HistoryLocation,
        tell: Callable[[str], None],
        snapshot: Callable[[], Opened | None],
    ) -> None:
        self._tell, self._snapshot = tell, snapshot
        self._link = DatabaseConnection(place)
        self._spool: Spool | None = None
        self._fence: Fence | None = None
        self._began = self._closed = False
        self._settle: Callable[[Connection], None] | None = None
        self._taken: TakenError | None = None
        # Around the spool; never held by the thread while it waits for the database.
        self._lock = threading.Lock()
        self._pause_s, self._again_at, self._beat_at = _FIRST_S, 0.0, 0.0
        # How much of the spool is in the database, in bytes; changed by the thread that has that.
        self._brought = 0
        self._aside = Aside(_TICK_S, self._tick)

    def use(self, path: Path, fence: Fence) -> list[Event]:
        """Takes a spool, and gives what an earlier coordinator left in it."""
        spool = Spool(path)
        lines = spool.lines()  # before the thread may bring them in, and remove the file
        self._spool, self._fence = spool, fence
        return [event for line, _ in lines if (event := self._event(line))]

    def hold(self, fence: Fence) -> None:
        """From now on others are told that the coordinator lives, although no night is open."""
        self._fence = fence
        self._began = True

    def begin(self, settle: Callable[[Connection], None] | None) -> None:
        """From now on others are told that the coordinator lives, and the spool is brought in."""
        self._settle = settle
        self._began = True

    def read(self, action: Callable[[Store], R], wait_s: float) -> R:
        """Asks the database."""
        return self._aside.do(lambda: self._with_store(action), wait_s)

    def bring_in(self, wait_s: float) -> None:
        """Writes what is in the spool into the database, in its order."""
        if self._spool and not self._spool.is_empty:
            self._aside.do(self._replay, wait_s)

    def drain(self, wait_s: float) -> None:
        """Waits until what is in the spool is in the database, as long as that answers."""
        until = time.monotonic() + wait_s
        while self._spool and not self._spool.is_empty and time.monotonic() < until:
            if cancel.requested():
                return
            try:
                self.bring_in(_WAIT_S)
            except TimeoutError:
                continue  # it may be much
            except EtdeployError:
                return

    def note(self, event: Event) -> None:
        """Writes an event to the spool."""
        with self._lock:
            self._put(event)

    def send(self, event: Event) -> KeptVisit | None:
        """Writes an event to the database, or to the spool."""
        fence = self._fence if isinstance(event, Began | Planned) else None
        if fence and self._taken:
            raise self._taken
        with self._lock:
            if self._spool is None or self._spool.is_empty:
                try:
                    wait_s = _PLAN_S if isinstance(event, Planned) else _WAIT_S
                    return self._aside.do(lambda: self._write(event, fence), wait_s)
                except TakenError as error:
                    self._taken = error
                    raise
                except (EtdeployError, TimeoutError) as error:
                    if self._spool is None:
                        raise
                    self._down(error)
            self._put(event)
        return None

    def close(self) -> None:
        """Gives the farm back, if the database answers."""
        if self._closed:
            return
        self._closed = True
        try:
            self._aside.do(self._end, _WAIT_S)
        except (EtdeployError, TimeoutError) as error:
            self._tell(f"the farm is free for another host in a minute: {error}")
        self._aside.close(_WAIT_S)
        if self._spool and not self._spool.is_empty:
            self._tell(
                f"results are queued locally; the next `farm run` imports them: {self._spool.path}"
            )

    def _put(self, event: Event) -> None:
        assert self._spool is not None  # noqa: S101 - told by the callers
        first = self._snapshot() if self._spool.is_empty else None
        events = [each for each in (first, event) if each]
        self._spool.add(*(each.model_dump_json() for each in events))

    def _down(self, error: Exception) -> None:
        self._pause_s = _FIRST_S
        self._again_at = time.monotonic() + self._pause_s
        self._tell(f"the history cannot be used; the night goes on and tells it later: {error}")

    # What follows runs in the thread that has the database.

    def _with_store(self, action: Callable[[Store], R]) -> R:
        try:
            return action(self._link.store())
        except EtdeployError as error:
            if not isinstance(error, TakenError):
                self._link.close()
            raise

    def _write(self, event: Event, fence: Fence | None) -> KeptVisit | None:
        return self._with_store(lambda store: write(store, event, self._tell, fence))

    def _tick(self) -> None:
        if not self._began:
            return
        now = time.monotonic()
        try:
            if self._spool and not self._spool.is_empty and now >= self._again_at:
                self._replay()
            if now >= self._beat_at and (self._spool is None or self._spool.is_empty):
                self._beat()
        except TakenError as error:
            self._lose(error)
        except Exception as error:
            self._pause_s = min(_LONGEST_S, self._pause_s * 2)
            self._again_at = time.monotonic() + self._pause_s
            if not isinstance(error, EtdeployError | OSError):
                self._tell(f"a bug in etdeploy: {type(error).__name__}: {error}")

    def _beat(self) -> None:
        fence = self._fence
        if fence is None or self._taken:
            return
        self._beat_at = time.monotonic() + _BEAT_S
        settle = self._settle

        def beat(store: Store) -> None:
            with store.transaction(writes=True) as connection:
                fence.take(connection, anew=False)
                if settle:
                    settle(connection)

        self._with_store(beat)
        self._settle = None

    def _lose(self, error: TakenError) -> None:
        if self._taken is None:
            self._taken = error
            self._tell(f"not starting further work: {error}")

    def _replay(self) -> None:
        spool = self._spool
        if spool is None:
            return
        done = 0
        while True:
            with self._lock:
                lines = spool.lines(self._brought)
                if not lines:
                    spool.clear()
                    self._brought = 0
                    break
            for line, after in lines:
                self._bring(line)
                # Where the database goes away again, the next try goes on here.
                self._brought, done = after, done + 1
        if done:
            self._pause_s = _FIRST_S
            entries = "1 entry" if done == 1 else f"{done} entries"
            self._tell(f"database reachable again: imported {entries}")

    def _bring(self, line: str) -> None:
        """Writes an entry, and leaves out one that the database will never take."""
        from etdeploy.history.store.errors import is_refused

        event = self._event(line)
        if event is None:
            return
        try:
            self._write(event, None)
        except EtdeployError as error:
            if not is_refused(error):
                raise
            self._tell(f"the history does not take an entry, which is left out: {error}\n  {line}")

    def _event(self, line: str) -> Event | None:
        try:
            return event_of(line)
        except ValidationError:
            self._tell(f"an entry of {self._spool and self._spool.path} cannot be read: {line}")
            return None

    def _end(self) -> None:
        fence = self._fence
        if fence and self._began and not self._taken:

            def give_back(store: Store) -> None:
                with store.transaction(writes=True) as connection:
                    fence.give_back(connection)

            self._with_store(give_back)
        self._link.close()


@dataclass
class _Task:
    action: Callable[[], Any]
    done: threading.Event = field(default_factory=threading.Event)
    result: Any = None
    error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self.action()
        except BaseException as error:
            self.error = error
        self.done.set()


class Aside:
    """Does one thing after another in a thread of its own.

    Args:
        every_s: How often `now_and_then` is done.
        now_and_then: Must not raise.
    """

    def __init__(self, every_s: float, now_and_then: Callable[[], None]) -> None:
        self._every_s = every_s
        self._now_and_then = now_and_then
        self._queue: Queue[_Task | None] = Queue()
        # A daemon: a server that never answers must not keep the process from ending.
        self._thread = threading.Thread(target=self._work, name="etdeploy-ledger", daemon=True)
        self._thread.start()

    def do(self, action: Callable[[], R], wait_s: float) -> R:
        """Does something in the thread, and returns what it gives."""
        task = _Task(action)
        self._queue.put(task)
        if not task.done.wait(wait_s):
            raise TimeoutError(f"no answer within {wait_s:g} s")
        if task.error is not None:
            raise task.error
        result: R = task.result
        return result

    def close(self, wait_s: float) -> None:
        """Ends the thread, if it ends within that time."""
        self._queue.put(None)
        self._thread.join(wait_s)

    def _work(self) -> None:
        due = time.monotonic() + self._every_s
        while True:
            try:
                task = self._queue.get(timeout=max(0.0, due - time.monotonic()))
            except Empty:
                pass
            else:
                if task is None:
                    return
                task.run()
            if time.monotonic() >= due:
                self._now_and_then()
                due = time.monotonic() + self._every_s


class Spool:
    """The file; it is there only while something waits.

    A last line that was not written whole, as where a machine lost its power, is cut off.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._size = _cut(path)

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return self._size == 0

    def lines(self, offset: int = 0) -> list[tuple[str, int]]:
        """The lines from an offset on, each with the offset of what follows it, in bytes."""
        if self.is_empty:
            return []
        with self.path.open("rb") as stream:
            stream.seek(offset)
            content = stream.read(self._size - offset)
        found = []
        for line in content.splitlines(keepends=True):
            offset += len(line)
            found.append((line.decode("utf-8", "replace").rstrip("\n"), offset))
        return found

    def add(self, *lines: str) -> None:
        """Adds lines, all or none, and waits for the disk."""
        data = "".join(f"{line}\n" for line in lines).encode()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            try:
                _write(handle, data, self._size)
            except OSError as error:
                os.ftruncate(handle, self._size)
                if no_room_in(error) is None:
                    raise
                raise BuildError(
                    "the history cannot be reached, and what the night did cannot be noted for "
                    f"later: {error.strerror}",
                    place=str(self.path),
                    remedy=f"Make room on its disk: df -h {quoted(self.path.parent)}\n"
                    "Then run the same command again: it goes on with this night.",
                ) from error
        finally:
            os.close(handle)
        if not self._size:
            _sync_folder(self.path.parent)
        self._size += len(data)

    def clear(self) -> None:
        """Removes the file: everything is in the database."""
        self.path.unlink(missing_ok=True)
        self._size = 0


def _write(handle: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(handle, view, offset)
        view, offset = view[written:], offset + written
    os.fsync(handle)


def _cut(path: Path) -> int:
    """The size of a file's whole lines, in bytes; the rest of it is cut off."""
    try:
        with path.open("r+b") as stream:
            content = stream.read()
            size = content.rfind(b"\n") + 1
            if size != len(content):
                stream.truncate(size)
    except FileNotFoundError:
        return 0
    return size


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
