"""Runs with everything that a report can show, made by hand."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from etdeploy.bench.records.performance import (
    DeviceSample,
    Disturbance,
    DisturbanceKind,
    Energy,
    Memory,
    MemoryPoint,
    Start,
    Sustained,
    SustainedPoint,
    ThreadsRecord,
    WeightsKind,
)
from etdeploy.bench.records.record import DeviceRecord, Inference, RunRecord
from etdeploy.bench.records.stored import StoredRun
from etdeploy.bench.starts import compute_spread
from etdeploy.bench.statistics import summarize
from etdeploy.compare.model import (
    ComparedRun,
    Comparison,
    OperatorChange,
    OutputDifference,
    Ratio,
    Verdict,
)
from etdeploy.core.values import ReasonedChoice
from etdeploy.devices.base import CpuCluster, DeviceState
from etdeploy.plan.model import RuntimePlan
from etdeploy.profile.model import ModuleTime, OperatorTime, Profile
from etdeploy.report.report_data import ReportData
from tests.support.bench_values import FOLDER, make_check, make_device, make_record

# A name that is dangerous wherever text is not told from markup.
HOSTILE = "</script><script>alert('x')</script>|`a`*b*_c_@team[x](https://evil.example)&amp;<b>"
THROTTLED = Disturbance(kind=DisturbanceKind.THROTTLED, text="The device lowered its frequency.")


def make_starts(
    count: int, samples: int, base_ms: float = 12.0, disturbed: Sequence[int] = ()
) -> tuple[tuple[Start, ...], list[float]]:
    """Starts that are a few percent apart, and their samples, which vary less."""
    rng = random.Random(7)
    starts: list[Start] = []
    everything: list[float] = []
    for number in range(count):
        level = base_ms * (1 + rng.gauss(0, 0.03)) * (1.3 if number in disturbed else 1)
        own = summarize([level * (1 + abs(rng.gauss(0, 0.01))) for _ in range(samples)])
        everything += own.samples
        starts.append(
            Start(
                started_at=f"2026-11-21T08:{number % 60:02}:49+00:00",
                warmup=12,
                steady=True,
                load_ms=8.0,
                verify_ms=0.2,
                first_inference_ms=2 * level,
                samples=samples,
                median_ms=own.median,
                mean_ms=own.mean,
                stddev_ms=own.stddev,
                disturbances=(THROTTLED,) if number in disturbed else (),
            )
        )
    return tuple(starts), everything


def make_profile(count: int = 60, **changes: Any) -> Profile:
    """A transformer of four layers, two thirds of it delegated."""
    rng = random.Random(11)
    rows, layers = [], []
    for layer in range(4):
        children = []
        for part, delegate in (("attention", "XnnpackBackend"), ("mlp", "XnnpackBackend"),
                               ("norm", "")):  # fmt: skip
            path, total = f"layers.{layer}.{part}", 0.0
            for i in range(max(1, count // 12)):
                ms = rng.random() ** 3
                total += ms
                kernel = "Fully Connected" if delegate else "aten::native_layer_norm.out"
                rows.append(
                    OperatorTime(
                        name=f"{kernel} {i}",
                        calls=1, total_ms=ms, self_ms=ms, share=0.0, module=path,
                        source="model.py:42", delegate=delegate,
                        not_delegated="" if delegate else "no kernel for it",
                    )
                )  # fmt: skip
            children.append(
                ModuleTime(path=path, kind=part.title(), total_ms=total, self_ms=total,
                           delegates={delegate: total})
            )  # fmt: skip
        layers.append(_parent(f"layers.{layer}", "Block", children))
    root = _parent("", "Transformer", layers)
    values: dict[str, Any] = {
        "run_id": FOLDER.name,
        "inferences": 10,
        "inference_ms": root.total_ms,
        "untraced_ms": 0.9 * root.total_ms,
        "operators": tuple(
            row.model_copy(update={"share": row.self_ms / root.total_ms})
            for row in sorted(rows, key=lambda row: -row.self_ms)
        ),
        "modules": root,
        "shares": {"XnnpackBackend": 0.7, "copy_": 0.1, "rest": 0.15, "runtime": 0.05},
        "outside_delegates": 0.3,
        "bottleneck": "A third of the time is spent in layer norms on CPU kernels.",
        "notes": ("The delegate gives durations only.",),
    }
    return Profile(**(values | changes))


def _parent(path: str, kind: str, children: Sequence[ModuleTime]) -> ModuleTime:
    sums: dict[str, float] = {}
    for child in children:
        for name, ms in child.delegates.items():
            sums[name] = sums.get(name, 0.0) + ms
    total = sum(child.total_ms for child in children)
    return ModuleTime(path=path, kind=kind, total_ms=total, self_ms=0.0, delegates=sums,
                      children=tuple(children))  # fmt: skip


def make_plan() -> RuntimePlan:
    return RuntimePlan(
        target="android-arm64",
        build_target="android-arm64",
        portable_runner=False,
        provider=ReasonedChoice(
            name="provider", value="source", reason="the wheel is for this machine"
        ),
        executorch_version="1.5.1",
        toolchain=None,
        components=(
            ReasonedChoice(name="backend_xnnpack", reason="method forward delegates to it"),
        ),
        options=(
            ReasonedChoice(name="EXECUTORCH_BUILD_XNNPACK", value="ON", reason="12 partitions"),
            ReasonedChoice(name="CMAKE_BUILD_TYPE", value="Debug", reason="recipe", by_hand=True),
        ),
        program_sha256="ab" * 32,
    )


def make_state(seconds: float) -> DeviceState:
    """A phone that grows hot and slow."""
    return DeviceState(
        battery_percent=80,
        battery_celsius=30 + seconds / 10,
        charging=False,
        thermal_status="light",
        temperatures_celsius={"cpu": 40 + seconds, "skin": 31 + seconds / 10},
        clusters=(
            CpuCluster(
                cpus=(0, 1, 2, 3), governor="walt", current_khz=1_800_000, max_khz=1_804_800
            ),
            CpuCluster(cpus=(7,), current_khz=2_800_000 - int(seconds * 30_000)),
        ),
        battery_milliamps=900 + 20 * seconds,
        battery_volts=3.9,
        available_memory_bytes=4_000_000_000 - int(seconds * 1e7),
    )


def make_phone() -> DeviceRecord:
    passes = ["timing"] * 12 + ["memory"] * 4 + ["profile"] * 4
    during = tuple(
        DeviceSample(seconds=float(i), pass_name=name, state=make_state(i))
        for i, name in enumerate(passes)
    )
    phone = make_device(
        "android", make_state(0), make_state(20), name="android:R5CT20", model="Galaxy S23",
        manufacturer="Samsung", soc="SM8550", memory_bytes=8_000_000_000,
    )  # fmt: skip
    return phone.model_copy(update={"during": during})


def make_full_record(base_ms: float = 12.0, **changes: Any) -> RunRecord:
    """A record in which no part is missing."""
    starts, samples = make_starts(5, 40, base_ms, disturbed=(3,))
    sweep = tuple(
        ThreadsRecord(
            threads=threads,
            latency_ms=summarize([factor * ms for ms in samples]),
            first_inference_ms=20.0,
            runs=starts,
            spread=compute_spread(starts),
        )
        for threads, factor in ((1, 3.0), (2, 1.6), (4, 1.0))
    )
    points = tuple(
        SustainedPoint(seconds=10.0 * i, inferences_per_s=80 - i / 2, celsius=40.0 + i / 2,
                       khz=2_800_000 - 10_000 * i)
        for i in range(1, 60)
    )  # fmt: skip
    workload = Inference(
        latency_ms=summarize(samples),
        first_inference_ms=24.0,
        outputs=(make_check(),),
        outputs_compared=True,
        runs=starts,
        spread=compute_spread(starts),
        threads=sweep,
        sustained=Sustained(
            seconds=600.0, inferences=40_000, points=points, start_per_s=80.0, end_per_s=50.5,
            retained_percent=63.1, to_minus_10_percent_s=160.0, to_minus_25_percent_s=400.0,
            energy=Energy(joules_per_inference=0.04, watts=4.2, idle_watts=0.9, samples=300),
        ),
    )  # fmt: skip
    memory = Memory(
        peak_rss_bytes=132_700_000,
        peak_pss_bytes=110_000_000,
        planned_bytes=5_000_000,
        program_resident_bytes=80_000_000,
        weights=WeightsKind.MAPPED,
        points=tuple(
            MemoryPoint(seconds=i / 2, rss_bytes=10_000_000 * i, pss_bytes=9_000_000 * i)
            for i in range(1, 14)
        ),
    )
    values = {"device": make_phone(), "workload": workload, "memory": memory}
    return make_record(**(values | {"notes": ("The screen was on.",)} | changes))


def make_report_data(name: str = "mlp", base_ms: float = 12.0, **changes: Any) -> ReportData:
    """A run in which no part is missing."""
    run = StoredRun(FOLDER, make_full_record(base_ms, **changes))
    return ReportData(run, name, make_plan(), (make_profile(),))


def renamed(run: ReportData, recipe: str, run_id: str = "") -> ReportData:
    """The same run of a recipe with another name."""
    record = run.record
    named = record.recipe.model_copy(update={"name": recipe})
    changes = {"recipe": named, "run_id": run_id or f"{record.run_id}-{recipe}"}
    return ReportData(StoredRun(FOLDER, record.model_copy(update=changes)), recipe, run.plan,
                    run.profiles, run.no_plan, run.no_profile)  # fmt: skip


def make_comparison(b: ReportData, verdict: Verdict = Verdict.SLOWER, **changes: Any) -> Comparison:
    side = ComparedRun(name=b.name, run_id=b.record.run_id, record=None, median_ms=12.0, starts=5,
                spread_percent=2.0)  # fmt: skip
    known = verdict is not Verdict.NOT_COMPARABLE
    values: dict[str, Any] = {
        "metric": "latency_ms",
        "a": side,
        "b": side,
        "ratio": Ratio(median=1.08, low=1.05, high=1.11) if known else None,
        "pairs": (),
        "verdict": verdict,
        "reason": "the interval is above 1" if known else "the devices differ",
        "remarks": ("They were measured at other times.",) if known else (),
        "operators": (OperatorChange(name="aten::add.out", module="layers.0", a_ms=1.0, b_ms=2.0),),
        "outputs": (
            OutputDifference(name="output_0", max_abs_error=1e-5, cosine_similarity=0.99999),
        ),
    }
    return Comparison(**(values | changes))
