"""The farm's scheduling of a night: 200 phones on 4 hosts, in simulated time.

    python benchmarks/farm.py [--phones 200] [--hosts 4] [--recipes 10] [--repeats 3] [--json]

Attempts take as long as a script says, and nobody waits for them: the makespan is virtual. It is
compared with the ideal one, which knows all times beforehand and loses none: the most that any
phone has to do where each phone has visits of its own, else what there is to do by the number of
phones. The bound is 5 % of overhead, the real time of the night's decisions included. Phones are up
to twice as fast as others; a recipe takes between 2 and 10 minutes.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from etdeploy.farm.model import Order, Standing
from tests.support.farm_sim import SimNight, make_farm
from tests.support.farm_sim_engine import Script, offer_of


def measured(options: argparse.Namespace, take: int | None) -> dict[str, Any]:
    """One night; `take` phones for each recipe and repeat, or all."""
    draw = random.Random(1)
    recipes = {f"recipe-{i}": draw.uniform(120, 600) for i in range(options.recipes)}
    phones = [offer_of(i, options.hosts) for i in range(options.phones)]
    # Any phone will do for the visits with `take`: then the ideal is known where all are alike.
    fast = {each.identity: draw.uniform(1, 2) if take is None else 1.0 for each in phones}

    def behave(order: Order, _: int) -> Script:
        return Script(recipes[order.artifact.recipe] / fast[order.offer.identity])

    loaded = make_farm(list(recipes), take, repeats=options.repeats)
    night = SimNight(loaded, phones, behave, wait_s=1.0)
    begun = time.process_time()
    end = night.run()
    decided_s = time.process_time() - begun
    assert all(state.standing is Standing.DONE for state in end.states)
    done: Counter[str] = Counter()
    for state in end.states:
        assert state.result
        done[state.result.identity] += state.result.seconds  # type: ignore[assignment]
    ideal_s = max(done.values()) if take is None else sum(done.values()) / len(phones)
    return {
        "visits": len(end.states),
        "ideal_s": ideal_s,
        "makespan_s": night.clock.at_s,
        "decisions_s": decided_s,
        "overhead_percent": 100 * ((night.clock.at_s + decided_s) / ideal_s - 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--phones", type=int, default=200)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--recipes", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = {
        "every phone": measured(options, None),
        "any phone": measured(options, options.phones),
    }
    if options.json:
        print(json.dumps(found, indent=2))
        return
    for name, numbers in found.items():
        for key, value in numbers.items():
            print(f"{name + ': ' + key:<32} {value:12.2f}")


if __name__ == "__main__":
    main()
