"""The runner, built for this machine, on real programs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from etdeploy.cache.workspace import Workspace
from etdeploy.program.inspect import inspect_file
from etdeploy.runner.missing import check_program
from tests.support.runtime_runs import Start, build, differences, plan_here
from tests.support.runtime_values import make_method, make_program

pytestmark = pytest.mark.integration

_EVERYTHING = make_program(
    make_method(
        operators=("aten::addmm.out", "quantized_decomposed::add.out"),
        delegates=("XnnpackBackend",),
    )
)
_DELEGATED = make_program(make_method(delegates=("XnnpackBackend",)))


@pytest.fixture(scope="module")
def runner(export_workspace: Workspace) -> Start:
    """A runner with kernels, quantized kernels, XNNPACK and ETDump."""
    return Start(build(plan_here(_EVERYTHING), export_workspace))


@pytest.fixture(scope="module")
def delegated_runner(export_workspace: Workspace) -> Start:
    """A runner with XNNPACK and nothing else."""
    return Start(build(plan_here(_DELEGATED, profile=False), export_workspace))


@pytest.mark.parametrize(
    "name",
    [
        "mlp_portable",
        "mlp_xnnpack",
        "channels_last",
        "counter",
        "two_inputs",
        "unplanned",
        "plain_inputs",
    ],
)
def test_outputs_are_those_of_the_eager_model(
    runner: Start, programs: Path, tmp_path: Path, name: str
) -> None:
    run = runner.run(programs / name, tmp_path)
    assert run.exit_code == 0, run.stderr
    assert max(differences(programs / name, run)) < 1e-5


def test_results_tell_every_measurement(runner: Start, programs: Path, tmp_path: Path) -> None:
    run = runner.run(
        programs / "mlp_xnnpack", tmp_path, "--warmup", "2", "--iterations", "7", "--threads", "2"
    )
    results = run.results
    assert len(results.samples_ms) == 7
    assert min(results.samples_ms) > 0
    assert min(results.load_program_ms, results.load_method_ms, results.first_inference_ms) > 0
    assert (results.verify_ms or 0) > 0
    assert (results.method, results.warmup, results.threads) == ("forward", 2, 2)
    assert results.steady is None
    assert results.executorch_version.startswith("1.5.1")
    assert 1_000_000 < results.rss_after_load_bytes <= results.peak_rss_bytes


def test_a_warm_up_until_the_times_are_steady(
    runner: Start, programs: Path, tmp_path: Path
) -> None:
    run = runner.run(programs / "mlp_portable", tmp_path, "--warmup", "auto", "--iterations", "3")
    assert run.exit_code == 0, run.stderr
    assert run.results.warmup > 100
    assert run.results.steady is not None
    assert len(run.results.samples_ms) == 3


def test_a_digest_tells_outputs_apart(runner: Start, programs: Path, tmp_path: Path) -> None:
    digests = []
    for name, folder in (("mlp_xnnpack", "a"), ("mlp_xnnpack", "b"), ("mlp_portable", "c")):
        (tmp_path / folder).mkdir()
        run = runner.run(programs / name, tmp_path / folder, "--digest", "1")
        assert run.exit_code == 0, run.stderr
        digests.append(run.results.outputs_digest)
    content = (tmp_path / "a" / "outputs" / "0.bin").read_bytes()
    digest = 0xCBF29CE484222325
    for byte in content:
        digest = (digest ^ byte) * 0x100000001B3 % 2**64
    assert digests[0] == digests[1] == f"{digest:016x}"
    assert digests[2] is not None
    assert runner.run(programs / "mlp_portable", tmp_path).results.outputs_digest is None


def test_peak_memory_is_the_runners_own(runner: Start, programs: Path, tmp_path: Path) -> None:
    ballast_bytes = 400_000_000
    code = (
        "import subprocess, sys\n"
        f"ballast = bytearray(b'x') * {ballast_bytes}\n"
        "sys.exit(subprocess.run(sys.argv[1:]).returncode)"
    )
    heavy = Start(runner.runner, prefix=(sys.executable, "-c", code))
    run = heavy.run(programs / "mlp_portable", tmp_path)
    assert run.exit_code == 0, run.stderr
    assert run.results.peak_rss_bytes < ballast_bytes / 4


def test_the_processors_are_told_with_the_times(
    runner: Start, programs: Path, tmp_path: Path
) -> None:
    run = runner.run(programs / "mlp_portable", tmp_path, "--iterations", "200", "--threads", "1")
    processors = run.results.processors
    assert processors is not None, run.stderr
    timed_s = sum(run.results.samples_ms) / 1000
    assert processors.wall_s >= timed_s
    # The runner's time is that of its thread, less what others took of it.
    assert processors.own_s > 0
    assert processors.waited_s is not None
    assert processors.own_s + processors.waited_s <= 1.1 * processors.wall_s + 0.01
    assert 1 <= processors.count <= (os.cpu_count() or 1)
    assert processors.busy_s is not None
    assert processors.stolen_s is not None
    assert abs(processors.clock_step_s or 0.0) < 1


def test_memory_is_watched_from_the_start_on(runner: Start, programs: Path, tmp_path: Path) -> None:
    run = runner.run(programs / "mlp_portable", tmp_path, "--watch-memory", "1")
    memory = run.results.memory
    assert memory is not None, run.stderr
    before, after = memory.before_load, memory.after_load
    assert 0 < (before.rss_bytes or 0) < (after.rss_bytes or 0) <= run.results.peak_rss_bytes
    assert 0 < (after.anonymous_bytes or 0) < (after.rss_bytes or 0)
    assert 0 < (after.pss_bytes or 0) <= (memory.peak_pss_bytes or 0)
    # The constants of portable kernels are used where they are, in the file.
    size_bytes = (programs / "mlp_portable" / "program.pte").stat().st_size
    pages_bytes = 4 * 4096  # each of its parts is mapped in whole pages
    assert 0 < (memory.program_resident_bytes or 0) <= size_bytes + pages_bytes
    seconds = [point[0] for point in memory.points]
    assert seconds == sorted(seconds)
    assert 3 <= len(seconds) <= 256


def test_work_goes_on_for_the_given_time(runner: Start, programs: Path, tmp_path: Path) -> None:
    run = runner.run(programs / "mlp_portable", tmp_path, "--sustained-ms", "1500")
    work = run.results.sustained
    assert work is not None, run.stderr
    ends_s = [end for end, _ in work.stretches]
    assert ends_s == sorted(ends_s)
    assert ends_s[-1] >= 1.5
    assert 1 <= len(ends_s) <= 21
    assert min(inferences for _, inferences in work.stretches) >= 1
    assert work.began_s > 0
    processors = run.results.processors
    assert processors is not None
    assert processors.wall_s >= ends_s[-1]


def test_an_inference_that_is_longer_than_a_stretch_is_counted_once(
    runner: Start, programs: Path, tmp_path: Path
) -> None:
    run = runner.run(programs / "mlp_portable", tmp_path, "--sustained-ms", "1")
    work = run.results.sustained
    assert work is not None, run.stderr
    assert work.stretches[-1][0] >= 0.001
    assert sum(inferences for _, inferences in work.stretches) >= 1


def test_work_that_is_ended_leaves_what_it_did(
    runner: Start, programs: Path, tmp_path: Path
) -> None:
    killed = Start(runner.runner, prefix=("timeout", "--signal=KILL", "2"))
    run = killed.run(programs / "mlp_portable", tmp_path, "--sustained-ms", "4000")
    assert run.exit_code in (137, -9), run.stderr
    work = run.results.sustained
    assert work is not None
    assert 0.2 <= work.stretches[-1][0] <= 2.5


def test_one_thread_is_one_thread(runner: Start, programs: Path, tmp_path: Path) -> None:
    run = runner.run(programs / "mlp_xnnpack", tmp_path, "--threads", "1")
    assert run.results.threads == 1


def test_smaller_shape_of_a_dynamic_input(runner: Start, programs: Path, tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(bytes(1 * 6 * 4))
    index = programs / "two_inputs" / "inputs" / "1.bin"
    inputs = tmp_path / "inputs.txt"
    inputs.write_text(f"float32 2 1 6 x.bin\nint64 1 3 {index}\n")
    run = runner.run(programs / "two_inputs", tmp_path, inputs=inputs)
    assert run.exit_code == 0, run.stderr
    assert run.results.outputs[0].shape == (1, 3)
    assert run.results.outputs[2].value == 1


def test_etdump_is_readable_and_has_the_timed_iterations(
    runner: Start, programs: Path, tmp_path: Path
) -> None:
    run = runner.run(
        programs / "mlp_portable",
        tmp_path,
        "--etdump",
        "trace.etdp",
        "--warmup",
        "3",
        "--iterations",
        "4",
    )
    assert run.exit_code == 0, run.stderr
    code = (
        "import json, sys\n"
        "from executorch.devtools import Inspector\n"
        "blocks = Inspector(etdump_path=sys.argv[1]).event_blocks\n"
        "calls = {e.name: len(e.perf_data.raw) for b in blocks for e in b.events}\n"
        "print(json.dumps(calls))"
    )
    inspected = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(tmp_path / "trace.etdp")],
        capture_output=True,
        text=True,
        check=True,
    )
    calls = json.loads(inspected.stdout.splitlines()[-1])
    assert calls["Method::execute"] == 4
    assert calls["native_call_addmm.out"] == 4


def test_no_trace_without_being_asked(runner: Start, programs: Path, tmp_path: Path) -> None:
    runner.run(programs / "mlp_portable", tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["outputs", "results.json"]


def test_runner_lists_what_is_linked(runner: Start, delegated_runner: Start) -> None:
    everything, delegated = runner.runner, delegated_runner.runner
    assert everything.backends == delegated.backends == ("XnnpackBackend",)
    for name in (
        "aten::add.out",
        "dim_order_ops::_to_dim_order_copy.out",
        "quantized_decomposed::quantize_per_tensor.out",
        "executorch_prim::add.Scalar",
    ):
        assert name in everything.operators
    assert "aten::add.out" not in delegated.operators
    assert "executorch_prim::add.Scalar" in delegated.operators


def test_runner_brings_only_what_it_links(delegated_runner: Start) -> None:
    runner = delegated_runner.runner
    assert runner.libraries == (
        "libexecutorch.so",
        "libexecutorch_backend_xnnpack.so",
        "libexecutorch_threadpool.so",
    )
    shipped = {p.name for p in Path(runner.path).iterdir() if not p.name.startswith(".")}
    assert shipped == {*runner.libraries, runner.executable, "runner.json"}


def test_runner_names_no_folder_of_this_machine(runner: Start) -> None:
    content = (Path(runner.runner.path) / runner.runner.executable).read_bytes()
    for folder in (Path(__file__).resolve().parents[3], Path(sys.prefix)):
        assert str(folder).encode() not in content


def test_program_spells_operators_and_backends_as_the_runner_does(
    runner: Start, programs: Path
) -> None:
    for folder in programs.iterdir():
        assert check_program(inspect_file(folder / "program.pte"), runner.runner) == ()


def test_missing_kernels_are_found_before_the_run_and_by_the_runner(
    delegated_runner: Start, programs: Path, tmp_path: Path
) -> None:
    program = inspect_file(programs / "mlp_portable" / "program.pte")
    missing = check_program(program, delegated_runner.runner)
    assert {m.what for m in missing} == {f"operator {name}" for name in program.operators}
    assert "aten::addmm.out" in program.operators
    run = delegated_runner.run(programs / "mlp_portable", tmp_path)
    assert run.exit_code == 3
    assert "Error::OperatorMissing" in run.error
    assert "aten::addmm.out" in run.stderr


def test_damaged_programs_are_told(runner: Start, programs: Path, tmp_path: Path) -> None:
    whole = (programs / "mlp_xnnpack" / "program.pte").read_bytes()
    for name, content in {
        "empty": b"",
        "short": whole[:100],
        "half": whole[: len(whole) // 2],
        "text": b"this is no program\n" * 500,
        "scrambled": whole[:64] + bytes(len(whole) - 64),
    }.items():
        damaged = tmp_path / f"{name}.pte"
        damaged.write_bytes(content)
        run = runner.run(damaged, tmp_path, inputs=programs / "mlp_xnnpack" / "inputs.txt")
        assert run.exit_code == 3, (name, run.stderr)
        assert "is no sound program" in run.error or "cannot be loaded" in run.error, name
        assert not (tmp_path / "results.json").exists()


def test_missing_program_and_method_are_told(runner: Start, programs: Path, tmp_path: Path) -> None:
    run = runner.run(tmp_path / "gone.pte", tmp_path)
    assert run.exit_code == 3
    assert str(tmp_path / "gone.pte") in run.error
    run = runner.run(programs / "mlp_portable", tmp_path, "--method", "encode")
    assert run.exit_code == 3
    assert "no method encode" in run.error


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("float32 2 2 17 x.bin", "expects input 0 of float32 [2, 16], got float32 [2, 17]"),
        ("float32 1 32 x.bin", "expects input 0 of float32 [2, 16], got float32 [32]"),
        ("int64 2 2 16 x.bin", "expects input 0 of float32 [2, 16], got int64 [2, 16]"),
        ("float32 2 2 16 gone.bin", "expects input 0 of 128 bytes"),
        ("float32 2 2 16 short.bin", "gives 100"),
        ("float32 two 2 16 x.bin", "expects input 0 of float32 [2, 16]"),
        ("Int 5", "expects input 0 of float32 [2, 16]"),
        ("None", "expects input 0 of float32 [2, 16], got None []"),
        ("", "expects input 0 of kind Tensor, got ''"),
        ("float32 2 2 16 x.bin\nfloat32 2 2 16 x.bin", "takes no input 'float32 2 2 16 x.bin'"),
    ],
)
def test_inputs_that_do_not_fit_are_told(
    runner: Start, programs: Path, tmp_path: Path, line: str, message: str
) -> None:
    (tmp_path / "x.bin").write_bytes(bytes(128))
    (tmp_path / "short.bin").write_bytes(bytes(100))
    inputs = tmp_path / "inputs.txt"
    inputs.write_text(line and line + "\n")
    run = runner.run(programs / "mlp_portable", tmp_path, inputs=inputs)
    assert run.exit_code == 4
    assert message in run.error
    assert not (tmp_path / "results.json").exists()


@pytest.mark.parametrize(("at", "line"), [(1, "Int 5"), (1, "Int x"), (2, "None"), (4, "Int 0")])
def test_plain_inputs_that_do_not_fit_are_told(
    runner: Start, programs: Path, tmp_path: Path, at: int, line: str
) -> None:
    lines = (programs / "plain_inputs" / "inputs.txt").read_text().splitlines()
    lines[0] = lines[0].replace("inputs/", f"{programs / 'plain_inputs' / 'inputs'}/")
    lines[at] = line
    inputs = tmp_path / "inputs.txt"
    inputs.write_text("\n".join(lines) + "\n")
    run = runner.run(programs / "plain_inputs", tmp_path, inputs=inputs)
    assert run.exit_code == 4
    assert f"input {at}" in run.error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--iterations", "many"), "--iterations takes a whole number"),
        (("--warmup", "-1"), "--warmup takes a whole number"),
        (("--iterations", "0"), "at least one iteration"),
        (("--speed", "9"), "unknown option '--speed'"),
        (("--threads",), "--threads needs a value"),
    ],
)
def test_wrong_arguments_are_told(
    runner: Start, programs: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    run = runner.run(programs / "mlp_portable", tmp_path, *arguments)
    assert run.exit_code == 2
    assert message in run.error


def test_etdump_without_its_component_is_told(
    delegated_runner: Start, programs: Path, tmp_path: Path
) -> None:
    run = delegated_runner.run(programs / "mlp_xnnpack", tmp_path, "--etdump", "trace.etdp")
    assert run.exit_code == 2
    assert "without the component etdump" in run.error


def test_results_that_cannot_be_written_are_told(
    runner: Start, programs: Path, tmp_path: Path
) -> None:
    run = runner.run(programs / "mlp_portable", tmp_path, "--results", "no/such/folder.json")
    assert run.exit_code == 6
    assert "cannot write no/such/folder.json: No such file or directory" in run.error


@pytest.mark.skipif(shutil.which("prlimit") is None, reason="needs prlimit of util-linux")
def test_no_memory_is_told(runner: Start, programs: Path, tmp_path: Path) -> None:
    limited = Start(runner.runner, prefix=("prlimit", "--as=600000000"))
    # Room for a hundred million samples of eight bytes is more than the limit allows.
    run = limited.run(programs / "mlp_portable", tmp_path, "--iterations", "99999999")
    assert run.exit_code == 7, run.stderr
    assert run.error == "etdeploy-runner: error: out of memory"


def test_a_backend_that_cannot_be_used_here_is_told(
    export_workspace: Workspace, programs: Path, tmp_path: Path
) -> None:
    """OpenVINO, which the wheel has, without the library that it loads when it is asked."""
    runner = Start(
        build(
            plan_here(make_program(make_method(delegates=("OpenvinoBackend",)))), export_workspace
        ),
        environment={},
    )
    assert "OpenvinoBackend" in runner.runner.backends
    # The backend looks at a program only if it is available, so another's is good enough. In a
    # flatbuffer, a text stands after its length, with its end filled up to four bytes.
    text = (programs / "mlp_xnnpack" / "program.pte").read_bytes()
    xnnpack, openvino = (
        len(name).to_bytes(4, "little") + name.ljust(16, b"\0")
        for name in (b"XnnpackBackend", b"OpenvinoBackend")
    )
    assert text.count(xnnpack) == 1
    program = tmp_path / "program.pte"
    program.write_bytes(text.replace(xnnpack, openvino))
    run = runner.run(program, tmp_path, inputs=programs / "mlp_xnnpack" / "inputs.txt")
    assert run.exit_code == 3
    assert "libopenvino_c.so" in run.stderr
    assert "OpenvinoBackend is linked" in run.stderr.splitlines()[-2]
    assert run.stderr.splitlines()[-1].endswith("Error::NotFound")
