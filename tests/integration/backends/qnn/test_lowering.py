"""What the HTP does not take, lowered with Qualcomm's compiler: few layers each, in one process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from etdeploy.backends.qnn.backend import QNN
from etdeploy.backends.qnn.diagnostics import COMPILER_FAILURES
from etdeploy.backends.values import Workstation
from etdeploy.cache.workspace import Workspace
from etdeploy.core.errors import EtdeployError
from etdeploy.export.needs import check_needs
from etdeploy.export.preload import worker_environment
from etdeploy.export.spec import ExportSpec
from tests.support.cli import Cli
from tests.support.export import export_workspace, nightly_except, selected
from tests.support.facts import lacks

pytestmark = pytest.mark.integration
__all__ = ["export_workspace"]

ROOT = Path(__file__).parents[4]
SPEC = ExportSpec(backend="qnn", quantization="fp16", soc="SM8650", profiled=False)
_PLAIN_BYTES = "the HTP reads plain uint8 values as true or false"
_DOUBLES = "the HTP has no 64-bit floats"
_CONSTANT = "its values are constant, and no output of a QNN partition may be"
_INDICES = "its second output is int64, and QNN writes 32 bits for each value"
_RANK = "the HTP's compiler: incorrect Rank 6"
# Models that single tests are about, and the others that every change lowers.
_ALWAYS = {
    "large_mask", "deep_stack", "rank", "plain", "all_doubles", "packed_heads", "attention",
    "remainders",
}  # fmt: skip
_SMOKE = ("plain", "rank", "bytes", "indices", "constant", "state", "no_kernel")


class Lowered:
    """What came of each model of tests/data/export/qnn.py, and all that was printed."""

    def __init__(self, folder: Path, names: Iterable[str]) -> None:
        result = folder / "result.json"
        QNN.prepare_export(SPEC.request, Workstation.this())
        outcome = subprocess.run(
            [sys.executable, "-m", "tests.support.qnn_lowering", str(result), *names],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
            env={k: v for k, v in worker_environment(SPEC).items() if v is not None},
        )  # fmt: skip
        self.printed = outcome.stdout
        assert outcome.returncode == 0, self.printed[-3000:]
        self.models: dict[str, dict[str, Any]] = json.loads(result.read_text())


@pytest.fixture(scope="module")
def compiler() -> None:
    try:
        check_needs(SPEC)
    except EtdeployError as error:
        pytest.skip(f"nothing compiles for QNN here: {str(error).splitlines()[0]}")


@pytest.fixture(scope="module")
def lowered(
    compiler: None, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Lowered:
    return Lowered(tmp_path_factory.mktemp("qnn"), sorted(_ALWAYS | selected(request, "name")))


# By model: partitions, operators and reasons of what runs on the CPU, and bytes that pass.
_PLACED: dict[str, tuple[int, set[tuple[str, str]], int]] = {
    "plain": (1, set(), 0),
    "rank": (2, {("aten::view_copy", _RANK), ("aten::permute_copy", _RANK)}, 1024),
    "bytes": (1, {("dim_order_ops::_to_dim_order_copy", _PLAIN_BYTES)}, 512),
    "doubles": (1, {("dim_order_ops::_to_dim_order_copy", _DOUBLES)}, 512),
    "bfloats": (1, {("dim_order_ops::_to_dim_order_copy", "QNN has no bfloat16")}, 512),
    "indices": (1, {("aten::topk", _INDICES)}, 512),
    "values": (1, set(), 0),
    "constant": (1, {("aten::full", _CONSTANT)}, 0),
    "state": (1, set(), 1024),
    "no_grad": (1, set(), 0),
    "ids": (1, set(), 0),
    "keywords": (1, set(), 0),
    "no_kernel": (1, {("aten::cumprod", "ExecuTorch's QNN backend has no such operator")}, 512),
    "causal": (1, set(), 0),
    "constant_parts": (1, set(), 0),
    "recurrent": (1, set(), 0),
}


@pytest.mark.parametrize("name", nightly_except(_PLACED, *_SMOKE))
def test_what_the_htp_does_not_take_runs_on_the_cpu(lowered: Lowered, name: str) -> None:
    partitions, outside, crossing_bytes = _PLACED[name]
    counts = lowered.models[name]["counts"]
    assert counts["partitions"] == partitions
    assert {(each["operator"], each["reason"]) for each in counts["outside"]} == outside
    assert counts["crossing"]["bytes"] == crossing_bytes
    assert all(Path(each["file"]).name == "qnn.py" for each in counts["outside"])


def test_a_mask_that_is_too_large_to_store_is_made_on_the_cpu(lowered: Lowered) -> None:
    counts = lowered.models["large_mask"]["counts"]
    assert counts["partitions"] == 1
    assert counts["crossing"]["tensors"] == 1
    assert _CONSTANT in {each["reason"] for each in counts["outside"]}


def test_what_neither_the_htp_nor_the_cpu_takes_is_named_with_its_line_and_reason(
    lowered: Lowered,
) -> None:
    failure = lowered.models["deep_stack"]["failure"]
    assert (failure["kind"], failure["operator"]) == ("operator", "aten::stack")
    assert failure["line"] == _line("return torch.stack(")
    assert "(the HTP's compiler: incorrect Rank 5)" in failure["message"]


def _line(text: str) -> int:
    """The number of a line of tests/data/export/qnn.py."""
    lines = (ROOT / "tests/data/export/qnn.py").read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def test_the_notes_name_the_lines_and_the_cost(lowered: Lowered) -> None:
    first, second = lowered.models["rank"]["notes"]
    assert not lacks(first, "3 operators", "aten::view_copy (qnn.py:", f": {_RANK}.")
    assert not lacks(second, "2 partitions", "2 tensors (1.0 kB)", "qnn")
    assert lowered.models["plain"]["notes"] == []


def test_a_model_that_the_htp_takes_nothing_of(lowered: Lowered) -> None:
    took, why = lowered.models["all_doubles"]["notes"]
    assert "backend qnn took none" in took
    assert "qnn took none: " in why
    assert why.endswith(f": {_DOUBLES}.")


@pytest.mark.parametrize(
    ("name", "kind", "operator", "fact"),
    [
        ("dynamic", "dynamic-shapes", None, "dynamic shapes (rows)"),
        ("branch", "lowering", None, "(cond)"),
        ("wide", "lowering", None, "example input 0"),
        ("divides", "operator", "aten::floor_divide", "//"),
        ("remainder", "lowering", None, "remainder of integers"),
    ],
)
def test_what_cannot_be_lowered_is_refused(
    lowered: Lowered, name: str, kind: str, operator: str | None, fact: str
) -> None:
    failure = lowered.models[name]["failure"]
    assert (failure["kind"], failure["operator"]) == (kind, operator)
    assert fact in failure["message"]
    assert failure["remedy"]


def test_heads_that_cannot_be_split_are_named_with_their_line(lowered: Lowered) -> None:
    failure = lowered.models["packed_heads"]["failure"]
    assert failure["line"] == _line("heads = torch.softmax(")
    assert not lacks(failure["message"], "attention in 0 into single heads", "no linear layer", "4")
    assert "--set export.options.mha2sha=never" in failure["remedy"]


def test_remainders_of_floats_and_constants_are_lowered(lowered: Lowered) -> None:
    assert "failure" not in lowered.models["remainders"]


def test_what_the_compiler_prints_about_a_failure_is_understood(lowered: Lowered) -> None:
    failure = lowered.models["attention"]["failure"]
    assert failure["message"].endswith("AssertionError: Failed to generate Qnn context binary.")
    found = COMPILER_FAILURES.diagnose(lowered.printed)
    assert found is not None
    assert "nn.MultiheadAttention" in found.cause


def test_calibration_inputs_set_the_ranges_or_are_refused(compiler: None, tmp_path: Path) -> None:
    QNN.prepare_export(SPEC.request, Workstation.this())
    result = tmp_path / "result.json"
    names = ("no_samples", "other_samples", "wide_samples")
    outcome = subprocess.run(
        [sys.executable, "-m", "tests.support.qnn_calibration", str(result), *names],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        env={k: v for k, v in worker_environment(SPEC).items() if v is not None},
    )  # fmt: skip
    assert outcome.returncode == 0, outcome.stdout[-3000:]
    found = json.loads(result.read_text())
    assert found["no_samples"] == {"failure": "the calibration function yielded no inputs"}
    failure = found["other_samples"]["failure"]
    assert failure.startswith("calibration input 1 of qnn.py:other_samples")
    assert "[3, 8]" in failure
    # Nothing is said of the generator that was left at its second input.
    assert "GeneratorExit" not in outcome.stdout
    wide = found["wide_samples"]
    assert wide["samples"] == 3
    assert wide["notes"] == ["3 calibration inputs of qnn.py:wide_samples set the ranges."]
    # Those of the example are ones. ExecuTorch's moving average begins with 10, the first maximum,
    # and moves by a hundredth of the distance to each other.
    assert 9 / 255 < wide["step"] < 11 / 255


@pytest.mark.nightly
def test_what_the_htp_would_get_wrong_is_right_in_the_simulator(
    compiler: None, export_workspace: Workspace, tmp_path: Path
) -> None:
    cli = Cli(export_workspace.root, tmp_path, {})
    model = {"python": f"{ROOT}/tests/data/export/qnn.py:everything"}
    export = {"backend": "qnn", "soc": "SM8650", "quantization": "none"}
    recipe = cli.recipe(json.dumps({"model": model, "export": export}))
    record = cli.ok("run", "--recipe", recipe, "--device", "host", "--json").json
    assert record["simulated"]["soc"] == "SM8650"
    assert {d["backend_id"] for d in record["program"]["delegates"]} == {"QnnBackend"}
    outputs = record["workload"]["outputs"]
    assert [output["within_tolerance"] for output in outputs] == [True] * 7


@pytest.mark.nightly
@pytest.mark.parametrize("quantization", ["none", "int8_static"])
def test_recurrent_layers_are_right_in_the_simulator(
    compiler: None, export_workspace: Workspace, tmp_path: Path, quantization: str
) -> None:
    cli = Cli(export_workspace.root, tmp_path, {})
    model = {"python": f"{ROOT}/tests/data/export/qnn.py:recurrent"}
    export = {"backend": "qnn", "soc": "SM8650", "quantization": quantization}
    recipe = cli.recipe(json.dumps({"model": model, "export": export}))
    record = cli.ok("run", "--recipe", recipe, "--device", "host", "--json").json
    assert [each["within_tolerance"] for each in record["workload"]["outputs"]] == [True] * 3
    assert not any("leaves layers in floats" in note for note in record["notes"])
