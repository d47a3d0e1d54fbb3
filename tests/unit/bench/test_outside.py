"""What a record has of the time outside of delegates."""

from __future__ import annotations

from etdeploy.bench.assemble import find_undelegated
from etdeploy.bench.records.outputs import UndelegatedOperator
from etdeploy.program.model import Operator
from etdeploy.runner.etdump import Kernel, TraceSummary

# Ten inferences of 1 ms.
_EXECUTED = TraceSummary(
    10,
    10.0,
    7.0,
    (Kernel("add.out", 10, 0.5), Kernel("mean.out", 20, 2.0), Kernel("own.out", 10, 0)),
)
_OPERATORS = (Operator(name="aten::add.out", calls=1), Operator(name="aten::mean.out", calls=2))


def _mean(line: int, module: str, reason: str | None = "too many dimensions") -> dict[str, object]:
    return {
        "operator": "aten::mean", "calls": 1, "file": "/home/somebody/net.py", "line": line,
        "reason": reason, "modules": [module],
    }  # fmt: skip


def test_operators_have_their_share_of_the_time_place_and_reason() -> None:
    known = [_mean(3, "head"), _mean(3, "head"), _mean(9, "tail", None)]
    found = find_undelegated(_EXECUTED, _OPERATORS, {"delegation": {"outside": known}})
    assert round(found.share, 6) == 0.3
    assert found.operators == (
        UndelegatedOperator(
            name="aten::mean.out",
            calls=2,
            share=0.2,
            modules=("head", "tail"),
            places=("net.py:3", "net.py:9"),
            reasons=("too many dimensions",),
        ),
        UndelegatedOperator(name="aten::add.out", calls=1, share=0.05),
        UndelegatedOperator(name="own.out", calls=1, share=0.0),
    )


def test_exports_of_older_versions_have_no_modules() -> None:
    known = [{k: v for k, v in _mean(3, "head").items() if k != "modules"}]
    (mean, *_) = find_undelegated(
        _EXECUTED, _OPERATORS, {"delegation": {"outside": known}}
    ).operators
    assert (mean.modules, mean.places) == ((), ("net.py:3",))
