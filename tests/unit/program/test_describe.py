"""A program as text, compared letter by letter."""

from __future__ import annotations

import pytest

from etdeploy.program.inspect import describe
from etdeploy.program.model import (
    Delegate,
    Method,
    Operator,
    PlainValue,
    Program,
    TensorInfo,
    delegated_fraction,
    where_it_runs,
)

_XNNPACK = Delegate(backend_id="XnnpackBackend", size_bytes=1000, nodes=8)
_QNN = Delegate(backend_id="QnnBackend", size_bytes=500)
_ADD = Operator(name="aten::add.out", calls=2)


def _program(delegates: tuple[Delegate, ...], operators: tuple[Operator, ...]) -> Program:
    method = Method(
        name="forward",
        inputs=(TensorInfo(dtype="float32", shape=(1, 3)), PlainValue(kind="Int", value=5)),
        outputs=(TensorInfo(dtype="int64", shape=(7,), dynamic=True),),
        operators=operators,
        delegates=delegates,
        instructions=4,
        planned_memory_bytes=2048,
    )
    return Program(
        sha256="ab" * 32, size_bytes=123456, schema_version=0, constant_bytes=99, methods=(method,)
    )


def test_delegated_program() -> None:
    text = describe(_program((_XNNPACK, _XNNPACK), (_ADD,)), "model.pte")
    assert (
        text
        == """\
model.pte: 123.5 kB, constants 99 B, schema version 0
sha256 abababababababababababababababababababababababababababababababab

method forward
  input 0    float32 [1, 3]
  input 1    int 5
  output 0   int64 up to [7]
  memory     2.0 kB planned for activations
  steps      4 instructions
  runs on    XnnpackBackend takes 16 nodes in 2 partitions (89 % of all nodes)
             2 operator calls stay outside, on CPU kernels

  delegate        partitions  nodes    size
  --------------  ----------  -----  ------
  XnnpackBackend           2     16  2.0 kB

  operator outside of delegates  calls
  -----------------------------  -----
  aten::add.out                      2"""
    )


def test_program_without_delegates() -> None:
    text = describe(_program((), (_ADD,)), "model.pte")
    assert "  runs on    nothing is delegated: 2 operator calls run on CPU kernels\n" in text
    assert "outside of delegates" not in text


def test_fraction_is_unknown_when_a_backend_does_not_tell_its_nodes() -> None:
    assert delegated_fraction((_XNNPACK, _QNN), (_ADD,)) is None
    assert where_it_runs((_QNN,), ()) == ("QnnBackend takes 1 partition",)
    assert delegated_fraction((), ()) is None


@pytest.mark.parametrize(
    ("nodes", "calls", "text"),
    [(8, 0, "(100 % of all nodes)"), (1000, 1, "(99 % of all nodes)"), (1, 1, "(50 % of")],
)
def test_almost_all_does_not_read_as_all(nodes: int, calls: int, text: str) -> None:
    delegate = Delegate(backend_id="XnnpackBackend", size_bytes=1, nodes=nodes)
    operators = (Operator(name="aten::add.out", calls=calls),) if calls else ()
    assert text in where_it_runs((delegate,), operators)[0]
