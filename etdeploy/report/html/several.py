"""The page that compares runs; the first one is what the others are measured against."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from etdeploy.compare.model import Comparison, Verdict
from etdeploy.core.console import count
from etdeploy.report import shown
from etdeploy.report.differences import differences
from etdeploy.report.html.blocks import (
    BAD,
    GOOD,
    QUIET,
    WARN,
    Block,
    Card,
    Cell,
    Page,
    Record,
    Section,
    Table,
    Text,
    code,
    table,
)
from etdeploy.report.html.figures.comparing import MOST_CURVES, by_run, distributions, ratios
from etdeploy.report.html.operators import compared_table
from etdeploy.report.material import Material, Report, spread_of, starts_of
from etdeploy.report.shown import ratio_text

# More cards than that are no summary; the table has every run.
_MOST_CARDS = 8
# Columns of a table that a person can still read.
_MOST_COLUMNS = 6
TONES = {
    Verdict.FASTER: GOOD,
    Verdict.SLOWER: BAD,
    Verdict.NO_DIFFERENCE: QUIET,
    Verdict.NOT_COMPARABLE: WARN,
}


def several_page(report: Report) -> Page:
    """Verdicts first, then what they rest on."""
    first, runs = report.runs[0], report.runs
    timed = [run for run in runs if not run.record.simulated]
    records = tuple(Record(i, run.name, f"{run.record.run_id}.json") for i, run in enumerate(runs))
    sections = [
        Section("verdicts", "Verdicts", tuple(_verdicts(report))),
        Section("latency", "Latency", tuple(_latency(timed))),
        Section("profile", "Where the time goes", tuple(_profile(runs))),
        Section("outputs", "Outputs", tuple(_outputs(report))),
        Section("differences", "What differs", tuple(_differences(runs))),
        Section("records", "Records", records),
    ]
    verdicts = dict.fromkeys(c.verdict for c in report.comparisons)
    return Page(
        title=f"{count(len(runs), 'run')} compared",
        subtitle=f"measured against {first.name}",
        badges=tuple(Cell(str(verdict), TONES[verdict]) for verdict in verdicts),
        cards=tuple(_cards(report)) if len(runs) <= _MOST_CARDS else (),
        notices=tuple(_notices(runs)),
        sections=tuple(section for section in sections if section.blocks),
        records=tuple(run.record.model_dump(mode="json") for run in runs),
    )


def _cards(report: Report) -> Iterator[Card]:
    for run, comparison in zip(report.runs, (None, *report.comparisons), strict=True):
        record = run.record
        lines = _compared(comparison)
        if record.simulated:
            yield Card(run.name, "simulated", "", tuple(lines), QUIET)
            continue
        number, _, unit = shown.duration(record.workload.timed.median).partition(" ")
        between = spread_of(record).between_percent
        spread = f"{shown.percent(between)} between {len(starts_of(record))} starts"
        lines += [spread if between is not None else "one start"]
        yield Card(run.name, number, unit, (*lines, f"outputs {shown.outputs(record)}"))


def _compared(comparison: Comparison | None) -> list[str]:
    if comparison is None:
        return ["baseline"]
    if comparison.ratio is None:
        return [str(comparison.verdict)]
    return [f"{comparison.verdict}: x {ratio_text(comparison)}"]


def _notices(runs: Sequence[Material]) -> Iterator[Text]:
    marked = [
        f"{run.name} ({', '.join(dict.fromkeys(shown.disturbance(d) for d in run.disturbances))})"
        for run in runs
        if run.disturbances
    ]
    if marked:
        yield Text(f"{'; '.join(marked)}.", WARN, "Disturbed.")


def _verdicts(report: Report) -> Iterator[Block]:
    names = [run.name for run in report.runs[1:]]
    if figure := ratios("plot-ratios", names, report.comparisons):
        yield figure
    yield _verdict_table(report)
    yield _other_figures(report.runs)
    about: dict[str, list[str]] = {}
    for name, comparison in zip(names, report.comparisons, strict=True):
        for remark in comparison.remarks:
            about.setdefault(remark, []).append(name)
    yield from (Text(f"{', '.join(found)}: {remark}") for remark, found in about.items())


def _verdict_table(report: Report) -> Table:
    rows = []
    for run, comparison in zip(report.runs, (None, *report.comparisons), strict=True):
        record, hidden = run.record, run.record.simulated is not None
        verdict = Cell("baseline", QUIET)
        if comparison:
            verdict = Cell(str(comparison.verdict), TONES[comparison.verdict])
        rows.append([
            code(run.name), code(record.device.facts.name),
            "simulated" if hidden else shown.duration(record.workload.timed.median),
            shown.NOTHING if hidden else shown.percent(spread_of(record).between_percent),
            ratio_text(comparison) if comparison else "1", verdict,
            comparison.reason if comparison else "",
        ])  # fmt: skip
    columns = ("run", "device", "median", "between starts", "ratio", "verdict", "why")
    return table("Runs and verdicts", columns, rows, right=columns[2:5])


def _other_figures(runs: Sequence[Material]) -> Table:
    rows = []
    for run in runs:
        record, hidden = run.record, run.record.simulated is not None
        figures = (
            shown.duration(record.workload.timed.p90),
            shown.duration(record.load_ms),
            shown.duration(record.workload.first_ms),
            shown.size(record.peak_rss_bytes),
        )
        cells = (shown.NOTHING,) * len(figures) if hidden else figures
        program = shown.size(record.program.size_bytes)
        rows.append([code(run.name), *cells, program, shown.outputs(record)])
    columns = ("run", "p90", "load", "first inference", "peak memory", "program", "outputs")
    return table("Other figures of the runs", columns, rows, right=columns[1:6])


def _latency(timed: Sequence[Material]) -> Iterator[Block]:
    if not timed:
        yield Text("No run has times: all were simulated.")
        return
    if len(timed) <= MOST_CURVES:
        yield distributions("plot-distributions", timed)
    yield by_run("plot-runs", timed)


def _profile(runs: Sequence[Material]) -> Iterator[Block]:
    profiled = [run for run in runs if run.profile]
    for run in runs:
        if run.profile is None and profiled:
            yield from (Text(f"{run.name}: {text}") for text in run.no_profile)
    if len(profiled) < 2:
        yield Text("Operators are not compared: that needs the profiles of at least two runs.")
        return
    shown_runs = profiled[:_MOST_COLUMNS]
    if len(profiled) > len(shown_runs):
        yield Text(f"The operators of the first {len(shown_runs)} runs; name fewer to see others.")
    profiles = [run.profile for run in shown_runs if run.profile]
    yield compared_table("operators", [run.name for run in shown_runs], profiles)


def _outputs(report: Report) -> Iterator[Block]:
    rows = [
        [code(run.name), code(each.name), shown.number(each.max_abs_error),
         shown.number(each.cosine_similarity, 6), each.problem or ""]
        for run, comparison in zip(report.runs[1:], report.comparisons, strict=True)
        for each in comparison.outputs
    ]  # fmt: skip
    columns = ("run", "output", "largest difference", "cosine similarity", "problem")
    if rows:
        yield table("Outputs against the first run's", columns, rows, right=columns[2:4])


def _differences(runs: Sequence[Material]) -> Iterator[Block]:
    shown_runs = runs[:_MOST_COLUMNS]
    found = differences([run.record for run in shown_runs])
    if len(runs) > len(shown_runs):
        yield Text(f"Between the first {len(shown_runs)} runs; name fewer to see others.")
    if not found:
        yield Text("Nothing: recipe, program, runner, versions and device are the same.")
        return
    rows = [[code(key), *(code(value) for value in values)] for key, values in found.items()]
    names = tuple(run.name for run in shown_runs)
    yield table("What differs between the runs", ("what", *names), rows)
