"""A search on this machine with real exports: stopped, continued, and its recipe run."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from etdeploy.cache.workspace import Workspace
from etdeploy.recipe.load import load_recipe
from tests.support.cli import Cli
from tests.support.export import export_workspace  # noqa: F401 - a fixture

pytestmark = pytest.mark.integration

_MLP = """
model: {example: mlp, arguments: {features: 64, width: 128, layers: 2}}
export:
  backend: xnnpack  # fixed
benchmark: {iterations: 5, warmup: 1}
"""
_SEARCH = (
    "tune", "-r", "mlp.yaml", "--fix", "export.overrides", "--fix", "export.rewrites",
    "--vary", "export.quantization=8da8w", "--budget", "30min",
)  # fmt: skip


@pytest.fixture
def cli(export_workspace: Workspace, tmp_path: Path) -> Cli:  # noqa: F811
    (tmp_path / "mlp.yaml").write_text(_MLP)
    return Cli(export_workspace.root, tmp_path, {})


def test_a_search_that_was_stopped_continues_and_its_recipe_runs(cli: Cli, tmp_path: Path) -> None:
    plan = cli.ok(*_SEARCH, "--plan", "--json").json
    assert [knob["key"] for knob in plan["knobs"]][:1] == ["export.quantization"]
    assert plan["measured"] == 0

    running = cli.start(*_SEARCH)
    assert running.stderr
    for line in running.stderr:
        if line.startswith("1 of"):
            break
    running.send_signal(signal.SIGINT)
    _, rest = running.communicate()
    assert running.returncode == 130, rest
    assert "run the same command again" in rest
    assert not (tmp_path / "mlp-tuned.yaml").exists()
    assert cli.ok(*_SEARCH, "--plan", "--json").json["measured"] >= 1

    ended = cli.ok(*_SEARCH)
    assert "exporting the recipe as it is" not in ended.stderr
    found = json.loads((tmp_path / "etdeploy-out/tune-mlp-host/tune.json").read_text())
    labels = {row["label"] for row in found["measured"]}
    assert {"the recipe as it is", "threads=1"} <= labels
    assert any("8da8w" in label for label in labels)
    assert all(row["figures"]["peak_memory"] > 0 for row in found["measured"] if row["records"])
    page = (tmp_path / "etdeploy-out/tune-mlp-host/tune.html").read_text()
    assert "mlp tuned for host" in page

    path = Path(found["files"]["recipe"])
    assert path == tmp_path / "mlp-tuned.yaml"
    tuned = load_recipe(str(path)).recipe
    for key, value in found["best"]["changes"].items():
        section: object = tuned.model_dump(mode="json")
        for part in key.split("."):
            assert isinstance(section, dict)
            section = section[part]
        assert section == value
    record = cli.ok("run", "-r", "mlp-tuned.yaml", "--json").json
    # The program is that of the search.
    assert record["program"]["size_bytes"] == found["best"]["figures"]["size"]

    # Nothing is left to measure, and a file of the user's stays.
    path.write_text("# mine\n")
    again = cli.ok(*_SEARCH, "--json").json
    assert again["measured"] == json.loads(json.dumps(found["measured"]))
    assert again["files"]["recipe"] == str(tmp_path / "mlp-tuned-2.yaml")
    assert path.read_text() == "# mine\n"

    # Of what was measured, nothing is so small.
    refused = cli(*_SEARCH, "--limit", "size=1kB")
    assert refused.code == 12
    assert "closest is" in refused.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--limit", "perplexity=+2%"), "a model that does not generate text has no perplexity"),
        (("--limit", "latency=fast"), "is not a limit"),
        (("--minimize", "error"), "can be limited, but not minimized"),
        (("--budget", "soon"), "is not a time"),
        (("--fix", "model.hf"), "is not a key that can be varied"),
        (("--vary", "export.quantization=fp16"), "is in no valid combination"),
        (("--result", "mlp.yaml"), "is not an unedited recipe of etdeploy tune"),
    ],
)
def test_what_cannot_be_searched_is_refused_before_anything_is_exported(
    cli: Cli, options: tuple[str, ...], words: str
) -> None:
    refused = cli("tune", "-r", "mlp.yaml", *options)
    assert refused.code == 2
    assert words in refused.stderr
    assert "export" not in refused.stdout
    assert (cli.folder / "mlp.yaml").read_text() == _MLP
