"""The outbox of a night: an append-only file of events, imported into the history's database.

An event is safe once it is appended. A database that is away only delays the import, and the next
`farm run` imports what is left. Importing an event twice changes nothing.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from etdeploy.core import cancel
from etdeploy.core.commands import quoted
from etdeploy.core.errors import EtdeployError, UsageError
from etdeploy.core.files.basic import find_disk_full
from etdeploy.farm.model import AttemptResult, Fate
from etdeploy.farm.night.events import (
    AttemptEnded,
    Began,
    Closed,
    Event,
    Opened,
    Planned,
    apply_event,
    is_counted,
    parse_event,
)
from etdeploy.farm.night.lease import Lease, TakenError
from etdeploy.history.location import HistoryLocation

if TYPE_CHECKING:
    from etdeploy.bench.records.record import RunRecord
    from etdeploy.history.store.store import Connection, Store

R = TypeVar("R")
# How long an event waits for its import, in seconds; thousands of visits may take longer.
_WAIT_S = 4.0
_PLAN_S = 20.0
_POLL_S = 0.2
# How often the farm's coordinator renews its lease.
_BEAT_S = 10.0
# Between two tries of a database that is away.
_FIRST_S, _LONGEST_S = 1.0, 30.0


class Outbox:
    """The file. A line is an event, or says up to which offset events are imported.

    A last line that was not written whole, as where a machine lost its power, is cut off.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._unwritten: list[str] = []
        self.size, self.imported = 0, 0
        try:
            with path.open("r+b") as stream:
                content = stream.read()
                self.size = content.rfind(b"\n") + 1
                if self.size != len(content):
                    stream.truncate(self.size)
        except FileNotFoundError:
            return
        for line in content[: self.size].splitlines():
            if line.startswith(_IMPORTED):
                self.imported = min(self.size, _offset_in(line, self.imported))

    @property
    def is_imported(self) -> bool:
        """Whether the database has every event."""
        return not self._unwritten and not self.lines(self.imported)

    def lines(self, offset: int = 0) -> list[tuple[str, int]]:
        """The events from an offset on, each with the offset of what follows it, in bytes."""
        if offset >= self.size:
            return []
        with self.path.open("rb") as stream:
            stream.seek(offset)
            content = stream.read(self.size - offset)
        found = []
        for line in content.splitlines(keepends=True):
            offset += len(line)
            if not line.startswith(_IMPORTED):
                found.append((line.decode("utf-8", "replace").rstrip("\n"), offset))
        return found

    def append(self, line: str) -> None:
        """Add a line and wait for the disk. Where it has no room, the line waits in memory."""
        self._unwritten.append(line)
        self.flush()

    def flush(self) -> None:
        """Write what waits in memory."""
        if self._unwritten:
            self._write("".join(f"{line}\n" for line in self._unwritten), sync=True)
            self._unwritten.clear()

    def mark_imported(self) -> None:
        """Note how much is imported, so that the next process need not import it again."""
        line = f"{_IMPORTED.decode()}{self.imported}}}\n"
        at_end = self.imported == self.size
        with suppress(OSError):  # without the note, importing it again changes nothing
            self._write(line, sync=False)
            self.imported = self.size if at_end else self.imported

    def restart(self, line: str) -> None:
        """Begin anew with an event that the database has, once all others are imported."""
        self.remove()
        self.append(line)
        self.imported = self.size
        self.mark_imported()

    def remove(self) -> None:
        """Delete the file."""
        self.path.unlink(missing_ok=True)
        self.size = self.imported = 0

    def _write(self, text: str, *, sync: bool) -> None:
        """All or nothing."""
        data = text.encode()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            view, offset = memoryview(data), self.size
            while view:
                written = os.pwrite(handle, view, offset)
                view, offset = view[written:], offset + written
            if sync:
                os.fsync(handle)
        except OSError:
            os.ftruncate(handle, self.size)
            raise
        finally:
            os.close(handle)
        if not self.size:
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        self.size += len(data)


_IMPORTED = b'{"imported": '


def _offset_in(line: bytes, otherwise: int) -> int:
    try:
        return int(json.loads(line)["imported"])
    except (ValueError, TypeError, KeyError):
        return otherwise


def import_event(
    store: Store, event: Event, tell: Callable[[str], None], lease: Lease | None = None
) -> None:
    """Write an event to the database in one transaction; one that is there changes nothing."""
    from etdeploy.history.store import nights
    from etdeploy.history.store.store import add_record

    record = _load_record(event.ending, tell) if isinstance(event, AttemptEnded) else None
    with store.transaction(writes=True) as connection:
        if lease:
            lease.require(connection)
        if isinstance(event, Opened):
            nights.add_night(connection, event.night)
            nights.add_visits(connection, event.night.id, event.visits)
        elif isinstance(event, Planned):
            nights.add_visits(connection, event.night, event.visits)
        elif isinstance(event, Closed):
            nights.end_night(connection, event.night, event.at, event.outcome)
        else:
            kept = nights.change_visit(connection, event.visit, lambda k: apply_event(k, event))
            if kept is None:
                tell(f"the history has no visit {event.visit}: left out {event.op!r}")
            # With the attempt or not at all: so each one that counts is in the history, and once.
            elif record and isinstance(event, AttemptEnded) and is_counted(kept, event.ending):
                add_record(connection, record)


def _load_record(ending: AttemptResult, tell: Callable[[str], None]) -> RunRecord | None:
    if ending.fate is not Fate.DONE or ending.record is None:
        return None
    from etdeploy.bench.records.stored import load_run

    try:
        return load_run(Path(ending.record)).record
    except UsageError as error:
        tell(f"a record is not in the history: {error}")
        return None


def run_within(wait_s: float, action: Callable[[], R]) -> R:
    """Run an action in a thread, which is left alone if it does not end in time."""
    found: list[R] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            found.append(action())
        except BaseException as error:
            errors.append(error)

    # A daemon: a server that never answers must not keep the process from ending.
    thread = threading.Thread(target=run, name="etdeploy-database", daemon=True)
    thread.start()
    thread.join(wait_s)
    if errors:
        raise errors[0]
    if not found:
        raise TimeoutError(f"no answer within {wait_s:g} s")
    return found[0]


class Importer:
    """Imports an outbox in a thread, and renews the farm's lease."""

    def __init__(self, place: HistoryLocation, tell: Callable[[str], None]) -> None:
        self._place, self._tell = place, tell
        self._outbox: Outbox | None = None
        self._own = 0
        self._lease: Lease | None = None
        self._settle: Callable[[Connection], None] | None = None
        self._taken: TakenError | None = None
        self._error: Exception | None = None
        # Around the outbox and what follows; the thread does not hold it in a transaction.
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_closing = self._is_closed = self._is_away = self._is_full = False
        self._must_tell = False
        self._pause_s, self._next_s, self._beat_s = _FIRST_S, 0.0, 0.0
        # Imports that were begun, and the last of them that failed.
        self._turns = self._failed_turn = 0
        self._stack = ExitStack()
        self._store: Store | None = None

    def hold(self, lease: Lease) -> None:
        """Renew a lease from now on."""
        with self._changed:
            self._lease, self._beat_s = lease, time.monotonic() + _BEAT_S
        self._start()

    def use(self, outbox: Outbox) -> None:
        """Import an outbox from now on; what it has already, an earlier process left."""
        with self._changed:
            self._outbox, self._own = outbox, outbox.size
            self._must_tell = not outbox.is_imported
        self._start()

    def go_without(self, opened: Opened | None, settle: Callable[[Connection], None]) -> None:
        """The database is away when a night begins, new or known: `settle` what is due, later."""
        with self._changed:
            self._settle, self._beat_s = settle, 0.0
            self._is_away = self._must_tell = True
            if opened:
                self._write(lambda outbox: outbox.append(opened.model_dump_json()))

    def resume(self, opened: Opened) -> None:
        """Begin the outbox anew with a night that the database has."""
        with self._changed:
            assert self._outbox is not None  # noqa: S101 - `use` comes first
            self._own = 0
            self._write(lambda outbox: outbox.restart(opened.model_dump_json()))

    def append(self, event: Event) -> None:
        """Append an event, and wait until it is imported, unless database unreachable."""
        needs_lease = isinstance(event, Began | Planned)
        if needs_lease and self._taken:
            raise self._taken
        wait_s = _PLAN_S if isinstance(event, Planned) else _WAIT_S
        with self._changed:
            self._is_closed = self._is_closed or isinstance(event, Closed)
            self._write(lambda outbox: outbox.append(event.model_dump_json()))
            if not self._changed.wait_for(self._is_settled, wait_s):
                self._note_away(TimeoutError(f"no answer within {wait_s:g} s"))
        if needs_lease and self._taken:
            raise self._taken

    def drain(self, wait_s: float) -> Exception | None:
        """Wait until all is imported, as long as the database answers; return why it is not."""
        until_s = time.monotonic() + wait_s
        with self._changed:
            begun = self._turns
            while not self._is_imported() and not cancel.requested():
                if self._failed_turn > begun:
                    return self._error
                # An import that was under way may still fail; the next one counts.
                self._next_s = 0.0
                self._changed.notify_all()
                if time.monotonic() >= until_s:
                    return TimeoutError(f"no answer within {wait_s:g} s")
                self._changed.wait(_POLL_S)
        return None

    def close(self) -> None:
        """Give the farm back, if the database answers; the outbox of a finished night goes."""
        with self._changed:
            is_first, self._is_closing = not self._is_closing, True
            self._changed.notify_all()
        if self._thread:
            self._thread.join(_WAIT_S)
            if is_first and self._thread.is_alive():
                self._tell("lease not released; another host can take over in 60 s")
        if not is_first or self._outbox is None:
            return
        if self._is_imported() and self._is_closed:
            self._outbox.remove()
        elif not self._is_imported():
            self._tell(
                f"results are queued locally; the next `farm run` imports them: {self._outbox.path}"
            )

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="etdeploy-outbox", daemon=True)
            self._thread.start()
        with self._changed:
            self._changed.notify_all()

    # The callers of these hold the lock.

    def _is_imported(self) -> bool:
        return self._outbox is None or self._outbox.is_imported

    def _is_settled(self) -> bool:
        return self._is_away or self._is_full or self._is_imported()

    def _write(self, act: Callable[[Outbox], None]) -> None:
        assert self._outbox is not None  # noqa: S101 - a night is open
        if not self._is_away:
            self._next_s = 0.0
        try:
            act(self._outbox)
            self._is_full = False
        except OSError as error:
            self._note_full(error)
        self._changed.notify_all()

    def _note_full(self, error: OSError) -> None:
        if not self._is_full and self._outbox:
            folder = quoted(self._outbox.path.parent)
            room = f"\nMake room on its disk: df -h {folder}" if find_disk_full(error) else ""
            self._tell(f"events wait in memory: {self._outbox.path}: {error.strerror}{room}")
        self._is_full = True

    def _note_away(self, error: Exception) -> None:
        if not self._is_away:
            self._tell(
                f"database unreachable; the night continues and imports events later: {error}"
            )
        self._is_away = self._must_tell = True
        self._changed.notify_all()

    # What follows runs in the thread.

    def _run(self) -> None:
        while not self._is_closing:
            with self._changed:
                is_idle = self._is_imported() and not self._is_full
                due_s = max(self._beat_s, self._next_s) if is_idle else self._next_s
                left_s = due_s - time.monotonic()
                if left_s > 0:
                    self._changed.wait(left_s)
            if left_s <= 0:
                self._turns += 1
                self._turn()
        self._end()

    def _turn(self) -> None:
        try:
            done = self._import_all()
            if time.monotonic() >= self._beat_s:
                self._renew()
        except Exception as error:
            self._close_store()
            with self._changed:
                self._note_failure(error)
        else:
            with self._changed:
                if done and self._must_tell:
                    entries = "1 entry" if done == 1 else f"{done} entries"
                    since = (
                        "database reachable again" if self._is_away else "left by an earlier run"
                    )
                    self._tell(f"{since}: imported {entries}")
                self._is_away = self._is_full = self._must_tell = False
                self._pause_s, self._next_s = _FIRST_S, 0.0
                self._changed.notify_all()

    def _note_failure(self, error: Exception) -> None:
        self._error, self._failed_turn = error, self._turns
        self._next_s = time.monotonic() + self._pause_s
        self._pause_s = min(_LONGEST_S, self._pause_s * 2)
        if isinstance(error, OSError):
            self._note_full(error)
            return
        if not isinstance(error, EtdeployError):
            self._tell(f"a bug in etdeploy: {type(error).__name__}: {error}")
        if not self._is_imported():
            self._note_away(error)

    def _import_all(self) -> int:
        done = 0
        while self._outbox is not None:
            with self._changed:
                self._outbox.flush()
                lines = self._outbox.lines(self._outbox.imported)
            if not lines:
                break
            try:
                for line, after in lines:
                    if self._is_closing:
                        return done
                    self._import(line, after > self._own)
                    # Where the database goes away again, the next try goes on here.
                    self._outbox.imported, done = after, done + 1
            finally:
                with self._changed:
                    self._outbox.mark_imported()
                    self._changed.notify_all()
        return done

    def _import(self, line: str, is_own: bool) -> None:
        """Import an event; leaves out one that the database will never take."""
        from etdeploy.history.store.errors import is_refused

        event = parse_event(line)
        if event is None:
            self._tell(f"an entry of {self._outbox and self._outbox.path} cannot be read: {line}")
            return
        lease = self._lease if is_own and isinstance(event, Began | Planned) else None
        try:
            if not (lease and self._taken):  # else it did not begin
                import_event(self._open_store(), event, self._tell, lease)
        except TakenError as error:
            self._lose(error)
        except EtdeployError as error:
            if not is_refused(error):
                raise
            self._tell(f"the history does not take an entry, which is left out: {error}\n  {line}")

    def _renew(self) -> None:
        if self._lease and not self._taken:
            try:
                with self._open_store().transaction(writes=True) as connection:
                    self._lease.take(connection, anew=False)
                    if self._settle:
                        self._settle(connection)
                self._settle = None
            except TakenError as error:
                self._lose(error)
        self._beat_s = time.monotonic() + _BEAT_S

    def _lose(self, error: TakenError) -> None:
        if self._taken is None:
            self._taken = error
            self._tell(f"lease lost: not starting further work: {error}")

    def _end(self) -> None:
        try:
            if self._lease and not self._taken:
                with self._open_store().transaction(writes=True) as connection:
                    self._lease.give_back(connection)
        except (EtdeployError, OSError) as error:
            self._tell(f"lease not released; another host can take over in 60 s: {error}")
        self._close_store()

    def _open_store(self) -> Store:
        """The database; after an error it is opened anew, for its server may have been started."""
        from etdeploy.history.store.store import open_store

        if self._store is None:
            self._store = self._stack.enter_context(open_store(self._place))
        return self._store

    def _close_store(self) -> None:
        self._store = None
        self._stack.close()
