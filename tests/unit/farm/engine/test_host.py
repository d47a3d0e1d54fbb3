"""Attempts on a host of a farm: done once, sent whole, and not lost with the connection."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("distributed", reason="Dask distributed is not installed (the extra farm)")

from etdeploy.core import cancel
from etdeploy.core.errors import DeviceError, Interrupted
from etdeploy.farm.engine import wire
from etdeploy.farm.engine.host import HostAttempts, HostDependencies, Link
from etdeploy.farm.engine.transfer import CHUNK_BYTES, Records, ServedFiles
from etdeploy.farm.engine.wire import DeliveredResult
from etdeploy.farm.model import AttemptResult, BuildArtifact, Fate, Order
from tests.support.parcels import make_offer, make_order, plain_artifact

KEY = ("n1-1", 1)
CONTENT = bytes(range(256)) * (CHUNK_BYTES // 100)


class Coordinator(Link):
    """Answers the host without a network."""

    def __init__(self, artifact: BuildArtifact, results: Path) -> None:
        super().__init__()
        self.files, self.records = ServedFiles(), Records(results)
        self.files.add(artifact)
        self.refuses: set[str] = set()

    def ask(self, op: str, *, to_the_end: bool = False, **message: Any) -> Any:
        if op in self.refuses:
            return {"refused": "not now"}
        if op == wire.READ:
            return {"data": self.files.read(**message)}
        assert to_the_end, "records of a cancelled attempt are sent, too"
        return {"have": self.records.store(KEY, message["offset"], message["data"])}


class Bench:
    """A host whose attempts write a record, or wait until they are cancelled."""

    def __init__(self, folder: Path, artifact: BuildArtifact) -> None:
        self.folder, self.artifact = folder / "host", artifact
        self.folder.mkdir()
        self.link = Coordinator(artifact, folder / "results")
        self.begun: list[Order] = []
        self.act: Callable[[Order, cancel.Flag], None] = lambda *_: None
        self.record: Path | None = None
        parts = HostDependencies(lambda: (), self._attempt, self._recover)
        self.attempts = HostAttempts(self.folder, parts, self.link)

    def _attempt(self, order: Order, artifact: Path, flag: cancel.Flag) -> AttemptResult:
        assert {name for name in self.artifact.files if not (artifact / name).is_file()} == set()
        self.begun.append(order)
        self.act(order, flag)
        return AttemptResult(
            visit=order.visit, attempt=order.attempt, identity=order.offer.identity, host="box",
            fate=Fate.DONE, run_id="r", record=self.record and str(self.record),
        )  # fmt: skip

    def _recover(self, *_: object) -> Any:
        raise DeviceError("it is away", remedy="plug it in")

    def perform(self, *orders: Order) -> list[DeliveredResult]:
        async def all_of() -> list[DeliveredResult]:
            return await asyncio.gather(*map(self.attempts.perform, orders))

        return asyncio.run(all_of())


@pytest.fixture
def bench(tmp_path: Path, cache_folder: Path) -> Iterator[Bench]:
    made = Bench(tmp_path, plain_artifact(tmp_path / "artifact", {"runner": b"#!"}))
    yield made
    made.attempts.end()


def test_records_arrive_in_chunks_and_leave_the_host(bench: Bench) -> None:
    bench.record = bench.folder / "run" / "record.json"
    bench.record.parent.mkdir()
    bench.record.write_bytes(b"{}")
    (bench.record.parent / "samples.bin").write_bytes(CONTENT)
    [done] = bench.perform(make_order(bench.artifact))
    assert (done.ending.fate, done.ending.record) == (Fate.DONE, "record.json")
    assert done.digest
    folder = bench.link.records.finish(KEY, done.digest)
    assert (folder / "samples.bin").read_bytes() == CONTENT
    assert list(bench.folder.iterdir()) == []


def test_an_order_that_is_sent_again_is_done_once(bench: Bench) -> None:
    order = make_order(bench.artifact)
    first, second = bench.perform(order, order)
    assert first == second
    assert bench.perform(order) == [first]
    assert len(bench.begun) == 1
    assert first.ending.seconds > 0


def test_a_new_order_for_a_device_cancels_the_one_before(bench: Bench) -> None:
    def wait(order: Order, flag: cancel.Flag) -> None:
        if order.attempt == 1:
            while not flag.is_set():
                time.sleep(0.01)
            raise Interrupted

    bench.act = wait
    first, second = bench.perform(make_order(bench.artifact), make_order(bench.artifact, attempt=2))
    assert (first.ending.fate, second.ending.fate) == (Fate.PUT_OFF, Fate.DONE)
    assert bench.begun[-1].attempt == 2


def test_the_coordinator_ends_one_attempt_and_the_others_go_on(bench: Bench) -> None:
    both = threading.Barrier(2)

    def wait(order: Order, flag: cancel.Flag) -> None:
        both.wait(60.0)
        if order.visit == "n1-1":
            assert {offer.name for offer in bench.attempts.busy()} >= {"android:FAKE"}
            bench.attempts.end(["n1-1", 1])
            assert flag.is_set()
        else:
            assert not flag.is_set()

    bench.act = wait
    other = make_order(bench.artifact, make_offer("android:B"), visit="n1-2")
    results = bench.perform(make_order(bench.artifact), other)
    assert [done.ending.fate for done in results] == [Fate.DONE, Fate.DONE]
    assert bench.attempts.busy() == []


@pytest.mark.parametrize("refused", [wire.READ, wire.STORE])
def test_what_the_coordinator_refuses_fails_the_attempt(bench: Bench, refused: str) -> None:
    bench.link.refuses.add(refused)
    bench.record = bench.folder / "run" / "record.json"
    bench.record.parent.mkdir()
    bench.record.touch()
    [done] = bench.perform(make_order(bench.artifact))
    assert (done.ending.fate, done.ending.record, done.digest) == (Fate.FAILED, None, None)


def test_a_recovery_that_fails_says_what_is_wrong(bench: Bench) -> None:
    after = bench.attempts.recover(make_offer(), "reboot")
    assert (after.problem, after.remedy) == ("it is away", "plug it in")


def test_a_question_waits_for_the_next_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    class Worker:
        async def ask(self, op: str, message: dict[str, Any]) -> Any:
            asked.append((op, message))
            if len(asked) == 1:
                raise OSError("the connection is lost")
            return "answer"

    asked: list[Any] = []
    link = Link()
    assert not link.is_lost

    async def serve() -> Any:
        link.connect(Worker())  # type: ignore[arg-type]
        return await asyncio.to_thread(link.ask, "op", digest="d")

    assert asyncio.run(serve()) == "answer"
    assert asked == [("op", {"digest": "d"})] * 2
    link.part()
    monkeypatch.setattr("etdeploy.farm.engine.host._AWAY_S", 0.0)
    with pytest.raises(DeviceError):
        link.ask("op")
