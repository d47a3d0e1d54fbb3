"""The child of an attempt on a phone with a real adbd: the real one, but for what is measured.

Order, locks, gates, connection, push, the run's folder and the ending are those of every attempt
(`etdeploy/farm/work/attempt.py`). What runs there is a program that occupies the phone.
"""

from __future__ import annotations

import secrets
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from etdeploy.bench.records.stored import StoredRun
    from etdeploy.core.values import Progress
    from etdeploy.devices.base import Bundle, Device
    from etdeploy.farm.model import Order

# The program takes as long as it is told to; this is for the way there and back.
_BESIDE_S = 60.0


@dataclass(frozen=True)
class _Prepared:
    """The part of an artifact that an attempt looks at."""

    bundle: Bundle


def main() -> int:
    """Does what `etdeploy/farm/work/start.py` does."""
    # The folder of this file has no top-level modules.
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    from unittest.mock import patch

    from etdeploy.farm.work import attempt as real
    from etdeploy.farm.work import child

    whole = real.attempt

    def attempt(order: Order, folder: Path, *arguments: object) -> object:
        def measure(device: Device, made: _Prepared, output: Path, progress: Progress) -> StoredRun:
            return _measured(order, device, made.bundle, output, progress)

        def opened(*_: object) -> _Prepared:
            return _Prepared(_bundle(folder))

        with patch.multiple(real, open_artifact=opened, measure=measure):
            return whole(order, folder, *arguments)  # type: ignore[arg-type]

    with patch.object(real, "attempt", attempt):
        return child.main()


def _bundle(artifact: Path) -> Bundle:
    from tests.support.bundles import make_bundle
    from tests.support.farm_soak_phone import PROGRAM

    files = {each.name: each for each in sorted((artifact / "program").iterdir())}
    return make_bundle(files, (PROGRAM, "occupy"), (PROGRAM,))


def _measured(
    order: Order, device: Device, bundle: Bundle, output: Path, progress: Progress
) -> StoredRun:
    from etdeploy.bench.records.stored import StoredRun
    from etdeploy.core.errors import RunError
    from tests.support.farm_soak_phone import LOG, record_of, seconds_of, write_record

    run_id = f"{order.visit}-{order.attempt}-{secrets.token_hex(4)}"
    seconds = seconds_of(order.artifact.recipe, order.offer.identity)
    device.end_leftovers()
    progress("measuring")
    with device.open_run(bundle, run_id) as run:
        words = [LOG, str(round(1000 * seconds)), f"{order.visit} {order.attempt}"]
        outcome = run.run(words, seconds + _BESIDE_S)
    if outcome.exit_code != 0:
        said = outcome.signal_name or f"exit code {outcome.exit_code}"
        raise RunError(f"the program ended with {said}", place=device.name)
    return StoredRun(write_record(output, run_id).parent, record_of(run_id))


if __name__ == "__main__":
    sys.exit(main())
