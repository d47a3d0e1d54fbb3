"""Two recipes on one device as one graph, up to what goes there, and then measured in turns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from etdeploy.bench.records.stored import StoredRun
from etdeploy.cache.workspace import Workspace
from etdeploy.core.values import Progress
from etdeploy.graph.job import Job, make_job, reached
from etdeploy.graph.many.members import Member, Members, RecipeDevicePair
from etdeploy.graph.on_device import prepared, pushed_line
from etdeploy.recipe.load import LoadedRecipe
from etdeploy.targets.platforms import find_target


@contextmanager
def open_two(
    a: LoadedRecipe, b: LoadedRecipe, device: str, output: Path, target: str | None = None
) -> Iterator[Members]:
    """Opens the device and makes both jobs, which may be of one recipe with other values.

    Raises:
        UsageError: The kind of device or the target is unknown, the device cannot run the target,
            or the cache folder cannot be used.
        BuildError: There is no room for the cache.
        DeviceError: The device cannot be reached or chosen.
    """
    workspace = Workspace.opened()
    chosen = find_target(target) if target else None
    with workspace.in_use(), reached(device, workspace) as there:
        jobs = [make_job(each, workspace, output, there, chosen, True) for each in (a, b)]
        if jobs[0].state == jobs[1].state:
            jobs[1] = replace(jobs[1], variant="B")
        found = [
            Member(
                RecipeDevicePair(f"{job.loaded.name} ({letter})", job.device_label), job.loaded, job
            )
            for letter, job in zip("AB", jobs, strict=True)
        ]
        yield Members(tuple(found), workspace)


def run_in_turns(
    a: Job, b: Job, progress: Progress, *, in_history: bool = True
) -> tuple[StoredRun, StoredRun]:
    """Pushes both bundles and measures both, start by start, with the device locked all through.

    Args:
        a: Its bundle was made.
        b: The same; on the same device.
        progress: Called while it waits, pushes and measures.
        in_history: Whether the history keeps both. What was made of old commits today would look
            there like a change.

    Raises:
        EtdeployError: As `measure_in_turns`, and as the device's `push`.
    """
    from etdeploy.bench.turns import measure_in_turns
    from etdeploy.history.keep import keep

    device = a.device
    if device is None:
        raise RuntimeError("two recipes can only take turns on a device")
    with a.device_lock(progress):
        ready = prepared(a), prepared(b)
        for each in ready:
            progress(pushed_line(device.push(each.bundle, progress)))
        runs = measure_in_turns(device, *ready, a.output, progress)
    for run in runs if in_history else ():
        keep(run)
    return runs
