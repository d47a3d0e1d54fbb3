"""Two measurements that take turns on one device, start by start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from etdeploy.bench.measure import Measurement, PreparedMeasurement, begin
from etdeploy.bench.records.stored import StoredRun
from etdeploy.core.errors import RunError
from etdeploy.core.values import Progress, silent
from etdeploy.devices.base import Device


def measure_in_turns(
    device: Device,
    a: PreparedMeasurement,
    b: PreparedMeasurement,
    output: Path,
    progress: Progress = silent,
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
        sides = (("A", of_a), ("B", of_b))
        for number in range(1, max(of_a.starts, of_b.starts) + 1):
            for letter, measurement in sides if number % 2 else sides[::-1]:
                with _failing_as(letter):
                    _start(measurement, number)
        with _failing_as("A"):
            run_a = of_a.finish(of_b.run_id)
        with _failing_as("B"):
            return run_a, of_b.finish(of_a.run_id)


def _start(measurement: Measurement, number: int) -> None:
    # A simulated run has one start, whatever is requested.
    if number <= measurement.starts:
        measurement.start(number)


@contextmanager
def _failing_as(letter: str) -> Iterator[None]:
    """Says which of the two failed: they may be one recipe with other values."""
    try:
        yield
    except RunError as error:
        error.message = f"{letter}: {error.message}"
        raise


def _named(letter: str, progress: Progress) -> Progress:
    def report(text: str, fraction: float | None = None) -> None:
        progress(f"{letter}: {text}", fraction)

    return report
