"""What A and B name, and what does not go together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from etdeploy.bench.records.stored import RECORD_FILE, StoredRun
from etdeploy.cli import main as cli_main
from etdeploy.core.errors import ExportError
from etdeploy.graph import invocation
from etdeploy.graph.invocation import RecipePair
from etdeploy.history.record_sink import save_run
from etdeploy.profile import profiled
from etdeploy.profile.model import OperatorTime, Profile
from tests.support.compare_values import RUN_A, RUN_B, paired_runs, separate_runs, slower_by

Capture = pytest.CaptureFixture[str]


def _compare(*arguments: str) -> int:
    return cli_main.run_cli(["compare", *arguments])


def _save(output: Path, *runs: StoredRun) -> None:
    for run in runs:
        (output / run.record.run_id).mkdir(parents=True)
        run.record.save(output / run.record.run_id / RECORD_FILE)


@pytest.fixture(autouse=True)
def output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ETDEPLOY_OUTPUT_DIR", str(tmp_path / "out"))
    monkeypatch.setenv("ETDEPLOY_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "out"


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[RecipePair]:
    """What would have been measured."""
    asked: list[RecipePair] = []

    def measure(pair: RecipePair) -> tuple[StoredRun, StoredRun]:
        asked.append(pair)
        return paired_runs(slower_by(1.05))

    monkeypatch.setattr(invocation, "measure_pair", measure)
    return asked


def test_json_has_every_key(output: Path, capsys: Capture) -> None:
    _save(output, *separate_runs(slower_by(1.3)))
    assert _compare("aaaaaaaa", "last", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert {"metric", "a", "b", "ratio", "pairs", "verdict", "reason"} <= set(found)
    assert set(found["ratio"]) == {"median", "low", "high"}
    assert (found["metric"], found["verdict"]) == ("latency_ms", "slower")
    assert found["a"]["record"] == str(output / RUN_A / RECORD_FILE)


@pytest.mark.parametrize("kind", ["text", "json"])
def test_what_is_not_comparable_is_a_result(output: Path, capsys: Capture, kind: str) -> None:
    _save(output, *separate_runs(slower_by(1.3)))
    assert _compare("last", "last", *(["--json"] if kind == "json" else [])) == 0
    assert "both are the same run" in capsys.readouterr().out


def test_the_least_difference_is_an_option(output: Path, capsys: Capture) -> None:
    _save(output, *paired_runs(slower_by(1.05)))
    assert _compare(RUN_A, RUN_B, "--min-difference", "6") == 0
    assert "no difference found" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["xnnpack", "last"], "xnnpack is a recipe, and last is a run"),
        (["last", "my.yaml"], "my.yaml is a recipe, and last is a run"),
        (["xnnpack"], "there is nothing to compare xnnpack with"),
        (["last"], "there is nothing to compare last with"),
        (["last", "--set-b", "runtime.threads=1"], "there is nothing to compare last with"),
        ([RUN_A, RUN_B, "--device", "host"], "--device can only be used with recipes"),
        ([RUN_A, RUN_B, "--runs", "3", "--set-a", "a=1"], "--runs, --set-a can only be used with"),
        ([RUN_A, "nothing"], "there is no run 'nothing'"),
        (["xnnpack", "xnnpack", "--runs", "0"], "0 is not in the range"),
        (["xnnpack", "xnnpack", "--min-difference", "-1"], "-1.0 is not in the range"),
        (["xnnpack", "--set-b", "benchmark.runs=3"], "A has 10, B has 3"),
        (["xnnpack", "gone.yaml"], "there is no such recipe"),
        (["xnnpack", "--set-b", "runtime.thread=1"], "--set-b runtime.thread: unknown key"),
        (["xnnpack", "xnnpack", "--set-a", "runtime"], "--set-a runtime: write it as key.path=v"),
        (["xnnpack", "xnnpack", "--set", "runtime"], "--set runtime: write it as key.path=value"),
    ],
)
def test_what_does_not_go_together_is_refused(
    output: Path, measured: list[RecipePair], capsys: Capture, arguments: list[str], message: str
) -> None:
    _save(output, *separate_runs(slower_by(1.3)))
    assert _compare(*arguments) == 2
    assert message in capsys.readouterr().err
    assert measured == []


def test_the_problems_of_both_are_told(measured: list[RecipePair], capsys: Capture) -> None:
    wrong = ["--set-a", "runtime.thread=1", "--set-b", "benchmark.runs=none"]
    assert _compare("xnnpack", "xnnpack", *wrong) == 2
    said = capsys.readouterr().err
    assert "2 problems in 2 recipes" in said
    assert "--set-a runtime.thread: " in said
    assert "--set-b benchmark.runs: " in said
    assert measured == []


def test_the_remedy_for_one_of_each_names_the_folder(output: Path, capsys: Capture) -> None:
    _save(output, *separate_runs(slower_by(1.3)))
    (output.parent / "my file.yaml").touch()
    assert _compare(RUN_A, "my file.yaml") == 2
    said = capsys.readouterr().err
    assert f"etdeploy run --recipe 'my file.yaml' --device host --output {output}\n" in said
    assert f"etdeploy compare {RUN_A} last --output {output}\n" in said


def test_a_run_whose_folder_is_gone_comes_from_the_history(
    output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("ETDEPLOY_STORE", str(tmp_path / "history.sqlite3"))
    a, b = separate_runs(slower_by(1.3))
    _save(output, b)
    save_run(a)
    assert _compare(RUN_A, RUN_B) == 0
    said = capsys.readouterr()
    assert "slower" in said.out
    assert "only the record of" in said.err


def test_two_recipes_get_the_same_number_of_starts(
    measured: list[RecipePair], tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "b.yaml").write_text("model: {example: mlp}\nbenchmark: {runs: 99}\n")
    assert _compare("xnnpack", "b.yaml", "--device", "qemu", "--no-operators") == 0
    assert "slower" in capsys.readouterr().out
    [pair] = measured
    assert (pair.a.name, pair.b.name, pair.device) == ("xnnpack", "b", "qemu")
    assert pair.a.recipe.benchmark.runs == pair.b.recipe.benchmark.runs == 10


def test_one_recipe_with_a_change_is_enough(measured: list[RecipePair], capsys: Capture) -> None:
    change = ["--set-b", "runtime.threads=1", "--set", "benchmark.iterations=7"]
    assert _compare("xnnpack", *change, "--set-a", "runtime.threads=2", "--runs", "4") == 0
    assert "slower" in capsys.readouterr().out
    [pair] = measured
    assert [r.recipe.runtime.threads for r in (pair.a, pair.b)] == [2, 1]
    assert [r.recipe.benchmark.iterations for r in (pair.a, pair.b)] == [7, 7]
    assert pair.a.recipe.benchmark.runs == 4
    assert pair.device == "host"


@pytest.mark.parametrize(
    ("options", "runs"),
    [
        ([], 10),
        (["--set", "benchmark.runs=4"], 4),
        (["--set", "benchmark.runs=4", "--runs", "2"], 2),
    ],
)
def test_the_number_of_starts_can_be_set(
    measured: list[RecipePair], options: list[str], runs: int, capsys: Capture
) -> None:
    assert _compare("xnnpack", "xnnpack", *options) == 0
    assert measured[0].a.recipe.benchmark.runs == runs
    assert capsys.readouterr().out


def _with_traces() -> tuple[StoredRun, StoredRun]:
    files = {"files": {"etdump": "etdump.etdp"}}
    return paired_runs(slower_by(1.05), files, files)


def test_operators_come_from_both_profiles(
    output: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def profile(run: StoredRun, *_: Any) -> Profile:
        slower = 2.0 if run.record.run_id == RUN_B else 1.0
        row = OperatorTime(
            name="conv", calls=1, total_ms=slower, self_ms=slower, share=0.5, module="stem"
        )
        return Profile(
            run_id="x", inferences=1, inference_ms=2.0, untraced_ms=None, operators=(row, row),
            modules=None, shares={}, outside_delegates=0.0, bottleneck="",
        )  # fmt: skip

    monkeypatch.setattr(profiled, "profile_of", profile)
    _save(output, *_with_traces())
    assert _compare(RUN_A, RUN_B, "--json") == 0
    assert json.loads(capsys.readouterr().out)["operators"] == [
        {"name": "conv", "module": "stem", "a_ms": 2.0, "b_ms": 4.0}
    ]


def test_profiles_that_cannot_be_read_are_a_remark(
    output: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def profile(*_: Any) -> Profile:
        raise ExportError("ExecuTorch is not installed")

    monkeypatch.setattr(profiled, "profile_of", profile)
    _save(output, *_with_traces())
    assert _compare(RUN_A, RUN_B) == 0
    assert "The operators were not compared: ExecuTorch is not inst" in capsys.readouterr().out
    monkeypatch.setattr(profiled, "profile_of", lambda *_: pytest.fail("it was not asked for"))
    assert _compare(RUN_A, RUN_B, "--no-operators") == 0
    assert "operators" not in capsys.readouterr().out
