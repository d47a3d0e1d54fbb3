"""A host of a long night as a real process; its phones are processes that keep logs of their own.

    python -m tests.support.farm_soak_host NAME SCHEDULER FOLDER

FOLDER/NAME.phones has an identity on each line. A phone runs one program at a time: it holds a lock
while it does, and a second program is noted in FOLDER/phones/IDENTITY.log, and fails. Phones with a
real adbd (FOLDER/adbd.json) are those of a real host, but for what is measured there.
"""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

from etdeploy.cache.workspace import Workspace
from etdeploy.core import cancel
from etdeploy.core.processes import process
from etdeploy.farm.engine.host import HostDependencies, local_dependencies
from etdeploy.farm.model import AttemptFailure, AttemptResult, AvailableDevice, Fate, Order
from etdeploy.farm.work import child
from tests.support.farm_host import ended, main, offer_of
from tests.support.farm_soak_phone import (
    BUSY,
    RealPhones,
    phone_log,
    seconds_of,
    write_record,
)

_CHILD = Path(__file__).with_name("farm_soak_child.py")
# What runs "on the phone": its log has who it is, and when by a clock that nobody sets.
_PROGRAM = """
say() { read -r up _ </proc/uptime; echo "$1 $visit $attempt $$ $up" >>"$log"; }
visit=$1 attempt=$2 log=$3
say begin
sleep "$4"
say end
"""


def parts(name: str, folder: Path, output: Path) -> HostDependencies:
    """All phones of the host, simulated and real."""
    real = RealPhones.of_host(folder, name)
    simulated = simulated_parts(name, folder, output)
    if not real.names:
        return simulated
    own = _real_parts(name, real, output)
    identities = {name: identity for identity, name in real.names.items()}

    def plugged() -> list[AvailableDevice]:
        here = phones_on(folder, name)
        found = [each for each in own.plugged() if identities[each.name] in here]
        return [*(each for each in simulated.plugged() if each.identity not in real.names), *found]

    def attempt(order: Order, artifact: Path, cancelled: cancel.Flag) -> AttemptResult:
        do = own if order.offer.identity in real.names else simulated
        return do.attempt(order, artifact, cancelled)

    def recover(offer: AvailableDevice, step: str) -> AvailableDevice:
        return (own if offer.name in identities else simulated).recover(offer, step)

    return HostDependencies(plugged, attempt, recover)


def _real_parts(name: str, real: RealPhones, output: Path) -> HostDependencies:
    os.environ |= real.environment
    vars(child)["_START"] = _CHILD
    return local_dependencies(Workspace.opened(), output, name, tuple(real.names.values()), ())


def phones_on(folder: Path, host: str) -> list[str]:
    return (folder / f"{host}.phones").read_text().split()


def simulated_parts(name: str, folder: Path, output: Path) -> HostDependencies:
    """Phones that are processes."""

    def plugged() -> list[AvailableDevice]:
        return [offer_of(each, name) for each in phones_on(folder, name)]

    def attempt(order: Order, artifact: Path, cancelled: cancel.Flag) -> AttemptResult:
        assert all((artifact / file).is_file() for file in order.artifact.files)
        identity = order.offer.identity
        log = phone_log(folder, identity)
        argv = (
            "flock", "-n", "-E", str(BUSY), "-F", str(log.with_suffix(".lock")),
            "sh", "-c", _PROGRAM, "phone", order.visit, str(order.attempt), str(log),
            f"{seconds_of(order.artifact.recipe, identity):.2f}",
        )  # fmt: skip
        with cancel.bound(cancelled):
            outcome = process.run(process.Request(argv))
        if outcome.exit_code == BUSY:
            with log.open("a") as stream:
                stream.write(f"overlap {order.visit} {order.attempt} {os.getpid()} 0\n")
        if not outcome.ok:
            failed = ended(order, Fate.FAILED, None)
            why = AttemptFailure(
                kind="run", exit_code=7, message=outcome.signal_name or "it is in use"
            )
            return failed.model_copy(update={"failure": why})
        run_id = f"{order.visit}-{order.attempt}-{secrets.token_hex(4)}"
        record = write_record(output, run_id)
        return ended(order, Fate.DONE, record).model_copy(update={"run_id": run_id})

    def recover(offer: AvailableDevice, step: str) -> AvailableDevice:
        return offer.model_copy(update={"problem": ""})

    return HostDependencies(plugged, attempt, recover)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:], made=parts, list_every_s=1.0))
