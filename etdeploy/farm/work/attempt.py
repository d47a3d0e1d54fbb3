"""One attempt on the device's host: the device as it has to be, locked, pushed to and measured.

Needs no torch, no export and no files of the recipe; writes to no history.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from etdeploy.bench.conditions import cooling_sensor
from etdeploy.bench.measure import PreparedMeasurement, measure
from etdeploy.bench.records.stored import StoredRun
from etdeploy.bench.units import long_time
from etdeploy.bench.verdict import require_match
from etdeploy.cache.workspace import Workspace
from etdeploy.core.cancel import sleep_until_stopped
from etdeploy.core.console import size
from etdeploy.core.errors import BuildError, DeviceError, Interrupted, MismatchError
from etdeploy.core.files.locks import exclusive
from etdeploy.core.values import Progress, silent
from etdeploy.devices.base import Device, DeviceState, lock_name
from etdeploy.devices.registry import open_device
from etdeploy.farm.model import AttemptFailure, AttemptResult, Fate, Gates, Health, Order
from etdeploy.farm.work.artifact import GATE, IN_USE, failure_of, host_failure, open_artifact
from etdeploy.farm.work.local_devices import require_same


@dataclass(frozen=True)
class _Result:
    """How it ended, before it is told as an AttemptResult."""

    fate: Fate
    run: StoredRun | None = None
    failure: AttemptFailure | None = None
    health: Health | None = None


class _EndedError(Exception):
    """It ended without an error of etdeploy's: the device cannot be measured now, for one."""

    def __init__(self, fate: Fate, failure: AttemptFailure) -> None:
        super().__init__(failure.message)
        self.result = _Result(fate, failure=failure)


def attempt(
    order: Order,
    artifact_folder: Path,
    output: Path,
    progress: Progress = silent,
    idle: Callable[[], None] = lambda: None,
) -> AttemptResult:
    """Measures an artifact on a device of this host, once."""
    begun_s = time.monotonic()
    cache = Workspace.default().root
    try:
        result = _attempted(order, artifact_folder, output, progress, idle)
    except Exception as error:
        result = _result_of(error, cache)
    return order.end(result.fate, result.failure, begun_s).model_copy(
        update={
            "run_id": result.run.record.run_id if result.run else None,
            "record": str(result.run.record_path) if result.run else None,
            "health": result.health,
        }
    )


def _attempted(
    order: Order, folder: Path, output: Path, progress: Progress, idle: Callable[[], None]
) -> _Result:
    workspace = Workspace.opened()
    with workspace.in_use():
        progress("verifying the artifact")
        prepared = _opened(folder, order)
        device = open_device(order.offer.name, workspace)
        try:
            require_same(device, order.offer)
            return _on_device(order, device, prepared, workspace, output, progress, idle)
        finally:
            device.close()


def _result_of(error: Exception, cache: Path) -> _Result:
    if isinstance(error, _EndedError):
        return error.result
    fate = Fate.PUT_OFF if isinstance(error, Interrupted) else Fate.FAILED
    return _Result(fate, failure=failure_of(error, cache))


def _opened(folder: Path, order: Order) -> PreparedMeasurement:
    try:
        return open_artifact(folder, order.artifact)
    except BuildError as error:
        # This host's disk is to blame, not what was built.
        failure = host_failure(error.message, error.place, error.remedy)
        raise _EndedError(Fate.FAILED, failure) from error


def _on_device(
    order: Order,
    device: Device,
    prepared: PreparedMeasurement,
    workspace: Workspace,
    output: Path,
    progress: Progress,
    idle: Callable[[], None],
) -> _Result:
    until = time.monotonic() + order.gates.wait_s

    def waits(text: str, fraction: float | None = None) -> None:
        idle()
        progress(text, fraction)

    def pass_gates() -> None:
        _pass_gates(order.gates, device, until - time.monotonic(), progress, idle)

    with _held(device, workspace, until - time.monotonic(), waits):
        try:
            pass_gates()
            progress("sending what the device does not have")
            device.push(prepared.bundle, progress)
            pass_gates()  # a push may take long
            idle()
            run = measure(device, prepared, output, progress)
        except (Interrupted, DeviceError):
            raise
        except Exception as error:
            return replace(_result_of(error, workspace.root), health=_health(device))
        return _Result(Fate.DONE, run, _mismatch(run, device, workspace), _health(device))


@contextmanager
def _held(
    device: Device, workspace: Workspace, timeout_s: float, progress: Progress
) -> Iterator[None]:
    """Holds the device for this attempt alone, with the lock that a plain run takes."""
    lock = workspace.lock_path("device", lock_name(device))
    held = exclusive(lock, f"device {device.name}", progress, max(0.0, timeout_s))
    try:
        held.__enter__()
    except TimeoutError as error:
        failure = AttemptFailure(
            kind=IN_USE, exit_code=DeviceError.exit_code, message=str(error), place=device.name
        )
        raise _EndedError(Fate.PUT_OFF, failure) from error
    with ExitStack() as stack:
        stack.push(held)
        yield


def _pass_gates(
    gates: Gates, device: Device, left_s: float, progress: Progress, idle: Callable[[], None]
) -> None:
    try:
        wait_until_open(gates, device.state, left_s, progress, idle)
    except GateError as error:
        failure = AttemptFailure(
            kind=GATE,
            exit_code=DeviceError.exit_code,
            message=f"not ready after {gates.wait_s:g} s: {error}",
            place=device.name,
        )
        raise _EndedError(Fate.PUT_OFF, failure) from error


def _mismatch(run: StoredRun, device: Device, workspace: Workspace) -> AttemptFailure | None:
    """What is told of outputs that differ; the measurement counts nevertheless."""
    try:
        require_match(run, device.capabilities)
    except MismatchError as error:
        return failure_of(error, workspace.root)
    return None


def _health(device: Device) -> Health | None:
    try:
        return health_of(device.state())
    except DeviceError:
        return None


# To ask more often would keep a phone from cooling.
_PERIOD_S = 10.0


class GateError(Exception):
    """A gate did not open in time; the message says which, and what the device was like."""


def closed_gates(gates: Gates, state: DeviceState) -> str | None:
    """Why a device cannot be measured now; None if it can.

    What a device does not report closes no gate: a board has no battery.
    """
    reasons = []
    percent, least = state.battery_percent, gates.battery_percent
    if least is not None and percent is not None and percent < least:
        charging = ", not charging" if state.charging is False else ""
        reasons.append(f"battery at {percent} %{charging} (at least {least} %)")
    sensor, most = cooling_sensor(state), gates.temperature_celsius
    if most is not None and sensor is not None and sensor[1] > most:
        reasons.append(f"{sensor[0]} at {sensor[1]:.1f} °C (at most {most:g} °C)")
    free, room = state.free_storage_bytes, gates.free_bytes
    if room is not None and free is not None and free < room:
        reasons.append(f"{size(free)} free (at least {size(room)})")
    return ", ".join(reasons) or None


def wait_until_open(
    gates: Gates,
    read: Callable[[], DeviceState],
    left_s: float,
    progress: Progress,
    waiting: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Waits until every gate is open."""
    if gates.battery_percent is gates.temperature_celsius is gates.free_bytes is None:
        return
    until = clock() + left_s
    told = False
    while reason := closed_gates(gates, read()):
        left = until - clock()
        if left <= 0:
            raise GateError(reason)
        if not told:
            waiting()
            told = True
        progress(f"waiting for at most {long_time(left)}: {reason}")
        sleep_until_stopped(min(_PERIOD_S, left), clock, sleep)


def health_of(state: DeviceState) -> Health:
    """What a device is like, for the night's own health checks."""
    sensor = cooling_sensor(state)
    return Health(
        battery_percent=state.battery_percent,
        temperature_celsius=sensor[1] if sensor else None,
        free_bytes=state.free_storage_bytes,
        thermal_status=state.thermal_status,
    )
