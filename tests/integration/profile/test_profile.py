"""Profiles of real runs on this machine, through the command line and ExecuTorch's Inspector."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.support.cli import Cli

pytestmark = pytest.mark.integration

MODEL = Path(__file__).parents[2] / "data/profile/model.py"
RECIPE = f"model: {{python: '{MODEL}:make'}}\nexport: {{backend: xnnpack}}\n"
# XNNPACK does not take the means of this model as they are written.
AS_WRITTEN = RECIPE.replace("xnnpack}", "xnnpack, rewrites: none}")


@dataclass
class Ran:
    """A run, and the command line that ran it."""

    cli: Cli
    record: dict[str, Any]

    @property
    def folder(self) -> Path:
        return Path(self.record["folder"])

    def profile(self, *arguments: str) -> Any:
        return self.cli.ok("profile", *arguments, "--json").json


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    folder = tmp_path_factory.mktemp("profile")
    cli = Cli(folder / "cache", folder, {})
    return Ran(cli, cli.ok("run", "-r", cli.recipe(AS_WRITTEN), "--json").json)


def _line(text: str) -> str:
    lines = MODEL.read_text().splitlines()
    return f"model.py:{next(i for i, line in enumerate(lines, 1) if text in line)}"


def _modules(tree: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield tree
    for child in tree["children"]:
        yield from _modules(child)


def test_every_operator_has_its_time_module_line_and_delegate(ran: Ran) -> None:
    profile = ran.profile(ran.record["run_id"])
    assert profile["run_id"] == ran.record["run_id"]
    [norm] = [
        each for each in profile["operators"]
        if each["name"] == "aten::mean.out" and each["module"] == "blocks.0.norm"
    ]  # fmt: skip
    assert (norm["calls"], norm["delegate"]) == (1, "")
    assert norm["source"] == _line("mean(-1")
    assert "4D" in norm["not_delegated"]
    products = {
        each["module"]: each for each in profile["operators"] if "Fully Connected" in each["name"]
    }
    assert products.keys() == {"blocks.0.linear", "blocks.1.linear", "head"}
    assert {each["delegate"] for each in products.values()} == {"XnnpackBackend"}
    assert products["head"]["source"] == _line("return self.head(x)")
    assert sum(profile["shares"].values()) == pytest.approx(1.0)
    assert profile["shares"]["XnnpackBackend"] > 0
    spent = sum(each["share"] for each in profile["operators"])
    assert spent + profile["shares"]["runtime"] == pytest.approx(1.0, abs=0.05)
    assert "of an inference" in profile["bottleneck"]


@pytest.mark.nightly
def test_what_a_rewrite_made_keeps_its_module_and_line(ran: Ran) -> None:
    record = ran.cli.ok("run", "-r", ran.cli.recipe(RECIPE), "--json").json
    operators = ran.profile(record["run_id"])["operators"]
    norm = [each for each in operators if each["module"] == "blocks.0.norm"]
    assert {each["delegate"] for each in norm} == {"XnnpackBackend"}
    assert _line("mean(-1") in {each["source"] for each in norm}


def test_the_tree_is_the_models_own(ran: Ran) -> None:
    profile = ran.profile(ran.record["run_id"])
    modules = {each["path"]: each for each in _modules(profile["modules"])}
    assert {"", "blocks.0", "blocks.0.linear", "blocks.1.norm", "head"} <= modules.keys()
    assert modules["blocks.0"]["kind"].endswith("Block")
    children = sum(each["total_ms"] for each in modules[""]["children"])
    assert modules[""]["total_ms"] == pytest.approx(children + modules[""]["self_ms"])


def test_a_trace_is_read_once_and_the_run_may_have_moved(ran: Ran, tmp_path: Path) -> None:
    first = ran.profile(ran.record["run_id"])
    moved = shutil.copytree(ran.folder, tmp_path / "elsewhere")
    result = ran.cli.ok("profile", str(moved), "--json")
    assert "reading the trace" not in result.stderr
    assert result.json == first


def test_perfetto_gets_a_trace_whose_slices_nest(ran: Ran, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    result = ran.cli.ok("profile", "--format", "perfetto", "-o", str(file))
    assert str(file) in result.stderr
    assert result.stdout == ""
    trace = json.loads(file.read_text())
    slices = [each for each in trace["traceEvents"] if each["ph"] == "X"]
    assert len(slices) >= 5
    for thread in {each["tid"] for each in slices}:
        ends: list[float] = []
        for each in sorted((s for s in slices if s["tid"] == thread), key=lambda s: s["ts"]):
            while ends and ends[-1] <= each["ts"]:
                ends.pop()
            assert not ends or each["ts"] + each["dur"] <= ends[-1] + 1e-6
            ends.append(each["ts"] + each["dur"])


@pytest.mark.nightly
def test_another_method_has_a_profile_of_its_own(ran: Ran) -> None:
    arguments = ("-r", ran.cli.recipe(AS_WRITTEN), "--set", "benchmark.method=tail", "--json")
    record = ran.cli.ok("bench", *arguments).json
    profile = ran.profile(record["run_id"])
    assert {each["module"] for each in profile["operators"]} >= {"blocks.1.norm", "head"}
    paths = {each["path"] for each in _modules(profile["modules"])}
    assert not any(path.startswith("blocks.0") for path in paths)


@pytest.mark.nightly
def test_without_the_etrecord_there_are_operators_alone(ran: Ran, tmp_path: Path) -> None:
    copy = shutil.copytree(ran.folder, tmp_path / "run")
    (copy / "etrecord.bin").unlink()
    profile = ran.profile(str(copy))
    assert profile["modules"] is None
    assert "aten::mean.out" in {each["name"] for each in profile["operators"]}
    assert any("no ETRecord" in note for note in profile["notes"])


def test_a_damaged_trace_ends_with_the_way_to_a_new_one(ran: Ran, tmp_path: Path) -> None:
    copy = shutil.copytree(ran.folder, tmp_path / "run")
    trace = copy / "etdump.etdp"
    whole = trace.read_bytes()
    trace.write_bytes(whole[: len(whole) // 2])
    truncated = ran.cli("profile", str(copy))
    assert truncated.code == 2
    assert "is truncated" in truncated.stderr
    assert "etdeploy bench" in truncated.stderr


def test_a_report_shows_the_profile_the_plan_and_the_record(ran: Ran) -> None:
    page = Path(ran.cli.ok("report", ran.record["run_id"]).stdout.strip())
    assert page == ran.folder / "report.html"
    text = page.read_text()
    assert "is not shown" not in text
    assert "blocks.0.linear" in text
    assert "XnnpackBackend" in text
    comment = ran.cli.ok("report", "--format", "markdown").stdout
    assert "<summary>Where the time goes</summary>" in comment
    jsonschema.validate(ran.record, ran.cli.ok("report", "--schema").json)
