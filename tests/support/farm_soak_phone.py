"""What a phone of a long night does, and which phones have a real adbd.

FOLDER/adbd.json has those, by their hosts; FOLDER/phones/IDENTITY.log what the simulated ones did.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

from etdeploy.bench.records.record import RunRecord
from tests.support.histories import run_at

PROGRAM = "fate"
"""What runs on a phone with a real adbd (tests/support/bundles.py), in an artifact's program."""
BUSY = 99
LOG = "/data/local/tmp/soak.log"
"""What it did, on the phone itself: lines WORD VISIT ATTEMPT PROCESS UPTIME, as of the others."""
_FILE = "adbd.json"


def seconds_of(recipe: str, identity: str) -> float:
    """How long a phone takes: `NAME-SECONDS` on the slowest, half of that on the fastest."""
    speed = 1 + zlib.crc32(identity.encode()) % 1000 / 1000
    return float(recipe.rpartition("-")[2]) / speed


def phone_log(folder: Path, identity: str) -> Path:
    return folder / "phones" / f"{identity}.log"


def write_record(output: Path, run_id: str) -> Path:
    """A record in a folder of its own, complete but for what nobody here looks at."""
    record = output / run_id / "record.json"
    record.parent.mkdir()
    record.write_text(_template().replace("@run_id", run_id))
    return record


def record_of(run_id: str) -> RunRecord:
    return run_at(1, run_id=run_id)


@cache
def _template() -> str:
    return record_of("@run_id").model_dump_json()


@dataclass(frozen=True)
class RealPhones:
    """The phones of a host that have a real adbd.

    Attributes:
        environment: Where their adb server and its key are.
        names: By identity, as `--device` takes them.
    """

    environment: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of_host(cls, folder: Path, host: str) -> RealPhones:
        path = folder / _FILE
        found = json.loads(path.read_text()) if path.exists() else {}
        return cls(**found[host]) if host in found else cls()


def save_phones(folder: Path, by_host: dict[str, RealPhones]) -> None:
    values = {host: asdict(phones) for host, phones in by_host.items()}
    (folder / _FILE).write_text(json.dumps(values))
