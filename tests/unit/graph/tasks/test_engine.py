"""The engine: what runs, what is skipped and why, how failures and stops come out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from etdeploy.cache.workspace import Workspace
from etdeploy.core import cancel, console
from etdeploy.core.errors import BuildError
from etdeploy.core.files.basic import write_atomic
from etdeploy.core.values import ReasonedChoice, Value
from etdeploy.graph.job import Job
from etdeploy.graph.pipeline import make_steps
from etdeploy.graph.resolve import resolve
from etdeploy.graph.tasks.engine import (
    DATABASE,
    Run,
    StepError,
    as_error,
    plain_doit_tasks,
    run_tasks,
)
from etdeploy.graph.tasks.steps import (
    OTHER_RELEASE,
    Step,
    StepLog,
    TaskStatus,
    inputs_now,
    reasons_to_run,
    remember_inputs,
    statuses,
    tasks_of,
)
from etdeploy.recipe.load import load_recipe
from etdeploy.targets.platforms import host_target
from tests.support.bench_device import FakeDevice
from tests.support.facts import lacks


def run_steps(steps: tuple[Step, ...], names: tuple[str, ...], state: Path) -> None:
    """Run the named steps of one job; raise the first failure."""
    tasks = tasks_of([(steps, state)])
    with console.TaskDisplay(quiet=True) as display:
        ended = run_tasks(tasks, names, Run(tasks, display))
    cancel.checkpoint()
    for name, error in ended.failures.items():
        raise as_error(name, error)


class Line:
    """Three steps, `c` after `a` and `b`, that write what they are told to and count their runs."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.ran: list[str] = []
        self.values = {"a": 1, "b": 1, "c": 1}
        self.inputs = {"a": {"export.backend": "xnnpack"}, "b": {}, "c": {}}
        self.failures: dict[str, BaseException] = {}
        self.damage: dict[str, str] = {}
        self.kinds: dict[str, type[Value]] = {}

    def steps(self) -> tuple[Step, ...]:
        return tuple(
            Step(
                name,
                f"does {name}",
                self.state / f"{name}.json",
                self._action(name),
                needs=("a", "b") if name == "c" else (),
                inputs=self.inputs[name],
                sound=lambda name=name: self.damage.pop(name, None),  # type: ignore[misc]
                value=self.kinds.get(name),
            )
            for name in "abc"
        )

    def _action(self, name: str) -> Callable[[StepLog], str]:
        def act(log: StepLog) -> str:
            self.ran.append(name)
            log.log.write_text(f"log of {name}\n")
            if name in self.failures:
                raise self.failures[name]
            write_atomic(self.state / f"{name}.json", json.dumps(self.values[name]))
            return f"made {name}"

        return act

    def statuses(self) -> tuple[TaskStatus, ...]:
        return statuses(tasks_of([(self.steps(), self.state)]), ("c",))

    def run(self, *names: str) -> list[str]:
        self.ran.clear()
        run_steps(self.steps(), names or ("c",), self.state)
        return sorted(self.ran)


@pytest.fixture
def line(tmp_path: Path) -> Line:
    return Line(tmp_path / "state")


def test_a_changed_input_runs_its_step_and_what_follows_only_if_the_output_changes(
    line: Line,
) -> None:
    line.run()
    line.inputs["a"] = {"export.backend": "portable"}
    assert line.run() == ["a"], "a gave the same value, so c has nothing to do"
    line.inputs["a"] = {"export.backend": "xnnpack"}
    line.values["a"] = 2
    assert line.run() == ["a", "c"]


def test_a_damaged_output_is_made_again(line: Line) -> None:
    line.run()
    line.damage["b"] = "the cached program is damaged"
    assert line.run() == ["b"]


def test_a_bug_in_a_step_names_the_step_and_keeps_the_cause(line: Line) -> None:
    line.failures["b"] = ZeroDivisionError("division by zero")
    with pytest.raises(StepError, match="step b failed") as caught:
        line.run()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_statuses_say_why_without_running_anything(line: Line) -> None:
    before = line.statuses()
    assert [s.would_run for s in before] == [True, True, True]
    assert before[0].reasons == ("it has not run yet",)
    line.run()
    assert not any(s.would_run for s in line.statuses())
    line.ran.clear()
    line.inputs["a"] = {"export.backend": "portable"}
    after = {s.task.name: s for s in line.statuses()}
    [reason] = after["a"].reasons
    assert not lacks(reason, "export.backend", "from xnnpack to portable")
    assert not after["b"].would_run
    assert after["c"].reasons[0].startswith("after a,")
    assert line.ran == []


def test_a_value_that_another_run_changed_runs_what_reads_it(line: Line) -> None:
    line.run()
    (line.state / "b.json").write_text("2")
    found = {s.task.name: s for s in line.statuses()}
    assert found["c"].reasons == ("the output of b changed",)
    assert line.run() == ["c"]


def test_what_an_earlier_release_left_runs_again(line: Line) -> None:
    line.run()
    (line.state / "c.inputs.json").write_text("{}")
    assert line.run() == ["c"]
    (line.state / "c.inputs.json").write_text("[]")
    assert line.run() == ["c"]


def test_configuration_in_the_current_folder_has_no_say(
    line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "doit.cfg").write_text("[GLOBAL]\nnum_process = 0\ndep_file = elsewhere\n")
    (tmp_path / "pyproject.toml").write_text("[tool.doit]\ndep_file = 'elsewhere'\n")
    monkeypatch.chdir(tmp_path)
    line.run()
    assert line.run() == []
    assert not list(tmp_path.rglob("elsewhere*"))


def test_plain_doit_gets_the_same_tasks_and_state(line: Line) -> None:
    dicts, config = plain_doit_tasks(line.steps(), line.state)
    tasks = list(dicts)
    assert [t["basename"] for t in tasks] == ["a", "b", "c"]
    assert tasks[2]["task_dep"] == ["a", "b"]
    assert config["dep_file"] == str(line.state / DATABASE)
    assert config["default_tasks"] == ["c"]


def test_plain_doit_is_told_what_failed(line: Line, capsys: pytest.CaptureFixture[str]) -> None:
    line.failures["a"] = BuildError("no compiler", remedy="apt-get install g++")
    action, arguments = next(iter(plain_doit_tasks(line.steps(), line.state)[0]))["actions"][0]
    assert action(*arguments) is False
    assert not lacks(capsys.readouterr().err, "error in a: no compiler", "apt-get install g++")


@pytest.mark.parametrize(
    "stale",
    [
        {"name": "x", "reason": "y", "colour": "of a later release"},
        {"name": "x"},
        None,
    ],
)
def test_a_value_of_another_release_is_made_again(line: Line, stale: object) -> None:
    line.values["a"] = {"name": "x", "reason": "y"}  # type: ignore[assignment]
    line.kinds["a"] = ReasonedChoice
    line.run()
    assert line.run() == []
    text = json.dumps(stale) if stale else '{"name": "cut sh'
    (line.state / "a.json").write_text(text)
    # What the value points to cannot be asked for before the value is readable.
    line.damage["a"] = "sound was asked"
    (a, *_) = line.statuses()
    assert a.reasons == (OTHER_RELEASE,)
    assert line.run() == ["a"]
    line.damage.clear()
    assert line.run() == []


def test_every_step_of_the_line_names_its_value(tmp_path: Path) -> None:
    device = FakeDevice((), ())
    job = Job(
        load_recipe("xnnpack"), host_target(), host_target(), Workspace(tmp_path), tmp_path / "out",
        device, device.facts(),
    )  # fmt: skip
    steps = make_steps(resolve(job))
    assert [step.name for step in steps if step.value is None] == []
    for step in (s for s in steps if not s.always):
        step.output.parent.mkdir(parents=True, exist_ok=True)
        step.output.write_text('{"of": "another release"}')
        remember_inputs(step, inputs_now(step))
        assert reasons_to_run(step) == [OTHER_RELEASE]
