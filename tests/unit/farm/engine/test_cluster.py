"""The coordinator's side of a farm of several hosts, with a scheduler that no host connects to."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("distributed", reason="Dask distributed is not installed (the extra farm)")

from etdeploy.core.errors import DeviceError, UsageError
from etdeploy.farm.engine import wire
from etdeploy.farm.engine.cluster import ClusterEngine
from etdeploy.farm.engine.wire import DeliveredResult
from etdeploy.farm.model import AttemptResult, BuildArtifact, Fate
from etdeploy.farm.spec.model import Hosts
from tests.support.parcels import make_offer, make_order, plain_artifact

# Dask asks uname for the processor.
pytestmark = pytest.mark.usefixtures("real_processes")


@pytest.fixture
def artifact(tmp_path: Path) -> BuildArtifact:
    return plain_artifact(tmp_path / "artifact", {"runner": b"#!"})


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[ClusterEngine]:
    made = ClusterEngine(Hosts(listen="tcp://127.0.0.1:0"), tmp_path / "results", grace_s=30.0)
    try:
        yield made
    finally:
        made.close()


def in_loop(engine: ClusterEngine, work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run_coroutine_threadsafe(work, engine._loop).result()


def wait_for(engine: ClusterEngine) -> AttemptResult:
    until_s = time.monotonic() + 60.0
    while time.monotonic() < until_s:
        if found := engine.ended(0.2):
            return found[0]
    raise AssertionError("no attempt ended")


def test_an_attempt_on_a_host_that_stays_away_is_lost(
    tmp_path: Path, artifact: BuildArtifact
) -> None:
    engine = ClusterEngine(Hosts(listen="tcp://127.0.0.1:0"), tmp_path / "results", grace_s=0.1)
    try:
        engine.start(make_order(artifact))
        result = wait_for(engine)
        assert (result.fate, result.visit, result.host) == (Fate.LOST, "n1-1", "box")
        engine.start(make_order(artifact, attempt=2))  # the device is free again
    finally:
        engine.close()


def test_a_device_has_one_order_at_a_time(engine: ClusterEngine, artifact: BuildArtifact) -> None:
    engine.start(make_order(artifact))
    with pytest.raises(ValueError, match="android:FAKE"):
        engine.start(make_order(artifact, visit="n1-2"))
    engine.start(make_order(artifact, make_offer("android:B"), visit="n1-2"))
    with pytest.raises(ValueError, match="android:C"):
        engine.start(make_order(artifact, make_offer("android:C"), visit="n1-2"))


@pytest.mark.parametrize("end", [lambda engine: engine.cancel("n1-1"), ClusterEngine.close])
def test_an_order_that_no_host_has_ends_when_it_is_cancelled(
    end: Callable[[ClusterEngine], None], engine: ClusterEngine, artifact: BuildArtifact,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("etdeploy.farm.engine.cluster._CANCEL_S", 0.0)
    monkeypatch.setattr("etdeploy.farm.engine.cluster._CLOSING_S", 0.0)
    engine.start(make_order(artifact))
    end(engine)
    result = wait_for(engine)
    assert (result.fate, result.failure and result.failure.kind) == (Fate.LOST, "host")


def test_a_device_of_a_host_that_is_away_cannot_be_recovered(engine: ClusterEngine) -> None:
    assert engine.offers() == []
    with pytest.raises(DeviceError, match="box"):
        engine.recover(make_offer(), "reboot")


def test_hosts_of_other_releases_are_refused_for_good(engine: ClusterEngine) -> None:
    own = wire.own_versions()
    for versions, refused in ((own, False), (own.model_copy(update={"etdeploy": "0.0"}), True)):
        answer = in_loop(engine, engine._hello("box", versions.model_dump_json()))
        welcome = wire.Welcome.model_validate_json(answer)
        assert (bool(welcome.refused), welcome.final) == (refused, refused)
    assert "pip install" in welcome.remedy


def test_whoever_is_not_a_host_of_the_farm_gets_and_leaves_no_files(
    engine: ClusterEngine, artifact: BuildArtifact
) -> None:
    engine.start(make_order(artifact))
    digest = next(iter(artifact.files.values()))
    assert "data" not in in_loop(engine, engine._read("tcp://other:1", digest, 0))
    stored = in_loop(engine, engine._store("tcp://other:1", ["n1-1", 1], 0, b"records"))
    assert set(stored) == {"refused"}


def test_records_that_did_not_arrive_whole_fail_the_attempt(
    engine: ClusterEngine, artifact: BuildArtifact
) -> None:
    done = AttemptResult(
        visit="n1-1", attempt=1, identity="android:FAKE", host="box", fate=Fate.DONE,
        run_id="r", record="record.json",
    )  # fmt: skip
    assert engine._store_records(DeliveredResult(ending=done)) == done
    engine._records.store(("n1-1", 1), 0, b"half of an archive")
    result = engine._store_records(DeliveredResult(ending=done, digest="0" * 64))
    assert (result.fate, result.record, result.run_id) == (Fate.FAILED, None, None)
    assert (result.failure and result.failure.kind) == "host"


def test_an_answer_that_is_none_is_a_bug_of_the_host(
    engine: ClusterEngine, artifact: BuildArtifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer(*_: object, **__: object) -> str:
        return json.dumps({"not": "a result"})

    monkeypatch.setattr(engine, "_run", answer)
    engine.start(make_order(artifact))
    result = wait_for(engine)
    assert (result.fate, result.failure and result.failure.kind) == (Fate.FAILED, "bug")


def test_an_address_in_use_is_a_user_mistake(engine: ClusterEngine, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        ClusterEngine(Hosts(listen=engine.address), tmp_path / "other")
    assert caught.value.place == engine.address
