"""The engine over several hosts: a real scheduler, real processes, simulated devices."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("distributed", reason="Dask distributed is not installed (the extra farm)")

from distributed.core import rpc

from etdeploy.core.errors import UsageError
from etdeploy.farm.certificates import make_certificates, revoke_certificates
from etdeploy.farm.engine import wire
from etdeploy.farm.engine.cluster import ClusterEngine
from etdeploy.farm.engine.settings import security_of
from etdeploy.farm.model import Fate
from etdeploy.farm.spec.model import Hosts, Tls
from tests.support.farm_cluster import (
    artifact,
    coordinator,
    endings,
    host,
    log,
    offered,
    order,
    overlaps,
    until,
)
from tests.support.processes import listening

pytestmark = pytest.mark.integration


def test_forty_phones_on_two_hosts_each_measure_and_fetch_a_file_once(tmp_path: Path) -> None:
    made = artifact(tmp_path, "sleep 0.1", size_bytes=2_500_000)
    phones = [f"p{n:02}" for n in range(20)]
    with (
        coordinator(tmp_path) as engine,
        host("a", engine, tmp_path, phones),
        host("b", engine, tmp_path, [f"q{p}" for p in phones]),
    ):
        offers = offered(engine, 40)
        reads = []
        read = engine._artifacts.read
        engine._artifacts.read = lambda *what: reads.append(what) or read(*what)  # type: ignore[method-assign,func-returns-value]
        for repeat in (1, 2):
            for (identity, _), offer in offers.items():
                engine.start(order(f"n-{repeat}-{identity}", offer, made))
            found = endings(engine, 40)
            assert {ending.fate for ending in found.values()} == {Fate.DONE}
            for ending in found.values():
                record = Path(str(ending.record))
                assert json.loads(record.read_text()) == {"phone": ending.identity}
                assert record.is_relative_to(tmp_path / "results")
    # Three chunks and the end, for each of the two hosts.
    assert sorted(offset for _, offset in reads) == sorted([0, 1 << 20, 2 << 20, 2_500_000] * 2)
    assert overlaps(log(tmp_path)) == []
    assert not (tmp_path / "results" / ".incoming").exists()


def test_a_killed_host_loses_its_attempts_and_offers_its_phones_again(tmp_path: Path) -> None:
    with (
        coordinator(tmp_path) as engine,
        host("a", engine, tmp_path, ["p1"]) as first,
        host("b", engine, tmp_path, ["p2"]),
    ):
        offers = offered(engine, 2)
        engine.start(order("n-1", offers["p1", "a"], artifact(tmp_path, "sleep 600")))
        engine.start(order("n-2", offers["p2", "b"], artifact(tmp_path, "sleep 0.2")))
        until(lambda: len(log(tmp_path)) >= 4, "attempt")
        first.kill()
        found = endings(engine, 2)
        assert (found["n-1"].fate, found["n-2"].fate) == (Fate.LOST, Fate.DONE)
        assert [offer.identity for offer in engine.offers()] == ["p2"]
        first.start()
        offers = offered(engine, 2)
        engine.start(order("n-1", offers["p1", "a"], artifact(tmp_path, "sleep 0.1"), attempt=2))
        assert endings(engine, 1)["n-1"].fate is Fate.DONE


def test_phones_come_and_go_and_one_may_be_on_two_hosts(tmp_path: Path) -> None:
    with (
        coordinator(tmp_path) as engine,
        host("a", engine, tmp_path, ["p1"]) as first,
        host("b", engine, tmp_path, ["p1", "p2"]),
    ):
        assert set(offered(engine, 3)) == {("p1", "a"), ("p1", "b"), ("p2", "b")}
        first.plug()
        assert set(offered(engine, 2)) == {("p1", "b"), ("p2", "b")}
        first.plug("p3")
        offers = offered(engine, 3)
        engine.start(order("n-1", offers["p3", "a"], artifact(tmp_path, "sleep 1")))
        until(lambda: any(line.startswith("begin") for line in log(tmp_path)), "attempt")
        # Unplugged while it is measured: the attempt itself tells what that means.
        first.plug()
        assert endings(engine, 1)["n-1"].fate is Fate.DONE
        offered(engine, 2)


def test_an_attempt_that_crashes_fails_and_one_that_is_cancelled_ends(tmp_path: Path) -> None:
    with coordinator(tmp_path) as engine, host("a", engine, tmp_path, ["p1", "p2"]):
        offers = offered(engine, 2)
        engine.start(order("n-1", offers["p1", "a"], artifact(tmp_path, "crash")))
        engine.start(order("n-2", offers["p2", "a"], artifact(tmp_path, "sleep 600")))
        with pytest.raises(ValueError, match="has an order already"):
            engine.start(order("n-3", offers["p2", "a"], artifact(tmp_path, "sleep 600")))
        until(lambda: len([x for x in log(tmp_path) if x.startswith("begin")]) == 2, "attempts")
        engine.cancel("n-2")
        found = endings(engine, 2)
        assert (found["n-1"].fate, found["n-2"].fate) == (Fate.FAILED, Fate.PUT_OFF)
        assert found["n-1"].failure is not None
        assert engine.ended(0) == []


def test_steps_of_recovery_are_taken_on_the_host(tmp_path: Path) -> None:
    with coordinator(tmp_path) as engine, host("a", engine, tmp_path, ["p1"]):
        offer = offered(engine, 1)["p1", "a"]
        assert engine.recover(offer, "reconnect").problem == ""
        assert engine.recover(offer, "reboot").problem == "broken"
    taken = [line for line in log(tmp_path) if line.startswith("re")]
    assert taken == ["reconnect android:p1", "reboot android:p1"]


def test_a_connection_that_is_lost_for_a_moment_does_not_end_an_attempt(tmp_path: Path) -> None:
    with (
        coordinator(tmp_path, grace_s=60.0) as engine,
        host("a", engine, tmp_path, ["p1"]),
    ):
        offers = offered(engine, 1)
        engine.start(order("n-1", offers["p1", "a"], artifact(tmp_path, "sleep 3")))
        until(lambda: any(line.startswith("begin") for line in log(tmp_path)), "attempt")
        asyncio.run_coroutine_threadsafe(_cut(engine), engine._loop).result()
        offered(engine, 0)
        ending = endings(engine, 1)["n-1"]
        assert ending.fate is Fate.DONE
        assert len([line for line in log(tmp_path) if line.startswith("begin")]) == 1
        offered(engine, 1)


async def _cut(engine: ClusterEngine) -> None:
    """Breaks all connections of hosts, as a network does."""
    scheduler = engine._scheduler
    for address in list(scheduler.workers):
        scheduler.stream_comms[address].abort()


def test_hosts_come_back_to_a_coordinator_that_was_restarted(tmp_path: Path) -> None:
    with coordinator(tmp_path) as engine:
        address = engine.address
        with host("a", address, tmp_path, ["p1"]) as first:
            offers = offered(engine, 1)
            engine.start(order("n-1", offers["p1", "a"], artifact(tmp_path, "sleep 600")))
            until(lambda: any(line.startswith("begin") for line in log(tmp_path)), "attempt")
            engine.close()
            assert [ending.visit for ending in engine.ended(0)] == ["n-1"]
            with coordinator(tmp_path, listen=address) as again:
                offers = offered(again, 1)
                again.start(order("n-1", offers["p1", "a"], artifact(tmp_path, "true"), attempt=2))
                assert endings(again, 1)["n-1"].fate is Fate.DONE
                assert first.stop() == 0
    assert overlaps(log(tmp_path)) == []


def test_only_hosts_with_a_certificate_of_the_farm_take_part(tmp_path: Path) -> None:
    own, good = make_certificates(tmp_path / "own", ["coordinator", "a"])
    [foreign] = make_certificates(tmp_path / "foreign", ["b"])
    mixed = Tls(ca=own.ca, cert=foreign.cert, key=foreign.key)
    with (
        coordinator(tmp_path, "tls://127.0.0.1:0", own) as engine,
        host("a", engine, tmp_path, ["p1"], good),
        host("b", engine, tmp_path, ["p2"], foreign) as foreigner,
        host("c", engine, tmp_path, ["p3"], mixed),
        host("d", engine.address.replace("tls", "tcp"), tmp_path, ["p4"]),
    ):
        offers = offered(engine, 1)
        engine.start(order("n-1", offers["p1", "a"], artifact(tmp_path, "sleep 0.1")))
        assert endings(engine, 1)["n-1"].fate is Fate.DONE
        # It does not trust the coordinator, and waiting would not change that.
        assert foreigner.process.wait(60) == UsageError.exit_code
        # Whether the coordinator's reason arrives before its end of the connection is chance.
        for refused in (("told c waiting", "told c error"), ("told d waiting",)):
            until(lambda words=refused: any(x.startswith(words) for x in log(tmp_path)), "refusal")  # type: ignore[misc]
        assert list(offered(engine, 1)) == [("p1", "a")]


def test_another_version_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with coordinator(tmp_path) as engine:
        old = json.dumps({"etdeploy": "0.0.1", "python": "3.10", "distributed": "1.0"})
        answer = asyncio.run(_ask(engine.address, wire.HELLO, host="a", versions=old))
    welcome = wire.Welcome.model_validate_json(answer)
    assert welcome.final
    assert "etdeploy 0.0.1 (here" in welcome.refused
    assert "pip install 'etdeploy==" in welcome.remedy


def test_who_was_not_welcomed_gets_no_files_and_no_worker(tmp_path: Path) -> None:
    made = artifact(tmp_path, "sleep 0.1")
    digest = made.files["program/x.bin"]
    with coordinator(tmp_path) as engine, host("a", engine, tmp_path, ["p1"]):
        offers = offered(engine, 1)
        engine.start(order("n-1", offers["p1", "a"], made))
        endings(engine, 1)
        [worker] = engine._scheduler.workers
        ask = {"digest": digest, "offset": 0}
        assert "data" in asyncio.run(_ask(engine.address, wire.READ, worker=worker, **ask))
        assert "refused" in asyncio.run(_ask(engine.address, wire.READ, worker="x", **ask))
        ask["digest"] = "0" * 64
        assert "refused" in asyncio.run(_ask(engine.address, wire.READ, worker=worker, **ask))
        late = {"worker": worker, "key": ["n-1", 1], "offset": 0, "data": b"x"}
        assert "refused" in asyncio.run(_ask(engine.address, wire.STORE, **late))
        assert engine.ended(0) == []


def test_a_name_belongs_to_one_process_as_long_as_it_is_connected(tmp_path: Path) -> None:
    with (
        coordinator(tmp_path) as engine,
        host("a", engine, tmp_path, ["p1"]),
    ):
        offered(engine, 1)
        versions = wire.own_versions().model_dump_json()
        ask = {"host": "a", "versions": versions}
        answer = asyncio.run(_ask(engine.address, wire.HELLO, **ask))
        welcome = wire.Welcome.model_validate_json(answer)
        assert "'a'" in welcome.refused
        assert not welcome.final


async def _ask(address: str, op: str, **message: object) -> Any:
    arguments = security_of(None).get_connection_args("worker")
    async with rpc(address, connection_args=arguments) as scheduler:
        return await getattr(scheduler, op)(**message)


def test_nothing_listens_without_tls_beyond_this_machine(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no TLS"):
        ClusterEngine(Hosts(listen="tcp://0.0.0.0:0"), tmp_path)
    with coordinator(tmp_path) as engine, pytest.raises(UsageError, match="cannot listen"):
        ClusterEngine(Hosts(listen=engine.address), tmp_path)


@pytest.mark.parametrize("scheme", ["tcp", "tls"])
def test_only_the_scheduler_listens_and_only_where_it_was_asked_to(
    scheme: str, tmp_path: Path
) -> None:
    made = make_certificates(tmp_path / "tls", ["coordinator", "a"])
    own, other = made if scheme == "tls" else (None, None)
    with (
        coordinator(tmp_path, f"{scheme}://127.0.0.1:0", own) as engine,
        host("a", engine, tmp_path, ["p1"], other) as process,
    ):
        offers = offered(engine, 1)
        engine.start(order("n-1", offers["p1", "a"], artifact(tmp_path, "sleep 600")))
        until(lambda: any(line.startswith("begin") for line in log(tmp_path)), "attempt")
        port = int(engine.address.rpartition(":")[2])
        assert listening(os.getpid(), process.process.pid) == {("127.0.0.1", port)}


def test_a_host_whose_certificate_is_revoked_in_the_night_is_gone(tmp_path: Path) -> None:
    own, stolen, good = make_certificates(tmp_path / "tls", ["coordinator", "a", "b"])
    held = tmp_path / "held"
    shutil.copytree(tmp_path / "tls", held)
    # Whoever has the key uses no list.
    thief = Tls(ca=held / "ca.pem", cert=held / "a.pem", key=held / "a-key.pem")
    with (
        coordinator(tmp_path, "tls://127.0.0.1:0", own, grace_s=0.5) as engine,
        host("a", engine, tmp_path, ["p1"], thief),
        host("b", engine, tmp_path, ["p2"], good),
    ):
        offers = offered(engine, 2)
        engine.start(order("n-1", offers["p1", "a"], artifact(tmp_path, "sleep 600")))
        engine.start(order("n-2", offers["p2", "b"], artifact(tmp_path, "sleep 8")))
        until(lambda: len([x for x in log(tmp_path) if x.startswith("begin")]) == 2, "attempts")
        revoke_certificates(tmp_path / "tls", ["a"])
        found = endings(engine, 2)
        assert (found["n-1"].fate, found["n-2"].fate) == (Fate.LOST, Fate.DONE)
        assert list(offered(engine, 1)) == [("p2", "b")]
        # It tries to come back.
        until(lambda: any("waiting for the coordinator" in x for x in log(tmp_path)), "refusal")
        assert list(offered(engine, 1)) == [("p2", "b")]
    assert not stolen.cert.exists()
