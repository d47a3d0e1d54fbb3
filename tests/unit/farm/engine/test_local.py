"""The engine of one host, with attempts that are played."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from etdeploy.cache.workspace import Workspace
from etdeploy.core import cancel
from etdeploy.core.errors import DeviceError
from etdeploy.core.files.locks import exclusive
from etdeploy.devices.base import Capabilities
from etdeploy.devices.kinds import Recovery
from etdeploy.farm.engine import local
from etdeploy.farm.engine.base import Engine
from etdeploy.farm.engine.local import LocalEngine
from etdeploy.farm.model import AttemptResult, AvailableDevice, BuildArtifact, Fate, Order
from etdeploy.graph.tasks.steps import Load, Slots
from tests.support.parcels import make_artifact, make_offer, make_order

HERE = Capabilities(shares_cores=True)


class Play:
    """Attempts that go on until they are let go or cancelled."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.under_way: set[str] = set()
        self.most = 0
        self.go = threading.Event()
        self.idle_first = False
        self.error: BaseException | None = None
        self._lock = threading.Lock()

    def __call__(
        self, order: Order, folder: Path, output: Path, limit_s: float, flag: cancel.Flag,
        progress: Callable[..., None], idle: Callable[[], None],
    ) -> AttemptResult:  # fmt: skip
        assert (str(folder), output.name, limit_s) == (order.artifact.folder, "out", order.limit_s)
        with self._lock:
            self.begun.append(order.visit)
            self.under_way.add(order.visit)
            self.most = max(self.most, len(self.under_way))
        progress("playing")
        if self.idle_first:
            idle()
        fate = Fate.DONE
        while not self.go.wait(0.01):
            if flag.is_set():
                fate = Fate.PUT_OFF
                break
        with self._lock:
            self.under_way.discard(order.visit)
        if self.error:
            raise self.error
        return AttemptResult(
            visit=order.visit, attempt=order.attempt, identity=order.offer.identity,
            host=order.offer.host, fate=fate,
        )  # fmt: skip


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Play:
    found = Play()
    monkeypatch.setattr(local, "run_attempt", found)
    return found


@pytest.fixture
def slots() -> Slots:
    return Slots(1)


@pytest.fixture
def engine(play: Play, slots: Slots, tmp_path: Path) -> Iterator[LocalEngine]:
    made = LocalEngine(tmp_path / "out", host="box", slots=slots)
    checked: Engine = made
    yield made
    checked.close()


@pytest.fixture
def artifact(tmp_path: Path) -> BuildArtifact:
    return make_artifact(tmp_path, Workspace.opened())


def until(condition: Callable[[], Any]) -> None:
    waiting = threading.Event()
    while not condition():
        waiting.wait(0.01)


def all_of(engine: LocalEngine, count: int) -> dict[str, AttemptResult]:
    found: dict[str, AttemptResult] = {}
    while len(found) < count:
        for ending in engine.ended(10.0):
            assert ending.visit not in found
            found[ending.visit] = ending
    return found


def test_what_computes_here_is_measured_alone(
    engine: LocalEngine, play: Play, slots: Slots, artifact: BuildArtifact
) -> None:
    host = make_offer("host", capabilities=HERE)
    qemu = make_offer("qemu", capabilities=HERE)
    with slots.load(Load.HEAVY):  # an export
        engine.start(make_order(artifact, host, visit="host"))
        engine.start(make_order(artifact, qemu, visit="qemu"))
        assert engine.ended(0.3) == []
        assert play.begun == []
    play.go.set()
    assert set(all_of(engine, 2)) == {"host", "qemu"}
    assert play.most == 1


def test_a_phone_that_works_by_itself_lets_this_host_measure(
    engine: LocalEngine, play: Play, artifact: BuildArtifact
) -> None:
    engine.start(make_order(artifact, make_offer("android:A"), visit="phone"))
    until(lambda: play.begun)
    engine.start(make_order(artifact, make_offer("host", capabilities=HERE), visit="host"))
    assert engine.ended(0.3) == []
    assert play.begun == ["phone"], "it is still pushing"
    engine.cancel("phone")
    until(lambda: len(play.begun) == 2)
    play.go.set()
    all_of(engine, 2)
    play.go.clear()
    play.idle_first = True
    engine.start(make_order(artifact, make_offer("android:A"), visit="phone2"))
    until(lambda: len(play.begun) == 3)
    engine.start(make_order(artifact, make_offer("host", capabilities=HERE), visit="host2"))
    until(lambda: len(play.under_way) == 2)
    play.go.set()
    all_of(engine, 2)


def test_one_is_cancelled_and_the_others_go_on(
    engine: LocalEngine, play: Play, artifact: BuildArtifact
) -> None:
    for serial in ("A", "B"):
        engine.start(make_order(artifact, make_offer(f"android:{serial}"), visit=serial))
    until(lambda: len(play.under_way) == 2)
    engine.cancel("A")
    engine.cancel("nobody")
    assert [(e.visit, e.fate) for e in engine.ended(10.0)] == [("A", Fate.PUT_OFF)]
    play.go.set()
    assert [(e.visit, e.fate) for e in engine.ended(10.0)] == [("B", Fate.DONE)]


def test_what_waits_for_this_host_can_be_cancelled(
    engine: LocalEngine, play: Play, slots: Slots, artifact: BuildArtifact
) -> None:
    with slots.load(Load.HEAVY):
        engine.start(make_order(artifact, make_offer("host", capabilities=HERE), visit="host"))
        engine.cancel("host")
        [ending] = engine.ended(10.0)
    assert (ending.fate, play.begun) == (Fate.PUT_OFF, [])


def test_a_bug_in_an_attempt_loses_nothing(
    engine: LocalEngine, play: Play, artifact: BuildArtifact
) -> None:
    play.error = ZeroDivisionError("oops")
    play.go.set()
    engine.start(make_order(artifact))
    [ending] = engine.ended(10.0)
    assert ending.fate is Fate.LOST
    assert ending.failure is not None
    assert "oops" in ending.failure.message


def test_a_visit_is_not_begun_twice(
    engine: LocalEngine, play: Play, artifact: BuildArtifact
) -> None:
    engine.start(make_order(artifact))
    with pytest.raises(ValueError, match="under way"):
        engine.start(make_order(artifact))


def test_the_end_ends_everything(engine: LocalEngine, play: Play, artifact: BuildArtifact) -> None:
    engine.start(make_order(artifact))
    until(lambda: play.under_way)
    engine.close()
    assert not play.under_way
    assert [e.fate for e in engine.ended(0.0)] == [Fate.PUT_OFF]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Recovery]]:
    """What is done to devices; android:A2 does not come back."""
    done: list[tuple[str, Recovery]] = []

    def recover(name: str, step: Recovery, tell: Callable[[str], None]) -> bool:
        done.append((name, step))
        if name == "android:A2":
            raise DeviceError("the phone is not back", place=name)
        return name != "ssh:pi"

    monkeypatch.setattr(local, "recover_device", recover)
    return done


def with_offers(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch, *offers: AvailableDevice
) -> None:
    monkeypatch.setattr(engine, "offers", lambda: offers)


def test_a_step_of_recovery(
    engine: LocalEngine, steps: list[tuple[str, Recovery]], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, board = make_offer("android:A1"), make_offer("android:A2"), make_offer("ssh:pi")
    with_offers(engine, monkeypatch, one, board)
    assert engine.recover(one, "reconnect") == one
    assert "not back after reboot" in engine.recover(two, "reboot").problem
    assert engine.recover(board, "reboot") == board
    assert [step for _, step in steps] == ["reconnect", "reboot", "reboot"]


def test_a_server_is_not_restarted_under_others(
    engine: LocalEngine, play: Play, artifact: BuildArtifact, steps: list[tuple[str, Recovery]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    one = make_offer("android:A1")
    with_offers(engine, monkeypatch, one)
    engine.start(make_order(artifact, make_offer("android:B")))
    engine.recover(one, "restart")
    engine.recover(one, "reconnect")
    assert steps == [("android:A1", Recovery.RECONNECT)]


def test_a_device_that_somebody_uses_is_left_alone(
    engine: LocalEngine, steps: list[tuple[str, Recovery]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_LOCK_S", 0.0)
    one = make_offer("android:A1")
    with_offers(engine, monkeypatch, one)
    with exclusive(Workspace.default().lock_path("device", one.identity), "device"):
        engine.recover(one, "reboot")
    assert steps == []
