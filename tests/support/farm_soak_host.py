"""A host of a long night as a real process; its phones are processes that keep logs of their own.

    python -m tests.support.farm_soak_host NAME SCHEDULER FOLDER

FOLDER/NAME.phones has an identity on each line. A phone runs one program at a time: it holds a lock
while it does, and a second program is noted in FOLDER/phones/IDENTITY.log, and fails.
"""

from __future__ import annotations

import os
import secrets
import sys
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path

from etdeploy.core import cancel
from etdeploy.core.processes import process
from etdeploy.farm.engine.dask.host.work import Parts
from etdeploy.farm.model import Ending, Failure, Fate, Offer, Order
from tests.support.farm_host import ended, main, offer_of
from tests.support.histories import run_at

_BUSY = 99
# What runs "on the phone": its log has who it is, and when by a clock that nobody sets.
_PROGRAM = """
say() { read -r up _ </proc/uptime; echo "$1 $visit $attempt $$ $up" >>"$log"; }
visit=$1 attempt=$2 log=$3
say begin
sleep "$4"
say end
"""


def seconds_of(recipe: str, identity: str) -> float:
    """How long a phone takes: `NAME-SECONDS` on the slowest, half of that on the fastest."""
    speed = 1 + zlib.crc32(identity.encode()) % 1000 / 1000
    return float(recipe.rpartition("-")[2]) / speed


def phone_log(folder: Path, identity: str) -> Path:
    return folder / "phones" / f"{identity}.log"


def parts(name: str, folder: Path, output: Path) -> Parts:
    def plugged() -> list[Offer]:
        return [offer_of(each, name) for each in (folder / f"{name}.phones").read_text().split()]

    def attempt(order: Order, parcel: Path, cancelled: cancel.Flag) -> Ending:
        assert all((parcel / file).is_file() for file in order.parcel.files)
        identity = order.offer.identity
        log = phone_log(folder, identity)
        argv = (
            "flock", "-n", "-E", str(_BUSY), "-F", str(log.with_suffix(".lock")),
            "sh", "-c", _PROGRAM, "phone", order.visit, str(order.attempt), str(log),
            f"{seconds_of(order.parcel.recipe, identity):.2f}",
        )  # fmt: skip
        with cancel.bound(cancelled):
            outcome = process.run(process.Request(argv))
        if outcome.exit_code == _BUSY:
            with log.open("a") as stream:
                stream.write(f"overlap {order.visit} {order.attempt} {os.getpid()} 0\n")
        if not outcome.ok:
            failed = ended(order, Fate.FAILED, None)
            why = Failure(kind="run", exit_code=7, message=outcome.signal_name or "it is in use")
            return failed.model_copy(update={"failure": why})
        run_id = f"{order.visit}-{order.attempt}-{secrets.token_hex(4)}"
        record = output / run_id / "record.json"
        record.parent.mkdir()
        record.write_text(_template().replace("@run_id", run_id))
        return ended(order, Fate.DONE, record).model_copy(update={"run_id": run_id})

    def recover(offer: Offer, step: str, tell: Callable[[str], None]) -> Offer:
        tell(f"{step} {offer.name}")
        return offer.model_copy(update={"problem": ""})

    return Parts(plugged, attempt, recover)


@cache
def _template() -> str:
    """A record that is complete but for its name."""
    return run_at(1, run_id="@run_id").model_dump_json()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:], made=parts, list_every_s=1.0))
