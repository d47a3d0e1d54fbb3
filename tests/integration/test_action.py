"""The GitHub Action in action.yml: its scripts, run by bash and node as a runner does."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from etdeploy.history.location import HistoryLocation
from etdeploy.history.store.store import open_store
from tests.support.histories import fill, run_at

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"]}
_PAGE = ROOT / "docs" / "history.md"
# Stands for `etdeploy`: `run` leaves a record as a measurement does, the rest is the real one.
_STAND_IN = """#!/bin/sh
printf '%s\\n' "$@" >> "$ARGUMENTS"
if [ "$1" = run ]; then
  [ -z "$FAILS_WITH" ] || exit "$FAILS_WITH"
  for word in "$@"; do case "$word" in --output=*) out="${word#--output=}";; esac; done
  mkdir -p "$out" && cp -r "$RECORDED"/* "$out"
  exit 0
fi
exec "$PYTHON" -m etdeploy "$@"
"""
_EVIL = "$(touch hurt) `touch hurt` '; touch hurt; \" && ${{ github.token }}"


def test_no_input_is_part_of_a_script() -> None:
    for step in STEPS.values():
        script = step.get("run") or step["with"]["script"]
        assert "${{" not in script
    used = set(re.findall(r"inputs\.([\w-]+)", (ROOT / "action.yml").read_text()))
    assert used == set(ACTION["inputs"])
    for step in STEPS.values():
        if "uses" in step:
            assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", step["uses"])


def test_the_workflow_of_the_page_fits_the_action() -> None:
    [text] = re.findall(r"```yaml\n(name: .*?)```", _PAGE.read_text(encoding="utf-8"), re.S)
    [job] = yaml.safe_load(text)["jobs"].values()
    [step] = [step for step in job["steps"] if "etdeploy" in step.get("uses", "")]
    assert set(step["with"]) <= set(ACTION["inputs"])
    assert job["permissions"]["pull-requests"] == "write"


class Runner:
    """Runs a step's script with the environment that GitHub documents."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.output, self.summary = folder / "output", folder / "summary"
        self.arguments = folder / "arguments"
        programs = folder / "bin"
        programs.mkdir()
        (programs / "etdeploy").write_text(_STAND_IN)
        (programs / "etdeploy").chmod(0o755)
        (folder / "repository").mkdir()
        self.environment = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "HOME": str(folder),
            "PYTHONPATH": str(ROOT),
            "PYTHON": sys.executable,
            "ARGUMENTS": str(self.arguments),
            "RECORDED": str(folder / "recorded"),
            "RUNNER_TEMP": str(folder),
            "GITHUB_OUTPUT": str(self.output),
            "GITHUB_STEP_SUMMARY": str(self.summary),
        }

    def run(self, step: str, **inputs: str) -> subprocess.CompletedProcess[str]:
        known = {f"${{{{ inputs.{name} }}}}": each for name, each in ACTION["inputs"].items()}
        defaults = {
            name: str(known[value].get("default", ""))
            for name, value in STEPS[step]["env"].items()
            if value in known
        }
        return subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", STEPS[step]["run"]],
            cwd=self.folder / "repository",
            env=self.environment | defaults | inputs,
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    def outputs(self) -> dict[str, str]:
        return dict(line.split("=", 1) for line in self.output.read_text().splitlines())


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


def measured(runner: Runner, latency_ms: float) -> str:
    """Leave a history, and the record that `etdeploy run` would make."""
    file = runner.folder / "history.db"
    with open_store(HistoryLocation(shown=str(file), file=file)) as store:
        fill(store, [1.0, 1.01, 0.99, 1.0, 1.01, 0.99, 1.0, 1.01])
    record = run_at(99, latency_ms)
    record.save(runner.folder / "recorded" / record.run_id / "record.json")
    return str(file)


@pytest.mark.parametrize(("latency_ms", "code"), [(1.0, 0), (1.3, 1)])
def test_a_run_is_measured_and_judged(runner: Runner, latency_ms: float, code: int) -> None:
    store = measured(runner, latency_ms)
    done = runner.run("Measure and check", RECIPE="mlp", STORE=store, AGAINST="")
    assert done.returncode == 0, done.stderr
    found = runner.outputs()
    assert found["exit-code"] == str(code)
    assert Path(found["junit"]).is_file()
    report = Path(found["markdown"]).read_text(encoding="utf-8")
    assert ("🔴" in report) == ("::error" in done.stdout) == bool(code)
    assert runner.summary.read_text(encoding="utf-8") == report
    verdict = runner.run("Verdict", CODE=found["exit-code"])
    assert verdict.returncode == code


def test_a_measurement_that_fails_is_reported(runner: Runner) -> None:
    done = runner.run("Measure and check", RECIPE="mlp", FAILS_WITH="6")
    assert done.returncode == 0, done.stderr
    found = runner.outputs()
    assert set(found) == {"exit-code", "markdown"}
    assert "exit code 6" in Path(found["markdown"]).read_text()
    assert "exit code 6" in runner.summary.read_text()


def test_the_action_installs_its_own_revision_unless_another_is_named(runner: Runner) -> None:
    python = runner.folder / "python"
    # As venv does, it leaves a Python in the new environment.
    python.write_text(
        '#!/bin/sh\nprintf "%s\\n" "$@" >> "$ARGUMENTS"\n'
        'if [ "$2" = venv ]; then mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; fi\n'
    )
    python.chmod(0o755)
    path = runner.folder / "path"
    runner.environment |= {"GITHUB_ACTION_PATH": "/actions/etdeploy", "GITHUB_PATH": str(path)}
    assert runner.run("Install etdeploy", PYTHON=str(python), PACKAGE="none").returncode == 0
    assert not path.exists()
    for package, wanted in (
        ("", "/actions/etdeploy[export,postgres]"),
        ("etdeploy==9 ; true", "etdeploy==9 ; true"),
    ):
        done = runner.run("Install etdeploy", PYTHON=str(python), PACKAGE=package)
        assert done.returncode == 0, done.stderr
        assert runner.arguments.read_text().splitlines()[-1] == wanted
    assert path.read_text() == f"{runner.folder}/etdeploy-env/bin\n" * 2


def test_a_shell_reads_no_input(runner: Runner) -> None:
    runner.run(
        "Measure and check", RECIPE=_EVIL, DEVICE=_EVIL, AGAINST=_EVIL, FAILS_WITH="2",
        OVERRIDES=f"benchmark.runs=3\n\nmodel.x={_EVIL}",
    )  # fmt: skip
    assert not (runner.folder / "repository" / "hurt").exists()
    words = runner.arguments.read_text().splitlines()
    assert words[:3] == ["run", f"--recipe={_EVIL}", f"--device={_EVIL}"]
    assert words[-2:] == ["--set=benchmark.runs=3", f"--set=model.x={_EVIL}"]


_HARNESS = """
const calls = [], comments = JSON.parse(process.env.COMMENTS);
const call = (name) => async (values) => {
  if (process.env.REFUSED) throw Object.assign(new Error('refused'), {status: 403});
  calls.push([name, values]);
};
const github = {
  paginate: async () => comments,
  rest: {issues: {updateComment: call('update'), createComment: call('create')}},
};
const context = {repo: {owner: 'o', repo: 'r'}, payload: {pull_request: {number: 7}}};
const core = {warning: (text) => calls.push(['warning', text])};
(async () => { SCRIPT })().then(() => console.log(JSON.stringify(calls)));
"""


@pytest.fixture
def comment(tmp_path: Path) -> Any:
    """Runs the script of the comment, and returns what it asked of GitHub."""
    if (node := shutil.which("node")) is None:
        pytest.skip("node is not installed")
    report = tmp_path / "check.md"
    report.write_text("### passed\n")

    def run(comments: list[dict[str, Any]], key: str = "mlp on host", refused: str = "") -> Any:
        script = _HARNESS.replace("SCRIPT", STEPS["Comment"]["with"]["script"])
        environment = {
            "REPORT": str(report), "KEY": key, "COMMENTS": json.dumps(comments), "REFUSED": refused,
        }  # fmt: skip
        done = subprocess.run(
            [node, "-e", script], env=environment, capture_output=True, text=True, check=True
        )
        return json.loads(done.stdout)

    return run


def test_a_pull_request_gets_one_comment(comment: Any) -> None:
    [[what, first]] = comment([])
    assert (what, first["issue_number"]) == ("create", 7)
    assert first["body"].endswith("\n### passed\n")
    bot = {"login": "github-actions[bot]"}
    other = {"id": 1, "user": {"login": "somebody"}, "body": first["body"]}
    own = {"id": 2, "user": bot, "body": first["body"]}
    [[what, again]] = comment([other, own])
    assert (what, again["comment_id"]) == ("update", 2)
    [[what, _]] = comment([own], key="mlp on android")
    assert what == "create"
    [[_, odd]] = comment([], key="a --> b\n# big")
    assert odd["body"].count("-->") == 1
    [[what, text]] = comment([own], refused="yes")
    assert what == "warning"
    assert "pull-requests: write" in text
