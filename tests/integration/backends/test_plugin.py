"""The package of docs/backends.md, from its recipe to a measurement on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cli import Cli
from tests.support.documented_package import lay_out_package

pytestmark = pytest.mark.integration


@pytest.mark.nightly
def test_a_backend_of_another_package_runs_and_an_upgrade_counts(tmp_path: Path) -> None:
    package = lay_out_package(tmp_path / "site")
    cli = Cli(tmp_path / "cache", tmp_path, {"PYTHONPATH": str(package)})
    asked = ("--recipe", "gemm/mlp", "--set", "benchmark.iterations=3")
    record = cli.ok("run", *asked, "--json").json
    program = record["program"]
    assert (program["backend"], program["backends"]) == ("gemm", ["XnnpackBackend"])
    assert all(check["within_tolerance"] for check in record["workload"]["outputs"])
    assert _export(cli, asked) == "up to date"

    lowering = package / "etdeploy_gemm" / "lowering.py"
    lowering.write_text(lowering.read_text() + "# a new release\n")
    assert _export(cli, asked) == "run"


def _export(cli: Cli, asked: tuple[str, ...]) -> str:
    tasks = cli.ok("plan", *asked, "--json").json["tasks"]
    return next(str(task["value"]) for task in tasks if task["name"].startswith("export"))
