"""A comparison as text: the verdict in one sentence, then what it rests on."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from etdeploy.bench.units import unit_for
from etdeploy.compare.model import (
    ComparedRun,
    Comparison,
    OperatorChange,
    OutputDifference,
    Ratio,
    Statistic,
)
from etdeploy.core.console import table
from etdeploy.report.terminal.latencies import LABEL, WIDTH, indented, wrapped

_MOST_PAIRS = 20
_MOST_OUTPUTS = 5


def comparison_text(comparison: Comparison) -> str:
    """The verdict, both sides, the pairs and what differs; at most 100 columns.

    Only the path of a record may be longer.
    """
    sections = [
        "\n".join(textwrap.wrap(headline(comparison), WIDTH, subsequent_indent="  ")),
        indented(_sides(comparison)),
        indented(_pairs(comparison)) if comparison.pairs else "",
        indented(_operators(comparison.operators)) if comparison.operators else "",
        "\n".join(_facts(comparison)),
        "\n".join(wrapped("note", [remark]) for remark in comparison.remarks),
        "\n".join(_records(comparison)),
    ]
    return "\n\n".join(section for section in sections if section)


def headline(comparison: Comparison) -> str:
    """The verdict with the ratio and its bounds, or with the reason where there is no ratio."""
    ratio = comparison.ratio
    if ratio is None:
        return f"{comparison.verdict}: {comparison.reason}"
    return f"{comparison.verdict}: B takes {ratio.median:.3f} times as long as A, {_bounds(ratio)}"


def _bounds(ratio: Ratio) -> str:
    if ratio.low is None or ratio.high is None:
        return "with unknown confidence"
    return f"between {ratio.low:.3f} and {ratio.high:.3f} with 95 % confidence"


def _sides(comparison: Comparison) -> str:
    sides = {"A": comparison.a, "B": comparison.b}
    like = comparison.a.median_ms
    unit = unit_for(like)
    median = f"median {unit.name}"
    rows = [
        (
            letter,
            side.name,
            unit.number(side.median_ms, like),
            side.starts,
            _spread(side),
            side.run_id,
        )
        for letter, side in sides.items()
    ]
    columns = ("", "recipe", median, "starts", "between starts", "run")
    return table(columns, rows, right=(median, "starts", "between starts"))


def _spread(side: ComparedRun) -> str | None:
    return None if side.spread_percent is None else f"{side.spread_percent:.1f} %"


def _pairs(comparison: Comparison) -> str:
    pairs = comparison.pairs
    like = comparison.a.median_ms
    unit = unit_for(like)
    of = "" if comparison.statistic == Statistic.MEDIAN else f"{comparison.statistic} "
    columns = ("pair", f"A {of}{unit.name}", f"B {of}{unit.name}", "B by A")
    rows = [
        (number, *(unit.number(x, like) for x in (pair.a_ms, pair.b_ms)), f"{pair.ratio:.3f}")
        for number, pair in enumerate(pairs[:_MOST_PAIRS], 1)
    ]
    more = len(pairs) - len(rows)
    shown = table(columns, rows, right=columns)
    return shown + (f"\nand {more:,} more: --json prints all" if more else "")


def _operators(changes: Sequence[OperatorChange]) -> str:
    """Times of a traced inference, the largest change first."""
    largest = max(max(change.a_ms or 0.0, change.b_ms or 0.0) for change in changes)
    unit = unit_for(largest)
    columns = ("operator", f"A {unit.name}", f"B {unit.name}", "change", "module")
    rows = [
        (
            change.name,
            *(None if x is None else unit.number(x, largest) for x in (change.a_ms, change.b_ms)),
            _signed(unit.number(abs(_change(change)), largest), _change(change)),
            change.module,
        )
        for change in changes
    ]
    return table(columns, rows, right=columns[1:4])


def _change(change: OperatorChange) -> float:
    return (change.b_ms or 0.0) - (change.a_ms or 0.0)


def _signed(number: str, value: float) -> str:
    return f"{'-' if value < 0 else '+'}{number}"


def _facts(comparison: Comparison) -> Iterator[str]:
    if comparison.ratio is not None:
        yield wrapped("reason", [comparison.reason])
    if comparison.differences:
        yield wrapped("A -> B", comparison.differences)
    if comparison.outputs:
        yield wrapped("outputs", [_output(each) for each in comparison.outputs[:_MOST_OUTPUTS]])
        more = len(comparison.outputs) - _MOST_OUTPUTS
        if more > 0:
            yield wrapped("", [f"and {more:,} more: --json prints all"])


def _output(difference: OutputDifference) -> str:
    if difference.problem and difference.max_abs_error is None:
        return f"{difference.name} of A and B cannot be compared: {difference.problem}"
    parts = []
    if difference.max_abs_error is not None:
        parts.append(f"largest difference {difference.max_abs_error:.3g}")
    if difference.cosine_similarity is not None:
        parts.append(f"cosine similarity {difference.cosine_similarity:.6g}")
    parts += [difference.problem] if difference.problem else []
    text = ", ".join(parts) or "no value that is a number in both"
    return f"{difference.name}, B against A: {'equal' if _is_equal(difference) else text}"


def _is_equal(difference: OutputDifference) -> bool:
    return difference.max_abs_error == 0 and difference.problem is None


def _records(comparison: Comparison) -> Iterator[str]:
    for letter, side in (("A", comparison.a), ("B", comparison.b)):
        if side.record:
            yield f"  {f'record {letter}':<{LABEL}} {side.record}"
