"""The run record: what one measured run gave."""

from __future__ import annotations

from typing import Any

from etdeploy.core.values import Value
from etdeploy.devices.base import DeviceFacts, DeviceState

SCHEMA_VERSION = 1


class Latency(Value):
    """Times of the timed iterations in milliseconds; stddev is that of the sample (n - 1)."""

    samples: tuple[float, ...]
    min: float
    median: float
    mean: float
    p90: float
    p99: float
    stddev: float


class OutputCheck(Value):
    """One output against the eager model's. `None` where it has no meaning (an integer cosine)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    max_abs_error: float | None
    cosine_similarity: float | None
    tolerance_max_abs: float | None
    tolerance_cosine: float | None
    within_tolerance: bool
    problem: str | None = None


class DeviceRecord(Value):
    """The device's facts with its state before and after the run."""

    facts: DeviceFacts
    before: DeviceState
    after: DeviceState


class ProgramRecord(Value):
    """The program that ran."""

    sha256: str
    size_bytes: int
    operators: tuple[str, ...]
    backends: tuple[str, ...]
    source: str
    backend: str | None
    quantization: str | None


class RunnerRecord(Value):
    """The runner that ran it."""

    sha256: str
    target: str
    portable: bool
    executorch_version: str
    threads: int | None


class RecipeRecord(Value):
    """The recipe, resolved, and the revision of the folder that it came from."""

    name: str
    path: str | None
    git_revision: str | None
    git_dirty: bool | None
    content: dict[str, Any]


class RunRecord(Value):
    """What one measured run gave; `run --json` prints it."""

    schema_version: int = SCHEMA_VERSION
    run_id: str
    started_at: str
    latency_ms: Latency
    load_ms: float
    first_inference_ms: float
    peak_rss_bytes: int | None
    outputs: tuple[OutputCheck, ...]
    outputs_compared: bool
    device: DeviceRecord
    program: ProgramRecord
    runner: RunnerRecord
    recipe: RecipeRecord
    versions: dict[str, str]
    passes: dict[str, Any]
    files: dict[str, str]
    notes: tuple[str, ...] = ()
