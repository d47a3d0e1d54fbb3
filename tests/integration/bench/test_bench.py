"""Measuring on this machine: the real runner, and programs in its place that misbehave."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from etdeploy.bench.assemble import Revision
from etdeploy.bench.bundle import make_bundle
from etdeploy.bench.measure import PreparedMeasurement, measure, revision_of
from etdeploy.bench.records.performance import DisturbanceKind, WeightsKind
from etdeploy.bench.records.stored import StoredRun, load_run
from etdeploy.bench.verdict import require_match, require_whole
from etdeploy.cache.workspace import Workspace
from etdeploy.core import cancel
from etdeploy.core.errors import Interrupted, MismatchError, RunError
from etdeploy.core.values import silent
from etdeploy.devices.local.device import LocalDevice, open_host
from etdeploy.export.derive import export_spec
from etdeploy.export.run import export_program
from etdeploy.plan.model import RuntimePlan
from etdeploy.program.folder import PROGRAM_INFO, load_provenance
from etdeploy.program.model import Program
from etdeploy.recipe.load import LoadedRecipe, load_recipe
from etdeploy.recipe.sections.benchmark import Benchmark
from etdeploy.recipe.sections.runtime import Runtime
from etdeploy.report.run import summary
from etdeploy.report.terminal import render
from etdeploy.runner.model import BuiltRunner
from etdeploy.targets.platforms import host_target
from tests.support.bench_values import make_program_folder, make_recipe
from tests.support.export import export_workspace  # noqa: F401 - a fixture
from tests.support.program_files import Plan, Tensor, pte
from tests.support.runtime_runs import build, plan_here

pytestmark = pytest.mark.integration

_RECIPE = """\
model: {example: mlp}
export: {backend: xnnpack}
benchmark: {runs: 2, iterations: 15, warmup: 3}
"""


@dataclass
class Chain:
    """A program and a runner; measured on this machine."""

    loaded: LoadedRecipe
    program_folder: Path
    program: Program
    runner: BuiltRunner
    folder: Path
    plan: RuntimePlan | None = None

    def measure(self, **sections: Any) -> StoredRun:
        device: LocalDevice = open_host(self.folder / "device")
        bundle = make_bundle(
            self.runner,
            self.program_folder,
            load_provenance(self.program_folder),
            self.folder / "inputs.txt",
        )
        device.push(bundle)
        recipe = self.loaded.recipe.model_copy(update=sections)
        loaded = LoadedRecipe(self.loaded.name, self.loaded.path, recipe, self.loaded.files)
        prepared = PreparedMeasurement(
            bundle, loaded, self.program_folder, self.program, self.runner, self.plan
        )
        return measure(device, prepared, self.folder / "out")


@pytest.fixture(scope="module")
def real(
    export_workspace: Workspace,  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
) -> Chain:
    folder = tmp_path_factory.mktemp("chain")
    (folder / "recipe.yaml").write_text(_RECIPE)
    loaded = load_recipe(str(folder / "recipe.yaml"))
    exported = export_program(export_spec(loaded.recipe), export_workspace, silent, folder / "log")
    program_folder = Path(exported.folder)
    program = Program.load(program_folder / PROGRAM_INFO)
    plan = plan_here(program)
    runner = build(plan, Workspace(folder / "cache"))
    return Chain(loaded, program_folder, program, runner, folder, plan)


def test_real_runner_on_this_machine(real: Chain) -> None:
    run = real.measure()
    record, workload = run.record, run.record.inference
    latency_ms = workload.latency_ms
    assert len(latency_ms.samples) == 30
    assert 0 < latency_ms.min <= latency_ms.median <= latency_ms.p99
    assert record.load_ms > 0
    assert (record.verify_ms or 0) > 0
    assert workload.first_inference_ms > 0
    assert (record.peak_rss_bytes or 0) > 1_000_000
    assert workload.outputs
    assert all(check.within_tolerance for check in workload.outputs)
    require_match(run)
    assert record.runner.executorch_version.startswith(real.runner.executorch_version)
    assert record.program.delegates[0].backend_id == "XnnpackBackend"
    assert set(record.passes) == {"timing", "timing.2", "memory", "profile"}
    assert [start.samples for start in workload.runs] == [15, 15]
    assert workload.spread is not None
    assert (workload.spread.between_percent or 0) > 0
    assert list((real.folder / "device" / "runs").iterdir()) == []
    assert "correct: within tolerance" in render(summary(run))


def test_other_work_is_seen(real: Chain) -> None:
    wanted = real.loaded.recipe.benchmark.model_copy(
        update={"runs": 1, "memory": False, "profile": False, "warmup": "auto"}
    )
    loop = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(loop) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        run = real.measure(benchmark=wanted)
    finally:
        for other in others:
            other.kill()
            other.wait()
    assert DisturbanceKind.BUSY in [each.kind for each in run.record.disturbances]
    assert "(disturbed: " in render(summary(run)).splitlines()[0]
    assert "Other work took " in render(summary(run))


def test_memory_and_sustained_work_on_this_machine(real: Chain) -> None:
    wanted = real.loaded.recipe.benchmark.model_copy(update={"runs": 1, "sustained_s": 2})
    run = real.measure(benchmark=wanted)
    sustained, memory = run.record.inference.sustained, run.record.memory
    assert sustained is not None
    assert 2 <= sustained.seconds <= run.record.passes["sustained"].seconds
    assert sustained.inferences > 2
    # A stretch lasts as long as its last inference, which other work may hold up.
    assert 2 <= len(sustained.points) <= 21
    assert sustained.ended_early is None
    assert memory is not None
    assert memory.weights == WeightsKind.LOADED  # XNNPACK packs them
    assert 0 < (memory.before_load_rss_bytes or 0) < (memory.peak_rss_bytes or 0)
    assert re.search(r"of the rate (remains|is lost) after 2 s", render(summary(run)))


def test_a_runner_that_is_ended_in_its_work_has_told_what_it_did(
    real: Chain, tmp_path: Path
) -> None:
    """The real runner, killed after two seconds as a system kills that is out of memory."""
    folder = tmp_path / "runner"
    shutil.copytree(real.runner.path, folder)
    (folder / "etdeploy-runner").rename(folder / "real-runner")
    script = folder / "etdeploy-runner"
    script.write_text(
        '#!/bin/sh\nhere=$(dirname "$0")\ncase "$*" in\n'
        '*--sustained-ms*) exec timeout -s KILL 2 "$here/real-runner" "$@";;\n'
        'esac\nexec "$here/real-runner" "$@"\n'
    )
    script.chmod(0o755)
    runner = real.runner.model_copy(
        update={"path": str(folder), "libraries": (*real.runner.libraries, "real-runner")}
    )
    wanted = real.loaded.recipe.benchmark.model_copy(
        update={"runs": 1, "sustained_s": 20, "profile": False}
    )
    run = replace(real, runner=runner).measure(benchmark=wanted)
    sustained = run.record.inference.sustained
    assert sustained is not None
    assert 0.5 < sustained.seconds < 3
    assert "SIGKILL" in (sustained.ended_early or "")
    with pytest.raises(RunError, match="The record has"):
        require_whole(run)


def test_threads_are_swept_with_the_real_pool(real: Chain) -> None:
    benchmark = Benchmark(runs=2, iterations=5, warmup=1, memory=False, profile=False)
    run = real.measure(runtime=Runtime(threads=(1, 2)), benchmark=benchmark)
    curve = {each.threads: each.latency_ms for each in run.record.inference.threads}
    assert list(curve) == [1, 2]
    best = min(curve, key=lambda number: curve[number].median)
    assert run.record.runner.threads == best
    assert run.record.inference.latency_ms == curve[best]
    assert "fastest" in render(summary(run))
    require_match(run)


def test_the_cores_of_this_machine_are_counted(real: Chain) -> None:
    benchmark = Benchmark(runs=1, iterations=5, warmup=1, memory=False, profile=False)
    run = real.measure(runtime=Runtime(threads="auto"), benchmark=benchmark)
    assert run.record.runner.threads_reason
    assert 1 <= run.record.runner.threads <= len(os.sched_getaffinity(0))


def test_a_folder_that_was_mailed_is_read_elsewhere(real: Chain, tmp_path: Path) -> None:
    run = real.measure()
    packed = shutil.make_archive(str(tmp_path / "mail"), "zip", run.folder)
    shutil.unpack_archive(packed, tmp_path / "elsewhere")
    shutil.rmtree(run.folder)
    there = load_run(tmp_path / "elsewhere")
    assert there.record == run.record
    names = {"record", "outputs", "log", "timing", "timing.2", "memory", "profile", "etdump",
             "etrecord", "program_info", "export", "plan"}  # fmt: skip
    assert set(there.record.files) == names
    for name in names:
        path = there.path(name)
        assert path is not None
        assert path.exists(), name
        assert path.is_relative_to(tmp_path / "elsewhere")
    trace, graph = there.path("etdump"), there.path("etrecord")
    assert trace is not None
    assert graph is not None
    code = (
        "import sys\n"
        "from executorch.devtools import Inspector\n"
        "blocks = Inspector(etdump_path=sys.argv[1], etrecord=sys.argv[2]).event_blocks\n"
        "assert any(e.name == 'Method::execute' for b in blocks for e in b.events)"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code, trace, graph], check=True)
    text = there.record_path.read_text()
    for folder in (real.folder, Path(__file__).resolve().parents[3], Path.home()):
        assert str(folder) not in text


@pytest.mark.skipif(host_target().name != "linux-x86_64", reason="a runner for Linux x86_64")
def test_a_portable_runner_starts_through_the_loader_it_brings(real: Chain) -> None:
    workspace = Workspace(real.folder / "cache")
    runner = build(plan_here(real.program, "android-x86_64"), workspace)
    assert runner.loader is not None
    run = replace(real, runner=runner).measure()
    require_match(run)
    assert run.record.runner.portable
    assert "portable runner for linux-x86_64" in render(summary(run))
    assert any("brings its own Linux C library" in note for note in run.record.notes)


def test_changed_expected_outputs_are_a_mismatch(real: Chain, tmp_path: Path) -> None:
    shutil.copytree(real.program_folder, tmp_path / "program")
    expected = tmp_path / "program" / "expected" / "0.bin"
    content = bytearray(expected.read_bytes())
    content[3] ^= 0x40  # the exponent of the first float
    expected.write_bytes(content)
    other = Chain(real.loaded, tmp_path / "program", real.program, real.runner, tmp_path)
    run = other.measure()
    with pytest.raises(MismatchError, match="output_0"):
        require_match(run)


def test_a_runner_that_refuses_says_why(real: Chain, tmp_path: Path) -> None:
    shutil.copytree(real.program_folder, tmp_path / "program")
    (first,) = (tmp_path / "program" / "inputs").glob("0*.bin")
    first.write_bytes(first.read_bytes()[:-4])
    other = Chain(real.loaded, tmp_path / "program", real.program, real.runner, tmp_path)
    with pytest.raises(RunError, match=r"input 0 of 1024 bytes, .* gives 1020") as raised:
        other.measure()
    assert raised.value.log is not None
    assert "etdeploy-runner: error" in raised.value.log.read_text()


Fake = Callable[[str], Chain]


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    """A chain whose runner is a Python script with the given end."""

    def make(script: str) -> Chain:
        runner_folder = tmp_path / "runner"
        runner_folder.mkdir()
        runner = runner_folder / "etdeploy-runner"
        runner.write_text(f"#!{sys.executable} -S\nimport os, signal, sys, time\n{script}\n")
        make_program_folder(tmp_path / "program")
        (tmp_path / "program" / "program.pte").write_bytes(
            pte(Plan(inputs=(Tensor((2, 4)),), outputs=(Tensor((2, 4)),)))
        )
        program = _inspected(tmp_path / "program" / "program.pte")
        recipe = make_recipe()
        loaded = LoadedRecipe("fake", tmp_path / "fake.yaml", recipe, ())
        built = BuiltRunner(
            path=str(runner_folder), executable="etdeploy-runner", libraries=(), loader=None,
            target="linux-x86_64", sha256="0" * 64, operators=(), backends=(),
            executorch_version="1.5.1",
        )  # fmt: skip
        return Chain(loaded, tmp_path / "program", program, built, tmp_path)

    return make


def _inspected(path: Path) -> Program:
    from etdeploy.program.inspect import inspect_file

    return inspect_file(path)


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGILL", "SIGKILL", "SIGABRT"])
def test_a_crash_is_named_by_its_signal(fake: Fake, name: str) -> None:
    chain = fake(
        f"sys.stderr.write('before the end\\n'); sys.stderr.flush()\n"
        f"os.kill(os.getpid(), signal.{name})"
    )
    with pytest.raises(RunError, match=f"was ended by {name} in the timing pass") as raised:
        chain.measure()
    assert "| before the end" in raised.value.message
    assert list((chain.folder / "device" / "runs").iterdir()) == []


def test_a_runner_that_hangs_is_ended(fake: Fake) -> None:
    chain = fake("open('alive', 'w').close()\ntime.sleep(600)")
    benchmark = make_recipe(benchmark={"timeout_s": 0.5}).benchmark
    with pytest.raises(RunError, match=r"took longer than 0\.5 s"):
        chain.measure(benchmark=benchmark)


@pytest.mark.parametrize("text", ["", "{", '{"schema_version": 99}', "[1, 2]"])
def test_unusable_results_are_told(fake: Fake, text: str) -> None:
    chain = fake(
        "given = dict(zip(sys.argv[1::2], sys.argv[2::2]))\n"
        "os.makedirs(given['--outputs'])\n"
        f"open(given['--results'], 'w').write({text!r})"
    )
    with pytest.raises(RunError, match="results cannot be read"):
        chain.measure()


def test_a_stop_ends_the_runner_and_leaves_nothing(fake: Fake) -> None:
    chain = fake("time.sleep(600)")
    timer = threading.Timer(1.0, cancel.request)
    timer.start()
    try:
        with cancel.trapped_signals(), pytest.raises(Interrupted):
            chain.measure()
    finally:
        timer.join()
    assert [path.name for path in (chain.folder / "out").iterdir()] == [".gitignore"]
    assert list((chain.folder / "device" / "runs").iterdir()) == []


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=T", "-c", "user.email=t@example.org", "-C", str(folder)]
    done = subprocess.run([*command, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_revision_of_a_recipes_folder(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("model: {example: mlp}\n")
    assert revision_of(recipe) == Revision(None, None)
    _git(tmp_path, "init", "--quiet")
    assert revision_of(recipe) == Revision(None, None)
    _git(tmp_path, "add", "recipe.yaml")
    _git(tmp_path, "commit", "--quiet", "--message", "first")
    head = _git(tmp_path, "rev-parse", "HEAD")
    assert revision_of(recipe) == Revision(head, False)
    recipe.write_text("model: {example: convnet}\n")
    assert revision_of(recipe) == Revision(head, True)
    (tmp_path / ".gitignore").write_text("/installed/\n")
    (tmp_path / "installed").mkdir()
    assert revision_of(tmp_path / "installed" / "recipe.yaml") == Revision(None, None)
    assert revision_of(tmp_path / "missing" / "recipe.yaml") == Revision(None, None)


def test_without_git_there_is_no_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert revision_of(tmp_path / "recipe.yaml") == Revision(None, None)
