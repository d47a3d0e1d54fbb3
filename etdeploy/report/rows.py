"""Runs as flat rows for spreadsheets and scripts: CSV and JSON lines."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from typing import Any, get_args

from pydantic import BaseModel

from etdeploy.bench.records.generation import GenerationPoint, TextGeneration
from etdeploy.bench.records.performance import Start, samples_by_start
from etdeploy.bench.records.record import Inference, RunRecord
from etdeploy.bench.records.stored import FOLDER_KEY
from etdeploy.bench.reference import descriptions
from etdeploy.report.formatting import device, finite, is_number, outputs
from etdeploy.report.report_data import ReportData

_NS_PER_MS = 1_000_000
JSONL_BEGINNING = '{"run_id": '
# What a spreadsheet reads as a formula when a cell begins with it.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
# `size` is that of the recipe; empty where it names none.
CSV_COLUMNS = (
    "run_id", "recipe", "device", "target", "backend", "quantization", "threads", "size", "start",
    "started_at", "warmup", "steady", "load_ms", "first_inference_ms", "samples", "median_ms",
    "mean_ms", "stddev_ms", "outputs", "disturbances", "simulated", "prompt_tokens", "new_tokens",
    "depth", "ttft_ms", "prefill_tokens_per_s", "decode_tokens_per_s", "quantization_cosine",
    "quantization_sqnr_db",
)  # fmt: skip


def csv_text(runs: Sequence[ReportData]) -> str:
    """A line for each start of each run, for every size and every number of threads.

    Of generated text a line for each point, whose times are those of the tokens after the first. A
    simulated run has one line without times.
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for run in runs:
        for row in _lines(run.record):
            writer.writerow([_cell(row.get(column)) for column in CSV_COLUMNS])
    return stream.getvalue()


def json_lines(runs: Sequence[ReportData]) -> str:
    """A JSON object for each run, with all samples; of generated text for each point.

    Times of llama-bench's names are in ns, its rates in tokens per second.
    """
    rows = (finite(row) for run in runs for row in _rows(run.record))
    return "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)


def _lines(record: RunRecord) -> Iterator[dict[str, Any]]:
    common = _common(record)
    if record.simulated:
        yield common | {"start": 1, "started_at": record.started_at}
        return
    workload = record.workload
    if isinstance(workload, TextGeneration):
        yield from (common | _point(record, point) for point in workload.points)
        return
    if not workload.sizes and not workload.threads:
        yield from _of_starts(common, record.workload.runs)
    for size in workload.sizes:
        yield from _of_starts(common | {"size": size.name}, size.runs)
    for each in workload.threads:
        yield from _of_starts(common | {"threads": each.threads}, each.runs)


def _point(record: RunRecord, point: GenerationPoint) -> dict[str, Any]:
    """A point's line; its keys are the columns of the same name."""
    values = point.model_dump(include=set(CSV_COLUMNS))
    times = point.token_ms
    if times:
        values |= {"samples": len(times.samples), "median_ms": times.median}
        values |= {"mean_ms": times.mean, "stddev_ms": times.stddev}
    return values | {"started_at": record.started_at, "load_ms": record.load_ms}


def _of_starts(common: dict[str, Any], starts: Sequence[Start]) -> Iterator[dict[str, Any]]:
    for number, start in enumerate(starts, 1):
        kinds = [str(each.kind) for each in start.disturbances]
        values = start.model_dump(include=set(CSV_COLUMNS))
        yield (
            common
            | values
            | {
                "start": number,
                "disturbances": " ".join([*common["disturbances"].split(), *kinds]),
            }
        )


def _common(record: RunRecord) -> dict[str, Any]:
    return {
        "run_id": record.run_id,
        "recipe": record.recipe.name,
        "device": record.device.facts.name,
        "target": record.runner.target,
        "backend": record.program.backend,
        "quantization": record.program.quantization,
        "threads": record.runner.threads,
        "outputs": outputs(record),
        "disturbances": " ".join(str(each.kind) for each in record.disturbances),
        "simulated": record.simulated is not None,
        **_quantization(record),
    }


def _quantization(record: RunRecord) -> dict[str, float | None]:
    """The lowest of any output, against the unquantized model; None where none is known."""
    losses = record.program.quantization_loss
    cosines = [loss.cosine_similarity for loss in losses if loss.cosine_similarity is not None]
    ratios = [loss.sqnr_db for loss in losses if loss.sqnr_db is not None]
    return {
        "quantization_cosine": min(cosines, default=None),
        "quantization_sqnr_db": min(ratios, default=None),
    }


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and not is_number(value):
        return ""
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return value


def _rows(record: RunRecord) -> Iterator[dict[str, Any]]:
    workload = record.workload
    if not isinstance(workload, TextGeneration):
        yield _row(record, dict.fromkeys(_TIMES) if record.simulated else _times(record, workload))
        return
    for point in workload.points:
        yield _row(record, _point_times(record, point))


def _row(record: RunRecord, times: dict[str, Any]) -> dict[str, Any]:
    return {
        **_identity(record),
        **times,
        "outputs": outputs(record),
        "disturbances": [str(each.kind) for each in record.disturbances],
        "simulated": record.simulated.by if record.simulated else None,
        **_quantization(record),
    }


def _identity(record: RunRecord) -> dict[str, Any]:
    facts = record.device.facts
    return {
        "run_id": record.run_id,
        "test_time": record.started_at,
        "build_commit": record.recipe.git_revision,
        "etdeploy_version": record.versions.get("etdeploy"),
        "executorch_version": record.runner.executorch_version,
        "recipe": record.recipe.name,
        "model": record.program.source,
        "model_size": record.program.size_bytes,
        "backend": record.program.backend,
        "quantization": record.program.quantization,
        "method": record.program.method,
        "n_threads": record.runner.threads,
        "device": facts.name,
        "device_model": facts.model,
        "soc": facts.soc,
        "os": facts.os,
        "target": record.runner.target,
    }


_TIMES = (
    "n_runs", "median_ms", "p90_ms", "avg_ns", "stddev_ns", "samples_ns", "within_percent",
    "between_percent", "load_ms", "first_inference_ms", "peak_rss_bytes",
)  # fmt: skip


def _times(record: RunRecord, workload: Inference) -> dict[str, Any]:
    latency, starts, spread = workload.latency_ms, record.workload.runs, record.workload.spread
    values = (
        len(starts),
        latency.median,
        latency.p90,
        _ns(latency.mean),
        _ns(latency.stddev),
        [[_ns(sample) for sample in each] for each in samples_by_start(starts, latency)],
        spread.within_percent,
        spread.between_percent,
        record.load_ms,
        workload.first_inference_ms,
        record.peak_rss_bytes,
    )
    return dict(zip(_TIMES, values, strict=True))


def _point_times(record: RunRecord, point: GenerationPoint) -> dict[str, Any]:
    """A point as a line of llama-bench, whose tests are either a prompt or new tokens."""
    numbers = dict(zip(("n_prompt", "n_gen", "n_depth"), point.counted, strict=True))
    if record.simulated:
        return numbers
    tokens = point.token_ms
    return {
        **numbers,
        "n_runs": len(record.workload.runs),
        "avg_ts": point.decode_tokens_per_s,
        "prefill_ts": point.prefill_tokens_per_s,
        "ttft_ms": point.ttft_ms,
        "ttft_samples_ns": [_ns(ms) for ms in point.first_token_ms.samples],
        "avg_ns": _ns(tokens.mean) if tokens else None,
        "stddev_ns": _ns(tokens.stddev) if tokens else None,
        "samples_ns": [_ns(ms) for ms in tokens.samples] if tokens else [],
        "between_percent": record.workload.spread.between_percent,
        "load_ms": record.load_ms,
        "peak_rss_bytes": record.peak_rss_bytes,
    }


def _ns(value_ms: float) -> int | None:
    return round(value_ms * _NS_PER_MS) if is_number(value_ms) else None


# An object begins with it, and an array without a space in front.
OSS_BEGINNING = '[{"benchmark": {"name": "ExecuTorch", "mode": "inference",'
_GB = 10**9
# ExecuTorch's jobs divide KiB by 1024 and call that mb.
_MIB = 1024**2
# A name, values, and what they are of.
_Metric = tuple[str, list[float], dict[str, str]]


def pytorch_oss(runs: Sequence[ReportData]) -> str:
    """A JSON array with an object for each metric of each run.

    Metrics of several starts have a value for each. A simulated run has `load_status` alone: its
    times are no device's.
    """
    found = [each for run in runs for each in _oss_rows(run.record)]
    # A line for each metric: as an array it is one value, as text it can be read.
    lines = [json.dumps(each, ensure_ascii=False, allow_nan=False) for each in found]
    return "[" + ",\n".join(lines) + "]\n"


def _oss_rows(record: RunRecord) -> Iterator[dict[str, Any]]:
    common = _oss_common(record)
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
    starts = record.workload.runs
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


def _oss_common(record: RunRecord) -> dict[str, Any]:
    program = record.program
    quantization = "" if program.quantization in (None, "none") else f"_{program.quantization}"
    return {
        "benchmark": {
            "name": "ExecuTorch",
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
        "runners": [_oss_runner(record)],
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


def _oss_runner(record: RunRecord) -> dict[str, Any]:
    facts, before = record.device.facts, record.device.before
    known = {
        "name": device(record),
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


def record_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a record; descriptions are those of docs/records.md.

    Keys with a default are not required: a record may leave them out.
    """
    content = RunRecord.model_json_schema(mode="validation")
    for name, model in _models(RunRecord).items():
        described = content if model is RunRecord else content["$defs"].get(name, {})
        for key, text in descriptions(model).items():
            if key in described.get("properties", {}):
                described["properties"][key]["description"] = text
    content["properties"][FOLDER_KEY] = {
        "type": "string",
        "description": "The record's folder on one machine; only what `--json` prints has it.",
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **content,
        "title": "etdeploy run record",
    }


def _models(model: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """A model and all that its fields lead to, by class name."""
    found: dict[str, type[BaseModel]] = {}
    waiting = [model]
    while waiting:
        each = waiting.pop()
        if each.__name__ not in found:
            found[each.__name__] = each
            waiting += [
                kind for field in each.model_fields.values() for kind in _classes(field.annotation)
            ]
    return found


def _classes(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _classes(part)
