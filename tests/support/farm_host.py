"""A host of a farm as a real process, with devices that a file lists and attempts that sleep.

    python -m tests.support.farm_host NAME SCHEDULER FOLDER [CA CERT KEY [CRL]]

FOLDER/NAME.phones has an identity on each line. What an attempt does is its recipe's name:
`sleep SECONDS` measures, `crash` has its process killed. FOLDER/log gets a line when one begins and
ends.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from etdeploy.core import cancel
from etdeploy.core.errors import EtdeployError
from etdeploy.core.processes import process
from etdeploy.devices.base import DeviceFacts
from etdeploy.farm.engine.host import HostDependencies, serve_host
from etdeploy.farm.model import AttemptFailure, AttemptResult, AvailableDevice, Fate, Order
from etdeploy.farm.spec.model import Tls


def offer_of(identity: str, host: str) -> AvailableDevice:
    facts = DeviceFacts(name=f"android:{identity}", kind="android", target="android-arm64")
    return AvailableDevice(identity=identity, name=facts.name, host=host, facts=facts)


def parts(name: str, folder: Path, output: Path) -> HostDependencies:
    def plugged() -> list[AvailableDevice]:
        phones = (folder / f"{name}.phones").read_text().split()
        return [offer_of(identity, name) for identity in phones]

    def attempt(order: Order, artifact: Path, cancelled: cancel.Flag) -> AttemptResult:
        phone = order.offer.identity
        note(folder, f"begin {order.visit} {phone} {name}")
        try:
            for file in order.artifact.files:
                assert (artifact / file).is_file()
            what = order.artifact.recipe
            argv = ("sh", "-c", "kill -9 $$") if what == "crash" else tuple(what.split())
            with cancel.bound(cancelled):
                outcome = process.run(process.Request(argv))
            record = output / order.visit / "record.json"
            record.parent.mkdir()
            record.write_text(f'{{"phone": "{phone}"}}')
            fate = Fate.DONE if outcome.ok else Fate.FAILED
            return ended(order, fate, record if outcome.ok else None)
        finally:
            note(folder, f"end {order.visit} {phone} {name}")

    def recover(offer: AvailableDevice, step: str) -> AvailableDevice:
        note(folder, f"{step} {offer.name}")
        return offer.model_copy(update={"problem": "" if step == "reconnect" else "broken"})

    return HostDependencies(plugged, attempt, recover)


def ended(order: Order, fate: Fate, record: Path | None) -> AttemptResult:
    return AttemptResult(
        visit=order.visit,
        attempt=order.attempt,
        identity=order.offer.identity,
        host=order.offer.host,
        fate=fate,
        run_id="run" if record else None,
        record=str(record) if record else None,
        failure=None if record else AttemptFailure(kind="run", exit_code=7, message="it crashed"),
    )


def note(folder: Path, line: str) -> None:
    with (folder / "log").open("a") as log:
        log.write(line + "\n")


def main(
    name: str,
    scheduler: str,
    folder: str,
    *tls: str,
    made: Callable[[str, Path, Path], HostDependencies] = parts,
    list_every_s: float = 0.2,
) -> int:
    def tell(text: str) -> None:
        note(Path(folder), f"told {name} {text}")

    files = Tls.model_validate(dict(zip(Tls.model_fields, tls, strict=False))) if tls else None
    try:
        with cancel.trapped_signals():
            serve_host(
                name,
                scheduler,
                files,
                lambda _, output: made(name, Path(folder), output),
                tell,
                list_every_s=list_every_s,
            )
    except EtdeployError as error:
        tell(f"error {error}")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
