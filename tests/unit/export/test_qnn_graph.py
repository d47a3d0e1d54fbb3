"""What QNN gets of a traced model: no recurrent layers, and constants in place of operators."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from etdeploy.export.worker.backends.qnn import simplified
from etdeploy.export.worker.backends.qnn_placement import (
    changing_nodes,
    leave_out_constants,
    norm_failure,
    unsplit_heads,
    validation_reason,
)
from etdeploy.export.worker.failures import WorkerError, fail
from etdeploy.export.worker.lowering.lower_failures import explain_errors
from tests.data.export.qnn import EXAMPLES

# Of torch, about itself and about its LSTM.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.isinstance:FutureWarning"),
    pytest.mark.filterwarnings("ignore:The tensor attributes self.lstm"),
]

aten = torch.ops.aten


def _traced(name: str) -> torch.export.ExportedProgram:
    torch.manual_seed(0)
    module, arguments, keywords, _ = EXAMPLES[name]()
    return torch.export.export(module.eval(), arguments, keywords)


def _targets(program: torch.export.ExportedProgram) -> set[Any]:
    return {node.target for node in program.graph.nodes if node.op == "call_function"}


@pytest.mark.parametrize("name", ["causal", "constant_parts", "recurrent"])
def test_a_simplified_graph_computes_the_same(name: str) -> None:
    program = _traced(name)
    before = [str(node) for node in program.graph.nodes]
    arguments = EXAMPLES[name]()[1]
    with torch.no_grad():
        expected, found = program.module()(*arguments), simplified(program).module()(*arguments)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert [str(node) for node in program.graph.nodes] == before


def test_constants_and_recurrent_layers_are_gone() -> None:
    assert not _targets(simplified(_traced("causal"))) & {aten.tril.default, aten.ones.default}
    assert aten.unbind.int not in _targets(simplified(_traced("constant_parts")))
    recurrent = _targets(simplified(_traced("recurrent")))
    assert aten.linear.default in recurrent
    assert not recurrent & {aten.lstm.input, aten.gru_cell.default, aten.zeros.default}


@pytest.mark.parametrize("name", ["plain", "state", "ids"])
def test_a_graph_without_them_stays_as_it_is(name: str) -> None:
    program = _traced(name)
    assert simplified(program) is program


class _Mixed(torch.nn.Module):  # type: ignore[misc]
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mask = torch.ones(4) * 2
        return x * mask, mask.cumsum(0)


def test_of_a_partition_go_the_constants_that_something_else_uses() -> None:
    program = torch.export.export(_Mixed(), (torch.ones(4),))
    nodes = {node.name: node for node in program.graph.nodes}
    changing = changing_nodes(program)
    assert {node.name for node in changing} >= {"x", "mul_1"}
    assert not {nodes["ones"], nodes["mul"], nodes["cumsum"]} & changing
    partition = dict.fromkeys((nodes["ones"], nodes["mul"], nodes["mul_1"]))
    leave_out_constants(partition, changing)
    # What they are made of goes, too: it would be a constant output otherwise.
    assert list(partition) == [nodes["mul_1"]]
    alone = dict.fromkeys((nodes["ones"], nodes["mul"]))
    leave_out_constants(alone, changing)
    assert not alone


def test_a_state_that_the_model_writes_to_changes() -> None:
    program = _traced("state").run_decompositions({})
    names = {node.name for node in changing_nodes(program)}
    assert not names.isdisjoint(program.graph_signature.inputs_to_buffers)
    assert names.isdisjoint(program.graph_signature.inputs_to_parameters)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("<E> [4294967295] has incorrect Rank 6.", "incorrect Rank 6"),
        (
            "Tensor 0 and 0 have mismatching datatypes. 0x232 != 0x408.",
            "Tensor 0 and 0 have mismatching datatypes (float32 and ufixed8)",
        ),
        (
            "incorrect Value 68, expected >= 73.",
            "the operator needs HTP V73 or newer, and this is V68",
        ),
        ("incorrect Value 4, expected >= 5.", "incorrect Value 4, expected >= 5"),
        ("Op specific validation failed.", None),
    ],
)
def test_the_compilers_reason(line: str, reason: str | None) -> None:
    expected = f"the HTP's compiler: {reason}" if reason else None
    assert validation_reason(f"[ERROR] [Qnn ExecuTorch]: {line}\n") == expected


@pytest.mark.parametrize(
    ("shape", "facts"),
    [
        ((1, 4, 8, 8), ("no linear layer", "the 4 heads")),
        ((4, 8, 8), ("3 dimensions, (4, 8, 8)", "scaled_dot_product_attention")),
    ],
)
def test_heads_that_cannot_be_split(shape: tuple[int, ...], facts: tuple[str, ...]) -> None:
    heads = torch.nn.Sequential(_Product())
    program = torch.export.export(heads, (torch.ones(shape),))
    product = next(node for node in program.graph.nodes if node.target == aten.matmul.default)
    failure = unsplit_heads(product, AssertionError("1 % 4 != 0")).failure
    assert "attention in 0 into single heads" in failure.message
    assert "(AssertionError: 1 % 4 != 0)" in failure.message
    assert all(fact in failure.message for fact in facts)
    assert (failure.file, failure.code) == (__file__, "return weights @ weights")
    assert "mha2sha=never" in str(failure.remedy)


class _Product(torch.nn.Module):  # type: ignore[misc]
    def forward(self, weights: torch.Tensor) -> torch.Tensor:
        return weights @ weights


def test_a_failure_of_a_pass_is_not_described_once_more() -> None:
    own = fail("lowering", "heads", remedy="never")
    wrapped = Exception("An error occurred when running the 'A' pass")
    wrapped.__cause__ = own
    with pytest.raises(WorkerError) as caught, explain_errors("lowering failed:", ()):
        raise wrapped
    assert caught.value is own


class _Norm(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, size: int) -> None:
        super().__init__()
        self.norm = torch.nn.RMSNorm(size, 1e-6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x)


@pytest.mark.parametrize(
    ("shape", "is_wrong"),
    [
        *(
            ((1, *each, 32), True)
            for each in ((9, 1), (16, 1), (16, 4), (4, 16), (2, 16), (8, 128))
        ),
        *(((1, *each, 32), False) for each in ((8, 1), (4, 4), (8, 15), (1, 64), (1, 300))),
        *(((1, 16, 1, size), size <= 32) for size in (8, 32, 33, 64, 128)),
        ((2, 16, 32), True),
        ((1, 16, 32), False),
        ((4, 1, 64, 32), False),
        ((300, 8), False),
        ((32,), False),
    ],
)
def test_norms_that_the_htp_computes_wrongly(shape: tuple[int, ...], is_wrong: bool) -> None:
    program = torch.export.export(_Norm(shape[-1]), (torch.ones(shape),))
    norm = next(node for node in program.graph.nodes if node.target == aten.rms_norm.default)
    found = norm_failure(norm)
    assert (found is not None) == is_wrong
    norm.meta["quant_attrs"] = {"scale": 1.0}
    assert norm_failure(norm) is None


def test_the_refusal_of_a_norm_names_it_and_what_to_do() -> None:
    program = torch.export.export(_Norm(32), (torch.ones(1, 16, 4, 32),))
    norm = next(node for node in program.graph.nodes if node.target == aten.rms_norm.default)
    found = norm_failure(norm)
    assert found is not None
    failure = found.failure
    assert "RMS norm norm of the shape (1, 16, 4, 32)" in failure.message
    assert (failure.file, failure.code) == (__file__, "return self.norm(x)")
    assert "quantization=16a8w" in str(failure.remedy)
    assert "x.reshape(1, -1, 32)" in str(failure.remedy)
