"""Attempts in processes of their own, on this machine: whatever happens to one is an ending."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from etdeploy.cache.workspace import Workspace
from etdeploy.core import cancel
from etdeploy.farm.model import AttemptResult, AvailableDevice, Fate, Order
from etdeploy.farm.work.artifact import HOST, TIME_LIMIT, pack
from etdeploy.farm.work.child import run_attempt
from etdeploy.farm.work.local_devices import LocalDevices
from tests.support.parcels import REVISION, make_order, make_prepared, with_runner
from tests.support.processes import eventually, is_alive, naming

pytestmark = pytest.mark.integration

CRASHES = "kill -SEGV $$"
HANGS = "echo begun >begun; sleep 600"


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> AvailableDevice:
    shelf = LocalDevices(Workspace(tmp_path_factory.mktemp("cache")), "box")
    return next(offer for offer in shelf.look() if offer.identity == "host@box")


def order_of(tmp_path: Path, host: AvailableDevice, script: str, **changes: object) -> Order:
    """An order for a runner that is a script."""
    runner = tmp_path / "script"
    runner.write_text(f"#!/bin/sh\n{script}\n")
    runner.chmod(0o755)
    benchmark = {"runs": 1, "memory": False, "profile": False}
    prepared = with_runner(make_prepared(tmp_path, benchmark=benchmark), runner)
    artifact = pack(prepared, "mlp", None, REVISION, Workspace.opened())
    return make_order(artifact, host, **changes)


class Attempt:
    """An attempt in a thread."""

    def __init__(self, order: Order, output: Path) -> None:
        self.flag = cancel.Flag()
        self.doing: list[str] = []
        self.endings: list[AttemptResult] = []
        self._order, self._output = order, output
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        folder = Path(self._order.artifact.folder)
        self.endings.append(
            run_attempt(
                self._order, folder, self._output, self._order.limit_s, self.flag,
                lambda text, _=None: self.doing.append(text),
            )
        )  # fmt: skip

    def ended(self) -> AttemptResult:
        self._thread.join()
        [ending] = self.endings
        return ending


def runs(cache: Path) -> Callable[[], bool]:
    """Whether the runner has begun."""
    return lambda: bool(list((cache / "bundles" / "runs").glob("*/begun")))


def test_a_runner_that_crashes_is_the_recipes_failure(
    tmp_path: Path, host: AvailableDevice, data_folder: Path
) -> None:
    ending = Attempt(order_of(tmp_path, host, CRASHES), tmp_path / "out").ended()
    assert (ending.fate, ending.host) == (Fate.FAILED, "box")
    assert ending.failure is not None
    assert (ending.failure.kind, ending.failure.exit_code) == ("run", 7)
    assert "SIGSEGV" in ending.failure.message
    assert not data_folder.exists(), "the history is the coordinator's"


def test_a_hang_is_ended_from_outside(
    tmp_path: Path, host: AvailableDevice, cache_folder: Path
) -> None:
    attempt = Attempt(order_of(tmp_path, host, HANGS, limit_s=15.0), tmp_path / "out")
    ending = attempt.ended()
    assert ending.fate is Fate.FAILED
    assert ending.failure is not None
    assert ending.failure.kind == TIME_LIMIT
    assert "within 15 s: timing pass" in ending.failure.message
    assert eventually(lambda: not naming(cache_folder))


def test_a_cancelled_attempt_leaves_nothing(
    tmp_path: Path, host: AvailableDevice, cache_folder: Path
) -> None:
    attempt = Attempt(order_of(tmp_path, host, HANGS), tmp_path / "out")
    assert eventually(runs(cache_folder))
    attempt.flag.set()
    ending = attempt.ended()
    assert ending.fate is Fate.PUT_OFF
    assert ending.failure is not None
    assert ending.failure.kind == "interrupted"
    assert eventually(lambda: not naming(cache_folder))
    assert not list((cache_folder / "bundles" / "runs").iterdir())
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".gitignore"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_child_that_is_gone_is_told(
    tmp_path: Path, host: AvailableDevice, cache_folder: Path, number: signal.Signals
) -> None:
    attempt = Attempt(order_of(tmp_path, host, HANGS), tmp_path / "out")
    assert eventually(runs(cache_folder))
    [child] = children("farm/work/start.py")
    os.kill(child, number)
    ending = attempt.ended()
    assert ending.fate is Fate.LOST
    assert ending.failure is not None
    assert (ending.failure.kind, ending.failure.place) == (HOST, "box")
    assert f"was ended by {number.name} while timing pass" in ending.failure.message
    # Its runner is gone with it, and the device is free for the next attempt.
    assert eventually(lambda: not naming(cache_folder))
    ending = Attempt(order_of(tmp_path, host, CRASHES), tmp_path / "out").ended()
    assert ending.failure is not None
    assert ending.failure.kind == "run"


def test_a_killed_parent_takes_its_child_along(
    tmp_path: Path, host: AvailableDevice, cache_folder: Path
) -> None:
    order = order_of(tmp_path, host, HANGS)
    (tmp_path / "order.json").write_text(order.model_dump_json())
    (tmp_path / "parent.py").write_text(PARENT)
    parent = subprocess.Popen([sys.executable, tmp_path / "parent.py", tmp_path])
    assert eventually(runs(cache_folder))
    [child] = [pid for pid in descendants(parent.pid) if "start.py" in words(pid)]
    parent.kill()
    parent.wait()
    assert eventually(lambda: not is_alive(child))
    assert eventually(lambda: not naming(cache_folder))


PARENT = """\
import sys
from pathlib import Path
from etdeploy.core import cancel
from etdeploy.farm.model import Order
from etdeploy.farm.work.child import run_attempt
here = Path(sys.argv[1])
order = Order.load(here / "order.json")
run_attempt(order, Path(order.artifact.folder), here / "out", 60.0, cancel.Flag())
"""


def children(script: str) -> list[int]:
    """Processes of this one that run a script."""
    return [pid for pid in descendants(os.getpid()) if script in words(pid)]


def descendants(pid: int) -> list[int]:
    found = [
        int(child)
        for each in Path(f"/proc/{pid}/task").glob("*/children")
        for child in each.read_text().split()
    ]
    return found + [below for each in found for below in descendants(each)]


def words(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""
