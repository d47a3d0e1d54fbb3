"""A search as blocks of a report: the best, the front, why, and what was left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from etdeploy.bench.units import long_time
from etdeploy.compare.model import Verdict
from etdeploy.core.console import count
from etdeploy.report.comparison import headline
from etdeploy.report.document import (
    BAD,
    GOOD,
    QUIET,
    WARN,
    Block,
    Card,
    Cell,
    Fact,
    Facts,
    Figure,
    Page,
    PageSection,
    Table,
    Text,
    code,
    table,
)
from etdeploy.report.plots import axis, escape, rounded
from etdeploy.tune.metrics import ERROR, METRICS, PEAK_MEMORY, PERPLEXITY, SIZE
from etdeploy.tune.recipe_file import reason_for
from etdeploy.tune.result import TunedCandidate, TuneResult
from etdeploy.tune.space import Knob, canonical

_COLUMNS = (PEAK_MEMORY, SIZE, ERROR, PERPLEXITY)
_MOST_ROWS = 12
_BYTES_PER_MB = 1e6


def tune_text(result: TuneResult) -> Iterator[Block]:
    """The result for a terminal."""
    yield Text(summary(result))
    yield results_table(result, front_only=True)
    yield Facts(tuple(_reasons(result)))
    for comparison in result.comparisons:
        names = f"A is {comparison.a.name}; B is {comparison.b.name}"
        yield Text(f"{headline(comparison)}. {names}.", title="compared")
    yield Facts(tuple(Fact(name, (path,)) for name, path in result.files.items()))


def summary(result: TuneResult) -> str:
    """The result in a sentence or two."""
    measured = sum(bool(row.records) for row in result.measured)
    did = (
        f"{measured} of {count(result.combinations, 'combination')} measured in "
        f"{long_time(result.spent_s)}; ended because {result.reason}"
    )
    if result.best is None:
        return f"nothing meets the limits; {did}"
    if not result.best.changes:
        return f"the recipe as it is stays the best; {did}"
    return f"best: {result.best.label}; {did}"


def results_table(result: TuneResult, *, front_only: bool = False) -> Table:
    """A row for each combination that was measured; the front alone for a terminal."""
    rows = [row for row in result.measured if row.on_front or not front_only]
    if front_only and result.base not in rows and result.base.figures:
        rows.append(result.base)
    names = [name for name in _COLUMNS if any(name in row.figures for row in rows)]
    objective = METRICS[result.minimize]
    own = [] if result.minimize in names else [result.minimize]
    columns = ("settings", *(METRICS[n].title for n in (*own, *names)), "")
    shown = rows[:_MOST_ROWS] if front_only else rows
    cells = [
        [code(row.label), *([_value(row, objective.name, row.estimate)] if own else []),
         *(_value(row, name, None) for name in names), _mark(row, result)]
        for row in shown
    ]  # fmt: skip
    more = len(rows) - len(shown)
    below = f"and {more} more: --json prints all" if more else ""
    title = "Pareto front" if front_only else "All combinations that were measured"
    return table(title, columns, cells, right=columns[1:-1], more=below)


def _value(row: TunedCandidate, name: str, estimate: float | None) -> str | None:
    value = row.figures.get(name) if estimate is None else estimate
    return None if value is None else METRICS[name].show(value)


def _mark(row: TunedCandidate, result: TuneResult) -> Cell:
    if result.best and row.label == result.best.label:
        return Cell("best", GOOD)
    if row.excluded:
        return Cell(row.excluded, WARN)
    if not row.changes:
        return Cell("the recipe", QUIET)
    return Cell("on the front" if row.on_front else "", QUIET)


def _reasons(result: TuneResult) -> Iterator[Fact]:
    if result.best is None:
        return
    compared = {claim.key for claim in result.claims}
    for knob in (each for each in result.knobs if each.key in compared):
        name = knob.key.rpartition(".")[2]
        yield Fact(name, (reason_for(result, knob.key),))
    if result.preference:
        yield Fact("chosen", (result.preference,))


def tune_page(result: TuneResult) -> Page:
    """The whole search."""
    best = result.best
    sections = (
        PageSection("front", "Pareto front", tuple(_front(result)), is_open=True),
        PageSection("reasons", "Why these values", (_claims(result),)),
        PageSection("compared", "Compared start by start", tuple(_compared(result))),
        PageSection("all", "All measurements", (results_table(result),)),
        PageSection("space", "What was varied", tuple(_space(result))),
    )
    limits = f", limits {', '.join(result.limits)}" if result.limits else ""
    return Page(
        title=f"{result.recipe} tuned for {result.device}",
        subtitle=f"minimize {result.minimize}{limits}",
        badges=(Cell("limits not met", BAD) if best is None else Cell("tuned", GOOD),),
        cards=tuple(_cards(result)),
        notices=(Text(summary(result), "info"),),
        sections=tuple(section for section in sections if section.blocks),
    )


def _cards(result: TuneResult) -> Iterator[Card]:
    if result.best is None:
        return
    for name in (result.minimize, *(n for n in _COLUMNS if n != result.minimize)):
        value = result.best.figures.get(name)
        if value is None:
            continue
        number, _, unit = METRICS[name].show(value).partition(" ")
        base = result.base.figures.get(name)
        line = f"the recipe as it is: {METRICS[name].show(base)}" if base is not None else ""
        lines = (line,) if line and result.best.changes else ()
        yield Card(METRICS[name].title, number, unit, lines, lead=name == result.minimize)


def _front(result: TuneResult) -> Iterator[Block]:
    if figure := plot_front(result):
        yield figure
    yield results_table(result, front_only=True)


def plot_front(result: TuneResult) -> Figure | None:
    """The objective by peak memory, or by the size where memory is not known."""
    other = next(
        (
            name
            for name in (PEAK_MEMORY, SIZE)
            if name != result.minimize
            and sum(name in row.figures and row.estimate is not None for row in result.measured) > 1
        ),
        None,
    )
    if other is None:
        return None
    rows = [row for row in result.measured if other in row.figures and row.estimate is not None]
    groups = {
        "on the front": ([row for row in rows if row.on_front], "@green", "circle"),
        "not on the front": (
            [row for row in rows if not row.on_front and not row.excluded], "@blue", "circle-open",
        ),
        "excluded": ([row for row in rows if row.excluded], "@red", "x"),
    }  # fmt: skip
    traces = [_points(name, *group, other) for name, group in groups.items() if group[0]]
    objective = METRICS[result.minimize]
    layout = {
        "xaxis": axis(f"{METRICS[other].title} (MB)"),
        "yaxis": axis(objective.title),
        "showlegend": True,
    }
    label = f"{objective.title} by {METRICS[other].title} of each combination"
    return Figure("plot-front", traces, layout, label, "Left and low is better.", height=380)


def _points(
    name: str, rows: Sequence[TunedCandidate], tone: str, symbol: str, other: str
) -> dict[str, object]:
    return {
        "type": "scatter", "mode": "markers", "name": name,
        "x": rounded(row.figures[other] / _BYTES_PER_MB for row in rows),
        "y": rounded(row.estimate for row in rows),
        "text": [escape(row.label) for row in rows],
        "marker": {"size": 10, "color": tone, "symbol": symbol},
        "hovertemplate": "%{text}<br>%{y:.4g}, %{x:.4g} MB<extra></extra>",
    }  # fmt: skip


def _claims(result: TuneResult) -> Table:
    tones = {Verdict.SLOWER: GOOD, Verdict.FASTER: WARN}
    rows = [
        [code(claim.key), code(claim.value), Cell(claim.text, tones.get(claim.verdict, ""))]
        for claim in result.claims
    ]
    return table("The other values of each key", ("key", "value", "the others"), rows)


def _compared(result: TuneResult) -> Iterator[Block]:
    for comparison in result.comparisons:
        yield Text(f"{headline(comparison)}. {comparison.reason}.",
                   title=f"{comparison.b.name} (B) beside {comparison.a.name} (A).")  # fmt: skip
        yield from map(Text, comparison.remarks)


def _space(result: TuneResult) -> Iterator[Block]:
    yield knobs_table(result.knobs)
    if result.left_out:
        rows = [[code(each.key), each.reason] for each in result.left_out]
        yield table("What was not varied", ("key", "why"), rows)


def knobs_table(knobs: Sequence[Knob]) -> Table:
    """The keys that are varied, with their values."""
    rows = [
        [code(knob.key), ", ".join(canonical(v).strip('"') for v in knob.values), str(knob.cost),
         knob.reason]
        for knob in knobs
    ]  # fmt: skip
    return table("Keys", ("key", "values", "another value takes", "why"), rows)
