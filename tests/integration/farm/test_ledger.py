"""The ledger with real processes and both databases: at once, killed, and while one is down."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from etdeploy import device_pool
from etdeploy.device_pool import active_reservations, require_unreserved, reserve
from etdeploy.farm.model import Fate, Standing, VisitState
from etdeploy.farm.night import outbox as outbox_module
from etdeploy.farm.night.ledger import Ledger
from etdeploy.farm.night.outbox import Outbox
from etdeploy.history.location import HistoryLocation, require_location
from etdeploy.history.nights import KnownDevice
from etdeploy.history.store import errors
from etdeploy.history.store.errors import UnreachableError
from etdeploy.history.store.store import Filter, open_store
from tests.support.nights import NOW, make_visit, measured
from tests.support.postgres import Postgres, Restartable, postgres, running

__all__ = ["postgres"]
pytestmark = pytest.mark.integration
VISITS = 12
_CHILD = """
import sys, time
from pathlib import Path
from etdeploy.farm.night.events import AttemptEnded
from etdeploy.farm.night.ledger import Ledger
from etdeploy.farm.night.outbox import import_event
from etdeploy.history.location import require_location
from etdeploy.history.store.store import open_store
from tests.support.nights import NOW, make_visit, measured
where, data, folder, farm, mode = sys.argv[1:]
folder = Path(folder)
with Ledger(require_location(where), folder=Path(data)) as ledger:
    if mode.startswith("visits of "):
        night = mode.removeprefix("visits of ")
        with open_store(require_location(where)) as store:
            for number in range(12):
                ending = measured(folder, f"{night}-{number}", 1, identity=farm)
                import_event(store, AttemptEnded(ending=ending, at=NOW.isoformat()), print)
        sys.exit()
    night, states = ledger.open_night(farm, "digest", NOW)
    print(night, flush=True)
    if mode == "held":
        sys.stdin.read()
    ledger.plan([make_visit(night, number) for number in range(12)])
    for state in ledger.states(night):
        if state.standing == "done":
            continue
        attempt = len(state.attempts) + 1
        ledger.running(state.visit.id, attempt, "android-A", "wolf")
        if mode == "slow":
            time.sleep(0.1)
        ledger.ended(measured(folder, state.visit.id, attempt))
        print(state.visit.id, flush=True)
    ledger.finish(night)
"""


@pytest.fixture
def database(postgres: Postgres) -> HistoryLocation:
    return require_location(postgres.new_database(f"farm_{secrets.token_hex(4)}"))


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> HistoryLocation:
    if request.param == "sqlite":
        return require_location(str(tmp_path / "history.db"))
    found: HistoryLocation = request.getfixturevalue("database")
    return found


def start(
    place: HistoryLocation, folder: Path, mode: str, farm: str = "nightly", data: str = "data"
) -> subprocess.Popen[str]:
    where = place.url or str(place.file)
    arguments = [where, str(folder / data), str(folder / "out"), farm, mode]
    return subprocess.Popen(
        [sys.executable, "-c", _CHILD, *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def output(child: subprocess.Popen[str]) -> list[str]:
    out, err = child.communicate()
    # What a killed one had just appended may not be noted as imported.
    left = "warning: left by an earlier run: imported 1 entry\n"
    assert (child.returncode, err.removeprefix(left)) == (0, "")
    return out.splitlines()


def require_once_each(place: HistoryLocation, night: str) -> tuple[VisitState, ...]:
    """Every visit is done, one attempt of each counts, and its record alone is in the history."""
    with Ledger(place) as ledger:
        states = ledger.states(night)
        [kept] = ledger.nights()
    assert kept.outcome == "finished"
    assert [state.standing for state in states] == [Standing.DONE] * VISITS
    counted = [state.result.run_id for state in states if state.result]
    with open_store(place, read_only=True) as store:
        assert sorted(entry.run_id for entry in store.entries(Filter(), 999)) == sorted(
            map(str, counted)
        )
    return states


def test_two_coordinators_at_once(place: HistoryLocation, tmp_path: Path) -> None:
    # Each with a data folder of its own, as two hosts have.
    both = [start(place, tmp_path, "held", data=name) for name in ("one", "two")]
    wait_for(lambda: any(child.poll() is not None for child in both))
    ends = [(child.communicate(), child.returncode) for child in both]
    assert sorted(code for _, code in ends) == [0, 1]
    [((night, *_), _)] = [(out.split(), err) for (out, err), code in ends if code == 0]
    [refused] = [err for (_, err), code in ends if code]
    assert "nightly: process" in refused
    require_once_each(place, night)


def test_one_attempt_of_each_visit_counts_whoever_tells_it(
    place: HistoryLocation, tmp_path: Path
) -> None:
    with Ledger(place, folder=tmp_path) as ledger:
        night = ledger.open_night("nightly", "digest", NOW).night
        ledger.plan([make_visit(night, number) for number in range(VISITS)])
        tellers = [
            start(place, tmp_path, f"visits of {night}", name) for name in ("phone-1", "phone-2")
        ]
        assert [output(teller) for teller in tellers] == [[], []]
        ledger.finish(night)
    assert all(len(state.attempts) == 2 for state in require_once_each(place, night))


def test_a_coordinator_is_killed_and_followed(place: HistoryLocation, tmp_path: Path) -> None:
    first = start(place, tmp_path, "slow")
    assert first.stdout
    night, *_ = [first.stdout.readline().strip() for _ in range(4)]
    first.kill()
    first.communicate()
    again, *visits = output(start(place, tmp_path, "quick"))
    assert again == night
    assert 0 < len(visits) <= VISITS - 3
    fates = [[end.fate for end in state.attempts] for state in require_once_each(place, night)]
    assert all(each[-1] is Fate.DONE for each in fates)


@pytest.fixture
def server() -> Iterator[Restartable]:
    pytest.importorskip("psycopg", reason="the extra postgres is not installed")
    with running() as made:
        yield made


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.05)


def unimported(folder: Path) -> list[Path]:
    """Outboxes with events that no database has yet."""
    found = (folder / "data" / "farm").glob("*.outbox.jsonl")
    return [path for path in found if not Outbox(path).is_imported]


def test_killed_while_the_server_is_stopped(server: Restartable, tmp_path: Path) -> None:
    place = require_location(server.url())
    first = start(place, tmp_path, "slow")
    assert first.stdout
    night = first.stdout.readline().strip()
    first.stdout.readline()
    server.stop()
    wait_for(lambda: bool(unimported(tmp_path)))
    first.stdout.readline()
    first.kill()
    first.communicate()
    [path] = unimported(tmp_path)
    with path.open("ab") as stream:
        stream.write(b'{"op":"ended","ending":{"vis')
    # The next one begins while it is still stopped, and knows how far the night was.
    second = start(place, tmp_path, "slow")
    assert second.stdout
    assert second.stdout.readline().strip() == night
    second.stdout.readline()
    server.start()
    second.communicate()
    assert second.returncode == 0
    if unimported(tmp_path):  # it ended before the server was back
        output(start(place, tmp_path, "quick"))
    require_once_each(place, night)


def test_a_server_that_hangs(
    server: Restartable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_module, "_WAIT_S", 0.5)
    place = require_location(server.url())
    said: list[str] = []
    with Ledger(place, folder=tmp_path / "data", tell=said.append) as ledger:
        night = ledger.open_night("nightly", "digest", NOW).night
        ledger.plan([make_visit(night, number) for number in range(VISITS)])
        stopped = backends(server)
        for process in stopped:
            os.kill(process, signal.SIGSTOP)
        try:
            for number in range(VISITS):
                ledger.ended(measured(tmp_path, f"{night}-{number}"))
            assert unimported(tmp_path)
        finally:
            for process in stopped:
                os.kill(process, signal.SIGCONT)
        wait_for(lambda: not unimported(tmp_path))
        ledger.finish(night)
    require_once_each(place, night)


def backends(server: Restartable) -> list[int]:
    """The server's process and its children."""
    import psutil

    main = psutil.Process(server.children[0].pid)
    return [main.pid, *(child.pid for child in main.children(recursive=True))]


PHONE = KnownDevice(identity="android-A1", device="android:A1")


def test_two_people_reserve_one_phone(place: HistoryLocation) -> None:
    code = (
        "import sys\nfrom etdeploy.history.location import require_location\n"
        "from etdeploy.core.errors import DeviceError\n"
        "from etdeploy.device_pool import reserve\n"
        "from etdeploy.history.nights import KnownDevice\n"
        "phone = KnownDevice(identity='android-A1', device='android:A1')\n"
        "try:\n    reserve(require_location(sys.argv[1]), phone, sys.argv[2], 600.0)\n"
        "    print('mine')\nexcept DeviceError as error:\n    print(error.message)\n"
    )
    where = place.url or str(place.file)
    both = [
        subprocess.Popen(
            [sys.executable, "-c", code, where, who], stdout=subprocess.PIPE, text=True
        )
        for who in ("anna@wolf", "bob@owl")
    ]
    told = sorted(child.communicate()[0] for child in both)
    assert told[1] == "mine\n"
    assert "has reserved" in told[0]
    assert len(active_reservations(place)) == 1


class _NoClock:
    @staticmethod
    def now(*_: object) -> None:
        raise AssertionError("this machine's clock was asked")


def test_a_reservation_ends_by_the_servers_clock(
    database: HistoryLocation, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errors, "datetime", _NoClock)
    made, _ = reserve(database, PHONE, "anna@wolf", 600.0)
    assert active_reservations(database) == (made,)
    name = database.shown.rpartition("/")[2]
    postgres.sql("UPDATE etdeploy_reservations SET until = '2026-01-01'", database=name)
    assert active_reservations(database) == ()


def test_a_run_asks_the_server(
    database: HistoryLocation, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from etdeploy.core.errors import DeviceError

    monkeypatch.setattr(device_pool, "_unreadable", False)
    monkeypatch.setenv("ETDEPLOY_STORE", str(database.url))
    require_unreserved(PHONE.identity, PHONE.device)  # there are no tables
    reserve(database, PHONE, "anna@wolf", 600.0)
    with pytest.raises(DeviceError, match="anna@wolf has reserved"):
        require_unreserved(PHONE.identity, PHONE.device)
    monkeypatch.setenv("ETDEPLOY_STORE", "postgresql://me:s3cret@127.0.0.1:1/bench")
    require_unreserved(PHONE.identity, PHONE.device)
    require_unreserved(PHONE.identity, PHONE.device)
    said = capsys.readouterr().err
    assert said.count("warning:") == 1
    assert "s3cret" not in said


def test_what_passes_by_itself_is_told_apart(database: HistoryLocation, postgres: Postgres) -> None:
    from etdeploy.core.errors import StoreError

    gone = require_location("postgresql://me@127.0.0.1:1/bench")
    with pytest.raises(UnreachableError), open_store(gone):
        pass
    with (
        pytest.raises(StoreError) as caught,
        open_store(require_location(postgres.url("postgres", "wr0ng"))),
    ):
        pass
    assert not isinstance(caught.value, UnreachableError)


def test_the_disk_of_the_outbox_is_full(tmp_path: Path) -> None:
    from tests.integration.cache.test_disk import tmpfs

    place = require_location(str(tmp_path / "history.db"))
    said: list[str] = []
    with tmpfs(tmp_path / "data", "size=64k") as disk:
        with Ledger(place, folder=disk, tell=said.append) as ledger:
            night = ledger.open_night("nightly", "digest", NOW).night
            ledger.plan([make_visit(night, number) for number in range(VISITS)])
            filler = disk / "filler"
            filler.write_bytes(bytes(shutil.disk_usage(disk).free))
            for number in range(VISITS):
                ledger.give_up(f"{night}-{number}", Standing.MISSED, "x" * 2000)
            [path] = (disk / "farm").glob("*.outbox.jsonl")
            for line in path.read_text().splitlines():
                json.loads(line)
            assert "df -h" in said[0]
            filler.unlink()
            ledger.finish(night)
        with Ledger(place) as reader:
            assert all(state.standing is Standing.MISSED for state in reader.states(night))
