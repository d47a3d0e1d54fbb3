"""Rewrites of graphs: outputs stay, the delegate takes more, and what they leave has a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from etdeploy.program.folder import load_provenance
from tests.support.cli import Cli
from tests.support.export import (
    ROOT,
    Exporter,
    export_workspace,
    exported,
    nightly_except,
    run_support,
    selected,
)

pytestmark = pytest.mark.integration

__all__ = ["export_workspace", "exported"]

FAULTS = ROOT / "tests/data/export/rewrites.py"
# Of a product of some hundred 32-bit floats, relative to the largest output.
_ROUNDING = 2e-6
# Each case with the rewrites that apply, and how often.
WHOLE = {
    "attention": {"attention": 1},
    "then a view": {"attention": 1},
    "causal": {"attention": 1},
    "causal, fewer keys": {"attention": 1},
    "constant mask": {"attention": 1},
    "constant mask of nothing": {"attention": 1},
    "grouped": {"attention": 1},
    "scale": {"attention": 1},
    "three dimensions": {"attention": 1},
    "norm": {"norms": 1},
    "norm without weights": {"norms": 1},
    "norm of groups": {"norms": 1},
    "norm of groups of signals": {"norms": 1},
    "norm of each channel": {"norms": 1},
    "norm of weights": {},
    "norm of large values": {"norms": 1},
    "RMS norm": {"norms": 1},
    "mean": {"sums": 1},
    "mean of fewer dimensions": {"sums": 1},
    "mean of tokens": {"sums": 1},
    "mean of images": {"sums": 1},
    "sum": {"sums": 1},
    "sum in the middle": {"sums": 1},
    "sum in the middle, kept": {"sums": 1},
    "length": {"powers": 1, "sums": 1},
    "length of channels": {"powers": 1, "sums": 1},
    "length of a picture": {"powers": 1, "sums": 1},
    "powers": {"powers": 3},
    "variance": {"powers": 1, "sums": 2},
    "variance of all": {"powers": 1, "sums": 2},
    "deviation of an image": {"powers": 1},
    "sum of everything": {"sums": 1},
    "mean of everything": {"sums": 1},
    "sum of neighbours": {"sums": 1},
    "sum of the last two": {"sums": 1},
    "sum of an image": {"sums": 1},
    "mean apart": {"sums": 1},
    "mean of many": {"sums": 1},
    "norm of two dimensions": {"norms": 1},
    "RMS norm of two dimensions": {"norms": 1},
    "norm of all": {"norms": 1},
    "average": {"pools": 1},
    "average of a large window": {"pools": 1},
    "average by a divisor": {"pools": 1},
    "average, ceil_mode for nothing": {"pools": 1},
    "average without the padding": {},
    "adaptive average": {"pools": 1},
    "adaptive average, overlapping": {"pools": 1},
    "adaptive average of nothing": {"pools": 1},
    "average of signals": {"pools": 2},
    "largest of signals": {"pools": 1},
    "adaptive maximum": {"pools": 1},
    "PReLU": {"prelu": 1},
    "PReLU of all": {"prelu": 1},
    "PReLU of an image": {},
    "softmax of an image": {},
    "softmax of channels": {"softmax": 1},
    "layer scale": {},
    "patches": {"patches": 2},
    "flip": {"slices": 1},
    "GRU both ways": {"slices": 25},
    "hidden by a constant": {"masks": 1},
    "hidden by a number": {"masks": 1},
    "hidden by zero": {"masks": 1},
    "nothing hidden": {"masks": 1},
    "one part": {"views": 1},
    "expansion": {"views": 1},
    "class token": {},
    "mean of an image": {},
    "softmax": {"softmax": 1},
    "GELU by tanh": {},
    "upsampling": {"upsampling": 1},
    "depthwise": {"depthwise": 1},
    "depthwise, no bias": {"depthwise": 1},
    "split": {"slices": 1},
    "select": {"slices": 2},
    "strides": {"slices": 2},
    "roll": {"slices": 1},
    "views": {"views": 3},
    "mask in parts": {},
}
# XNNPACK leaves some operators whose sizes it does not know.
DYNAMIC = {
    "tokens of any number": "attention",
    "grouped, tokens of any number": "attention",
    "split of any batch": "slices",
    "norm of groups, channels given": "norms",
}
# Whose mask is looked at while the program runs: only that is left, and it has no heads.
MASKED = ("mask", "mask of keys", "mask in floats", "grouped, mask")
HIDDEN = ("hidden by an input", "hidden by an input, a number")
STAYING = (
    "hidden twice", "input hidden", "average over the edge", "flip of many", "patches that overlap",
)  # fmt: skip
# One of each rewrite; the others are nightly.
_SMOKE = (
    "attention", "norm of groups", "RMS norm", "length", "average", "PReLU", "softmax of channels",
    "patches", "hidden by a constant", "upsampling", "depthwise", "split", "views",
    "tokens of any number", "mask", "hidden by an input", "dropout", "table", "silu, 8 bits",
    "GELU by tanh",
)  # fmt: skip
_SHORT = "benchmark: {iterations: 3, warmup: 1, runs: 1}\n"
LEFT = {
    "width of any size": "its scale depends on a width that is dynamic",
    "norm of groups of any size": "its sizes are dynamic",
    "dropout": "it drops values at random (dropout_p is 0.5): call the model's eval(), or pass "
    "dropout_p only if self.training",
    "depthwise in three dimensions": "it is in one dimension or in three",
    "norm of two dimensions of any size": "it is over several dimensions, and sizes are dynamic",
    "average over the edge": "its last windows reach over the edge (ceil_mode)",
    "patches that overlap": "its windows overlap or leave pixels out, or its sizes are dynamic",
    "flip of many": "its sizes are dynamic or more than 64, or its tensor is not float32",
    "input hidden": "what it hides may be infinite, so that a product would give nan",
    "hidden twice": "what it hides may be infinite, so that a product would give nan",
    "upsampling by a half": "its factors are not whole numbers, or its sizes are dynamic",
    "depthwise with stride": "its stride or dilation is not 1",
    "odd strides": "it takes no whole number of strides, or its tensor has too many dimensions",
    "table": "its result is large (5 MiB)",
    "silu in place under a view, 8 bits": "it changes a tensor in place that others may see",
}
QUANTIZED = {
    "silu, 8 bits": "silu",
    "silu in place, 8 bits": "silu",
    "depthwise, 8 bits": "depthwise",
    "attention, 8 bits": "attention",
    "softmax of channels, 8 bits": "softmax",
    "pad by nothing, 8 bits": "views",
}


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The result of each case that a test of this run needs."""
    names = sorted(selected(request, "name"))
    found: dict[str, Any] = run_support("rewrites_run", *names)
    return found


def is_equal(found: dict[str, Any]) -> bool:
    return bool(found["shape"] and found["error"] <= _ROUNDING * max(1.0, found["largest"]))


@pytest.mark.parametrize("name", nightly_except(WHOLE, *_SMOKE))
def test_the_delegate_takes_all_and_outputs_stay(results: dict[str, Any], name: str) -> None:
    found = results[name]["with"]
    assert is_equal(found), found
    assert (found["partitions"], found["outside"], found["left"]) == (1, [], [])
    assert WHOLE[name].items() <= found["applied"].items()


@pytest.mark.parametrize("name", nightly_except(DYNAMIC, *_SMOKE))
def test_outputs_stay_at_every_size(results: dict[str, Any], name: str) -> None:
    found = results[name]["with"]
    assert found["applied"][DYNAMIC[name]] == 1
    assert is_equal(found), found


@pytest.mark.parametrize("name", nightly_except(MASKED, *_SMOKE))
def test_rows_that_are_masked_wholly_stay_zero(results: dict[str, Any], name: str) -> None:
    found = results[name]["with"]
    assert is_equal(found), found
    assert (found["partitions"], found["applied"]["attention"]) == (1, 1)
    assert not {"aten::where", "aten::eq", "aten::full_like"} & set(found["outside"])


@pytest.mark.parametrize("name", nightly_except(HIDDEN, *_SMOKE))
def test_what_an_input_hides_is_looked_at_in_the_mask(results: dict[str, Any], name: str) -> None:
    found = results[name]["with"]
    assert is_equal(found), found
    assert (found["applied"]["masks"], found["left"]) == (1, [])
    assert found["outside"].count("aten::where") <= 1  # of -inf, and as small as the mask


@pytest.mark.parametrize("name", nightly_except(STAYING, *_SMOKE))
def test_outputs_stay_where_something_is_left(results: dict[str, Any], name: str) -> None:
    assert is_equal(results[name]["with"]), results[name]


@pytest.mark.parametrize("name", nightly_except(["largest"]))
def test_a_largest_value_lowers_whatever_its_dimension(results: dict[str, Any], name: str) -> None:
    found = results[name]["with"]
    assert is_equal(found), found
    assert (found["applied"]["maxima"], found["outside"]) == (1, ["aten::amax"])


@pytest.mark.parametrize("name", nightly_except(LEFT, *_SMOKE))
def test_unchanged_operators_have_a_reason(results: dict[str, Any], name: str) -> None:
    found = results[name]["with"]
    assert found["left"] == [LEFT[name]]


@pytest.mark.parametrize("name", nightly_except(QUANTIZED, *_SMOKE))
def test_8_bits_come_no_farther_from_the_floats(results: dict[str, Any], name: str) -> None:
    found, before = results[name]["with"], results[name]["without"]
    assert found["applied"][QUANTIZED[name]] == 1
    # By one step of the output's 255.
    assert found["error"] <= before["error"] + found["largest"] / 128


@pytest.mark.parametrize(
    ("name", "outside"),
    [
        pytest.param("pad to floats, 8 bits", ["aten::constant_pad_nd"], marks=pytest.mark.nightly),
        pytest.param("pad by nothing, 8 bits", [], marks=pytest.mark.nightly),
    ],
)
def test_a_pad_from_8_bits_to_floats_stays_outside(
    results: dict[str, Any], name: str, outside: list[str]
) -> None:
    found = results[name]["with"]
    assert (found["partitions"], found["outside"]) == (1 + len(outside), outside)


@pytest.mark.nightly
def test_provenance_counts_what_rewrites_gained(exported: Exporter) -> None:
    small = {"vocabulary": 64, "width": 64, "layers": 1, "tokens": 16}
    model = {"example": "encoder", "arguments": small}
    rewritten = load_provenance(Path(exported({"model": model}).folder))
    without = exported({"model": model, "export": {"rewrites": "none"}})
    plain = load_provenance(Path(without.folder))
    assert "rewrites" not in plain.details
    found = rewritten.details["rewrites"]
    assert found["applied"]["norms"] == 3
    counts = {
        name: each.details["delegation"] for name, each in (("now", rewritten), ("before", plain))
    }
    assert found["after"]["partitions"] == counts["now"]["partitions"] == 1
    assert found["before"]["partitions"] == counts["before"]["partitions"] > 1
    assert found["before"]["outside"] == counts["before"]["undelegated_nodes"]
    assert any(note.startswith("Rewritten for speed: norms (3 x)") for note in rewritten.notes)


@pytest.mark.parametrize(
    ("factory", "reason"),
    [
        (
            "one_that_fails",
            "the first attempt failed: the rewrite norms failed: IndexError: no such dimension",
        ),
        pytest.param(
            "one_that_does_not_load",
            "ExecuTorch does not load the first program: invalid argument (error 0x12)",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            "one_that_does_not_run",
            "the first program fails when it runs with the example inputs: invalid argument "
            "(error 0x12)",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_without_rewrites_where_they_are_at_fault(
    exported: Exporter, factory: str, reason: str
) -> None:
    provenance = load_provenance(
        Path(exported({"model": {"python": f"{FAULTS}:{factory}"}}).folder)
    )
    assert provenance.details["rewrites"]["dropped"] == reason
    again = f"The program was exported again without rewrites, since {reason}. To keep those"
    assert any(note.startswith(again) for note in provenance.notes)
    assert provenance.details["delegation"]["undelegated_nodes"] > 0


@pytest.mark.nightly
def test_a_program_takes_images_by_pixel_if_asked(tmp_path: Path) -> None:
    export = "export: {backend: xnnpack, rewrites: [auto, channels_last]}\n"
    (tmp_path / "r.yaml").write_text(f"model: {{example: convnet}}\n{export}{_SHORT}")
    record = Cli(tmp_path / "cache", tmp_path, {}).ok("run", "-r", "r.yaml", "--json").json
    assert record["program"]["rewrites"]["applied"]["channels_last"] == 1
    # The runner orders what is by channel in the file.
    assert all(output["within_tolerance"] for output in record["workload"]["outputs"])
