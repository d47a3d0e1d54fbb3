"""The comparison with eager as text and as a page."""

from __future__ import annotations

import pytest

from etdeploy.bench.diff import DiffReport, DiffRound, Stage, SuggestedOverrides
from etdeploy.bench.records.outputs import OutputCheck
from etdeploy.core.errors import MismatchError
from etdeploy.export.diff import LayerSensitivity, ModelNode, NodeError, RewriteError, Sensitivity
from etdeploy.report.diff import diff_blocks, diff_page, diff_text, plot_errors, require_agreement
from etdeploy.report.html import render as render_page
from etdeploy.report.terminal import render

NODE = ModelNode(
    name="linear_7",
    operator="aten.linear.default",
    module="layers.7.linear",
    file="model.py",
    line=12,
    code="y = self.linear(x)",
    dtype="float32",
    shape=(4, 32),
)


def node_error(name: str, local: float | None, *, odd: int = 0) -> NodeError:
    return NodeError(
        node=NODE.model_copy(update={"name": name}),
        segment=(name,),
        sources=("before",),
        local_error=local,
        allowed_error=1e-5,
        accumulated_error=0.02,
        relative_error=0.01,
        largest=2.0,
        odd_places=odd,
    )


def output_check(*, correct: bool) -> OutputCheck:
    return OutputCheck(
        name="logits",
        dtype="float32",
        shape=(4, 32),
        max_abs_error=0.5,
        cosine_similarity=0.9,
        tolerance_max_abs=1e-4,
        tolerance_cosine=0.9999,
        within_tolerance=correct,
    )


def report(stage: Stage = "backend", **changes: object) -> DiffReport:
    errors = tuple(node_error(f"n{i}", 0.02 if i == 7 else 1e-7) for i in range(20))
    plain = DiffReport(
        recipe="mine",
        device="host",
        backend="xnnpack",
        quantization="none",
        stage=stage,
        outputs=(output_check(correct=False),),
        culprit=errors[7],
        errors=errors,
        rounds=(DiffRound(observed=19, outputs_wrong=True, first_wrong="n7"),),
    )
    return plain.model_copy(update=changes)


def test_the_text_names_node_module_line_and_errors() -> None:
    text = render(diff_blocks(report()))
    for part in ("n7", "layers.7.linear", "model.py:12", "y = self.linear(x)", "0.02", "1e-05"):
        assert part in text
    [row] = [line for line in text.splitlines() if "FIRST WRONG" in line]
    assert row.split()[0] == "n7"
    rows = [line.split()[0] for line in text.splitlines() if line.strip().startswith("n")]
    assert [r for r in rows if r[1:].isdigit()] == [f"n{i}" for i in range(4, 11)]


def test_wrong_outputs_are_an_error_that_names_the_node() -> None:
    with pytest.raises(MismatchError, match=r"n7 of layers\.7\.linear \(model\.py:12\)") as caught:
        require_agreement(report())
    assert "--set export.backend=portable" in str(caught.value.remedy)
    require_agreement(report("none", outputs=(output_check(correct=True),), culprit=None))


@pytest.mark.parametrize(
    ("stage", "remedy"),
    [("rewrite", "export.rewrites=none"), ("random", "deterministic"), ("undefined", "finite")],
)
def test_each_stage_has_its_remedy(stage: Stage, remedy: str) -> None:
    with pytest.raises(MismatchError) as caught:
        require_agreement(report(stage))
    assert remedy in str(caught.value.remedy)


def test_a_wrong_rewrite_is_named() -> None:
    error = RewriteError(node=NODE, error=0.5, allowed=0.001, rewrites=("sums",))
    text = render(diff_blocks(report("rewrite", rewrite_error=error, culprit=None)))
    assert "by sums" in text
    assert "linear_7" in text


def test_a_random_node_is_named() -> None:
    text = render(diff_blocks(report("random", random=(NODE,), culprit=None)))
    assert "linear_7" in text
    assert "two evaluations" in text


@pytest.mark.parametrize(
    ("stage", "scheme", "remedy"),
    [("accumulated", "8da4w", "export.quantization=none"),
     ("accumulated", "none", "benchmark.tolerance"), ("rewrite", "none", "export.rewrites=none"),
     ("vanished", "none", "backend fuses"), ("backend", "none", "export.backend=portable")],
)  # fmt: skip
def test_the_remedy_is_that_of_the_stage(stage: Stage, scheme: str, remedy: str) -> None:
    culprit = {} if stage == "backend" else {"culprit": None}
    found = report(stage, quantization=scheme, outputs=(output_check(correct=False),), **culprit)
    with pytest.raises(MismatchError) as error:
        require_agreement(found)
    assert remedy in str(error.value.remedy)


def test_sensitivity_and_suggestion() -> None:
    layer = LayerSensitivity(module="head", operators=1, weights=100, alone=0.05, without=0.02)
    found = Sensitivity(inputs=2, error=0.1, weights=1000, layers=(layer,), overrides=("head",))
    suggestion = SuggestedOverrides(
        modules=("head",), scheme="none", before=0.1, after=0.02, weights_percent=10
    )
    text = diff_text(report(sensitivity=found, overrides=suggestion), None)
    assert "10 % becomes 2 %" in text
    assert text.endswith('\n\nexport:\n  overrides:\n    "head": none')


def test_the_plot_has_a_point_for_each_node_and_rings_wrong_ones() -> None:
    figure = plot_errors("errors", report())
    by_name = {trace["name"]: trace for trace in figure.data}
    assert by_name["local error"]["y"][7] == pytest.approx(0.01)
    assert by_name["wrong"]["y"] == [0.01 if i == 7 else None for i in range(20)]
    assert len(by_name["accumulated"]["y"]) == 20


def test_values_without_a_number_leave_a_gap() -> None:
    errors = (node_error("a", None, odd=3), node_error("b", 0.0))
    figure = plot_errors("errors", report(errors=errors))
    assert figure.data[0]["y"] == [None, None]


def test_the_page_shows_names_as_text() -> None:
    evil = node_error("<script>alert(1)</script>", 1.0)
    page = render_page(diff_page(report(errors=(evil,), culprit=evil)))
    assert "<script>alert" not in page
    assert "first wrong node" in page
