"""The JSON that PyTorch's benchmark database takes.

Its keys are those of the table `oss_ci_benchmark_v3` (pytorch/test-infra, clickhouse_db_schema):
every `extra_info` maps text to text, sizes of memory are whole GB. The names of metrics are those
of ExecuTorch's own jobs (extension/benchmark, .github/scripts/extract_benchmark_results.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from etdeploy.bench.records.generation import TextGeneration
from etdeploy.bench.records.record import RunRecord
from etdeploy.bench.records.starts import samples_by_start
from etdeploy.report.material import Material, starts_of
from etdeploy.report.shown import finite, is_number, outputs

BENCHMARK = "ExecuTorch"
# An object begins with it, and an array without a space in front.
BEGINNING = '[{"benchmark": {"name": "ExecuTorch", "mode": "inference",'
_GB = 10**9
# ExecuTorch's jobs divide KiB by 1024 and call that mb.
_MIB = 1024**2
# A name, values, and what they are of.
_Metric = tuple[str, list[float], dict[str, str]]


def pytorch_oss(runs: Sequence[Material]) -> str:
    """A JSON array with an object for each metric of each run.

    Metrics of several starts have a value for each. A simulated run has `load_status` alone: its
    times are no device's.
    """
    found = [each for run in runs for each in _of_run(run.record)]
    # A line for each metric: as an array it is one value, as text it can be read.
    lines = [json.dumps(each, ensure_ascii=False, allow_nan=False) for each in found]
    return "[" + ",\n".join(lines) + "]\n"


def _of_run(record: RunRecord) -> Iterator[dict[str, Any]]:
    common = _common(record)
    metrics: list[_Metric] = [(name, values, {}) for name, values in _metrics(record)]
    for name, values, point in [*metrics, *_text_metrics(record)]:
        known = [value for value in finite(values) if value is not None]
        if known:
            metric = {"name": name, "benchmark_values": known, "target_value": 0}
            extra = {"method": record.program.method, **point}
            yield {**common, "metric": {**metric, "extra_info": extra}}


def _metrics(record: RunRecord) -> Iterator[tuple[str, list[float]]]:
    # A record is written only by a run that loaded its program and ended well.
    yield "load_status", [0]
    if record.simulated:
        return
    starts = starts_of(record)
    yield "model_load_time(ms)", [start.load_ms for start in starts]
    if not isinstance(record.workload, TextGeneration):
        yield "avg_inference_latency(ms)", [start.mean_ms for start in starts]
        samples = samples_by_start(starts, record.workload.latency_ms)
        yield "trimmean_inference_latency(ms)", [_trimmed_mean(each) for each in samples if each]
        yield "first_inference_latency(ms)", [start.first_inference_ms for start in starts]
    if record.memory and record.memory.peak_pss_bytes is not None:
        yield "ram_pss_usage(mb)", [record.memory.peak_pss_bytes / _MIB]
    if record.peak_rss_bytes is not None:
        yield "peak_inference_mem_usage(mb)", [record.peak_rss_bytes / _MIB]


def _text_metrics(record: RunRecord) -> Iterator[_Metric]:
    """Rates and times of each point of generated text, the decode rate first."""
    workload = record.workload
    if record.simulated or not isinstance(workload, TextGeneration):
        return
    for point in workload.points:
        numbers = zip(("prompt_tokens", "new_tokens", "depth"), point.counted, strict=True)
        about = {name: str(number) for name, number in numbers}
        if point.decode_tokens_per_s is not None:
            yield "token_per_sec", [point.decode_tokens_per_s], about
        yield "prefill_token_per_sec", [point.prefill_tokens_per_s], about
        yield "time_to_first_token(ms)", list(point.first_token_ms.samples), about


def _trimmed_mean(samples: Sequence[float]) -> float:
    """The mean of the middle 80 %, cut as ExecuTorch's benchmark app does (ModelRunner.kt)."""
    ordered = sorted(each for each in samples if is_number(each))
    middle = ordered[len(ordered) // 10 : len(ordered) * 9 // 10] or ordered
    return sum(middle) / len(middle) if middle else float("nan")


def _common(record: RunRecord) -> dict[str, Any]:
    program = record.program
    quantization = "" if program.quantization in (None, "none") else f"_{program.quantization}"
    return {
        "benchmark": {
            "name": BENCHMARK,
            "mode": "inference",
            "dtype": program.quantization or "",
            "extra_info": _benchmark_info(record),
        },
        "model": {
            "name": record.recipe.name,
            "type": "OSS model",
            "backend": f"{program.backend or ' '.join(program.backends)}{quantization}",
            "extra_info": {"source": program.source, "sha256": program.sha256},
        },
        "runners": [_runner(record)],
        "dependencies": {
            "executorch": {"version": record.runner.executorch_version},
            "torch": {"version": record.versions.get("torch", "")},
        },
    }


def _benchmark_info(record: RunRecord) -> dict[str, str]:
    return {
        "app_type": "etdeploy",
        "etdeploy_version": record.versions.get("etdeploy", ""),
        "run_id": record.run_id,
        "started_at": record.started_at,
        "threads": str(record.runner.threads),
        "outputs": outputs(record),
        "disturbances": " ".join(str(each.kind) for each in record.disturbances),
        "simulated_by": record.simulated.by if record.simulated else "",
    }


def _runner(record: RunRecord) -> dict[str, Any]:
    facts, before = record.device.facts, record.device.before
    known = {
        "name": " ".join(part for part in (facts.manufacturer, facts.model) if part) or facts.name,
        "type": facts.os or facts.kind,
        "cpu_info": facts.abi or facts.target,
        "cpu_count": facts.cpu_count,
        "avail_mem_in_gb": _gigabytes(before.available_memory_bytes),
        "total_mem_in_gb": _gigabytes(facts.memory_bytes),
        "extra_info": {"soc": facts.soc or "", "etdeploy_device": facts.name},
    }
    return {key: value for key, value in known.items() if value is not None}


def _gigabytes(size_bytes: int | None) -> int | None:
    return None if size_bytes is None else round(size_bytes / _GB)
