"""Models compiled by Qualcomm's compiler and run in its simulator, through the command line."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest

from etdeploy.backends.qnn.compiler import QNN_VERSION
from etdeploy.cache.workspace import Workspace
from tests.support.cli import Cli
from tests.support.export import SMALL, export_workspace, nightly_except, selected
from tests.support.facts import lacks
from tests.support.qnn_sdk import lay_out_sdk
from tests.support.qnn_simulator import NEEDS_SIMULATOR

pytestmark = [pytest.mark.integration, NEEDS_SIMULATOR]
__all__ = ["export_workspace"]

NUMBER = ".".join(QNN_VERSION.split(".")[:3])
EXAMPLES = ("mlp", "convnet", "encoder")
COMPILED = [
    f"{example}-{compiled}"
    for example in EXAMPLES
    for compiled in ("SM8650-none", "SM8650-int8_static", "SM8750-none")
]
# The mlp with other schemes, and the part of the tolerance (15 % of the largest value) that a right
# program may use: up to 2.1 % was measured with 8-bit activations, and 0.2 % with 16-bit ones.
SCHEMES = {"8a4w": 1 / 4, "16a8w": 1 / 30, "16a4w": 1 / 30, "16a4w_block": 1 / 30, "mixed": 1 / 4}
# Its layers are 0 to 4: the linear ones are 0, 2 and 4. The others are ReLU.
OVERRIDES = {"4": "16a8w", "0": "8a4w"}
# What every change runs, and single tests are about.
_SMOKE = {
    *("mlp-SM8650-none", "mlp-SM8650-int8_static", "convnet-SM8750-none"),
    *("mlp-SM8650-16a8w", "mlp-SM8650-mixed"),
}


@pytest.fixture(scope="module")
def names(request: pytest.FixtureRequest) -> list[str]:
    """The recipes that tests of this run are about."""
    return sorted(_SMOKE | selected(request, "name"))


@pytest.fixture(scope="module")
def cli(export_workspace: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Cli:
    """Programs are made once, and the runner once for all modules."""
    return Cli(export_workspace.root, tmp_path_factory.mktemp("work"), {})


def _options(cli: Cli, names: list[str]) -> list[str]:
    """The options that name every recipe."""
    options = []
    for name in names:
        example, soc, scheme = name.split("-")
        model = {"example": example, "arguments": SMALL[example]}
        mixed: dict[str, Any] = {"quantization": "int8_static", "overrides": OVERRIDES}
        chosen = mixed if scheme == "mixed" else {"quantization": scheme}
        # JSON is YAML.
        text = json.dumps({"model": model, "export": {"backend": "qnn", "soc": soc} | chosen})
        options += ["--recipe", cli.recipe(text, f"{name}.yaml")]
    return options


@pytest.fixture(scope="module")
def records(cli: Cli, names: list[str]) -> dict[str, Any]:
    """One command for all, so that they share what an export imports; by the recipe's name."""
    found = cli.ok("run", *_options(cli, names), "--json").json
    return {record["recipe"]["name"]: record for record in found}


@pytest.mark.parametrize("name", nightly_except(COMPILED, *_SMOKE))
def test_the_outputs_are_the_models(records: dict[str, Any], name: str) -> None:
    _, soc, scheme = name.split("-")
    record = records[name]
    assert record["simulated"] == {"backend": "qnn", "by": f"QNN {NUMBER}", "soc": soc}
    (output,) = record["workload"]["outputs"]
    assert output["within_tolerance"] is True
    # A right program uses a small part of its tolerance: 16-bit floats up to 5 %, and 8-bit
    # integers up to 14 % were measured.
    assert output["max_abs_error"] < output["tolerance_max_abs"] / 4
    assert output["cosine_similarity"] > (0.9999 if scheme == "none" else 0.999)
    assert [d["backend_id"] for d in record["program"]["delegates"]] == ["QnnBackend"]
    assert record["program"]["operator_calls"] == []


@pytest.mark.parametrize(
    "name", nightly_except([f"mlp-SM8650-{scheme}" for scheme in SCHEMES], *_SMOKE)
)
def test_every_scheme_computes_what_the_quantized_model_does(
    records: dict[str, Any], name: str
) -> None:
    record = records[name]
    (output,) = record["workload"]["outputs"]
    assert output["within_tolerance"] is True
    assert output["max_abs_error"] < output["tolerance_max_abs"] * SCHEMES[name.split("-")[2]]
    assert output["cosine_similarity"] > 0.999
    assert [d["backend_id"] for d in record["program"]["delegates"]] == ["QnnBackend"]
    assert record["program"]["operator_calls"] == []


def test_an_override_changes_its_layers_alone(records: dict[str, Any]) -> None:
    mixed, eight, sixteen = (
        records[f"mlp-SM8650-{scheme}"] for scheme in ("mixed", "int8_static", "16a8w")
    )
    [note] = [note for note in mixed["notes"] if "except: " in note]
    assert not lacks(note, "int8_static", "4 with 16a8w (1 operator)", "0 with 8a4w (1 operator)")
    step, eights, sixteens = (
        record["workload"]["outputs"][0]["step"] for record in (mixed, eight, sixteen)
    )
    # The last layer has 16 bits, so the output has 256 times as many steps.
    assert step < eights / 100
    assert sixteens / 2 < step < sixteens * 2


def test_a_float_program_computes_in_16_bits(records: dict[str, Any]) -> None:
    for record in (record for name, record in records.items() if name.endswith("-none")):
        (output,) = record["workload"]["outputs"]
        assert output["max_abs_error"] > 1e-5, "not in 32 bits"
        assert any("computed in 16 bits" in note for note in record["notes"])


def test_only_the_outputs_were_run_for(records: dict[str, Any]) -> None:
    for record in records.values():
        assert {n: p["iterations"] for n, p in record["passes"].items()} == {"timing": 1}
        assert record["peak_rss_bytes"] is None
        assert "etdump" not in record["files"]


def test_the_table_has_no_times(cli: Cli, names: list[str], records: dict[str, Any]) -> None:
    lines = cli.ok("run", *_options(cli, names)).stdout.splitlines()
    rows = [line.split() for line in lines if line.lstrip().startswith(EXAMPLES)]
    rows = [row for row in rows if not row[-1].endswith("record.json")]
    assert len(rows) == len(records)
    for row in rows:
        # The loss of a small random model may follow the verdict: `correct, high ...`.
        assert row[1:7] == ["host", "simulated", "-", "-", "-", "-"]
        assert row[7].rstrip(",") == "correct"


def test_the_summary_of_one_has_no_times(cli: Cli, records: dict[str, Any]) -> None:
    again = cli.ok("run", "--recipe", "mlp-SM8650-none.yaml")
    assert "Nothing has changed since" in again.stderr
    measured = cli.ok("bench", "--recipe", "mlp-SM8650-none.yaml")
    assert f"bench      simulated by QNN {NUMBER}" in measured.stderr
    for text in (again.stdout, measured.stdout):
        assert f"mlp-SM8650-none on host: simulated by QNN {NUMBER} for SM8650" in text
        assert "latency         simulated: " in text
        assert "per inference" not in text
        assert " ms" not in text


def _finished(cli: Cli, record: dict[str, Any], name: str, change: tuple[bytes, bytes]) -> str:
    """A recipe with the program of a record, with some bytes of it replaced by others."""
    programs = (cli.cache / "programs").glob("*/program.json")
    folder = next(
        p.parent
        for p in programs
        if json.loads(p.read_text())["sha256"] == record["program"]["sha256"]
    )
    content = (folder / "program.pte").read_bytes()
    assert change[0] in content
    (cli.folder / f"{name}.pte").write_bytes(content.replace(*change))
    return cli.recipe(f"model: {{program: {name}.pte}}\n", f"{name}.yaml")


def test_a_finished_program_runs(cli: Cli, records: dict[str, Any]) -> None:
    recipe = _finished(cli, records["convnet-SM8750-none"], "finished", (b"", b""))
    record = cli.ok("run", "--recipe", recipe, "--json").json
    assert record["simulated"]["soc"] == "SM8750"
    assert not record["workload"]["outputs_compared"]


def test_a_program_of_a_newer_qnn_is_refused(cli: Cli, records: dict[str, Any]) -> None:
    newer = (f"v{QNN_VERSION}".encode(), b"v2.99" + f"v{QNN_VERSION}".encode()[5:])
    recipe = _finished(cli, records["mlp-SM8650-none"], "newer", newer)
    result = cli("run", "--recipe", recipe)
    assert result.code == 4
    assert not lacks(result.stderr, "with QNN 2.99.40,", f"is of QNN {NUMBER}")


def test_a_damaged_program_is_told_in_qnns_words(cli: Cli, records: dict[str, Any]) -> None:
    # Before the second place with the version is the header of the compiled graph.
    whole = _finished(cli, records["mlp-SM8650-none"], "damaged", (b"", b""))
    program = cli.folder / "damaged.pte"
    content = bytearray(program.read_bytes())
    header = content.index(QNN_VERSION.encode(), content.index(QNN_VERSION.encode()) + 1)
    content[header - 264 : header - 4] = bytes(260)
    program.write_bytes(content)
    result = cli("run", "--recipe", whole)
    assert result.code == 7
    assert "(QNN error 5005)" in result.stderr
    assert "phone" not in result.stderr


def test_a_library_that_cannot_be_loaded_is_told(cli: Cli, records: dict[str, Any]) -> None:
    recipe = _finished(cli, records["mlp-SM8650-none"], "whole", (b"", b""))
    sdk = lay_out_sdk(cli.folder / "sdk", QNN_VERSION)
    result = cli("run", "--recipe", recipe, QNN_SDK_ROOT=str(sdk))
    assert result.code == 7
    assert not lacks(result.stderr, "libQnnHtp.so, which", ": etdeploy doctor")
    shutil.rmtree(sdk)
    told = cli("run", "--recipe", recipe, QNN_SDK_ROOT=str(sdk))
    assert told.code == 4
    assert "QNN_SDK_ROOT names" in told.stderr


def test_the_soc_has_to_be_named(cli: Cli) -> None:
    result = cli("run", "--recipe", "qnn")
    assert result.code == 3
    assert not lacks(result.stderr, "host simulates", "export.soc=SM8650")


def test_other_devices_with_linux_are_refused(cli: Cli) -> None:
    result = cli("run", "--recipe", "qnn", "--target", "linux-x86_64-portable",
                 "--set", "export.soc=SM8650")  # fmt: skip
    assert result.code == 4
    assert "Qualcomm's own libraries" in result.stderr
