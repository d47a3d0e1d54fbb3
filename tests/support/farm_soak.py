"""A long night of real processes, of which some are killed; and what must hold in the end.

Hosts, coordinator and database are killed at random moments that a seed decides. The phones'
own logs and the database then tell whether anything was lost, or counted or measured twice.
"""

from __future__ import annotations

import heapq
import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.farm_cluster import ROOT, HostProcess
from tests.support.farm_soak_adbd import RealPhone
from tests.support.farm_soak_host import phones_on
from tests.support.farm_soak_night import Settings
from tests.support.farm_soak_phone import seconds_of
from tests.support.postgres import Restartable

_POLL_S = 0.05


class SoakHost(HostProcess):
    module = "tests.support.farm_soak_host"


@dataclass(frozen=True)
class Kills:
    """How often each thing happens in a night."""

    host: int = 0
    coordinator: int = 0
    database: int = 0
    frozen: int = 0
    unplugged: int = 0
    program: int = 0
    adbd: int = 0
    real_program: int = 0


def free_address() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{free.getsockname()[1]}"


def phones_of(hosts: int, phones: int) -> dict[str, list[str]]:
    """Identities by the name of their host."""
    return {f"h{h}": [f"h{h}p{n:02}" for n in range(phones // hosts)] for h in range(hosts)}


class Soak:
    """A night under way; things are done to it between two looks at the coordinator.

    Args:
        folder: For everything.
        settings: Of the night.
        hosts: Those that run, by name.
        server: The database; None where it cannot be stopped.
        seed: Of all that happens by chance.
        most_away_s: How long a host, a phone or the database may be away.
        phones: Those with a real adbd.
    """

    def __init__(
        self,
        folder: Path,
        settings: Settings,
        hosts: Mapping[str, HostProcess],
        server: Restartable | None,
        seed: int,
        most_away_s: float = 20.0,
        phones: Sequence[RealPhone] = (),
    ) -> None:
        self.folder, self.settings, self.hosts, self.server = folder, settings, hosts, server
        self.most_away_s, self.phones = most_away_s, phones
        self.draw = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.crashes: list[str] = []
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._plugged = {name: phones_on(folder, name) for name in hosts}
        self._child = self._started()

    def plan(self, kills: Kills, begin_s: float, end_s: float) -> None:
        """Decides when what happens, in seconds from now."""
        for name, often in vars(kills).items():
            for _ in range(often):
                self._at(self.draw.uniform(begin_s, end_s), getattr(self, name))

    def run(self, limit_s: float, until: Callable[[], bool] = lambda: False) -> None:
        """Lets the night go to its end, or until something is true.

        Raises:
            TimeoutError: It did not end.
        """
        until_s = time.monotonic() + limit_s
        while not (self.is_over or until()):
            while self._agenda and self._agenda[0][0] <= time.monotonic():
                heapq.heappop(self._agenda)[2]()
            if self._child.poll() not in (None, 0):
                self._ended_by_itself()
            if time.monotonic() > until_s:
                raise TimeoutError(f"the night has not ended after {limit_s:g} s")
            time.sleep(_POLL_S)
        if self.is_over:
            self._child.wait()

    @property
    def is_over(self) -> bool:
        """Whether the coordinator says that nothing is left."""
        return (self.folder / "end.json").exists()

    @property
    def programs(self) -> int:
        """How many phones have begun something."""
        return len(list((self.folder / "phones").glob("*.log")))

    def close(self) -> None:
        if self._child.poll() is None:
            self._child.terminate()
            self._child.wait()

    def host(self) -> None:
        """A host is killed, and started again after a while."""
        victim = self._host()
        if victim:
            self.done["host"] += 1
            victim.kill()
            self._at(self.draw.uniform(0.5, self.most_away_s), victim.start)

    def frozen(self) -> None:
        """A host stands still, and goes on, perhaps after the coordinator gave it up."""
        victim = self._host()
        if victim:
            self.done["frozen"] += 1
            victim.process.send_signal(signal.SIGSTOP)
            process = victim.process
            self._at(self.draw.uniform(1, 8), lambda: process.send_signal(signal.SIGCONT))

    def coordinator(self) -> None:
        """The coordinator is killed; the same command goes on with the night."""
        if self._child.poll() is None:
            self.done["coordinator"] += 1
            self._child.kill()
            self._child.wait()
            self._child = self._started()

    def database(self) -> None:
        """PostgreSQL is stopped at once for ten minutes of the night, up to an hour."""
        server = self.server
        if server and server.children:
            self.done["database"] += 1
            server.stop()
            away_s = self.draw.uniform(600, 3600) / self.settings.scale
            self._at(min(max(away_s, 1.0), self.most_away_s), server.start)

    def unplugged(self) -> None:
        """A phone is unplugged, and plugged in again after a while."""
        name = self.draw.choice(list(self.hosts))
        if self._plugged[name]:
            self.done["unplugged"] += 1
            phone = self.draw.choice(self._plugged[name])
            self._plug(name, [each for each in self._plugged[name] if each != phone])
            back = lambda: self._plug(name, [*self._plugged[name], phone])  # noqa: E731
            self._at(self.draw.uniform(0.5, self.most_away_s), back)

    def program(self) -> None:
        """A program on a phone is killed."""
        logs = sorted((self.folder / "phones").glob("*.log"))
        self._one("program", [partial(_kill_by, log) for log in logs])

    def real_program(self) -> None:
        """A program on a phone with a real adbd is killed."""
        self._one("real_program", [phone.kill_program for phone in self.phones])

    def adbd(self) -> None:
        """The adbd of a phone is killed, and started again after a while."""
        up = [phone.root for phone in self.phones if phone.root.is_up]
        if up:
            self.done["adbd"] += 1
            root = self.draw.choice(up)
            root.kill_adbd()
            self._at(self.draw.uniform(0.5, self.most_away_s), root.start_adbd)

    def _one(self, name: str, ways: list[Callable[[], bool]]) -> None:
        """Does one of several things, whichever can be done."""
        self.draw.shuffle(ways)
        if any(way() for way in ways):
            self.done[name] += 1

    def _ended_by_itself(self) -> None:
        self.crashes.append(f"the coordinator ended with {self._child.returncode}")
        if len(self.crashes) > 3:
            raise RuntimeError("; ".join(self.crashes))
        time.sleep(1.0)
        self._child = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "ETDEPLOY_CACHE_DIR": str(self.folder / "cache")}
        with (self.folder / "coordinator.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.support.farm_soak_night", str(self.folder)],
                cwd=ROOT, env=environment, stdout=log, stderr=log,
            )  # fmt: skip

    def _host(self) -> HostProcess | None:
        up = [host for host in self.hosts.values() if host.process.poll() is None]
        return self.draw.choice(up) if up else None

    def _plug(self, name: str, phones: Sequence[str]) -> None:
        self._plugged[name] = list(phones)
        self.hosts[name].plug(*phones)

    def _at(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (time.monotonic() + seconds, next(self._numbers), act))


def _kill_by(log: Path) -> bool:
    """Kills the program that a simulated phone runs; whether there was one."""
    word, _, _, process, _ = log.read_text().splitlines()[-1].split()
    if word != "begin":
        return False
    try:
        os.killpg(int(process), signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


@contextmanager
def running_hosts(
    folder: Path, address: str, phones: Mapping[str, Sequence[str]]
) -> Iterator[dict[str, HostProcess]]:
    """Hosts with their phones; they end with the block."""
    (folder / "phones").mkdir(exist_ok=True)
    with ExitStack() as stack:
        hosts: dict[str, HostProcess] = {}
        for name, identities in phones.items():
            hosts[name] = SoakHost(name, address, folder, identities)
            stack.callback(_end, hosts[name])
        yield hosts


def _end(host: HostProcess) -> None:
    if host.process.poll() is None:
        host.process.send_signal(signal.SIGCONT)
        host.stop()


def ideal_s(settings: Settings, identities: Iterable[str]) -> float:
    """What the phone with most to do needs, if it never waits."""
    return max(
        settings.repeats * sum(seconds_of(recipe, each) for recipe in settings.recipes)
        for each in identities
    )


def end_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "end.json").read_text())
    return found
