"""A night of real processes: 200 phones on 4 hosts, PostgreSQL, and random kills.

    python benchmarks/farm_soak.py --hours 24 --hour-s 12 [--seed 1]     # with kills
    python benchmarks/farm_soak.py --steady --mean-s 12                  # the overhead, no kills

The night, the Dask engine, the hosts' agents, the ledger and the PostgreSQL server are the real
ones, each in processes of its own; a phone is a process that sleeps and keeps a log of its own.
`--adbd` phones have a real adbd instead: a program is pushed to each and run there, as in every
night, by the child process of an attempt.
With kills, the night's clock runs faster, so that an hour takes `--hour-s` seconds; the engine's
and the ledger's own timeouts stay as they are, except that a host may be away for 3 s. Without
kills nothing runs faster. The exit code is 1 if anything was lost, double or twice at once, or
goes on running on a phone.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.farm_soak import (
    Kills,
    Soak,
    end_of,
    free_address,
    ideal_s,
    phones_of,
    running_hosts,
)
from tests.support.farm_soak_adbd import running_phones, with_real
from tests.support.farm_soak_judge import judge
from tests.support.farm_soak_night import Settings
from tests.support.postgres import running

# For each 24 hours of the night.
_KILLS = Kills(
    host=10, coordinator=6, database=4, frozen=4, unplugged=40, program=40, adbd=12, real_program=6
)


def settings_of(options: argparse.Namespace, store: str, listen: str) -> Settings:
    draw = random.Random(options.seed)
    spread = [draw.uniform(0.5, 1.5) for _ in range(options.recipes)]
    mean = sum(spread) / len(spread)
    # On a phone of middling speed, 1.5 times the slowest.
    seconds = [1.5 * options.mean_s * each / mean for each in spread]
    return Settings(
        store=store,
        listen=listen,
        recipes=tuple(f"r{i}-{each:.2f}" for i, each in enumerate(seconds)),
        repeats=options.repeats,
        phones=options.phones,
        scale=1.0 if options.steady else 3600 / options.hour_s,
        hours=None if options.steady else options.hours,
        grace_s=15.0 if options.steady else 3.0,
    )


def measured(options: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], bool]:
    """Runs the night; what is known of it, and whether all is well."""
    phones = with_real(phones_of(options.hosts, options.phones), options.adbd)
    address = free_address()
    with (
        running() as server,
        running_phones(folder, phones) as real,
        running_hosts(folder, address, phones) as hosts,
    ):
        settings = settings_of(options, server.new_database("soak"), address)
        settings.save(folder)
        night_s = 4 * 3600.0 if options.steady else options.hours * options.hour_s
        soak = Soak(folder, settings, hosts, server, options.seed, phones=real)
        try:
            if not options.steady:
                times = options.hours / 24
                kills = {name: round(often * times) for name, often in vars(_KILLS).items()}
                soak.plan(Kills(**kills), 0.03 * night_s, 0.95 * night_s)
            soak.run(night_s + 300)
        finally:
            soak.close()
        if not server.children:
            server.start()
        outcome = judge(folder, settings, real)
    found = {
        **outcome.shown(),
        **{f"killed: {name}": number for name, number in sorted(soak.done.items())},
        "quarantined": len(end_of(folder)["quarantined"]),
    }
    if options.steady:
        end = end_of(folder)
        ideal = ideal_s(settings, [each for some in phones.values() for each in some])
        found |= {
            "ideal_s": round(ideal, 1),
            "makespan_s": round(end["makespan_s"], 1),
            "overhead_percent": round(100 * (end["makespan_s"] / ideal - 1), 2),
            "coordinator's processor time_s": round(end["processor_s"], 1),
        }
    wrong = [*outcome.wrong, *soak.crashes]
    return {**found, "wrong": wrong[:20]}, outcome.is_well and not soak.crashes


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--phones", type=int, default=200)
    parser.add_argument("--adbd", type=int, default=4, help="how many of them have a real adbd")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--recipes", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--mean-s", type=float, default=12.0, help="of an attempt")
    parser.add_argument("--hours", type=float, default=24.0, help="of the night's window")
    parser.add_argument("--hour-s", type=float, default=12.0, help="how long one takes")
    parser.add_argument("--steady", action="store_true", help="without kills and window")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="a new folder for logs, which is kept")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="etdeploy-soak-") as made:
        folder = options.keep or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        # No history and no data of the user's.
        os.environ |= {"ETDEPLOY_STORE": "none", "XDG_DATA_HOME": str(folder / "home")}
        found, is_well = measured(options, folder)
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        for key, value in found.items():
            print(f"{key:<32} {value}")
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
