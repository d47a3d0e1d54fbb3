"""A report as Markdown, fit for a comment in a pull request."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence

from etdeploy.bench.outputs.verdict import explain
from etdeploy.bench.records.generation import TextGeneration
from etdeploy.bench.records.record import Inference, RunRecord
from etdeploy.compare.model import Comparison, Verdict
from etdeploy.core.console import count
from etdeploy.profile.model import Profile
from etdeploy.report import formatting
from etdeploy.report.formatting import quality_of, verdict_lines
from etdeploy.report.report_data import Material, Report

# Tells a later report of the same file from somebody's notes.
MARK = "<!-- etdeploy report -->"
# GitHub refuses a comment of 65,536 characters; a bot adds a line or two of its own.
_MOST_CHARACTERS = 60_000
_MOST_OPERATORS = 15
_MOST_OUTPUTS = 20
_MOST_STARTS = 40
_MOST_RUNS = 60
# What the first figures are of.
_PER = {"latency_ms": "", "token_ms": "time per token: ", "ttft_ms": "time to first token: "}
_SIGNS = {
    Verdict.FASTER: "🟢",
    Verdict.SLOWER: "🔴",
    Verdict.NO_DIFFERENCE: "⚪",
    Verdict.NOT_COMPARABLE: "⚠️",
}


def markdown(report: Report) -> str:
    """The report in fewer than 65,536 characters: what is folded is left out first."""
    single = report.single
    always, folded = _single(single) if single else _several(report)
    parts, left_out = [MARK, *always], 0
    for part in folded:
        if sum(map(len, parts)) + len(part) < _MOST_CHARACTERS:
            parts.append(part)
        else:
            left_out += 1
    if left_out:
        parts.append(f"_{count(left_out, 'section')} left out, since a comment has a limit._")
    return "\n\n".join(part for part in parts if part) + "\n"


def _single(run: Material) -> tuple[list[str], list[str]]:
    record = run.record
    head = f"### {name(record.recipe.name)} on {name(record.device.facts.name)}: {_latency(record)}"
    facts = table(("", ""), [(label, text) for label, text in _facts(run)])
    bottleneck = prose(run.profile.bottleneck) if run.profile else ""
    return [head, facts, bottleneck, _warnings(run)], list(_folded(run))


def _latency(record: RunRecord) -> str:
    if record.simulated:
        return f"simulated by {name(record.simulated.by)}"
    if isinstance(record.workload, TextGeneration):
        return formatting.headline(record.workload)
    return f"{formatting.duration(record.workload.latency_ms.median)} per inference"


def _facts(run: Material) -> Iterator[tuple[str, str]]:
    record = run.record
    latency = record.workload.timed
    if not record.simulated:
        unit = formatting.unit_of(latency.median)
        times = [formatting.in_unit(unit, t, latency.median) for t in (latency.median, latency.p90)]
        label = _PER[record.workload.metric]
        yield f"{label}median, p90", f"**{times[0]}**, {times[1]} {unit.name}"
        yield "spread", prose(spread_text(record))
        first = formatting.duration(record.workload.first_ms)
        first_of = formatting.first_of(record.workload)
        yield f"load, {first_of}", f"{formatting.duration(record.load_ms)}, {first}"
        if record.peak_rss_bytes is not None:
            yield "peak memory", f"{formatting.size(record.peak_rss_bytes)} resident"
    if isinstance(record.workload, TextGeneration) and record.workload.methods:
        yield "outside of delegates", prose(formatting.outside(record.workload))
    if (
        isinstance(record.workload, Inference)
        and record.workload.outside
        and record.program.delegates
    ):
        yield "outside of delegates", formatting.percent(100 * record.workload.outside.share)
    yield "outputs", f"**{formatting.outputs(record)}**"
    if isinstance(record.workload, TextGeneration) and record.workload.texts:
        yield "text", prose("; ".join(verdict_lines(record.workload)))
    if quality := list(quality_of(record)):
        yield "quality", prose("; ".join(quality))
    yield "device", ", ".join(name(part) for part in _device(record))
    yield "program", ", ".join(name(part) for part in _program(record))
    versions = f"{name(record.runner.executorch_version)} for {name(record.runner.target)}"
    yield "ExecuTorch", f"{versions}, {count(record.runner.threads, 'thread')}"


def spread_text(record: RunRecord) -> str:
    """The spread within and between starts, as a clause."""
    spread, starts = record.workload.spread, len(record.workload.runs)
    between = (
        "unknown between starts, since there was one"
        if spread.between_percent is None
        else f"{formatting.percent(spread.between_percent)} between {starts} starts"
    )
    return f"{formatting.percent(spread.within_percent)} within a start, {between}"


def _device(record: RunRecord) -> list[str]:
    facts = record.device.facts
    return [part for part in (formatting.device(record), facts.soc, facts.os) if part]


def _program(record: RunRecord) -> list[str]:
    program = record.program
    scheme = None if program.quantization == "none" else program.quantization
    parts = (program.source, program.backend, scheme, formatting.size(program.size_bytes))
    return [part for part in parts if part]


def _warnings(run: Material) -> str:
    texts = [f"**{each.kind}**: {prose(each.text)}" for each in run.disturbances]
    texts += [prose(note) for note in run.record.notes]
    return "\n".join(f"> {text}<br>" for text in texts)


def _folded(run: Material) -> Iterator[str]:
    record = run.record
    for profile in run.profiles:
        of = f" in {profile.method}" if profile.text else ""
        yield details(f"Where the time goes{of}", _operators(profile))
    if not record.simulated and len(record.workload.runs) > 1:
        yield details("Every start", _starts(record))
    if isinstance(record.workload, TextGeneration):
        yield details("Tokens", _points(record.workload))
    elif record.workload.sizes:
        yield details("Sizes", _sizes(record))
    if record.workload.all_outputs:
        yield details("Outputs against the model's", _outputs(record))
    yield details("Provenance", _provenance(record))


def _operators(profile: Profile) -> str:
    rows = [
        (name(o.name), name(o.module) if o.module else "", name(o.delegate or "CPU kernel"),
         str(o.calls), formatting.duration(o.self_ms), formatting.percent(100 * o.share))
        for o in profile.operators[:_MOST_OPERATORS]
    ]  # fmt: skip
    columns = ("operator", "module", "runs on", "calls", "self time", "share")
    more = len(profile.operators) - len(rows)
    rest = f"\n\nand {count(more, 'more operator')}" if more > 0 else ""
    return table(columns, rows, right=("calls", "self time", "share")) + rest


def _starts(record: RunRecord) -> str:
    starts = record.workload.runs
    rows = [
        (str(i),
         *map(formatting.duration, (s.median_ms, s.stddev_ms, s.load_ms, s.first_inference_ms)),
         ", ".join(str(d.kind) for d in s.disturbances))
        for i, s in enumerate(starts[:_MOST_STARTS], 1)
    ]  # fmt: skip
    first = formatting.first_of(record.workload)
    columns = ("start", "median", "stddev", "load", first, "disturbed by")
    more = len(starts) - len(rows)
    rest = f"\n\nand {count(more, 'more start')}" if more > 0 else ""
    return table(columns, rows, right=columns[:-1]) + rest


def _sizes(record: RunRecord) -> str:
    simulated = record.simulated is not None
    rows = [
        (name(each.name), "simulated" if simulated else formatting.duration(each.latency_ms.median),
         "" if simulated else formatting.size(each.peak_rss_bytes))
        for each in record.inference.sizes
    ]  # fmt: skip
    return table(("size", "median", "peak memory"), rows, right=("median", "peak memory"))


def _points(workload: TextGeneration) -> str:
    """The grid, with what its numbers mean."""
    rows = [formatting.point_cells(point) for point in workload.points]
    columns = formatting.COLUMNS
    meanings = [f"- {term}: {meaning}" for term, meaning in formatting.DEFINITIONS.items()]
    text = formatting.told_text(workload)
    parts = [table(columns, rows, right=columns), "\n".join(meanings)]
    return "\n\n".join([*parts, *([prose(text)] if text else [])])


def _outputs(record: RunRecord) -> str:
    words = {True: "correct", False: "**WRONG**", None: "not compared"}
    rows = [
        (name(check.name), words[check.within_tolerance], prose(explain(check)))
        for check in record.workload.all_outputs[:_MOST_OUTPUTS]
    ]
    return table(("output", "verdict", "difference"), rows)


def _provenance(record: RunRecord) -> str:
    dirty = " with changes" if record.recipe.git_dirty else ""
    rows = [
        ("run", name(record.run_id)),
        ("started", prose(formatting.moment(record.started_at))),
        ("recipe", name(record.recipe.file)),
        ("commit", f"{name(record.recipe.git_revision or 'none')}{dirty}"),
        ("program sha256", name(record.program.sha256)),
        ("runner sha256", name(record.runner.sha256)),
        *((prose(tool), name(version)) for tool, version in record.versions.items()),
    ]
    return table(("", ""), rows)


def _several(report: Report) -> tuple[list[str], list[str]]:
    first, rest = report.runs[0], report.comparisons
    head = f"### {count(len(report.runs), 'run')}, measured against {name(first.name)}"
    runs = report.runs[:_MOST_RUNS]
    rows = [_run_row(run, c) for run, c in zip(runs, (None, *rest), strict=False)]
    columns = ("run", "device", "median", "ratio", "verdict", "between starts", "memory", "outputs")
    more = len(report.runs) - len(runs)
    cut = f"{count(more, 'more run')} left out, since a comment has a limit." if more > 0 else ""
    shown_table = table(columns, rows, right=("median", "ratio", "between starts", "memory"))
    reasons = [f"- {name(r.name)}: {prose(c.reason)}" for r, c in zip(runs[1:], rest, strict=False)]
    return (
        [head, shown_table, cut],
        [
            details("Why", "\n".join(reasons)),
            *(details(f"Operators of {run.name}", _changes(c)) for run, c in
              zip(report.runs[1:], rest, strict=True) if c.operators),
        ],
    )  # fmt: skip


def _run_row(run: Material, comparison: Comparison | None) -> Sequence[str]:
    record = run.record
    simulated = record.simulated is not None
    verdict = "baseline"
    if comparison:
        verdict = f"{_SIGNS[comparison.verdict]} {comparison.verdict}"
    return (
        name(run.name),
        name(record.device.facts.name),
        "simulated" if simulated else formatting.duration(record.workload.timed.median),
        formatting.ratio_text(comparison) if comparison else "1",
        verdict,
        "" if simulated else formatting.percent(record.workload.spread.between_percent),
        "" if simulated else formatting.size(record.peak_rss_bytes),
        formatting.outputs(record),
    )


def _changes(comparison: Comparison) -> str:
    rows = [
        (name(each.name), name(each.module) if each.module else "", formatting.duration(each.a_ms),
         formatting.duration(each.b_ms))
        for each in comparison.operators[:_MOST_OPERATORS]
    ]  # fmt: skip
    return table(("operator", "module", "before", "after"), rows, right=("before", "after"))


# What begins or ends something in Markdown, also inside an HTML element; `:` is part of an address.
_SPECIAL = "\\`*_[]|~@:$"
_ENTITIES = str.maketrans({character: f"&#{ord(character)};" for character in _SPECIAL})


def name(text: str) -> str:
    """A name from a recipe, a model or a device, as code.

    GitHub looks for mentions and links after it has resolved entities, but not in code.
    """
    return f"<code>{_plain(text)}</code>"


def prose(text: str) -> str:
    """A sentence of ours; it may quote names."""
    words = " ".join(text.split())
    marks = str.maketrans({c: f"&#{ord(c)};" for c in "\\`*_[]|~#$"})
    # A comment inside a word ends what would be a mention or an address.
    return (
        html.escape(words, quote=False)
        .translate(marks)
        .replace("@", "@<!-- -->")
        .replace("://", ":<!-- -->//")
    )


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> str:
    """A table whose cells are Markdown already."""
    marks = ["---:" if column in right else "---" for column in columns]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (columns, marks, *rows))


def details(summary: str, content: str) -> str:
    """A part that is folded; GitHub needs the empty lines to read Markdown in it."""
    return f"<details>\n<summary>{prose(summary)}</summary>\n\n{content}\n\n</details>"


def _plain(text: str) -> str:
    words = " ".join(text.split()) or " "
    # html.escape first: its own entities have characters that would be replaced.
    pieces = [html.escape(c) if c in "<>&\"'" else c.translate(_ENTITIES) for c in words]
    return "".join(pieces).replace("www.", "www&#46;")
