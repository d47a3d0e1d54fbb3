"""Why two runs cannot be compared: what must be the same, whatever is under test.

Under test may be what a recipe decides: model, export, quantisation, backend, runtime, threads, and
so the program and the runner. Device, method and inputs have to be the same, and nothing may have
disturbed one side alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

from pydantic import ValidationError

from etdeploy.bench.outputs.verdict import wrong_outputs
from etdeploy.bench.records.generation import TextGeneration
from etdeploy.bench.records.record import RunRecord
from etdeploy.bench.records.stored import StoredRun
from etdeploy.devices.base import DeviceFacts
from etdeploy.program.folder import Provenance, Stored, TensorFile

# Facts of a device with which times change, and what a difference in them shows.
_DEVICE = {
    "kind": "another device: its kind",
    "manufacturer": "another device: its manufacturer",
    "model": "another device: its model",
    "soc": "another device: its SoC",
    "cpu_count": "another device: its number of processors",
    "os": "another system on the device: its name",
    "fingerprint": "another system on the device: its build",
    "emulator": "another emulator: its version",
    "emulated_cpu": "another emulated processor: it",
}


def obstacles(a: StoredRun, b: StoredRun) -> tuple[str, ...]:
    """Why B cannot be measured against A, each as a clause; nothing of disturbances.

    Raises:
        ValueError: A link in a run's folder leads out of it.
    """
    if a.record.run_id == b.record.run_id:
        return ("both are the same run",)
    return (
        *_simulated(a.record, b.record),
        *other_device(a.record.device.facts, b.record.device.facts),
        *_other_workload(a.record, b.record),
        *_other_inputs(a, b),
        *_wrong(a.record, b.record),
    )


def other_device(a: DeviceFacts, b: DeviceFacts) -> Iterator[str]:
    """What shows that two records are of different devices, or of one that was changed."""
    for key, what in _DEVICE.items():
        values = getattr(a, key), getattr(b, key)
        if values[0] != values[1]:
            yield f"{what} is {values[0]} in A and {values[1]} in B"
            return
    if a.serial != b.serial:
        yield "another unit of the same model: the serial numbers differ"
    elif a.serial is None and a.name != b.name:
        yield f"nothing shows that {a.name} and {b.name} are the same unit"


def _simulated(a: RunRecord, b: RunRecord) -> Iterator[str]:
    for side, record in (("A", a), ("B", b)):
        if record.simulated:
            yield f"{side} was simulated by {record.simulated.by} and has no times of a device"


def _other_workload(a: RunRecord, b: RunRecord) -> Iterator[str]:
    if a.workload.kind != b.workload.kind:
        yield f"another workload: {a.workload.kind} in A, {b.workload.kind} in B"
    if isinstance(a.workload, TextGeneration) and isinstance(b.workload, TextGeneration):
        yield from _other_text(a.workload, b.workload)
    # Of text, how a program's methods are called is no part of what is measured.
    elif a.program.method != b.program.method:
        yield f"another method: {a.program.method} in A, {b.program.method} in B"


def _other_text(a: TextGeneration, b: TextGeneration) -> Iterator[str]:
    if a.first.counted != b.first.counted:
        yield f"another first point: {a.first.label} in A, {b.first.label} in B"
    elif a.prompt != b.prompt:
        yield "another prompt"


def _other_inputs(a: StoredRun, b: StoredRun) -> Iterator[str]:
    """By what `export.json` says of them; nothing where it is not there."""
    if isinstance(a.record.workload, TextGeneration):
        return
    of_a, of_b = _inputs(a), _inputs(b)
    if not of_a or not of_b:
        return
    for index, (in_a, in_b) in enumerate(zip_longest(of_a, of_b)):
        if _shown(in_a) != _shown(in_b):
            yield f"other inputs: input {index} is {_shown(in_a)} in A and {_shown(in_b)} in B"
            return


def _inputs(run: StoredRun) -> tuple[Stored, ...]:
    """The inputs of the times that are compared, which are those of the first size."""
    path = run.path("export")
    try:
        made = Provenance.load(path).of(run.record.program.method) if path else None
    except (OSError, ValidationError, KeyError):
        return ()
    return next(iter(made.measured.values())).inputs if made else ()


def _shown(value: Stored | None) -> str:
    if value is None:
        return "not there"
    if isinstance(value, TensorFile):
        return f"a tensor {list(value.shape)}"
    return f"the value {value.value}"


def _wrong(a: RunRecord, b: RunRecord) -> Iterator[str]:
    for side, record in (("A", a), ("B", b)):
        if wrong := wrong_outputs(record):
            yield f"{side} computes something else: {wrong[0].name} is not what its model gives"
