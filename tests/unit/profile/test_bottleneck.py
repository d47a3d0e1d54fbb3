from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from etdeploy.profile.bottleneck import Circumstances, bottleneck_of
from etdeploy.profile.model import OperatorTime

_NPU = Circumstances(backend="npu", threads=2, cores=2, threaded=False, schemes=())
_CPU = Circumstances(backend="cpu", threads=1, cores=8, threaded=True, schemes=("int8_static",))
_PORTABLE = Circumstances(backend="portable", threads=2, cores=2, threaded=False, schemes=())


def _operator(name: str, share: float, **changes: Any) -> OperatorTime:
    return OperatorTime(
        **{"name": name, "calls": 1, "total_ms": share, "self_ms": share, "share": share} | changes
    )


def _shares(**shares: float) -> dict[str, float]:
    kinds = {"copy_": 0.0, "index_put": 0.0, "views": 0.0, "rest": 0.0, "runtime": 0.0}
    return kinds | shares


@pytest.mark.parametrize(
    ("operators", "shares", "about", "sentence"),
    [
        (
            [_operator("aten::permute_copy.out", 0.3, module="a"),
             _operator("aten::permute_copy.out", 0.2, module="b"),
             _operator("aten::addmm.out", 0.4)],
            _shares(views=0.5, rest=0.4),
            _PORTABLE,
            "50% of an inference moves values without computing: mostly copies that only change "
            "the layout of tensors, aten::permute_copy.out (2 calls in 2 modules). Lower to "
            "another backend: --set export.backend=xnnpack",
        ),
        (
            [_operator("aten::index_put.out", 0.5, module="cache"), _operator("Gemm", 0.4)],
            _shares(index_put=0.5, Npu=0.4),
            _NPU,
            "50% of an inference moves values without computing: mostly writing into parts of "
            "tensors (index_put), aten::index_put.out (one call in cache). Write less of the state "
            "in each inference: a shorter cache, or an operator of your own that writes in place "
            "(export.custom_ops).",
        ),
        (
            [_operator("aten::mean.out", 0.6, calls=9, not_delegated="its axis is dynamic")],
            _shares(rest=0.7, Npu=0.3),
            _NPU,
            "60% of an inference is aten::mean.out on the CPU's kernels (9 calls); all kernels "
            "that compute there have 70%. No backend took it: its axis is dynamic.",
        ),
        (
            [_operator("Gemm", 0.5, delegate="Cpu", module="head"),
             _operator("Cpu: linear", 0.1, delegate="Cpu")],
            _shares(Cpu=0.9),
            _CPU,
            "90% of an inference is in Cpu, 50% in Gemm (one call in head). One of 8 cores works: "
            "--set runtime.threads=auto",
        ),
        (
            [_operator("Npu: linear, relu", 0.9, delegate="Npu")],
            _shares(Npu=0.9),
            _NPU,
            "90% of an inference is in Npu.",
        ),
        (
            [_operator("aten::add.out", 0.1, calls=40)],
            _shares(rest=0.1, runtime=0.9),
            _PORTABLE,
            "90% of an inference is in no operator: the runtime calls 40, and each call costs time "
            "of its own. Larger partitions have fewer calls.",
        ),
        ([], _shares(runtime=1.0), _NPU, "The trace has no operators."),
    ],
)  # fmt: skip
def test_the_largest_cost_is_named_with_what_helps(
    operators: list[OperatorTime], shares: dict[str, float], about: Circumstances, sentence: str
) -> None:
    assert bottleneck_of(operators, shares, about) == sentence


def test_partitions_that_cost_more_than_their_nodes_are_named() -> None:
    operators = [
        _operator("Npu: linear", 0.5, delegate="Npu", calls=12),
        _operator("Gemm", 0.3, delegate="Npu", calls=12),
    ]
    sentence = bottleneck_of(operators, _shares(Npu=0.8), _NPU)
    assert re.findall(r"\d+%?", sentence) == ["80%", "50%", "12"]


def test_the_tracers_own_work_is_no_bottleneck() -> None:
    operators = [_operator("aten::sin.out", 0.15), _operator("aten::add.out", 0.1)]
    shares = _shares(rest=0.25, runtime=0.75)
    assert "in no operator" in bottleneck_of(operators, shares, _PORTABLE)
    traced = replace(_PORTABLE, tracer=0.8)
    sentence = bottleneck_of(operators, shares, traced)
    assert re.findall(r"tracer|\d+%|aten::\w+", sentence)[:3] == ["tracer", "60%", "aten::sin"]
