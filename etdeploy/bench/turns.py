"""Two measurements that take turns on one device, start by start."""

from __future__ import annotations

from pathlib import Path

from etdeploy.bench.measure import Measurement, Prepared, begin
from etdeploy.bench.records.stored import StoredRun
from etdeploy.core.progress import Progress, silent
from etdeploy.devices.base import Device


def measure_in_turns(
    device: Device, a: Prepared, b: Prepared, output: Path, progress: Progress = silent
) -> tuple[StoredRun, StoredRun]:
    """Runs A B B A A B ...: so neither is always first, when the device is cooler.

    Each gets a complete record; their starts are pairs by their position. When one of the two
    fails, no record of the other stays.

    Args:
        device: Locked for both; both bundles were pushed to it.
        a: One of the two.
        b: The other.
        output: The folder that gets a folder for each.
        progress: Called for each pass.

    Raises:
        UsageError: A program does not have its recipe's method, or `output` cannot be written to.
        RunError: A runner failed; its log stays in `output`.
        DeviceError: The device went away.
        Interrupted: The run was stopped; nothing of it stays.
    """
    with (
        begin(device, a, output, _named("A", progress)) as of_a,
        begin(device, b, output, _named("B", progress)) as of_b,
    ):
        for number in range(1, max(of_a.starts, of_b.starts) + 1):
            for measurement in (of_a, of_b) if number % 2 else (of_b, of_a):
                _start(measurement, number)
        return of_a.finish(of_b.run_id), of_b.finish(of_a.run_id)


def _start(measurement: Measurement, number: int) -> None:
    # A simulated run has one start, whatever is requested.
    if number <= measurement.starts:
        measurement.start(number)


def _named(letter: str, progress: Progress) -> Progress:
    def report(text: str, fraction: float | None = None) -> None:
        progress(f"{letter}: {text}", fraction)

    return report
