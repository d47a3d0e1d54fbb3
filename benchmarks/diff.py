"""How many of the faults that are planted in a program `etdeploy diff` names.

    python benchmarks/diff.py [--backends xnnpack portable openvino] [--positions 10]

In a model of 200 nodes, one node's value is 1 % too large in the program and right in eager
(tests/support/planted_faults.py), at ten positions along the graph. A fault counts as named if the
report's first wrong node is that one. All programs of a backend are exported as one graph,
and only those with observed nodes.
Bound: 28 of 30.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from etdeploy.core import console
from etdeploy.graph.diff import ProgramDiff
from etdeploy.graph.job import StepName
from etdeploy.graph.jobs import JobSelection, Member, open_members
from etdeploy.graph.run import JobEnd, look_up, run_jobs
from etdeploy.recipe.load import load_recipes

ROOT = Path(__file__).resolve().parents[1]
BOUND = 28 / 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backends", nargs="+", default=["xnnpack", "portable", "openvino"])
    parser.add_argument("--positions", type=int, default=10)
    parser.add_argument("--factor", type=float, default=1.01)
    chosen = parser.parse_args()
    named = total = 0
    for backend in chosen.backends:
        with tempfile.TemporaryDirectory() as folder:
            found = locate(Path(folder), backend, chosen.positions, chosen.factor)
        named += sum(found)
        total += len(found)
        console.result(f"{backend}: {sum(found)} of {len(found)}")
    console.result(f"{named} of {total} faults named (bound: {BOUND * total:.0f})")
    sys.exit(named < BOUND * total)


def recipes(folder: Path, backend: str, positions: int, factor: float) -> list[Path]:
    """A recipe for each position of the fault."""
    made = []
    for number in range(positions):
        position = (number + 0.5) / positions
        path = folder / f"{backend}-{number}.yaml"
        path.write_text(
            f"model:\n  python: {ROOT / 'tests/support/planted_faults.py'}:make\n"
            f"  arguments: {{position: {position}, factor: {factor}, "
            f"truth: {path.with_suffix('')}}}\n"
            f"export: {{backend: {backend}}}\n"
        )
        made.append(path)
    return made


def locate(folder: Path, backend: str, positions: int, factor: float) -> list[bool]:
    """For each position whether the fault is named."""
    paths = recipes(folder, backend, positions, factor)
    loaded = load_recipes(tuple(map(str, paths)), ())
    with ExitStack() as stack:
        members = stack.enter_context(open_members(JobSelection(tuple(loaded), ("host",), folder)))
        display = stack.enter_context(console.TaskDisplay(quiet=True))

        def run_steps(wanted: Sequence[Member], goal: StepName) -> list[JobEnd]:
            ready, failed = look_up(wanted)
            return failed or run_jobs(ready, goal, display, heavy=2)

        diffs = [ProgramDiff(member, run_steps, display) for member in members.all]
        ends = run_steps([diff.first_members[1] for diff in diffs], StepName.OBSERVE)
        return [judged(*each) for each in zip(diffs, ends, paths, strict=True)]


def judged(diff: ProgramDiff, end: JobEnd, recipe: Path) -> bool:
    """Whether the search names the node that the factory has written down; prints a line."""
    started = time.monotonic()
    search = diff.search(outputs_wrong=True, ahead=end)
    truth = recipe.with_suffix(".truth").read_text()
    culprit = search.culprit.node.name if search.culprit else None
    seconds = time.monotonic() - started
    errors = search.first.replay.errors if search.first else ()
    right = max((each.strain for each in errors if each.node.name != truth), default=0.0)
    console.result(
        f"    {truth}: {'named' if culprit == truth else f'NOT NAMED, but {culprit}'}, "
        f"{len(errors)} nodes, {len(search.rounds)} rounds, {seconds:.0f} s; right nodes use at "
        f"most {right:.2f} of what is allowed"
    )
    return culprit == truth


if __name__ == "__main__":
    main()
