"""The tables of the page about one run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from etdeploy.bench.outputs.verdict import explain
from etdeploy.bench.records.conditions import CooldownWait
from etdeploy.bench.records.generation import TextGeneration
from etdeploy.bench.records.performance import ThreadsRecord
from etdeploy.bench.records.record import RunRecord
from etdeploy.core.console import count
from etdeploy.core.values import Explained
from etdeploy.devices.base import DeviceState
from etdeploy.profile.model import ModuleTime, OperatorTime, Profile
from etdeploy.program.model import where_it_runs
from etdeploy.report import formatting
from etdeploy.report.formatting import in_unit, is_number, unit_of
from etdeploy.report.html.blocks import (
    BAD,
    GOOD,
    QUIET,
    WARN,
    Block,
    Cell,
    Facts,
    Folded,
    Operators,
    Source,
    Table,
    code,
    table,
)
from etdeploy.report.html.figures.device import cores
from etdeploy.report.html.figures.modules import KERNELS
from etdeploy.report.report_data import Material

_MOST_MODULES = 300
_NAMES = {
    "cpu_count": "CPUs", "abi": "ABI", "os": "OS", "soc": "SoC", "emulated_cpu": "emulated CPU",
    "battery_percent": "battery level", "battery_celsius": "battery temperature",
    "battery_milliamps": "battery current", "battery_volts": "battery voltage",
    "usable_cpus": "usable CPUs",
}  # fmt: skip
_NO_BREAK = "\u00a0"


def latencies(record: RunRecord) -> Table:
    """The statistics of all samples in one unit."""
    latency = record.workload.timed
    unit = formatting.unit_of(latency.median)
    values = {
        "min": latency.min, "median": latency.median, "mean": latency.mean, "p90": latency.p90,
        "p99": latency.p99, "stddev": latency.stddev,
    }  # fmt: skip
    columns = [f"{name} {unit.name}" for name in values]
    row = [formatting.in_unit(unit, value, latency.median) for value in values.values()]
    of = formatting.sample(record.workload)
    return table(f"Statistics of the {of.time}", columns, [row], right=columns)


def points_table(workload: TextGeneration) -> Table:
    """A line for each point of generated text."""
    rows = [formatting.point_cells(point) for point in workload.points]
    return table("Tokens", formatting.COLUMNS, rows, right=formatting.COLUMNS)


def starts_table(record: RunRecord) -> Folded:
    """Every start with its warm-up, its times, and what disturbed it."""
    starts = record.workload.runs
    like = record.workload.timed.median
    unit = formatting.unit_of(like)
    cooled = any(start.cooldown for start in starts)
    rows = [
        [str(number), *(formatting.in_unit(unit, ms, like) for ms in (s.median_ms, s.stddev_ms)),
         str(s.samples), _warmup(s.warmup, s.steady), formatting.duration(s.load_ms),
         formatting.duration(s.first_inference_ms),
         *([_cooled(s.cooldown)] if cooled else []),
         Cell("; ".join(each.text for each in s.disturbances) or "none",
              WARN if s.disturbances else QUIET)]
        for number, s in enumerate(starts, 1)
    ]  # fmt: skip
    first = formatting.first_of(record.workload)
    columns = ("start", f"median {unit.name}", f"stddev {unit.name}", "samples", "warm-up", "load",
               first, *(["cooled"] if cooled else []), "disturbed by")  # fmt: skip
    content = table("Starts", columns, rows, right=columns[:-1])
    return Folded(f"All {count(len(starts), 'start')} as a table", (content,))


def _cooled(cooldown: CooldownWait | None) -> Cell:
    """The wait for a cool device."""
    if cooldown is None:
        return Cell(formatting.NOTHING)
    text = f"{cooldown.waited_s:.0f} s to {cooldown.to_celsius:.0f} °C"
    return Cell(text) if cooldown.reached else Cell(f"{text}, still hot", WARN)


def _warmup(iterations: int, steady: bool | None) -> str:
    return f"{iterations}, not steady" if steady is False else str(iterations)


def shares_table(shares: Mapping[str, float], inference_ms: float) -> Folded:
    """The shares with their times."""
    rows = [
        [code(name), formatting.percent(100 * share), formatting.duration(share * inference_ms)]
        for name, share in shares.items()
    ]
    columns = ("what", "share", "time")
    content = table("Shares of the time", columns, rows, right=columns[1:])
    return Folded("Shares as a table", (content,))


def methods_table(profiles: Sequence[Profile]) -> Table:
    """A row for each method of a program that generates text."""
    rows = [
        [code(profile.method), text.calls, text.tokens, text.positions,
         formatting.duration(profile.inference_ms),
         formatting.percent(100 * profile.outside_delegates)]
        for profile in profiles if (text := profile.text)
    ]  # fmt: skip
    columns = ("method", "calls", "tokens", "positions", "per call", "outside of delegates")
    return table("Methods that were traced", columns, rows, right=columns[1:])


def modules_table(root: ModuleTime, inference_ms: float) -> Folded:
    """The tree of modules as a table, for the keyboard and for reading aloud."""
    found = list(_modules(root, 0))
    # The largest, but in the order of the tree.
    kept = {id(m) for _, m in sorted(found, key=lambda e: -e[1].total_ms)[:_MOST_MODULES]}
    rows = [
        [code(_NO_BREAK * 2 * depth + (module.path or "model")), module.kind,
         formatting.duration(module.total_ms), formatting.duration(module.self_ms),
         formatting.percent(100 * module.total_ms / inference_ms) if inference_ms > 0
         else formatting.NOTHING,
         ", ".join(name or KERNELS for name in module.delegates)]
        for depth, module in found if id(module) in kept
    ]  # fmt: skip
    columns = ("module", "class", "total", "self", "share", "runs on")
    content = table("Modules", columns, rows, right=columns[2:5])
    cut = f", the largest {_MOST_MODULES}" if len(found) > _MOST_MODULES else ""
    return Folded(f"{count(len(found), 'module')} as a table{cut}", (content,))


def _modules(module: ModuleTime, depth: int) -> Iterator[tuple[int, ModuleTime]]:
    waiting = [(depth, module)]
    while waiting:
        level, each = waiting.pop()
        yield level, each
        waiting += [(level + 1, child) for child in reversed(each.children)]


def placement(record: RunRecord) -> Facts:
    """What the program delegates, and what stays on the kernels."""
    program = record.program
    lines = list(where_it_runs(program.delegates, program.operator_calls))
    called = [f"{each.calls} x {each.name}" for each in program.operator_calls if each.calls]
    pairs = [("Program", Cell(". ".join(lines)))] if lines else []
    return Facts((*pairs, *([("Kernels called", code(", ".join(called)))] if called else [])))


def outputs(record: RunRecord) -> Table:
    """Each output against the model's, with the limits."""
    correct, unknown = Cell("correct", GOOD), Cell("not compared", WARN)
    words = {True: correct, False: Cell("WRONG", BAD), None: unknown}
    rows = [
        [code(check.name), code(f"{check.dtype} {list(check.shape)}"),
         words[check.within_tolerance],
         ". ".join(part for part in (explain(check), check.remark) if part)]
        for check in record.workload.all_outputs
    ]  # fmt: skip
    columns = ("output", "type", "verdict", "difference")
    return table("Outputs against the model's", columns, rows)


def sizes(record: RunRecord) -> Table:
    """Latency, memory and verdict at each size of the recipe."""
    unit = formatting.unit_of(min(each.latency_ms.median for each in record.inference.sizes))
    columns = ("size", "dimensions", f"median {unit.name}", f"p90 {unit.name}", "peak memory")
    hidden = record.simulated is not None
    rows = [
        [code(each.name), ", ".join(f"{k} {v}" for k, v in each.sizes.items()) or "the example's",
         "simulated" if hidden else formatting.in_unit(unit, each.latency_ms.median),
         formatting.NOTHING if hidden else formatting.in_unit(unit, each.latency_ms.p90),
         formatting.NOTHING if hidden else formatting.size(each.peak_rss_bytes)]
        for each in record.inference.sizes
    ]  # fmt: skip
    return table("Sizes", columns, rows, right=columns[2:])


def threads_table(sweep: Sequence[ThreadsRecord]) -> Table:
    """The results by number of threads."""
    best = min(each.latency_ms.median for each in sweep)
    rows = [
        [str(each.threads), formatting.duration(each.latency_ms.median),
         formatting.duration(each.latency_ms.p90), formatting.percent(each.spread.between_percent),
         f"{each.latency_ms.median / best:.2f}" if best > 0 else formatting.NOTHING]
        for each in sweep
    ]  # fmt: skip
    columns = ("threads", "median", "p90", "between starts", "by the fastest")
    return table("Threads", columns, rows, right=columns)


def device_state(record: RunRecord) -> Iterator[Block]:
    """The device's facts, and its state before and after."""
    facts = {name: value for name, value in record.device.facts if value is not None}
    facts |= {"memory_bytes": formatting.size(record.device.facts.memory_bytes)}
    pairs = [(_words(name), Cell(str(value))) for name, value in facts.items()]
    yield Facts(tuple(pairs))
    before, after = _state(record.device.before), _state(record.device.after)
    rows = [
        [_words(name), before.get(name, formatting.NOTHING), after.get(name, formatting.NOTHING)]
        for name in dict.fromkeys((*before, *after))
    ]
    if rows:
        yield table("State of the device", ("state", "before", "after"), rows)


def _state(state: DeviceState) -> dict[str, str]:
    simple = state.model_dump(exclude={"temperatures_celsius", "clusters"}, exclude_none=True)
    found = {name: _value(name, value) for name, value in simple.items()}
    if state.temperatures_celsius:
        hottest, celsius = max(state.temperatures_celsius.items(), key=lambda each: each[1])
        found["hottest sensor"] = f"{celsius:.1f} °C ({hottest})"
    for cluster in state.clusters:
        mhz = [_mhz(khz) for khz in (cluster.current_khz, cluster.max_khz)]
        frequencies = "" if set(mhz) == {formatting.NOTHING} else f"{mhz[0]} of {mhz[1]} MHz"
        if text := " ".join(part for part in (frequencies, cluster.governor) if part):
            found[cores(cluster.cpus)] = text
    return found


def _mhz(khz: int | None) -> str:
    return formatting.NOTHING if khz is None else f"{khz / 1000:,.0f}"


def _value(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name.endswith("_bytes"):
        return formatting.size(value)
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    units = {"_percent": " %", "_celsius": " °C", "_milliamps": " mA", "_volts": " V"}
    unit = next((text for end, text in units.items() if name.endswith(end)), "")
    return f"{formatting.number(value, 4) if isinstance(value, float) else value}{unit}"


def _words(name: str) -> str:
    return _NAMES.get(name) or name.removesuffix("_bytes").replace("_", " ")


def options(run: Material) -> Iterator[Block]:
    """Components and cmake options with their reasons; without a plan, the options alone."""
    plan = run.plan
    if plan is None:
        built = run.record.runner.options
        if built:
            pairs = [[code(name), code(value)] for name, value in built.items()]
            yield table("Options of the runner", ("option", "value"), pairs)
        return
    chosen = [plan.provider, *([plan.toolchain] if plan.toolchain else [])]
    rows = map(_explained, (*chosen, *plan.components))
    yield table("Components of the runner", ("component", "value", "why"), rows)
    if plan.options:
        content = table("Options", ("option", "value", "why"), map(_explained, plan.options))
        yield Folded(f"{count(len(plan.options), 'cmake option')} with reasons", (content,))


def _explained(each: Explained) -> list[Cell | str]:
    by_hand = " (by hand)" if each.by_hand else ""
    return [code(each.name), code(each.value or ""), f"{each.reason}{by_hand}"]


def provenance(run: Material) -> Facts:
    """What defined the run, and with what it was made."""
    record = run.record
    dirty = ", with changes that are not committed" if record.recipe.git_dirty else ""
    versions = ", ".join(f"{tool} {version}" for tool, version in record.versions.items())
    turns = record.interleaved_with
    pairs = {
        "Run": code(record.run_id),
        "Folder": code(str(run.run.folder.name)),
        **({"Took turns with": code(turns)} if turns else {}),
        "Started": Cell(formatting.moment(record.started_at)),
        "Recipe": code(record.recipe.file),
        "Commit": code(f"{record.recipe.git_revision or 'not in a repository'}{dirty}"),
        "Program": code(f"{record.program.sha256}, {formatting.size(record.program.size_bytes)}"),
        "Runner": code(f"{record.runner.sha256}, {record.runner.target}"),
        "ExecuTorch": Cell(f"{record.runner.executorch_version} ({record.runner.provider})"),
        "Versions": Cell(versions),
        "Passes": Cell(", ".join(
            f"{name} {each.seconds:.1f} s" for name, each in record.passes.items()
        )),
    }  # fmt: skip
    return Facts(tuple(pairs.items()))


def recipe_source(record: RunRecord) -> Folded:
    """The recipe with every value."""
    text = json.dumps(formatting.finite(record.recipe.content), indent=2, ensure_ascii=False)
    return Folded("The recipe, with every value", (Source(text),))


# Of a column with text, the cells are places in `strings`.
_TEXT = {"strings": True}
# Such a column is hidden where the page is narrow.
_WIDE = {"wide": True}


class Strings:
    """Texts that occur in many rows, each stored once."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}

    def place(self, text: str) -> int:
        """The place of a text in `all`."""
        return self._places.setdefault(text, len(self._places))

    @property
    def all(self) -> list[str]:
        return list(self._places)


def operators_table(key: str, profile: Profile) -> Operators:
    """Every operator and delegate node, with module, source line and reason."""
    strings = Strings()
    unit = unit_of(max((each.self_ms for each in profile.operators), default=0.0))
    rows = [_row(each, strings, unit.per_ms) for each in profile.operators]
    time = {"type": "number", "digits": _digits(profile.operators), "width": "7.5rem"}
    payload = {
        "columns": [
            {"title": "operator", "type": "name", "where": [6, 7], **_TEXT},
            {"title": "runs on", "type": "text", "note": 8, "width": "13rem", **_WIDE, **_TEXT},
            {"title": "calls", "type": "number", "digits": 0, "width": "5rem", **_WIDE},
            {"title": f"total {unit.name}", **time, **_WIDE},
            {"title": f"self {unit.name}", **time},
            {"title": "share", "type": "share", "width": "6.5rem"},
        ],
        "sorted": 4,
        "place": 1,
        "searched": [6, 7, 8],
        # The bars of the shares are as long as they are by the largest.
        "largest": max((row[5] or 0.0 for row in rows), default=0.0) or 1.0,
        "rows": rows,
        "strings": strings.all,
    }
    return Operators(key, payload, "Operators, scrollable")


def compared_table(key: str, names: Sequence[str], profiles: Sequence[Profile]) -> Operators:
    """The self time of each operator in every run; the change is from the first run to the last.

    Rows with the same name, module and backend are one.
    """
    sums = [_by_identity(profile) for profile in profiles]
    identities = list(dict.fromkeys(identity for each in sums for identity in each))
    unit = unit_of(max((ms for each in sums for ms in each.values()), default=0.0))
    strings = Strings()
    last = len(profiles) - 1
    rows = []
    for identity in identities:
        name, module, delegate = identity
        times = [_scaled(each.get(identity), unit.per_ms) for each in sums]
        first, final = times[0], times[last]
        change = None if first is None or final is None else _six(final - first)
        places = (strings.place(delegate or KERNELS), *times, change)
        rows.append([strings.place(name), *places, strings.place(module)])
    number = {"digits": _digits_of(sums, unit.per_ms), "width": "8rem"}
    columns: list[dict[str, Any]] = [
        {"title": "operator", "type": "name", "where": [len(names) + 3], **_TEXT},
        {"title": "runs on", "type": "text", "width": "10rem", **_WIDE, **_TEXT},
        *({"title": f"{name} {unit.name}", "type": "number", "wide": 0 < i < last, **number}
          for i, name in enumerate(names)),
        {"title": f"change {unit.name}", "type": "change", **number},
    ]  # fmt: skip
    payload = {"columns": columns, "sorted": 2, "place": 1, "searched": [len(names) + 3],
               "rows": rows, "strings": strings.all}  # fmt: skip
    return Operators(key, payload, "Operators of all runs, scrollable")


def _row(each: OperatorTime, strings: Strings, per_ms: float) -> list[Any]:
    return [
        strings.place(each.name),
        strings.place(each.delegate or KERNELS),
        each.calls,
        _scaled(each.total_ms, per_ms),
        _scaled(each.self_ms, per_ms),
        round(each.share, 6) if is_number(each.share) else None,
        strings.place(each.module),
        strings.place(each.source),
        strings.place(each.not_delegated),
    ]


def _by_identity(profile: Profile) -> dict[tuple[str, str, str], float]:
    sums: dict[tuple[str, str, str], float] = {}
    for each in profile.operators:
        identity = (each.name, each.module, each.delegate)
        sums[identity] = sums.get(identity, 0.0) + each.self_ms
    return sums


def _scaled(value_ms: float | None, per_ms: float) -> float | None:
    return None if value_ms is None or not is_number(value_ms) else _six(value_ms * per_ms)


def _six(value: float) -> float:
    return float(f"{value:.6g}")


def _digits(operators: Sequence[OperatorTime]) -> int:
    longest = max((each.self_ms for each in operators), default=0.0)
    unit = unit_of(longest)
    return len(in_unit(unit, longest).partition(".")[2])


def _digits_of(sums: Sequence[dict[tuple[str, str, str], float]], per_ms: float) -> int:
    longest = max((ms for each in sums for ms in each.values()), default=0.0)
    return len(f"{longest * per_ms:#.4g}".partition(".")[2])
