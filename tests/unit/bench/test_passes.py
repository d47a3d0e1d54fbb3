"""Which passes a recipe gives, with which arguments, and how ends of a runner are explained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from etdeploy.bench.diagnosis import last_lines, run_error
from etdeploy.bench.passes import Pass, app_error, app_options, run_pass, runner_arguments
from etdeploy.bench.sweep import Plan, ThreadCounts, plan_for_app, plan_passes
from etdeploy.core import cancel
from etdeploy.core.errors import Interrupted
from etdeploy.devices.base import Capabilities, RunOutcome
from etdeploy.recipe.load import load_recipe
from tests.support.bench_values import make_recipe

_LOG = Path("/out/run/runner.stderr.txt")


def _ended(code: int | None, stderr: str = "", signal: str | None = None) -> RunOutcome:
    return RunOutcome(code, signal, "", stderr, 1.0, timed_out=code is None)


def _explained(outcome: RunOutcome, **sections: object) -> tuple[str, str]:
    error = run_error(outcome, "timing", make_recipe(**sections), "android:X", _LOG)
    assert (error.exit_code, error.place, error.log) == (7, "android:X", _LOG)
    assert error.remedy
    return error.message, error.remedy


def test_every_pass_is_a_process_of_its_own() -> None:
    recipe = make_recipe(benchmark={"warmup": 20, "iterations": 100, "runs": 2})
    assert plan_passes(recipe) == Plan(
        starts=(
            (Pass("timing", 20, 100, outputs=True),),
            (Pass("timing", 20, 100, start=2),),
        ),
        rest=(Pass("memory", 0, 2, watched=True), Pass("profile", 5, 10, etdump=True)),
    )


def test_a_simulated_run_has_one_short_pass_for_each_size() -> None:
    sizes = {"long": {"x.0": 9}, "short": {"x.0": 2}}
    recipe = make_recipe(benchmark={"warmup": 20, "iterations": 100, "runs": 9, "sizes": sizes})
    assert plan_passes(recipe, simulated=True).steps == (
        Pass("timing", 0, 1, outputs=True, size="long"),
        Pass("timing", 0, 1, outputs=True, size="short", further=True),
    )


def test_a_pass_of_one_inference_needs_more_time_and_not_fewer() -> None:
    recipe = make_recipe(benchmark={"iterations": 100, "timeout_s": 60})
    error = run_error(_ended(None), "timing", recipe, "host", _LOG, iterations=1)
    assert "too slow on this device" in error.message
    assert "so many" not in error.message
    assert error.remedy == "Give it more time: --set benchmark.timeout_s=120"
    error = run_error(_ended(None), "timing", recipe, "host", _LOG)
    assert "or less to do: --set benchmark.iterations=10" in str(error.remedy)


def test_passes_that_are_not_wanted_are_left_out() -> None:
    recipe = make_recipe(benchmark={"memory": False, "profile": False, "iterations": 1})
    assert [step.name for step in plan_passes(recipe).steps] == ["timing"] * 3


def test_every_size_is_timed_by_itself_and_the_first_one_is_profiled() -> None:
    recipe = make_recipe(benchmark={"sizes": {"long": {"x.0": 9}, "short": {"x.0": 2}}})
    steps = plan_passes(recipe).steps
    assert [(p.key, p.size, p.outputs_folder if p.outputs else None) for p in steps] == [
        ("timing", "long", "outputs"),
        ("timing-short", "short", "outputs-short"),
        ("timing.2", "long", None),
        ("timing-short.2", "short", None),
        ("timing.3", "long", None),
        ("timing-short.3", "short", None),
        ("memory", "long", None),
        ("memory-short", "short", None),
        ("profile", "long", None),
    ]
    given = runner_arguments(steps[1])
    assert {"{bundle}/inputs-short.txt", "timing-short.json", "outputs-short"} <= set(given)


def test_short_benchmarks_shorten_every_pass() -> None:
    recipe = make_recipe(benchmark={"warmup": 0, "iterations": 1})
    assert {(p.warmup, p.iterations) for p in plan_passes(recipe).steps} == {(0, 1)}


def test_threads_are_swept_at_the_first_size_and_the_rest_comes_after() -> None:
    sizes = {"long": {"x.0": 9}, "short": {"x.0": 2}}
    recipe = make_recipe(benchmark={"sizes": sizes, "runs": 2, "memory": False})
    plan = plan_passes(recipe, threads=ThreadCounts((1, 4), swept=True))
    assert [[(p.key, p.size, p.threads) for p in start] for start in plan.starts] == [
        [("timing.threads-1", "long", 1), ("timing.threads-4", "long", 4)],
        [("timing.threads-1.2", "long", 1), ("timing.threads-4.2", "long", 4)],
    ]
    assert [p.outputs_folder for p in plan.starts[0] if p.outputs] == [
        "outputs.threads-1", "outputs.threads-4",
    ]  # fmt: skip
    assert [p.key for p in plan.rest] == ["timing-short", "timing-short.2", "profile"]
    assert plan_passes(recipe, threads=ThreadCounts((1, 4), swept=True), simulated=True).steps == (
        Pass("timing", 0, 1, outputs=True, size="long", threads=1),
        Pass("timing", 0, 1, outputs=True, size="short", further=True, threads=1),
    )


def test_a_warm_up_until_steady_is_for_times() -> None:
    steps = plan_passes(make_recipe(benchmark={"runs": 1})).steps
    assert [(p.name, p.warmup) for p in steps] == [
        ("timing", "auto"), ("memory", 0), ("profile", 5),
    ]  # fmt: skip


def test_arguments_of_the_timing_pass() -> None:
    step = plan_passes(make_recipe(), "decode", ThreadCounts((3,))).steps[0]
    assert runner_arguments(step) == (
        "--program", "{bundle}/program.pte",
        "--method", "decode",
        "--inputs", "{bundle}/inputs.txt",
        "--warmup", "auto",
        "--iterations", "50",
        "--threads", "3",
        "--results", "timing.json",
        "--outputs", "outputs",
        "--digest", "1",
    )  # fmt: skip


def test_only_the_profile_pass_traces_and_only_timing_writes_outputs() -> None:
    recipe = make_recipe()
    for step in plan_passes(recipe).steps:
        arguments = runner_arguments(step)
        assert ("--etdump" in arguments) == (step.name == "profile")
        assert ("--outputs" in arguments) == (step.key == "timing")


@pytest.mark.parametrize(
    ("signal", "cause"),
    [
        ("SIGKILL", "memory ran out"),
        ("SIGILL", "does not have an instruction"),
        ("SIGSEGV", "memory that is not its own"),
        ("SIGABRT", "it aborted"),
    ],
)
def test_signals_are_named_with_their_usual_cause(signal: str, cause: str) -> None:
    message, _ = _explained(_ended(137, signal=signal))
    assert f"was ended by {signal} in the timing pass" in message
    assert cause in message


def test_what_was_killed_by_hand_did_not_run_out_of_memory() -> None:
    killed = replace(_ended(137, signal="SIGKILL"), out_of_memory=False)
    message, remedy = _explained(killed)
    assert "it was not the system, for lack of memory" in message
    assert "smaller" not in remedy
    message, _ = _explained(replace(killed, out_of_memory=True))
    assert "memory ran out" in message


def test_what_the_time_limit_killed_did_not_run_out_of_memory() -> None:
    message, _ = _explained(replace(_ended(137, signal="SIGKILL"), timed_out=True))
    assert "took longer than" in message
    assert "memory" not in message


def test_a_runner_that_a_stop_ended_is_not_explained(tmp_path: Path) -> None:
    recipe = make_recipe()

    class Stopped:
        def run(self, arguments: Sequence[str], timeout_s: float) -> RunOutcome:
            assert arguments
            assert timeout_s
            cancel.request()
            return _ended(137, signal="SIGKILL")

        def pull(self, relative: str, to: Path) -> None:
            raise AssertionError(relative, to)

    with cancel.trapped_signals(), pytest.raises(Interrupted):
        run_pass(Stopped(), plan_passes(recipe).steps[0], recipe, "host", tmp_path)


@pytest.mark.parametrize(
    ("name", "less"),
    [
        ("timing", "--set benchmark.iterations=1 --set 'benchmark.generation.new_tokens=[16]'"),
        ("generation", "--max-new-tokens 16"),
    ],
)
def test_a_text_that_takes_too_long_is_made_of_tokens(name: str, less: str) -> None:
    recipe = make_recipe(model={"hf": "some/model"})
    error = run_error(_ended(None), name, recipe, "host", _LOG, iterations=9)
    assert "too slow on this device for so many tokens" in error.message
    assert str(error.remedy).endswith(f"\nor less to do: {less}")
    recipe_of_remedy = [word.strip("'") for word in less.split() if "=" in word]
    assert load_recipe("llm-xnnpack", recipe_of_remedy)


def test_a_prompt_that_does_not_fit_the_program_asks_for_an_export() -> None:
    said = "etdeploy-runner: error: the prompt has the id 48, the vocabulary 48 tokens\n"
    _, remedy = _explained(_ended(4, said), model={"hf": "some/model"})
    assert remedy == "Export the model again: etdeploy clean programs"


def test_an_unknown_signal_still_has_a_remedy() -> None:
    message, _ = _explained(_ended(180, signal="signal 52"))
    assert "was ended by signal 52" in message


def test_time_limit_tells_how_to_raise_it() -> None:
    message, remedy = _explained(_ended(None), benchmark={"timeout_s": 30.0, "iterations": 500})
    assert "took longer than 30 s" in message
    assert "--set benchmark.timeout_s=60" in remedy
    assert "--set benchmark.iterations=50" in remedy


@pytest.mark.parametrize(
    ("stderr", "cause", "remedy"),
    [
        (
            "E 00:00:00.001 executorch:method.cpp:724] Missing operator: [0] my::op.out\n"
            "etdeploy-runner: error: method forward cannot be loaded: OperatorMissing\n",
            "no kernel for my::op.out",
            "etdeploy clean runners",
        ),
        (
            "E executorch:method.cpp:95] Backend QnnBackend is not registered.\n",
            "backend QnnBackend is not in the runner",
            "export.backend=xnnpack",
        ),
        ("etdeploy-runner: error: out of memory\n", "memory ran out", "quantization"),
        (
            "etdeploy-runner: error: cannot write outputs/0.bin: No space left on device\n",
            "storage is full",
            "etdeploy clean --device android:X",
        ),
        (
            "ld.so: error while loading shared libraries: libfoo.so.1: cannot open\n",
            "does not have the library libfoo.so.1",
            "clean runners",
        ),
        (
            'CANNOT LINK EXECUTABLE "x": library "libfoo.so" not found\n',
            "does not have the library libfoo.so",
            "clean runners",
        ),
        ("sh: ./x: not executable: Exec format error\n", "another kind of processor", "--target"),
        (
            "etdeploy-runner: error: method forward expects input 0 of float32 [2], got 'x'\n",
            "expects input 0 of float32",
            "etdeploy clean programs",
        ),
        (
            "etdeploy-runner: error: method forward failed: InvalidState\nterminating\n",
            "method forward failed: InvalidState",
            "export.backend=portable",
        ),
    ],
)
def test_last_words_are_understood(stderr: str, cause: str, remedy: str) -> None:
    code = 5 if "failed" in stderr else 4
    message, told = _explained(_ended(code, stderr))
    assert f"ended with exit code {code}" in message
    assert message.count(cause) == 1
    assert remedy in told


def test_sustained_work_comes_last_at_the_first_size() -> None:
    sizes = {"long": {"x.0": 9}, "short": {"x.0": 2}}
    recipe = make_recipe(benchmark={"sizes": sizes, "sustained_s": 2.5})
    step = plan_passes(recipe).rest[-1]
    assert (step.key, step.size, step.sustained_s) == ("sustained", "long", 2.5)
    arguments = runner_arguments(step)
    given = dict(zip(arguments[::2], arguments[1::2], strict=True))
    assert (given["--sustained-ms"], given["--warmup"], given["--iterations"]) == ("2500", "0", "1")
    assert not plan_passes(recipe, simulated=True).rest


def test_the_shortest_work_is_a_millisecond() -> None:
    recipe = make_recipe(benchmark={"sustained_s": 1e-9})
    assert "--sustained-ms" in runner_arguments(plan_passes(recipe).rest[-1])
    assert runner_arguments(plan_passes(recipe).rest[-1])[-1] == "1"


def test_memory_is_watched_at_the_first_size_alone() -> None:
    recipe = make_recipe(benchmark={"sizes": {"long": {"x.0": 9}, "short": {"x.0": 2}}})
    watched = [p.key for p in plan_passes(recipe).steps if "--watch-memory" in runner_arguments(p)]
    assert watched == ["memory"]


def test_the_cause_and_the_last_lines_do_not_repeat_each_other() -> None:
    message, _ = _explained(_ended(5, "W 1 executorch: odd\netdeploy-runner: error: no luck\n"))
    assert message == (
        "the runner ended with exit code 5 in the timing pass: no luck\n  | W 1 executorch: odd"
    )


def test_remedies_for_a_crash_leave_out_what_is_the_case() -> None:
    crash = _ended(139, signal="SIGSEGV")
    recipe = make_recipe(export={"backend": "portable"})
    assert "--device host" in str(run_error(crash, "timing", recipe, "qemu", _LOG).remedy)
    remedy = str(
        run_error(crash, "timing", recipe, "host", _LOG, Capabilities(is_here=True)).remedy
    )
    assert "--device" not in remedy
    assert "export.backend" not in remedy


def test_last_lines_are_few_short_and_harmless() -> None:
    chatter = "I 00:00:00.003633 executorch:cpuinfo_utils.cpp:71] Reading file\n" * 20
    lines = last_lines("first\n" * 20 + chatter + "\n\n" + "x" * 1000 + "\n\x1b[31mred\n")
    assert len(lines) == 8
    assert len(lines[-2]) == 300
    assert lines[-1] == " [31mred"


def test_an_app_is_told_the_same_by_options() -> None:
    step = Pass("timing", warmup="auto", iterations=20, outputs=True, threads=4, size="long")
    assert app_options(step, ("app.apk", "program.pte")) == (
        "iterations=20",
        "warmup=-1",
        "threads=4",
        "size=long",
        "outputs=true",
        "program={bundle}/program.pte",
    )
    text = Pass("timing", warmup=1, iterations=3, request="generation/timing.txt")
    assert app_options(text, ("app.apk",)) == (
        "iterations=3",
        "warmup=1",
        "threads=0",
        "request={bundle}/generation/timing.txt",
    )


def test_an_app_leaves_traces_and_back_to_back_work_to_the_runner() -> None:
    plan = plan_passes(make_recipe(benchmark={"sustained_s": 5, "runs": 2}))
    shorter = plan_for_app(plan)
    assert shorter.starts == plan.starts
    assert [(step.name, step.watched) for step in shorter.rest] == [("memory", False)]


def test_a_failed_app_is_told_in_an_apps_words() -> None:
    recipe = make_recipe()
    both = Capabilities(launches=("process", "app"))
    missing = _ended(1, "[0] Missing operator: [0] mine::op.out")
    error = app_error(missing, "timing", recipe, "android:1", Path("log"), both)
    assert error.message.startswith("the app ended with exit code 1 in the timing pass")
    assert "the app has no kernel for mine::op.out" in error.message
    remedy = str(error.remedy)
    assert "runners" not in remedy
    assert remedy.splitlines()[0].startswith("Let a backend take it: --set export.backend=")
    assert "--set app.runtime=source" in remedy
    assert "leave out --as app" in remedy


def test_an_app_on_a_phone_without_runners_is_not_sent_to_one() -> None:
    late = RunOutcome(None, None, "", "", 9.0, timed_out=True)
    apps = Capabilities(launches=("app",))
    error = app_error(late, "timing", make_recipe(), "ios:1", Path("log"), apps)
    assert "the app took longer than" in error.message
    assert "leave out --as app" not in str(error.remedy)


def test_an_app_on_an_iphone_has_no_executorch_from_source() -> None:
    missing = _ended(1, "[0] Missing operator: [0] mine::op.out")
    apps = Capabilities(launches=("app",))
    error = app_error(missing, "timing", make_recipe(), "ios:1", Path("log"), apps)
    assert "the app has no kernel for mine::op.out" in error.message
    assert "app.runtime" not in str(error.remedy)


def test_an_app_is_not_looked_for_on_this_machine() -> None:
    apps = Capabilities(launches=("app",))
    error = app_error(_ended(1, "what"), "timing", make_recipe(), "ios:1", Path("log"), apps)
    assert "--device host, without --as app and --app" in str(error.remedy)


def test_an_app_that_says_that_memory_ran_out_is_believed() -> None:
    ended = replace(_ended(1, "no room for the weights"), out_of_memory=True)
    apps = Capabilities(launches=("app",))
    error = app_error(ended, "timing", make_recipe(), "ios:1", Path("log"), apps)
    assert "memory ran out\n  | no room for the weights" in error.message
    assert "make the model smaller" in str(error.remedy)
