"""The coordinator of a long night as a real process, that may be killed and started again.

    python -m tests.support.farm_soak_night FOLDER

FOLDER/night.json has the settings. FOLDER/night.log gets what the night tells, and FOLDER/end.json
is there once the night is over. Night, engine and ledger are the real ones; time may pass faster.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path

from etdeploy.core import cancel
from etdeploy.core.hashing import sha256_file
from etdeploy.farm.engine.cluster import ClusterEngine
from etdeploy.farm.model import AvailableDevice, BuildArtifact, Standing
from etdeploy.farm.night.dependencies import (
    NightDependencies,
    StoreDevicePool,
    earlier_times,
    headline_of,
)
from etdeploy.farm.night.ledger import Ledger
from etdeploy.farm.night.loop import run_night
from etdeploy.farm.night.model import Event, NightEnd
from etdeploy.farm.spec.matrix import plan_night
from etdeploy.farm.spec.model import DeviceGroup, Farm, Hosts, LoadedFarm
from etdeploy.farm.work.prepare import PreparedArtifacts
from etdeploy.history.location import require_location
from tests.support.farm_cluster import artifact
from tests.support.farm_soak_phone import PROGRAM

BEGIN = datetime(2026, 11, 23, 20, 0, tzinfo=timezone.utc)
# As the command waits for its hosts.
_HOSTS_S = 20.0


@dataclass(frozen=True)
class Settings:
    """What a night is.

    Attributes:
        store: The history.
        listen: Where hosts connect to.
        recipes: Their labels, `NAME-SECONDS`.
        repeats: Of each.
        phones: How many there are.
        began_s: When the first process of the night began, in seconds of the epoch.
        scale: Seconds of the night for each second.
        hours: Of the window, in the night's time; None for none.
        grace_s: How long a host may be gone.
    """

    store: str
    listen: str
    recipes: tuple[str, ...]
    repeats: int
    phones: int
    began_s: float = field(default_factory=time.time)
    scale: float = 1.0
    hours: float | None = None
    grace_s: float = 15.0

    def save(self, folder: Path) -> None:
        (folder / "night.json").write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, folder: Path) -> Settings:
        values = json.loads((folder / "night.json").read_text())
        return cls(**{**values, "recipes": tuple(values["recipes"])})


class FastClock:
    """Time that passes faster, and goes on in the next process."""

    def __init__(self, began_s: float, scale: float) -> None:
        self._began_s, self._scale = began_s, scale

    def now(self) -> datetime:
        return BEGIN + timedelta(seconds=(time.time() - self._began_s) * self._scale)

    def seconds(self) -> float:
        return time.monotonic() * self._scale

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds / self._scale)


def farm_of(settings: Settings, folder: Path) -> LoadedFarm:
    farm = Farm(
        name="soak",
        groups={"phones": DeviceGroup(conditions=())},
        pairs=tuple((recipe, "phones") for recipe in settings.recipes),
        repeats=settings.repeats,
        spread=settings.hours is not None,
        results=folder / "results",
        hosts=Hosts(listen=settings.listen),
    )
    return LoadedFarm(folder / "farm.yaml", farm, {}, {})


def run(folder: Path) -> None:
    settings = Settings.load(folder)
    clock = FastClock(settings.began_s, settings.scale)
    loaded = farm_of(settings, folder)
    place = require_location(settings.store)
    made = {label: _artifact(folder, label) for label in settings.recipes}

    def prepare(wanted: Mapping[str, Sequence[AvailableDevice]]) -> PreparedArtifacts:
        return PreparedArtifacts(
            {(label, o.identity): made[label] for label, offers in wanted.items() for o in offers},
            {},
        )

    with (folder / "night.log").open("a", buffering=1) as log:

        def tell(text: str) -> None:
            log.write(f"{clock.now():%d %H:%M:%S} {text}\n")

        def heard(event: Event) -> None:
            if event.text:
                tell(f"{event.kind}: {event.text}")

        assert loaded.farm.hosts
        engine = ClusterEngine(loaded.farm.hosts, folder / "results", settings.grace_s)
        ledger = Ledger(
            place,
            folder=folder / "data",
            tell=tell,
            now=clock.now,
            # The command's 20 hours are for windows of a night.
            resumed_within_s=1.5 * 3600 * (settings.hours or 20),
        )
        with closing(engine), ledger:
            # A night without any device soon ends, in fast time at once.
            _await_phones(engine, settings.phones if settings.scale == 1 else 1)
            parts = NightDependencies(
                prepare=prepare,
                shelf=StoreDevicePool(place, "farm soak"),
                plan=plan_night,
                headline=headline_of,
                times=earlier_times(ledger, loaded.farm, tell),
                opened=BEGIN if settings.hours else None,
                until=BEGIN + timedelta(hours=settings.hours) if settings.hours else None,
                wait_s=1.0 if settings.scale == 1 else 0.2,
                look_s=10.0 if settings.scale == 1 else settings.scale,
            )
            began_s, used_s = time.monotonic(), time.process_time()
            end = run_night(loaded, engine, ledger, clock, heard, parts)
            makespan_s = time.monotonic() - began_s
            _tell_end(folder, end, makespan_s, time.process_time() - used_s)


def _artifact(folder: Path, label: str) -> BuildArtifact:
    """An artifact, with the program of phones that have a real adbd, if there are any."""
    made, program = artifact(folder, label), folder / PROGRAM
    if not program.exists():
        return made
    relative = f"program/{PROGRAM}"
    shutil.copy(program, Path(made.folder) / relative)
    return made.model_copy(update={"files": {**made.files, relative: sha256_file(program)}})


def _await_phones(engine: ClusterEngine, count: int) -> None:
    until_s = time.monotonic() + _HOSTS_S
    while len(engine.offers()) < count and time.monotonic() < until_s:
        time.sleep(0.1)


def _tell_end(folder: Path, end: NightEnd, makespan_s: float, used_s: float) -> None:
    if end.stopped:
        return
    standings = {str(each): sum(s.standing is each for s in end.states) for each in Standing}
    path = folder / "end.json"
    path.with_suffix(".new").write_text(
        json.dumps(
            {
                "night": end.night,
                "standings": standings,
                "makespan_s": makespan_s,
                "processor_s": used_s,
                "quarantined": end.quarantined,
            }
        )
    )
    path.with_suffix(".new").replace(path)


if __name__ == "__main__":
    with cancel.trapped_signals():
        run(Path(sys.argv[1]))
