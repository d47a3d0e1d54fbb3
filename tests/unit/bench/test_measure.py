"""A whole measurement on a device in memory: what is kept, and what a failure leaves."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import etdeploy.bench.measure as measurement_module
from etdeploy.backends.values import Simulated
from etdeploy.bench.assemble import Revision
from etdeploy.bench.measure import (
    PreparedMeasurement,
    measure,
    measure_in_turns,
    measure_interleaved,
)
from etdeploy.bench.records.performance import MemoryPoint
from etdeploy.bench.records.record import SizeRecord
from etdeploy.bench.records.stored import StoredRun, load_run
from etdeploy.bench.results_folder import DESCRIPTIONS
from etdeploy.bench.verdict import require_match, require_whole
from etdeploy.core.errors import (
    EtdeployError,
    Interrupted,
    MismatchError,
    RunError,
    UsageError,
)
from etdeploy.core.values import Progress, ReasonedChoice, silent
from etdeploy.devices.base import Bundle, DeviceState, ProcessLaunch, RunOutcome
from etdeploy.plan.model import RuntimePlan
from etdeploy.program.folder import (
    EXPORT_INFO,
    InputSet,
    MethodValues,
    TensorFile,
    load_provenance,
)
from etdeploy.program.model import Method, Program
from etdeploy.recipe.load import LoadedRecipe
from tests.support.bench_device import SAMPLES_MS, TRACE, FakeDevice
from tests.support.bench_values import (
    FOLDER,
    SIMULATED,
    make_check,
    make_program_folder,
    make_recipe,
    make_record,
    make_run,
    make_runner,
)

_EXPECTED = bytes(range(32))


@pytest.fixture(autouse=True)
def _without_git(monkeypatch: pytest.MonkeyPatch) -> None:
    """git is a process; tests with real parts ask it."""
    monkeypatch.setattr(measurement_module, "revision_of", lambda _: Revision("c0ffee", True))


@dataclass
class Setting:
    """Everything that `measure` takes but the device."""

    folder: Path

    def measure(self, device: FakeDevice, output: str = "out", **wanted: Any) -> StoredRun:
        return measure(device, self.prepared(**wanted), self.folder / output)

    def prepared(
        self,
        methods: tuple[str, ...] = ("forward",),
        simulated: Simulated | None = None,
        **sections: Any,
    ) -> PreparedMeasurement:
        recipe = make_recipe(**sections)
        path = self.folder / "my recipe.yaml"
        loaded = LoadedRecipe("my recipe", path, recipe, ((path, "ef" * 32),))
        runner = make_runner(self.folder / "runner", "ld.so")
        bundle = Bundle(files=(), launch=ProcessLaunch(argv=("runner",)), simulated=simulated)
        return PreparedMeasurement(
            bundle, loaded, self.folder / "program", _program(methods), runner, _plan()
        )

    def left(self) -> list[str]:
        out = self.folder / "out"
        files = (p.name for p in out.rglob("*") if p.is_file() and p.name != ".gitignore")
        return sorted(files) if out.exists() else []


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    make_program_folder(
        tmp_path / "program", versions={"torch": "2.13.0"}, notes=("Random inputs.",)
    )
    return Setting(tmp_path)


def _program(names: tuple[str, ...] = ("forward",)) -> Program:
    methods = tuple(
        Method(
            name=name,
            inputs=(),
            outputs=(),
            operators=(),
            delegates=(),
            instructions=0,
            planned_memory_bytes=0,
        )
        for name in names
    )
    return Program(
        sha256="ab" * 32, size_bytes=7, schema_version=0, constant_bytes=0, methods=methods
    )


def _plan() -> RuntimePlan:
    return RuntimePlan(
        target="android-arm64",
        build_target="android-arm64",
        portable_runner=False,
        provider=ReasonedChoice(name="provider", value="wheel", reason="it has all"),
        executorch_version="1.5.1",
        toolchain=None,
        components=(
            ReasonedChoice(name="threadpool", value="extension_threadpool", reason="needed"),
        ),
        options=(),
        program_sha256=None,
    )


def _device(**changes: Any) -> FakeDevice:
    values: dict[str, Any] = {"outputs": (_EXPECTED,), "shape": (2, 4)}
    return FakeDevice(**(values | changes))


def _file(run: StoredRun, name: str) -> Path:
    path = run.path(name)
    assert path is not None
    return path


def _ending(name: str, outcome: RunOutcome | EtdeployError) -> Any:
    """An answer that ends one pass so."""

    def answer(current: str) -> RunOutcome | None:
        if current != name:
            return None
        if isinstance(outcome, EtdeployError):
            raise outcome
        return outcome

    return answer


def test_record_has_what_the_passes_gave(setting: Setting) -> None:
    device = _device()
    run = setting.measure(device, runtime={"threads": 2})
    record, workload = run.record, run.record.inference
    assert (record.schema_version, workload.kind) == (10, "inference")
    assert workload.latency_ms.samples == SAMPLES_MS * 3
    assert workload.latency_ms.median == 1.1
    assert [(start.samples, start.median_ms, start.load_ms) for start in workload.runs] == [
        (3, 1.1, 2.0)
    ] * 3
    assert {(start.warmup, start.steady) for start in workload.runs} == {(12, True)}
    assert workload.spread is not None
    assert workload.spread.within_percent == pytest.approx(100 * 0.1 / 1.1)
    assert workload.spread.between_percent == 0
    assert (record.verify_ms, record.load_ms, workload.first_inference_ms) == (0.25, 2.0, 3.0)
    assert record.peak_rss_bytes == 6_000_000
    assert [(o.name, o.max_abs_error, o.within_tolerance) for o in workload.outputs] == [
        ("output_0", 0.0, True)
    ]
    assert list(record.passes) == ["timing", "timing.2", "timing.3", "memory", "profile"]
    assert record.device.before.battery_percent == 80
    assert record.device.after.battery_percent == 79
    assert record.runner.portable
    assert record.versions["torch"] == "2.13.0"
    assert (record.recipe.git_revision, record.recipe.git_dirty) == ("c0ffee", True)
    assert record.notes[0] == "Random inputs."
    assert any("portable runner" in note for note in record.notes)
    assert device.closed_runs == 1
    assert device.folder.arguments[0]["--threads"] == "2"
    require_match(run)


def test_the_device_is_looked_at_around_every_start(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = FakeDevice((_EXPECTED,), (8,))
    states = iter(("none", "none", "moderate", "moderate", *("none",) * 4))
    monkeypatch.setattr(
        device,
        "state",
        lambda: DeviceState(thermal_status=next(states), battery_celsius=30.0),
    )
    wanted = {"runs": 3, "profile": False, "cooldown": {"max_celsius": 35}}
    # One look before the run, and for each start one that waits and one after it.
    record = setting.measure(device, benchmark=wanted).record
    starts = record.workload.runs
    assert [[d.kind.value for d in start.disturbances] for start in starts] == [
        ["throttled"], ["throttled"], [],
    ]  # fmt: skip
    assert [d.kind.value for d in record.disturbances] == ["throttled"]
    assert all(start.cooldown and start.cooldown.reached for start in starts)
    named = [sample.pass_name for sample in record.device.during]
    assert named == ["timing", "timing.2", "timing.3"]
    seconds = [sample.seconds for sample in record.device.during]
    assert seconds == sorted(seconds)
    assert [start.started_at for start in starts] == sorted(start.started_at for start in starts)


def test_a_simulated_run_is_marked_and_has_no_notes_on_its_times(setting: Setting) -> None:
    record = setting.measure(_device(), simulated=SIMULATED).record
    assert record.simulated == SIMULATED
    assert list(record.passes) == ["timing"]
    assert record.peak_rss_bytes is None
    assert [o.within_tolerance for o in record.inference.outputs] == [True]
    assert [note.split(":")[0] for note in record.notes] == ["Random inputs.", "Simulated"]


def test_a_mailed_folder_has_all_that_a_report_needs(setting: Setting) -> None:
    program = setting.folder / "program"
    (program / "etrecord.bin").write_bytes(b"graph")
    _program().save(program / "program.json")
    model = {"python": f"{setting.folder}/models/net.py:make"}
    run = setting.measure(_device(), model=model, benchmark={"runs": 2, "sustained_s": 20})
    packed = shutil.make_archive(str(setting.folder / "mail"), "zip", run.folder)
    shutil.unpack_archive(packed, setting.folder / "elsewhere")
    shutil.rmtree(run.folder)
    shutil.rmtree(program)
    there = load_run(setting.folder / "elsewhere")
    assert there.record == run.record
    # Of generated text and of tasks.
    others = {"text", "etdump.decode", "result"}
    assert set(there.record.files) == set(DESCRIPTIONS) - others
    assert all(_file(there, name).exists() for name in there.record.files)
    assert _file(there, "etrecord").read_bytes() == b"graph"
    assert _file(there, "etdump").read_bytes() == TRACE
    assert (_file(there, "outputs") / "0.bin").read_bytes() == _EXPECTED
    assert Program.load(_file(there, "program_info")) == _program()
    assert RuntimePlan.load(_file(there, "plan")) == _plan()
    assert there.record.recipe.content["model"]["python"] == "models/net.py:make"
    assert str(setting.folder) not in there.record_path.read_text()


def test_an_etrecord_on_another_file_system_is_copied(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link", str(source), None, str(target))

    monkeypatch.setattr(os, "link", refuse)
    (setting.folder / "program" / "etrecord.bin").write_bytes(b"graph")
    copy = _file(setting.measure(_device()), "etrecord")
    assert (copy.read_bytes(), copy.stat().st_nlink) == (b"graph", 1)


def test_the_memory_pass_tells_what_the_memory_is_for(setting: Setting) -> None:
    memory = setting.measure(_device()).record.memory
    assert memory is not None
    assert (memory.peak_rss_bytes, memory.peak_pss_bytes) == (6_000_000, 5_000_000)
    assert (memory.before_load_rss_bytes, len(memory.points)) == (4_000_000, 2)
    assert memory.points[1] == MemoryPoint(seconds=0.01, rss_bytes=6_000_000, pss_bytes=5_000_000)
    unwanted = setting.measure(_device(), benchmark={"memory": False, "profile": False}).record
    assert (unwanted.memory, unwanted.peak_rss_bytes) == (None, None)
    assert list(unwanted.passes) == ["timing", "timing.2", "timing.3"]


def test_sustained_work_is_in_the_record(setting: Setting) -> None:
    device = _device()
    run = setting.measure(device, benchmark={"sustained_s": 20, "timeout_s": 30})
    sustained = run.record.inference.sustained
    assert sustained is not None
    assert (sustained.seconds, sustained.inferences) == (20, 1600)
    assert (sustained.retained_percent, sustained.to_minus_10_percent_s) == (60, 11)
    assert run.record.passes["sustained"].iterations == 1600
    assert device.folder.limits_s["sustained"] == 50
    # The state after the other passes: this one is there to heat the device.
    assert run.record.device.after.battery_percent == 80
    assert any("in 20 s, too little" in note for note in run.record.notes)
    require_whole(run)


def test_sustained_work_begins_cool_on_a_phone(setting: Setting) -> None:
    class Phone(FakeDevice):
        def state(self) -> DeviceState:
            return DeviceState(battery_celsius=31.5)

    run = setting.measure(Phone((_EXPECTED,), (2, 4)), benchmark={"sustained_s": 20, "runs": 1})
    sustained = run.record.inference.sustained
    assert sustained is not None
    assert sustained.cooldown is not None
    assert (sustained.cooldown.sensor, sustained.cooldown.reached) == ("battery", True)
    # The recipe asks for no wait before the starts.
    assert run.record.workload.runs[0].cooldown is None


def test_what_was_done_of_work_that_was_ended_is_kept(setting: Setting) -> None:
    killed = RunOutcome(137, "SIGKILL", "", "", 12.0)
    device = _device(answer=_ending("sustained", killed))
    run = setting.measure(device, benchmark={"sustained_s": 600})
    sustained = load_run(run.folder).record.inference.sustained
    assert sustained is not None
    assert sustained.seconds == 20
    assert "ended by SIGKILL" in (sustained.ended_early or "")
    assert any("ended after 20 s" in note for note in run.record.notes)
    with pytest.raises(RunError, match=r"SIGKILL .* sustained") as raised:
        require_whole(run)
    assert raised.value.log == _file(run, "log")
    assert "benchmark.sustained_s=10" in str(raised.value.remedy)


def test_a_crash_keeps_what_the_runner_said(setting: Setting) -> None:
    crash = RunOutcome(139, "SIGSEGV", "", "going down\n", 0.1)
    device = _device(answer=_ending("memory", crash))
    with pytest.raises(RunError, match=r"SIGSEGV .* memory") as raised:
        setting.measure(device)
    assert device.closed_runs == 1
    assert "| going down" in raised.value.message
    assert setting.left() == ["runner.stderr.txt"]
    assert raised.value.log is not None
    log = raised.value.log.read_text()
    assert "exit code 139" in log
    assert "going down" in log


def test_a_device_that_goes_away_after_the_run_loses_nothing(setting: Setting) -> None:
    record = setting.measure(_device(gone_after_run=True)).record
    assert record.device.after.battery_percent is None
    assert record.inference.latency_ms.samples == SAMPLES_MS * 3


def test_an_interrupted_run_leaves_nothing(setting: Setting) -> None:
    with pytest.raises(Interrupted):
        setting.measure(_device(answer=_ending("memory", Interrupted())))
    assert setting.left() == []
    assert [path.name for path in (setting.folder / "out").iterdir()] == [".gitignore"]


def test_the_empty_folder_of_a_killed_run_goes_with_the_next(setting: Setting) -> None:
    out = setting.folder / "out"
    left = "20260101T000000Z-mlp-host-0a1b"
    for name in (left, "mine"):
        (out / name).mkdir(parents=True)
        os.utime(out / name, (0, 0))
    run = setting.measure(_device())
    assert {path.name for path in out.iterdir()} == {"mine", run.record.run_id}


def test_an_unknown_method_is_told_before_anything_runs(setting: Setting) -> None:
    device = _device()
    with pytest.raises(UsageError, match=r"'decode'.* forward") as raised:
        setting.measure(device, benchmark={"method": "decode"})
    assert "benchmark.method=forward" in str(raised.value.remedy)
    assert device.run_ids == []


def _add_sizes(setting: Setting) -> dict[str, dict[str, int]]:
    """Gives the program two sizes, at the first of which the outputs will be wrong."""
    whole = TensorFile(path="expected/0.bin", dtype="float32", shape=(2, 4))
    wrong = whole.model_copy(update={"path": "inputs/0.bin"})
    (setting.folder / "program/inputs/0.bin").write_bytes(bytes([0, 0, 128, 63]) * 8)
    inputs = (TensorFile(path="inputs/0.bin", dtype="float32", shape=(2, 4), name="x"),)
    made = [
        InputSet(name=name, sizes={"n": size}, inputs=inputs, expected=(expected,))
        for name, size, expected in (("b", 2, whole), ("a", 1, wrong))
    ]
    provenance = load_provenance(setting.folder / "program")
    provenance.model_copy(update={"sets": tuple(made)}).save(
        setting.folder / "program" / EXPORT_INFO
    )
    return {"a": {"n": 1}, "b": {"n": 2}}


def test_every_size_is_measured_in_the_order_of_the_recipe(setting: Setting) -> None:
    sizes = _add_sizes(setting)
    device = _device()
    run = setting.measure(device, benchmark={"sizes": sizes, "runs": 2})
    record, workload = run.record, run.record.inference
    assert [(s.name, s.sizes, s.shapes, s.peak_rss_bytes) for s in workload.sizes] == [
        ("a", {"n": 1}, {"x": (2, 4)}, 6_000_000),
        ("b", {"n": 2}, {"x": (2, 4)}, 6_000_000),
    ]
    assert (workload.latency_ms, workload.outputs) == (
        workload.sizes[0].latency_ms,
        workload.sizes[0].outputs,
    )
    assert list(record.passes) == [
        "timing", "timing-b", "timing.2", "timing-b.2", "memory", "memory-b", "profile",
    ]  # fmt: skip
    assert _file(run, "outputs-b").is_dir()
    assert _file(run, "memory-b").is_file()
    with pytest.raises(MismatchError, match=r"output_0 at a \(float32") as raised:
        require_match(run)
    assert raised.value.remedy is not None
    assert raised.value.remedy.endswith(f"outputs are in {_file(run, 'outputs')}")
    assert load_run(run.folder) == run


def test_a_sweep_of_threads_is_recorded_and_the_rest_is_about_the_fastest(
    setting: Setting,
) -> None:
    device = _device()
    run = setting.measure(device, runtime={"threads": [1, 4, 2]}, benchmark={"runs": 2})
    record, workload = run.record, run.record.inference
    given = [(a["--results"], a["--threads"]) for a in device.folder.arguments]
    assert given == [
        ("timing.threads-1.json", "1"), ("timing.threads-4.json", "4"),
        ("timing.threads-2.json", "2"), ("timing.threads-1.2.json", "1"),
        ("timing.threads-4.2.json", "4"), ("timing.threads-2.2.json", "2"),
        ("memory.json", "1"), ("profile.json", "1"),
    ]  # fmt: skip
    assert [each.threads for each in workload.threads] == [1, 4, 2]
    assert workload.latency_ms == workload.threads[0].latency_ms
    assert record.runner.threads_reason == "the fastest of 1, 4, 2"
    assert {"timing", "timing.2", "timing.threads-4", "timing.threads-4.2"} <= set(record.files)
    assert all(_file(run, name).exists() for name in record.files)
    assert [check.within_tolerance for check in workload.outputs] == [True]
    assert load_run(run.folder) == run


def test_sizes_after_the_first_are_measured_with_the_fastest_number_of_threads(
    setting: Setting,
) -> None:
    device, sizes = _device(), _add_sizes(setting)
    benchmark = {"sizes": sizes, "runs": 2, "memory": False, "profile": False}
    run = setting.measure(device, runtime={"threads": [4, 2]}, benchmark=benchmark)
    record, workload = run.record, run.record.inference
    assert [(a["--results"], a["--threads"]) for a in device.folder.arguments[4:]] == [
        ("timing-b.json", "2"), ("timing-b.2.json", "2"),
    ]  # fmt: skip
    assert [(size.name, len(size.runs)) for size in workload.sizes] == [("a", 2), ("b", 2)]
    assert workload.latency_ms == workload.sizes[0].latency_ms == workload.threads[1].latency_ms
    assert [o.within_tolerance for o in workload.outputs] == [False]
    assert [o.within_tolerance for o in workload.sizes[1].outputs] == [True]
    assert any("With 4 threads" in note for note in record.notes)
    assert (run.folder / "outputs.threads-4" / "0.bin").is_file()
    assert load_run(run.folder) == run


@pytest.mark.parametrize(
    ("named", "run", "right"),
    [(None, "prefill", True), ("prefill", "prefill", True), ("decode", "decode", False)],
)
def test_one_of_several_methods_is_run_with_its_own_values(
    setting: Setting, named: str | None, run: str, right: bool
) -> None:
    folder = setting.folder / "program"
    made = load_provenance(folder)
    (folder / "inputs/0.bin").write_bytes(bytes([0, 0, 128, 63]) * 8)
    values = {
        "prefill": MethodValues(inputs=made.inputs, expected=made.expected),
        "decode": MethodValues(inputs=made.inputs, expected=made.inputs),
    }
    empty = {"inputs": (), "expected": (), "method": "prefill", "methods": values}
    made.model_copy(update=empty).save(folder / EXPORT_INFO)
    device = _device()
    benchmark = {"method": named} if named else {}
    done = setting.measure(device, methods=("decode", "prefill"), benchmark=benchmark)
    assert done.record.program.method == run
    assert [check.within_tolerance for check in done.record.inference.outputs] == [right]
    assert {given["--method"] for given in device.folder.arguments} == {run}
    told = [note for note in done.record.notes if note.startswith("The method prefill")]
    assert len(told) == (named is None)


def test_a_wrong_output_of_a_further_size_is_a_mismatch() -> None:
    workload = make_record().inference
    size = SizeRecord(
        name="long",
        sizes={},
        shapes={},
        latency_ms=workload.latency_ms,
        first_inference_ms=1.0,
        peak_rss_bytes=None,
        outputs=(make_check(within_tolerance=False),),
        runs=workload.runs,
        spread=workload.spread,
    )
    right = size.model_copy(update={"name": "short", "outputs": workload.outputs})
    with pytest.raises(MismatchError, match="output_0 at long") as raised:
        require_match(make_run(sizes=(right, size), files={"outputs-long": "outputs-long"}))
    assert f"outputs are in {FOLDER / 'outputs-long'}" in (raised.value.remedy or "")


def _interleaved(
    setting: Setting, device: FakeDevice, progress: Progress = silent
) -> tuple[StoredRun, StoredRun]:
    few = {"memory": False, "profile": False}
    a = setting.prepared(runtime={"threads": 1}, benchmark={"runs": 2, **few})
    b = setting.prepared(runtime={"threads": 2}, benchmark={"runs": 3, **few})
    return measure_interleaved(device, a, b, setting.folder / "out", progress)


def test_starts_of_two_recipes_are_interleaved(setting: Setting) -> None:
    device, lines = _device(), []
    a, b = _interleaved(setting, device, lambda text, _=None: lines.append(text))
    starts = [(given["--threads"], given["--results"]) for given in device.folder.arguments]
    assert starts == [
        ("1", "timing.json"), ("2", "timing.json"), ("2", "timing.2.json"),
        ("1", "timing.2.json"), ("2", "timing.3.json"),
    ]  # fmt: skip
    assert a.record.interleaved_with == b.record.run_id
    assert b.record.interleaved_with == a.record.run_id
    assert [load_run(run.folder) for run in (a, b)] == [a, b]
    assert {line[:3] for line in lines} == {"A: ", "B: "}


def test_if_one_of_two_interleaved_recipes_fails_neither_has_a_record(setting: Setting) -> None:
    crash = RunOutcome(139, "SIGSEGV", "", "going down\n", 0.1)
    with pytest.raises(RunError, match=r"B: .*SIGSEGV .*\.2"):
        _interleaved(setting, _device(answer=_ending("timing.2", crash)))
    assert set(setting.left()) == {"runner.stderr.txt"}


def test_several_measurements_take_turns_until_one_has_enough_starts(setting: Setting) -> None:
    device, few = _device(), {"memory": False, "profile": False}
    sides = [
        setting.prepared(runtime={"threads": n}, benchmark={"runs": 2, **few}) for n in (1, 2, 3)
    ]
    seen: list[dict[int, int]] = []

    def enough(medians_ms: Mapping[int, Sequence[float]]) -> list[int]:
        seen.append({place: len(times) for place, times in medians_ms.items()})
        return [1]

    runs = measure_in_turns(device, sides, setting.folder / "out", enough)
    starts = [(given["--threads"], given["--results"]) for given in device.folder.arguments]
    assert starts == [
        ("1", "timing.json"), ("2", "timing.json"), ("3", "timing.json"),
        ("3", "timing.2.json"), ("1", "timing.2.json"),
    ]  # fmt: skip
    assert seen == [{0: 1, 1: 1, 2: 1}, {0: 2, 2: 2}]
    records = [run.record for run in runs if isinstance(run, StoredRun)]
    assert [len(record.workload.runs) for record in records] == [2, 1, 2]
    assert [record.interleaved_with for record in records] == [None] * 3


def test_one_of_several_that_fails_does_not_end_the_others(setting: Setting) -> None:
    crash = RunOutcome(139, "SIGSEGV", "", "going down\n", 0.1)
    device, few = _device(answer=_ending("timing.2", crash)), {"memory": False, "profile": False}
    sides = [setting.prepared(benchmark={"runs": runs, **few}) for runs in (2, 1)]
    failed, done = measure_in_turns(device, sides, setting.folder / "out", lambda _: ())
    assert isinstance(failed, RunError)
    assert "SIGSEGV" in failed.message
    assert isinstance(done, StoredRun)
    assert load_run(done.folder) == done
    left = sorted(path.name for path in (setting.folder / "out").glob("2*/record.json"))
    assert left == ["record.json"]


def test_an_output_folder_that_is_a_file_is_told(setting: Setting) -> None:
    (setting.folder / "taken").write_text("")
    with pytest.raises(UsageError) as raised:
        setting.measure(_device(), output="taken")
    assert "--output" in str(raised.value.remedy)
