"""The main job on this machine, through the command line, with real parts."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from etdeploy.cache.workspace import Workspace
from tests.support.cli import Cli
from tests.support.export import SMALL, export_workspace  # noqa: F401 - a fixture
from tests.support.processes import eventually, naming

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[3]
MLP = "model: {example: mlp}\nexport: {backend: xnnpack}\nbenchmark: {iterations: 20}\n"
LONG = MLP.replace("20", "1000000")
# Of the programs in the cache, one that no other module has.
QUANTIZED = ("--set", "export.quantization=int8_dynamic")


@pytest.fixture
def cli(export_workspace: Workspace, tmp_path: Path) -> Cli:  # noqa: F811
    """With the cache of the test run, so that each program is exported once."""
    return Cli(export_workspace.root, tmp_path, {})


def test_run_without_arguments_ends_with_latencies_a_verdict_and_the_files(cli: Cli) -> None:
    result = cli.ok("run")
    for words in ("median", "p90", "first inference", "ms", "outputs", "record.json"):
        assert words in result.stdout
    records = list(cli.folder.glob("etdeploy-out/**/record.json"))
    assert len(records) == 1


def test_json_is_the_run_record_and_nothing_else_is_on_stdout(cli: Cli) -> None:
    record = cli.ok("run", "--recipe", cli.recipe(MLP), "--json").json
    assert record["schema_version"] == 10
    samples = record["workload"]["latency_ms"]["samples"]
    assert len(samples) == 20
    assert min(samples) == record["workload"]["latency_ms"]["min"] > 0
    assert record["load_ms"] > 0
    assert record["workload"]["first_inference_ms"] > 0
    assert record["peak_rss_bytes"] > 1_000_000
    assert all(o["within_tolerance"] for o in record["workload"]["outputs"])
    assert record["device"]["facts"]["name"] == "host"
    assert len(record["program"]["sha256"]) == len(record["runner"]["sha256"]) == 64
    assert record["recipe"]["content"]["model"]["example"] == "mlp"


def test_a_second_run_does_nothing_and_shows_the_same_record(cli: Cli) -> None:
    recipe = cli.recipe(MLP)
    first = cli.ok("run", "--recipe", recipe, "--json")
    second = cli.ok("run", "--recipe", recipe, "--json")
    assert second.json == first.json
    assert second.stderr.count("up to date") == 7
    assert "--again measures again" in second.stderr
    assert "--again" not in first.stderr
    again = cli.ok("bench", "--recipe", recipe, "--json")
    assert again.json["run_id"] != first.json["run_id"]
    assert again.stderr.count("up to date") == 6


def test_each_measurement_is_in_the_history_whatever_that_costs(cli: Cli) -> None:
    recipe = cli.recipe(MLP.replace("20", "20, runs: 1"))
    broken = str(cli.folder / "broken.db")
    Path(broken).write_text("somebody's notes, longer than the header of a database" * 20)
    for _ in range(2):
        first = cli.ok("run", "--recipe", recipe, "--json", ETDEPLOY_STORE=broken)
    # Nothing was measured again; who has the device was asked.
    assert "the history does not have this run yet" not in first.stderr
    assert first.stderr.count("warning: cannot tell whether host is reserved") == 1
    second = cli.ok("bench", "--recipe", recipe, "--json", ETDEPLOY_STORE=broken)
    assert second.stderr.count("warning: the history does not have this run yet") == 1
    assert "the next run, or etdeploy history, imports it" in second.stderr
    Path(broken).unlink()
    third = cli.ok("bench", "--recipe", recipe, "--json", ETDEPLOY_STORE=broken)
    [trend] = cli.ok("history", "--json", ETDEPLOY_STORE=broken).json
    ids = [run.json["run_id"] for run in (first, second, third)]
    assert [point["run_id"] for point in trend["points"]] == ids
    checked = cli.ok("check", "--json", ETDEPLOY_STORE=broken).json
    assert (checked["run_id"], checked["verdict"]) in (
        (ids[2], "not enough history"), (ids[2], "not judged"),
    )  # fmt: skip


def test_a_changed_benchmark_section_measures_again_and_nothing_else(cli: Cli) -> None:
    recipe = cli.recipe(MLP)
    cli.ok("run", "--recipe", recipe)
    changed = ("--set", "benchmark.iterations=7", "--runs", "2")
    result = cli.ok("run", "--recipe", recipe, *changed, "--json")
    workload = result.json["workload"]
    assert [start["samples"] for start in workload["runs"]] == [7, 7]
    assert len(workload["latency_ms"]["samples"]) == 14
    assert workload["spread"]["between_percent"] is not None
    for name in ("export", "runtime", "plan", "runner", "check", "bundle"):
        assert f"{name:<10} up to date" in result.stderr


@pytest.mark.nightly
def test_an_upgrade_of_etdeploy_takes_no_plan_or_runner_of_older_rules(
    cli: Cli, tmp_path: Path
) -> None:
    for name in ("etdeploy", "recipes", "templates", "toolchains"):
        shutil.copytree(ROOT / name, tmp_path / "upgraded" / name)
    environ = {"PYTHONPATH": str(tmp_path / "upgraded")}
    arguments = ("build", "--recipe", cli.recipe(MLP))
    cli.ok(*arguments, **environ)
    assert cli.ok(*arguments, **environ).stderr.count("up to date") == 5
    with (tmp_path / "upgraded/etdeploy/plan/rules.py").open("a") as stream:
        stream.write("# another rule\n")
    upgraded = cli.ok(*arguments, **environ).stderr
    for step in ("plan", "runtime", "runner", "check"):
        assert f"{step:<10} ..." in upgraded
    assert "export     up to date" in upgraded


@pytest.mark.nightly
def test_sizes_are_measured_one_by_one_and_their_order_is_no_reason_to_export(cli: Cli) -> None:
    factory = Path(__file__).parents[2] / "data/export/working.py"
    head = f"model: {{python: '{factory}:looked_up'}}\nbenchmark:\n  iterations: 5\n  sizes:\n"
    most, least = "    most: {pairs: 16}\n", "    least: {halves.0: 1}\n"
    first = cli.ok("run", "--recipe", cli.recipe(head + most + least), "--json").json
    workload = first["workload"]
    assert [(s["name"], s["shapes"]) for s in workload["sizes"]] == [
        ("most", {"halves": [16], "ids": [32]}),
        ("least", {"halves": [1], "ids": [2]}),
    ]
    assert workload["latency_ms"] == workload["sizes"][0]["latency_ms"]
    assert all(o["within_tolerance"] for s in workload["sizes"] for o in s["outputs"])
    assert (Path(first["folder"]) / first["files"]["outputs-least"] / "0.bin").is_file()
    result = cli.ok("run", "--recipe", cli.recipe(head + least + most), "--json")
    assert [s["name"] for s in result.json["workload"]["sizes"]] == ["least", "most"]
    assert f"{'export':<10} up to date" in result.stderr
    shown = cli.ok("run", "--recipe", cli.recipe(head + least + most)).stdout
    assert "halves.0 1" in shown
    refused = cli("run", "--recipe", cli.recipe(head + "    more: {pairs: 17}\n"))
    assert refused.code == 3
    assert ":5:12: pairs is 17; the program takes 1 to 16" in refused.stderr


def test_plan_before_and_after_the_export(cli: Cli) -> None:
    encoder = f"encoder, arguments: {json.dumps(SMALL['encoder'])}"
    # A seed that no other test has: the cache is shared.
    recipe = cli.recipe(MLP.replace("mlp", encoder).replace("export: {", "export: {seed: 7, "))
    before = cli.ok("plan", "--recipe", recipe, "--format", "json").json
    assert before["provisional"]
    assert [t["value"] for t in before["tasks"]] == ["run"] * 8
    cli.ok("export", "--recipe", recipe)
    exported = cli.ok("plan", "--recipe", recipe, "--json").json["tasks"][0]
    assert exported["reason"] == "the program only has to be taken from the cache"
    cli.ok("build", "--recipe", recipe)
    after = cli.ok("plan", "--recipe", recipe, "--format", "json").json
    assert not after["provisional"]
    states = {t["name"]: t["value"] for t in after["tasks"]}
    assert states["export"] == states["runner"] == "up to date"
    assert states["bench"] == "run"
    for kind in ("components", "options", "tasks"):
        assert all(item["name"] and item["reason"] for item in after[kind])
    backend = next(c for c in after["components"] if c["name"] == "backend_xnnpack")
    assert "XnnpackBackend" in backend["reason"]
    text = cli.ok("plan", "--recipe", recipe).stdout
    assert "because" in text
    assert cli.ok("plan", "--recipe", recipe, "--format", "mermaid").stdout.startswith("flowchart")


def test_plan_changes_nothing(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "cache", tmp_path, {})
    cli.ok("plan")
    assert not list((tmp_path / "cache").rglob("*")) or not list(
        (tmp_path / "cache" / "programs").glob("*")
    )
    assert not (tmp_path / "etdeploy-out").exists()


@pytest.mark.nightly
def test_a_damaged_cache_is_noticed_and_mended(cli: Cli) -> None:
    quantized = ("--recipe", cli.recipe(MLP), *QUANTIZED)
    cli.ok("run", *quantized)
    folder = Path(cli.ok("export", *quantized, "--json").json["folder"])
    program = folder / "program.pte"
    good = program.read_bytes()
    program.write_bytes(good[: len(good) // 2])
    result = cli.ok("run", *quantized)
    assert "export     ..." in result.stderr
    assert program.read_bytes() == good


def test_outputs_that_differ_end_with_code_8_and_keep_the_record(cli: Cli) -> None:
    recipe = cli.recipe(MLP)
    tolerance = "benchmark.tolerance={max_abs_error: 0, cosine_similarity: 1}"
    result = cli(
        "run",
        "--recipe",
        recipe,
        "--json",
        *QUANTIZED,
        "--set",
        tolerance,
    )
    if result.code == 0:
        assert all(o["max_abs_error"] == 0 for o in result.json["workload"]["outputs"])
        pytest.skip("this machine computes bit for bit what eager mode does")
    assert result.code == 8
    assert result.json["workload"]["outputs"][0]["within_tolerance"] is False
    assert "benchmark.tolerance" in result.stderr


def test_interrupting_leaves_nothing_half_made_and_the_next_run_goes_on(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "cache", tmp_path, {})
    recipe = cli.recipe(MLP)
    for number in (signal.SIGINT, signal.SIGTERM):
        child = cli.start("run", "--recipe", recipe)
        assert child.stderr is not None
        while "export" not in child.stderr.readline():
            pass
        time.sleep(1.0)
        child.send_signal(number)
        _, stderr = child.communicate()
        assert child.returncode == 130, stderr
        assert "run the same command again" in stderr
        assert not list((tmp_path / "cache" / "programs").glob("*"))
        assert not naming(tmp_path)
    cli.ok("run", "--recipe", recipe)


@pytest.mark.parametrize(("step", "child"), [("export", "worker/start.py"),
                                             ("bench", "--iterations")])  # fmt: skip
def test_what_is_killed_takes_its_worker_or_runner_along(
    cli: Cli, tmp_path: Path, step: str, child: str
) -> None:
    recipe = LONG
    if step == "bench":
        cli.ok("export", "--recipe", cli.recipe(MLP), "--output", "program")
        recipe = "model: {program: program/program.pte}\nbenchmark: {iterations: 1000000}\n"
    cli = Cli(tmp_path / "cache", tmp_path, {})
    parent = cli.start("run", "--recipe", cli.recipe(recipe))
    while not any(child in line for line in naming(tmp_path / "cache")):
        assert parent.poll() is None, f"{step} was not reached"
        time.sleep(0.2)
    parent.kill()
    parent.communicate()
    assert eventually(lambda: not naming(tmp_path / "cache"))


def test_two_runs_at_once_share_the_cache_and_measure_one_after_the_other(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "cache", tmp_path, {})
    recipes = [cli.recipe(MLP.replace("20", str(count)), f"r{count}.yaml") for count in (400, 500)]
    children = [cli.start("run", "--recipe", r, "--json") for r in recipes]
    records = []
    for child in children:
        stdout, stderr = child.communicate()
        assert child.returncode == 0, stderr
        records.append(json.loads(stdout))
    assert records[0]["program"]["sha256"] == records[1]["program"]["sha256"]
    assert len(list((tmp_path / "cache" / "programs").glob("[!.]*"))) == 1
    assert len(list((tmp_path / "cache" / "runners").glob("[!.]*"))) == 1


def test_a_missing_compiler_is_told_before_the_export_starts(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "cache", tmp_path, {})
    bare = tmp_path / "bin"
    bare.mkdir()
    (bare / "git").symlink_to("/usr/bin/git")
    result = cli("run", PATH=str(bare), CXX="")
    assert result.code == 4
    assert "compiler" in result.stderr
    assert not (tmp_path / "cache" / "programs").exists()


def test_export_and_build_copy_their_results(cli: Cli) -> None:
    recipe = cli.recipe(MLP)
    cli.ok("export", "--recipe", recipe, "--output", "program")
    assert (cli.folder / "program" / "program.pte").is_file()
    inspected = cli.ok("inspect", "program/program.pte", "--json").json
    assert inspected["methods"][0]["delegates"][0]["backend_id"] == "XnnpackBackend"
    cli.ok("build", "--recipe", recipe, "--output", "runner")
    built = [p for p in (cli.folder / "runner").iterdir() if os.access(p, os.X_OK)]
    assert built


def test_qnn_is_refused_before_anything_starts(cli: Cli) -> None:
    result = cli("run", "--recipe", "qnn", QNN_SDK_ROOT="")
    assert result.code == 3
    assert "export.soc is auto, which asks a phone" in result.stderr
    assert "export     ..." not in result.stderr
    # Qualcomm's package may be installed, and would compile.
    nowhere = str(cli.folder / "nowhere")
    result = cli("export", "--recipe", "qnn", "--set", "export.soc=SM8650", QNN_SDK_ROOT=nowhere)
    assert result.code == 3
    assert "QNN_SDK_ROOT" in result.stderr
    assert "export     ..." not in result.stderr
