"""A coordinator in this process, and hosts as real processes with simulated devices."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from etdeploy.devices.base import Bundle, ProcessLaunch
from etdeploy.farm.engine.cluster import ClusterEngine
from etdeploy.farm.model import AttemptResult, AvailableDevice, BuildArtifact, Order
from etdeploy.farm.spec.model import Hosts, Tls

ROOT = Path(__file__).resolve().parents[2]
# Long enough that only what never happens fails.
_PATIENCE_S = 60.0


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"there is still no: {what}"
        time.sleep(0.05)


class HostProcess:
    """One `tests.support.farm_host`, or another module that is started so."""

    module = "tests.support.farm_host"

    def __init__(
        self, name: str, address: str, folder: Path, phones: Sequence[str], tls: Tls | None = None
    ) -> None:
        self.name, self.address, self.folder, self.tls = name, address, folder, tls
        self.plug(*phones)
        self.start()

    def plug(self, *phones: str) -> None:
        path = self.folder / f"{self.name}.phones"
        work = path.with_suffix(".new")
        work.write_text("\n".join(phones))
        work.replace(path)

    def start(self) -> None:
        files = [str(file) for file in dict(self.tls or ()).values() if file]
        self.process = subprocess.Popen(
            [sys.executable, "-m", self.module, self.name, self.address,
             str(self.folder), *files],
            cwd=ROOT,
            env={**os.environ, "ETDEPLOY_CACHE_DIR": str(self.folder / f"cache-{self.name}")},
        )  # fmt: skip

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(_PATIENCE_S)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def coordinator(
    folder: Path, listen: str = "tcp://127.0.0.1:0", tls: Tls | None = None, grace_s: float = 2.0
) -> Iterator[ClusterEngine]:
    engine = ClusterEngine(Hosts(listen=listen, tls=tls), folder / "results", grace_s)
    try:
        yield engine
    finally:
        engine.close()


@contextmanager
def host(
    name: str, engine: ClusterEngine | str, folder: Path, phones: Sequence[str],
    tls: Tls | None = None,
) -> Iterator[HostProcess]:  # fmt: skip
    address = engine if isinstance(engine, str) else engine.address
    process = HostProcess(name, address, folder, phones, tls)
    try:
        yield process
    finally:
        if process.process.poll() is None:
            process.stop()


def offered(engine: ClusterEngine, count: int) -> dict[tuple[str, str], AvailableDevice]:
    """Waits for so many offers; by identity and host."""
    until(lambda: len(engine.offers()) == count, f"{count} offers")
    return {(offer.identity, offer.host): offer for offer in engine.offers()}


def artifact(folder: Path, does: str, size_bytes: int = 1000) -> BuildArtifact:
    """An artifact with one file; its recipe's name is what an attempt does."""
    content = (does.encode() * size_bytes)[:size_bytes]
    digest = hashlib.sha256(content).hexdigest()
    place = folder / f"artifact-{digest[:8]}"
    (place / "program").mkdir(parents=True, exist_ok=True)
    (place / "program" / "x.bin").write_bytes(content)
    return BuildArtifact(
        key=digest,
        recipe=does,
        target="android-arm64",
        soc=None,
        folder=str(place),
        bundle=Bundle(files=(), launch=ProcessLaunch(argv=("runner",))),
        files={"program/x.bin": digest},
    )


def order(visit: str, offer: AvailableDevice, made: BuildArtifact, attempt: int = 1) -> Order:
    return Order(visit=visit, attempt=attempt, offer=offer, artifact=made)


def endings(engine: ClusterEngine, count: int) -> dict[str, AttemptResult]:
    """Waits for so many endings; by visit, and none may come twice."""
    found: list[AttemptResult] = []

    def all_ended() -> bool:
        found.extend(engine.ended(0.5))
        return len(found) >= count

    until(all_ended, f"{count} endings")
    assert len({(ending.visit, ending.attempt) for ending in found}) == len(found)
    return {ending.visit: ending for ending in found}


def log(folder: Path) -> list[str]:
    path = folder / "log"
    return path.read_text().splitlines() if path.exists() else []


def overlaps(lines: Sequence[str]) -> list[str]:
    """Phones on which an attempt began while another was under way."""
    busy: set[str] = set()
    found = []
    for line in lines:
        word, *rest = line.split()
        if word == "begin":
            found += [line] if rest[1] in busy else []
            busy.add(rest[1])
        elif word == "end":
            busy.discard(rest[1])
    return found
