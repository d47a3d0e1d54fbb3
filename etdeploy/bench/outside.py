"""Which share of an inference's time is outside of delegates, on what, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from etdeploy.bench.records.outputs import Outside, OutsideOperator
from etdeploy.program.model import Operator
from etdeploy.runner.etdump import Executed, Kernel

_MOST = 10


def outside_of(
    executed: Executed, operators: Sequence[Operator], details: Mapping[str, Any]
) -> Outside:
    """What the record has."""
    known: Sequence[Mapping[str, Any]] = details.get("delegation", {}).get("outside", ())
    names = {each.name.partition("::")[2]: each.name for each in operators}
    slowest = sorted(executed.kernels, key=lambda kernel: -kernel.ms)[:_MOST]
    return Outside(
        share=executed.outside,
        operators=tuple(
            _operator(kernel, names.get(kernel.name, kernel.name), executed, known)
            for kernel in slowest
        ),
    )


def _operator(
    kernel: Kernel, name: str, executed: Executed, known: Sequence[Mapping[str, Any]]
) -> OutsideOperator:
    # Out variants have one more name behind the dot.
    same = [each for each in known if each["operator"] == name.partition(".")[0]]
    return OutsideOperator(
        name=name,
        calls=round(kernel.calls / max(1, executed.calls)),
        share=min(1.0, kernel.ms / executed.total_ms) if executed.total_ms else 0.0,
        modules=_distinct(module for each in same for module in each.get("modules", ())),
        places=_distinct(_place(each) for each in same),
        reasons=_distinct(each["reason"] for each in same),
    )


def _place(each: Mapping[str, Any]) -> str:
    # The name alone: a record goes wherever it is sent.
    return f"{PurePath(each['file']).name}:{each['line']}" if each["file"] else ""


def _distinct(texts: Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for text in texts if text))
