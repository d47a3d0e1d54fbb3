"""etdeploy diff on this machine: real exports, runs and replays."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.cache.workspace import Workspace
from tests.support.adbd import (  # noqa: F401 - fixtures
    android_x86_64,
    make_android,
    no_adb_server,
)
from tests.support.cli import Cli
from tests.support.export import export_workspace  # noqa: F401 - a fixture
from tests.support.language_models import save_llama
from tests.support.sshd import make_board

__all__ = ["make_board"]

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[3]
PLANTED = ROOT / "tests" / "support" / "planted_faults.py"
# A layer has five nodes: linear, tanh, mul, add, layer_norm.
LAYERS = 4
MODELS = """\
import torch
from torch import nn


class Random(nn.Module):
    def forward(self, x):
        return nn.functional.dropout(torch.tanh(x), 0.5, True) + 1


class Root(nn.Module):
    def forward(self, x):
        return torch.tanh(torch.log(x) * 2) + 1


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.wide = nn.Linear(16, 64)
        self.narrow = nn.Linear(64, 16)

    def forward(self, x):
        a = self.norm(x)
        x = x + torch.softmax(a @ a.transpose(-1, -2), -1) @ a
        return x + self.narrow(nn.functional.gelu(self.wide(self.norm(x)) * 20))


class Positions(nn.Module):
    # The sum in its own forward has a column that leaves all others few steps.

    def __init__(self):
        super().__init__()
        self.positions = nn.Parameter(torch.zeros(1, 8, 16))
        self.positions.data[..., 0] = 100
        self.layers = nn.Sequential(*(nn.Linear(16, 16) for _ in range(9)))

    def forward(self, x):
        return self.layers((x + self.positions) * self.scale())

    def scale(self):
        return torch.cat([torch.full((1,), 0.01), torch.ones(15)])


def positions():
    torch.manual_seed(0)
    return Positions().eval(), (torch.randn(1, 8, 16),)


def random():
    return Random(), (torch.ones(2, 3),)


def undefined():
    return Root(), (torch.tensor([[1.0, -1.0, 2.0]]),)


def undefined_input():
    return Root(), (torch.tensor([[1.0, float("nan"), 2.0]]),)


def calibrate():
    torch.manual_seed(1)
    for _ in range(3):
        yield (torch.randn(1, 8, 16),)


def encoder():
    torch.manual_seed(0)
    return nn.Sequential(*(Attention() for _ in range(4))).eval(), (torch.randn(1, 8, 16),)
"""


@pytest.fixture
def cli(export_workspace: Workspace, tmp_path: Path) -> Cli:  # noqa: F811
    """With the cache of the test run, so that each program is exported once."""
    (tmp_path / "models.py").write_text(MODELS)
    return Cli(export_workspace.root, tmp_path, {})


def recipe(cli: Cli, position: float | None, backend: str = "xnnpack") -> str:
    return cli.recipe(
        f"model:\n  python: {PLANTED}:make\n"
        f"  arguments: {{position: {'null' if position is None else position}, layers: {LAYERS}}}\n"
        f"export: {{backend: {backend}}}\n"
    )


def test_a_wrong_node_is_named_with_module_and_line_and_a_run_says_how(cli: Cli) -> None:
    own = recipe(cli, 0.45)
    run = cli("run", "--recipe", own, "--set", "benchmark.iterations=2", "--quiet")
    assert run.code == 8
    command = f"etdeploy diff --recipe {own} --device host --set benchmark.iterations=2"
    assert command in run.stderr
    page = cli.folder / "diff.html"
    result = cli(*command.split()[1:], "--output", str(page), "--json")
    assert result.code == 8
    report = result.json
    assert report["stage"] == "backend"
    culprit = report["culprit"]
    assert culprit["node"]["module"].startswith("layers.1")
    assert Path(culprit["node"]["file"]).name == PLANTED.name
    assert culprit["local_error"] > 100 * culprit["allowed_error"]
    wrong = [e["node"]["name"] for e in report["errors"] if _strain(e) > 1]
    assert wrong == [culprit["node"]["name"]]
    assert culprit["node"]["name"] in result.stderr
    assert "error by the node" in page.read_text()


def _strain(error: dict[str, float]) -> float:
    return error["local_error"] / error["allowed_error"]


@pytest.mark.parametrize("backend", ["portable", "openvino"])
@pytest.mark.nightly
def test_other_backends_name_it_too(cli: Cli, backend: str) -> None:
    result = cli("diff", "--recipe", recipe(cli, 0.45, backend), "--json")
    assert result.code == 8
    assert result.json["culprit"]["node"]["module"].startswith("layers.1")


@pytest.mark.nightly
def test_a_right_program_has_no_wrong_node(cli: Cli) -> None:
    own = recipe(cli, None)
    report = cli.ok("diff", "--recipe", own, "--json").json
    assert report["stage"] == "none"
    assert report["culprit"] is None
    assert len(report["errors"]) >= 4 * LAYERS
    assert max(map(_strain, report["errors"])) < 1
    assert "no wrong node" in cli.ok("diff", "--recipe", own).stdout


@pytest.mark.nightly
def test_overrides_are_suggested_that_halve_the_error(cli: Cli) -> None:
    own = cli.recipe(
        "model: {python: 'models.py:encoder'}\n"
        "export:\n  backend: xnnpack\n  quantization: int8_static\n"
        "  calibration: models.py:calibrate\n"
    )
    report = cli("diff", "--recipe", own, "--json").json
    assert report["sensitivity"]["inputs"] == 4
    suggestion = report["overrides"]
    assert suggestion["after"] <= suggestion["before"] / 2
    assert 0 < suggestion["weights_percent"] < 100


@pytest.mark.nightly
def test_what_the_models_own_forward_computes_can_stay_in_floats(cli: Cli) -> None:
    own = cli.recipe(
        "model: {python: 'models.py:positions'}\n"
        "export: {backend: xnnpack, quantization: int8_static}\n"
    )
    report = cli("diff", "--recipe", own, "--json").json
    assert report["sensitivity"]["layers"][0]["module"] == ""
    suggestion = report["overrides"]
    assert "" in suggestion["modules"]
    assert suggestion["exported"]
    assert suggestion["after"] <= suggestion["before"] / 2
    assert suggestion["weights_percent"] < 50


@pytest.mark.parametrize(
    ("function", "stage", "node"),
    [("random", "random", "native_dropout"), ("undefined", "undefined", "log"),
     ("undefined_input", "undefined", None)],
)  # fmt: skip
@pytest.mark.nightly
def test_models_without_values_to_compare_with(
    cli: Cli, function: str, stage: str, node: str | None
) -> None:
    own = cli.recipe(f"model: {{python: 'models.py:{function}'}}\nexport: {{backend: portable}}\n")
    report = cli("diff", "--recipe", own, "--json").json
    assert report["stage"] == stage
    if stage == "random":
        assert "dropout" in report["random"][0]["operator"]
        assert report["random"][0]["line"]
    elif node:
        assert report["undefined"]["name"].startswith(node)
    else:
        assert report["undefined_inputs"] == ["x"]


@pytest.mark.nightly
def test_a_language_model_and_what_its_quantization_costs(cli: Cli) -> None:
    folder = save_llama(cli.folder / "tiny")
    options = ("--model", str(folder), "--set", "export.generation.context=128", "--json")
    report = cli.ok("diff", "--recipe", "llm-xnnpack", *options).json
    assert report["stage"] == "none"
    assert "aten.linear.default" in {error["node"]["operator"] for error in report["errors"]}
    modules = {layer["module"] for layer in report["sensitivity"]["layers"]}
    assert {"model.layers.0.mlp.down_proj", "model.layers.1.self_attn"} <= modules
    # Those of grouped queries' values, and the output layer, have 8 bits already.
    assert not any(module.endswith(("v_proj", "lm_head")) for module in modules)
    suggestion = report["overrides"]
    assert suggestion["scheme"] == "8da8w"
    assert suggestion["after"] <= 0.6 * suggestion["before"]


@pytest.fixture(params=["qemu", "ssh", "adb"])
def elsewhere(request: pytest.FixtureRequest, cli: Cli) -> Cli:
    """A command whose `--device` is not this machine."""
    device = request.param
    if device == "ssh":
        device = request.getfixturevalue("make_board")().spec
    elif device == "adb":
        request.getfixturevalue("no_adb_server")
        device = request.getfixturevalue("android_x86_64").spec
    return Cli(cli.cache, cli.folder, {"HOME": str(cli.folder), "DEVICE": device})


@pytest.mark.nightly
def test_a_language_model_on_other_devices(elsewhere: Cli) -> None:
    folder = save_llama(elsewhere.folder / "tiny")
    options = ("--model", str(folder), "--set", "export.generation.context=128", "--json")
    device = elsewhere.env["DEVICE"]
    report = elsewhere.ok("diff", "--recipe", "llm-xnnpack", "--device", device, *options).json
    assert report["stage"] == "none"
    assert len(report["errors"]) > 20
    assert max(map(_strain, report["errors"])) < 1


def test_a_finished_program_is_refused(cli: Cli) -> None:
    (cli.folder / "program.pte").write_bytes(b"not a program")
    finished = cli("diff", "--set", "model={program: program.pte}")
    assert finished.code == 2
