"""Records and devices' words, written by hand, for tests of bench and report."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from etdeploy.backends.values import Simulated
from etdeploy.bench.passes import TIMING, Pass
from etdeploy.bench.records.outputs import OutputCheck
from etdeploy.bench.records.record import (
    DeviceRecord,
    Inference,
    PassRecord,
    ProgramRecord,
    RecipeRecord,
    RunnerRecord,
    RunRecord,
    SizeRecord,
)
from etdeploy.bench.records.stored import StoredRun
from etdeploy.bench.run_pass import PassResult
from etdeploy.bench.starts import StartSeries
from etdeploy.devices.base import DeviceFacts, DeviceState
from etdeploy.program.folder import EXPORT_INFO, PROGRAM_FILE, Provenance, TensorFile
from etdeploy.program.model import Delegate, Operator
from etdeploy.program.quality import OutputLoss
from etdeploy.recipe.model import Recipe
from etdeploy.runner.model import BuiltRunner
from etdeploy.runner.protocol import RunnerResults

SIMULATED = Simulated(backend="npu", by="Simulator 1.2.3", soc="NPU9")
FOLDER = Path("/out/20261121T084449Z-mlp-host-ab12cd34")


def make_recipe(**sections: Any) -> Recipe:
    return Recipe.model_validate({"model": {"example": "mlp"}} | sections)


def make_check(**changes: Any) -> OutputCheck:
    values: dict[str, Any] = {
        "name": "output_0",
        "dtype": "float32",
        "shape": (2, 4),
        "max_abs_error": 1.2e-7,
        "cosine_similarity": 0.99999994,
        "tolerance_max_abs": 1e-4,
        "tolerance_cosine": 0.9999,
        "within_tolerance": True,
    }
    return OutputCheck(**(values | changes))


UNCOMPARED = make_check(
    name="output_9",
    max_abs_error=None,
    cosine_similarity=None,
    within_tolerance=None,
    remark="every value is NaN or infinite, in the model's own output too",
)


def make_loss(**changes: Any) -> OutputLoss:
    values: dict[str, Any] = {
        "name": "scores",
        "cosine_similarity": 0.999,
        "sqnr_db": 27.0,
        "max_abs_error": 0.125,
    }
    return OutputLoss(**(values | changes))


def make_results(samples_ms: Sequence[float] = (1.0, 1.1, 1.2), **changes: Any) -> RunnerResults:
    """What a runner wrote."""
    values: dict[str, Any] = {
        "schema_version": 1,
        "executorch_version": "1.5.1",
        "method": "forward",
        "started_unix_s": 0,
        "threads": 1,
        "warmup": 5,
        "load_program_ms": 0.5,
        "load_method_ms": 1.5,
        "rss_after_load_bytes": 0,
        "peak_rss_bytes": 0,
        "first_inference_ms": 3.0,
        "samples_ms": tuple(samples_ms),
        "outputs": (),
    }
    return RunnerResults(**(values | changes))


def make_pass(number: int, results: RunnerResults) -> PassResult:
    """A start of the timing pass, a minute after the one before."""
    results_of = Pass(TIMING, results.warmup, len(results.samples_ms), start=number)
    started = datetime(2026, 11, 21, 8, number, tzinfo=timezone.utc)
    return PassResult(results_of, results, 0.5, started)


def make_series(*starts: Sequence[float] | RunnerResults) -> StartSeries:
    """Starts of the timing pass, from their samples or results."""
    results = [r if isinstance(r, RunnerResults) else make_results(r) for r in starts]
    return StartSeries(tuple(make_pass(i, result) for i, result in enumerate(results, 1)))


def make_device(
    kind: str = "host",
    before: DeviceState | None = None,
    after: DeviceState | None = None,
    **facts: Any,
) -> DeviceRecord:
    known: dict[str, Any] = {"name": kind, "kind": kind, "target": "linux-x86_64"}
    known |= {"model": "Test CPU", "os": "Test Linux 1", "cpu_count": 2}
    return DeviceRecord(
        facts=DeviceFacts(**(known | facts)),
        before=before or DeviceState(),
        after=after or DeviceState(),
    )


def make_program(**changes: Any) -> ProgramRecord:
    values: dict[str, Any] = {
        "sha256": "ab" * 32,
        "size_bytes": 5520,
        "method": "forward",
        "operators": ("aten::add.out",),
        "backends": ("XnnpackBackend",),
        "operator_calls": (Operator(name="aten::add.out", calls=2),),
        "delegates": (Delegate(backend_id="XnnpackBackend", size_bytes=1184, nodes=8),),
        "source": "example mlp",
        "backend": "xnnpack",
        "quantization": "none",
    }
    return ProgramRecord(**(values | changes))


def make_record(
    samples_ms: Sequence[float] | StartSeries = (1.0, 1.1, 1.2, 1.0, 1.1),
    outputs: tuple[OutputCheck, ...] = (make_check(),),
    sizes: tuple[SizeRecord, ...] = (),
    **changes: Any,
) -> RunRecord:
    series = samples_ms if isinstance(samples_ms, StartSeries) else make_series(samples_ms)
    iterations = len(series.first.samples_ms)
    values: dict[str, Any] = {
        "run_id": FOLDER.name,
        "started_at": "2026-11-21T08:44:49+00:00",
        "workload": Inference(
            latency_ms=series.latency,
            first_inference_ms=2.5,
            outputs=outputs,
            outputs_compared=bool(outputs),
            sizes=sizes,
            runs=series.starts,
            spread=series.spread,
        ),
        "load_ms": 8.35713,
        "verify_ms": 0.21,
        "peak_rss_bytes": 32_700_000,
        "device": make_device(),
        "program": make_program(),
        "runner": RunnerRecord(
            sha256="cd" * 32,
            target="linux-x86_64",
            portable=False,
            executorch_version="1.5.1+cpu",
            threads=2,
        ),
        "recipe": RecipeRecord(
            name="mlp",
            file="mlp.yaml",
            files={"mlp.yaml": "ef" * 32},
            git_revision=None,
            git_dirty=None,
            content={},
        ),
        "versions": {"etdeploy": "0"},
        "passes": {"timing": PassRecord(warmup=5, iterations=iterations, seconds=0.5)},
        "files": {
            "record": "record.json",
            "outputs": "outputs",
            "log": "runner.stderr.txt",
        },
    }
    return RunRecord(**(values | changes))


def make_run(*arguments: Any, **changes: Any) -> StoredRun:
    """A record in a folder that is not there."""
    return StoredRun(FOLDER, make_record(*arguments, **changes))


def make_runner(folder: Path, loader: str | None = None) -> BuiltRunner:
    """A runner's folder with files of a few bytes."""
    names = ("etdeploy-runner", "libexecutorch.so", *([loader] if loader else []))
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(f"content of {name}".encode())
    return BuiltRunner(
        path=str(folder),
        executable="etdeploy-runner",
        libraries=("libexecutorch.so",),
        loader=loader,
        target="linux-x86_64",
        sha256="cd" * 32,
        operators=(),
        backends=(),
        executorch_version="1.5.1",
    )


def make_program_folder(folder: Path, **changes: Any) -> Provenance:
    """A program folder whose single input and expected output are eight floats."""
    for name in ("inputs", "expected"):
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "0.bin").write_bytes(bytes(range(32)))
    (folder / PROGRAM_FILE).write_bytes(b"program")
    values: dict[str, Any] = {
        "source": "example mlp",
        "backend": "xnnpack",
        "quantization": "none",
        "inputs": (TensorFile(path="inputs/0.bin", dtype="float32", shape=(2, 4)),),
        "expected": (TensorFile(path="expected/0.bin", dtype="float32", shape=(2, 4)),),
    }
    provenance = Provenance(**(values | changes))
    provenance.save(folder / EXPORT_INFO)
    return provenance
