"""Several recipes on several devices in one run, with real exports and runners."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.support.adbd import (  # noqa: F401 - fixtures
    AdbServer,
    AndroidRoot,
    adb_server,
    android_x86_64,
    make_android,
)
from tests.support.cli import Cli, CliResult
from tests.support.processes import eventually, naming

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        not shutil.which("aarch64-linux-gnu-g++") or not shutil.which("qemu-aarch64-static"),
        reason="g++-aarch64-linux-gnu or qemu-user-static is not installed",
    ),
]

# Without rewrites, some of which depend on the target, host and qemu share a program.
EXPORT = "export: {backend: xnnpack, rewrites: none}\n"
MLP = f"model: {{example: mlp}}\n{EXPORT}benchmark: {{iterations: 5, warmup: 1}}\n"
BROKEN = f"model: {{python: 'broken.py:make'}}\n{EXPORT}"
BOTH = ("-d", "host", "-d", "qemu")


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recipes: `more` needs the program of `mlp`, `other` its runner, and `broken` has none."""
    found = tmp_path_factory.mktemp("recipes")
    recipes = {
        "mlp": MLP,
        "more": MLP.replace("5", "7"),
        "other": MLP.replace("none", "none, seed: 1"),
        "broken": BROKEN,
    }
    for name, text in recipes.items():
        (found / f"{name}.yaml").write_text(text)
    (found / "broken.py").write_text("def make():\n    raise ValueError('no such model')\n")
    return found


@pytest.fixture
def cli(shared_cache: Path, folder: Path) -> Cli:
    return Cli(shared_cache, folder, {})


@pytest.fixture(scope="module")
def all_six(shared_cache: Path, folder: Path) -> CliResult:
    """Three recipes on two devices with an empty cache."""
    return Cli(shared_cache, folder, {}).ok("run", *named("mlp", "more", "other"), *BOTH, "--json")


def named(*recipes: str) -> list[str]:
    return [word for name in recipes for word in ("-r", f"{name}.yaml")]


def entries(cache: Path, kind: str) -> list[str]:
    return sorted(path.name for path in (cache / kind).glob("[!.]*"))


def test_every_recipe_is_measured_on_every_device(all_six: CliResult) -> None:
    found = [(r["recipe"]["name"], r["device"]["facts"]["name"]) for r in all_six.json]
    assert found == [(r, d) for r in ("mlp", "more", "other") for d in ("host", "qemu")]
    for record in all_six.json:
        assert all(output["within_tolerance"] for output in record["workload"]["outputs"])
        assert (Path(record["folder"]) / "record.json").is_file()


def test_what_is_the_same_is_exported_and_built_once(
    all_six: CliResult, shared_cache: Path
) -> None:
    assert len(entries(shared_cache, "programs")) == 2
    assert len(entries(shared_cache, "runners")) == 2
    lines = all_six.stderr.splitlines()
    assert sum("program.pte exported" in line for line in lines) == 2
    assert sum("collecting the runner's libraries" in line for line in lines) == 2
    assert any(line.startswith("export mlp, more ") for line in lines)
    runners = Counter(r["runner"]["sha256"] for r in all_six.json)
    assert sorted(runners.values()) == [3, 3]
    # Which of them made something: the others took it from the cache.
    logs = [log for log in shared_cache.glob("state/*/*/logs/export.log") if log.stat().st_size]
    assert len(logs) == 2


def test_the_measurements_did_not_overlap(all_six: CliResult) -> None:
    marks = [line.split()[0] for line in all_six.stderr.splitlines() if "pass: " in line]
    assert set(marks) == {"bench"}
    passes = [
        line.split(maxsplit=1)[1].partition("  ")[0].rstrip()
        for line in all_six.stderr.splitlines()
        if line.startswith("bench ") and "pass: " in line
    ]
    jobs = [text.rpartition(" on ")[0] + text.rpartition(" on ")[2].split()[0] for text in passes]
    runs = [job for job, before in zip(jobs, ["", *jobs], strict=False) if job != before]
    assert len(runs) == len(set(runs)) == 6, "the passes of each job follow each other"


@pytest.mark.parametrize(
    "arguments",
    [
        ["-r", "other.yaml"],
        ["-r", "more.yaml", "-r", "mlp.yaml", "-d", "qemu"],
        ["-r", "other.yaml", "-r", "mlp.yaml", "-d", "qemu", "-d", "host"],
    ],
)
def test_other_groups_of_the_same_jobs_have_nothing_to_do(
    cli: Cli, all_six: CliResult, arguments: list[str]
) -> None:
    result = cli.ok("run", *arguments, "--json")
    records = result.json if isinstance(result.json, list) else [result.json]
    assert {r["run_id"] for r in records} <= {r["run_id"] for r in all_six.json}
    assert "Measured before" in result.stderr or "Nothing has changed" in result.stderr


def test_the_plan_shows_what_is_shared(cli: Cli, all_six: CliResult) -> None:
    graph = cli.ok("plan", *named("mlp", "more", "other"), *BOTH, "--json").json
    assert len(graph["jobs"]) == 6
    runners = [task for task in graph["tasks"] if task["step"] == "runner"]
    assert [[job["device"] for job in task["jobs"]] for task in runners] == [
        ["host"] * 3, ["qemu"] * 3,
    ]  # fmt: skip
    assert [task["name"] for task in graph["tasks"] if task["step"] == "export"] == [
        "export mlp, more", "export other",
    ]  # fmt: skip
    assert not any(task["expected"] for task in graph["tasks"])
    drawn = cli.ok("plan", *named("mlp", "other"), *BOTH, "--format", "mermaid").stdout
    assert drawn.count("runner mlp on host, other on host<br/>") == 1


@pytest.mark.nightly
def test_rewrites_that_depend_on_the_target_need_no_second_program(cli: Cli) -> None:
    (cli.folder / "auto.yaml").write_text(MLP.replace("none", "auto"))
    before = entries(cli.cache, "programs")
    result = cli.ok("run", *named("auto"), *BOTH, "--json")
    assert len({record["program"]["sha256"] for record in result.json}) == 1
    assert len(entries(cli.cache, "programs")) == len(before) + 1
    lines = result.stderr.splitlines()
    assert sum("program.pte exported" in line for line in lines) == 1
    assert sum("program.pte taken from the cache" in line for line in lines) == 1


def test_a_failure_is_told_once_and_the_others_end_well(cli: Cli, all_six: CliResult) -> None:
    result = cli("run", *named("broken", "mlp"), *BOTH)
    assert result.code == 3
    assert result.stderr.count("the factory make raised ValueError: no such model") == 1
    assert "broken on qemu: it needs what failed for broken on host" in result.stderr
    rows = [line for line in result.stdout.splitlines() if "correct" in line]
    assert [row.split()[:2] for row in rows] == [["mlp", "host"], ["mlp", "qemu"]]
    array = cli("run", *named("broken", "mlp"), *BOTH, "--json", "--quiet").json
    assert ["error" in each for each in array] == [True, True, False, False]
    assert array[1]["error"]["same_as"] == {"recipe": "broken", "device": "host"}


def test_what_is_refused_is_told_before_the_others_run(cli: Cli, all_six: CliResult) -> None:
    refused = ("-r", "qnn", "-r", "mlp.yaml")
    result = cli("run", *refused, QNN_SDK_ROOT="")
    assert result.code == 3
    lines = result.stderr.splitlines()
    assert lines[0].startswith("cannot start: qnn on host: ")
    assert "correct" in result.stdout
    stopped = cli("run", *refused, "--fail-fast", QNN_SDK_ROOT="")
    assert stopped.code == 3
    assert "correct" not in stopped.stdout
    assert "bench" not in stopped.stderr


@pytest.mark.nightly
def test_two_runs_with_the_recipes_in_another_order_do_not_block_each_other(
    cli: Cli, all_six: CliResult
) -> None:
    orders = (named("mlp", "more", "other"), named("other", "more", "mlp"))
    children = [cli.start("run", *order, *BOTH, "--again", "--json") for order in orders]
    for child in children:
        stdout, stderr = child.communicate()
        assert child.returncode == 0, stderr
        assert len(json.loads(stdout)) == 6


@pytest.mark.nightly
def test_a_phone_by_two_names_is_measured_once(
    shared_cache: Path,
    folder: Path,
    all_six: CliResult,
    adb_server: AdbServer,  # noqa: F811
    android_x86_64: AndroidRoot,  # noqa: F811
    tmp_path: Path,
) -> None:
    adb_server.connect(android_x86_64)
    # The user's adb key is the test's own, so that no key of the machine is touched.
    cli = Cli(shared_cache, folder, {"HOME": str(tmp_path)})
    phone = android_x86_64.spec
    result = cli.ok("run", *named("mlp"), "-d", "android", "-d", "host", "-d", phone, "--json")
    assert [r["device"]["facts"]["kind"] for r in result.json] == ["android", "host"]
    assert f"android and {phone} are the same device: it is used once" in result.stderr
    assert not [line for line in result.stderr.splitlines() if "program.pte exported" in line]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_ends_all_exports(tmp_path: Path, number: int) -> None:
    cli = Cli(tmp_path / "cache", tmp_path, {})
    recipes = [cli.recipe(MLP.replace("xnnpack", f"xnnpack, seed: {i}"), f"r{i}.yaml")
               for i in range(3)]  # fmt: skip
    child = cli.start("run", *(word for each in recipes for word in ("-r", each)))
    assert child.stderr is not None
    while "export" not in child.stderr.readline():
        pass
    time.sleep(1.0)
    child.send_signal(number)
    _, stderr = child.communicate()
    assert child.returncode == 130, stderr
    assert "run the same command again" in stderr
    assert not entries(tmp_path / "cache", "programs")
    assert eventually(lambda: not naming(tmp_path / "cache"))


def test_export_and_build_take_several(cli: Cli, all_six: CliResult) -> None:
    exported = cli.ok("export", *named("mlp", "other"), "--json").json
    assert all((Path(each["folder"]) / "program.pte").is_file() for each in exported)
    built = cli.ok("build", *named("mlp", "other"), *BOTH, "--json").json
    assert [each["target"] for each in built] == ["linux-x86_64", "linux-aarch64"] * 2
    assert len({each["path"] for each in built}) == 2
