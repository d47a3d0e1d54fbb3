"""A profile as blocks: the time of each kind of work, operator and module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from etdeploy.bench.units import TimeUnit
from etdeploy.core.console import count
from etdeploy.profile.model import ModuleTime, OperatorTime, Profile
from etdeploy.report.document import (
    Block,
    Figure,
    Folded,
    Interned,
    LargeTable,
    Table,
    Text,
    code,
    table,
)
from etdeploy.report.formatting import duration, in_unit, is_number, time_unit
from etdeploy.report.plots import SERIES, Values, escape, rounded, series_colour

# Kinds of work as a person reads them; a delegate has its own name.
_KINDS = {
    "copy_": "copies into state (copy_)",
    "index_put": "index_put",
    "views": "slice, expand, view and other copies of layout",
    "rest": "other kernels",
    "runtime": "the runtime, in no operator",
}
# A module below this share is part of its parent's row.
_LEAST_SHARE = 0.01
_MOST_MODULES = 300
_BRIEF = 20
TRACED = " while traced ("
"""Stands in every profile's text."""
_INDENT = "\u00a0" * 2


def profile_text(
    profile: Profile, others: Sequence[Profile] = (), rows: int = _BRIEF, depth: int = 3
) -> Iterator[Block]:
    """Return the bottleneck, then kinds of work, operators and modules, for a terminal.

    Args:
        profile: The one to show.
        others: All of a program that generates text, for a table of its methods.
        rows: How many operators.
        depth: How many levels of modules below the model itself.
    """
    if profile.text:
        yield methods_table(others)
    yield Text(profile.bottleneck)
    yield Text(_traced(profile))
    yield shares_table(profile)
    yield brief_operators(profile, rows)
    if profile.modules:
        yield modules_table(profile, profile.modules, depth, _LEAST_SHARE)
    yield from (Text(note, title="Note:") for note in profile.notes)


def profile_blocks(profile: Profile, key: str = "") -> Iterator[Block]:
    """Return one method's profile for a page; `key` distinguishes the blocks of several."""
    yield Text(f"{_traced(profile)}.", title=f"{profile.method}." if profile.text else "")
    if profile.shares:
        yield plot_shares(f"plot-shares{key}", profile.shares)
        yield Folded("Shares as a table", (shares_table(profile),))
    if profile.modules:
        yield plot_modules(f"plot-modules{key}", profile, profile.modules)
        content = modules_table(profile, profile.modules)
        yield Folded(f"{count(len(content.rows), 'module')} as a table", (content,))
    if profile.operators:
        yield operators_table(f"operators{key}", profile)
    yield from (Text(note) for note in profile.notes)


def _traced(profile: Profile) -> str:
    """The time while traced and without the tracer, and the share outside of delegates."""
    own = profile.text.where if profile.text else count(profile.inferences, "inference")
    text = f"{duration(profile.inference_ms)} per {profile.unit}{TRACED}{own})"
    if profile.untraced_ms is not None:
        text += f", {duration(profile.untraced_ms)} without the tracer"
    return f"{text}; {_percent(profile.outside_delegates)} of it outside of delegates"


def methods_table(profiles: Sequence[Profile]) -> Table:
    """Return a row for each method of a program that generates text."""
    rows = [
        [code(profile.method), text.calls, text.tokens, text.positions,
         duration(profile.inference_ms), _percent(profile.outside_delegates)]
        for profile in profiles if (text := profile.text)
    ]  # fmt: skip
    columns = ("method", "calls", "tokens", "positions", "per call", "outside delegates")
    return table("Methods that were traced", columns, rows, right=columns[1:])


def shares_table(profile: Profile) -> Table:
    """Return the time of each kind of work."""
    unit = time_unit(profile.inference_ms)
    rows = [
        [code(_KINDS.get(kind, kind)), _time(share * profile.inference_ms, profile, unit),
         _percent(share)]
        for kind, share in profile.shares.items() if share > 0
    ]  # fmt: skip
    columns = ("time goes to", unit.name, "share")
    return table("Shares of the time", columns, rows, right=columns[1:])


def brief_operators(profile: Profile, most: int = _BRIEF) -> Table:
    """Return operators of one name together: those of 30 layers would fill a screen."""
    unit = time_unit(profile.inference_ms)
    groups: dict[tuple[str, str], list[OperatorTime]] = {}
    for each in profile.operators:
        groups.setdefault((each.name, each.delegate), []).append(each)
    ranked = sorted(groups.values(), key=lambda same: -sum(each.self_ms for each in same))
    rows = [
        [code(same[0].name), sum(each.calls for each in same),
         _time(sum(each.self_ms for each in same), profile, unit),
         _percent(sum(each.share for each in same)), _where(same)]
        for same in ranked[:most]
    ]  # fmt: skip
    more = len(ranked) - most
    columns = ("operator", "calls", unit.name, "share", "where")
    return table(
        "Operators", columns, rows, right=columns[1:4],
        more=f"and {more} more: etdeploy profile -n {len(ranked)}, --json for each call"
        if more > 0 else "",
    )  # fmt: skip


def _where(same: Sequence[OperatorTime]) -> str:
    """The backend; module and line, if there is one of each; why no delegate took it."""
    is_call = bool(same[0].delegate) and same[0].name.startswith(same[0].delegate)
    own = "around its nodes" if is_call and same[0].self_ms < same[0].total_ms else ""
    reasons = {each.not_delegated for each in same} - {""}
    modules = list(dict.fromkeys(each.module for each in same if each.module))
    sources = {each.source for each in same} - {""}
    module = modules[0] if len(modules) == 1 else f"{len(modules)} modules" if modules else ""
    source = sources.pop() if len(sources) == 1 else ""
    reason = f"not delegated: {reasons.pop()}" if len(reasons) == 1 else ""
    return ", ".join(filter(None, (same[0].delegate or "CPU", module, source, own, reason)))


def modules_table(
    profile: Profile, root: ModuleTime, depth: int | None = None, least_share: float = 0.0
) -> Table:
    """Return the tree of modules, for the largest of them a row each."""
    unit, whole_ms = time_unit(profile.inference_ms), profile.inference_ms
    found = list(_walk(root, depth, whole_ms * least_share))
    # The largest, but in the order of the tree.
    largest = {id(m) for _, _, m in sorted(found, key=lambda e: -e[2].total_ms)[:_MOST_MODULES]}
    rows = [
        [code(_INDENT * level + name), _time(module.total_ms, profile, unit),
         _time(module.self_ms, profile, unit),
         _percent(module.total_ms / whole_ms if whole_ms > 0 else 0.0), _delegated(module),
         module.kind.rpartition(".")[2]]
        for level, name, module in found if id(module) in largest
    ]  # fmt: skip
    columns = ("module", unit.name, f"self {unit.name}", "share", "in a delegate", "class")
    more = len(found) - len(rows)
    below = f"and {count(more, 'smaller module')}" if more else ""
    return table("Modules", columns, rows, right=columns[1:5], more=below)


def _walk(
    root: ModuleTime, depth: int | None, least_ms: float
) -> Iterator[tuple[int, str, ModuleTime]]:
    """Level, name and module; one that only calls another is shown with it, as `1.0`."""
    waiting = [(0, "", root)]
    while waiting:
        level, around, inner = waiting.pop()
        while len(inner.children) == 1 and inner.children[0].total_ms >= inner.total_ms > 0:
            inner = inner.children[0]
        yield level, inner.path.removeprefix(around) or "the model", inner
        if depth is None or level < depth:
            inside = f"{inner.path}.".lstrip(".")
            children = [child for child in inner.children if child.total_ms >= least_ms]
            waiting += [(level + 1, inside, child) for child in reversed(children)]


def _delegated(module: ModuleTime) -> str | None:
    inside_ms = sum(time_ms for name, time_ms in module.delegates.items() if name)
    return _percent(inside_ms / module.total_ms) if module.total_ms else None


def _time(value_ms: float, profile: Profile, unit: TimeUnit) -> str:
    return in_unit(unit, value_ms, profile.inference_ms)


def _percent(share: float) -> str:
    return "<0.1%" if 0 < share < 0.0005 else f"{share:.1%}"


# Of a column with text, the cells are places in `strings`.
_TEXT = {"strings": True}
# Such a column is hidden where the page is narrow.
_WIDE = {"wide": True}


def operators_table(key: str, profile: Profile) -> LargeTable:
    """Every operator and delegate node, with module, source line and reason."""
    strings = Interned[str]()
    unit = time_unit(max((each.self_ms for each in profile.operators), default=0.0))
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
        "filters": [1],
        "searched": [6, 7, 8],
        # The bars of the shares are as long as they are by the largest.
        "largest": max((row[5] or 0.0 for row in rows), default=0.0) or 1.0,
        "rows": rows,
        "strings": strings.all,
    }
    return LargeTable(key, payload, "Operators, scrollable", brief_operators(profile))


def compared_table(key: str, names: Sequence[str], profiles: Sequence[Profile]) -> LargeTable:
    """The self time of each operator in every run; the change is from the first run to the last.

    Rows with the same name, module and backend are one.
    """
    sums = [_by_identity(profile) for profile in profiles]
    identities = list(dict.fromkeys(identity for each in sums for identity in each))
    unit = time_unit(max((ms for each in sums for ms in each.values()), default=0.0))
    strings = Interned[str]()
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
    payload = {"columns": columns, "sorted": 2, "filters": [1], "searched": [len(names) + 3],
               "rows": rows, "strings": strings.all}  # fmt: skip
    # Each comparison has a table of its own for what changed most.
    return LargeTable(key, payload, "Operators of all runs, scrollable", table("", (), ()))


def _row(each: OperatorTime, strings: Interned[str], per_ms: float) -> list[Any]:
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
    unit = time_unit(longest)
    return len(in_unit(unit, longest).partition(".")[2])


def _digits_of(sums: Sequence[dict[tuple[str, str, str], float]], per_ms: float) -> int:
    longest = max((ms for each in sums for ms in each.values()), default=0.0)
    return len(f"{longest * per_ms:#.4g}".partition(".")[2])


KERNELS = "CPU kernels"
MIXED = "several"
# Above that share of a module's time, it has the colour of one backend.
_MOSTLY = 0.9
# Deeper levels are a click away.
_LEVELS = 6


def plot_modules(key: str, profile: Profile, root: ModuleTime) -> Figure:
    """The tree of modules; the width is the time, the colour what computed it."""
    colours = delegate_colours(root)
    rows = list(_walk_all(root, ""))
    ids = [path for path, _, _ in rows]
    total = profile.inference_ms
    trace: Values = {
        "type": "icicle",
        "ids": ids,
        "parents": [parent for _, parent, _ in rows],
        "labels": [_label(module) for _, _, module in rows],
        # Own time: then a parent is as wide as what is in it, whatever was rounded.
        "values": rounded(max(0.0, module.self_ms) for _, _, module in rows),
        "branchvalues": "remainder",
        "customdata": [_hover(module, total) for _, _, module in rows],
        "hovertemplate": "%{customdata}<extra></extra>",
        "marker": {
            "colors": [colours[_owner(module)] for _, _, module in rows],
            "line": {"color": "@surface", "width": 1},
        },
        "textfont": {"color": "@onfill", "size": 12},
        "leaf": {"opacity": 1},
        "maxdepth": _LEVELS,
        "sort": False,
        "tiling": {"orientation": "v"},
        "pathbar": {"thickness": 22, "textfont": {"color": "@text"}},
    }
    layout = {
        "margin": {"l": 8, "r": 8, "t": 26, "b": 8},
        # A name that does not fit is left out instead of shrunk.
        "uniformtext": {"minsize": 11, "mode": "hide"},
    }
    levels = min(_LEVELS, max(path.count("\x1f") for path in ids) + 1)
    legend = tuple((tone.lstrip("@"), name) for name, tone in colours.items())
    caption = "The width is time. Click a module to go into it, the bar above to come back."
    label = "Time of each module of the model, from the whole to its parts"
    return Figure(key, [trace], layout, label, caption, height=64 + 44 * levels, legend=legend)


def delegate_colours(root: ModuleTime) -> dict[str, str]:
    """A colour for each backend, kernels, and modules that several compute."""
    backends = sorted({name for _, _, m in _walk_all(root, "") for name in m.delegates if name})
    # Orange is the kernels'.
    tones = [tone for tone in SERIES if tone not in ("@orange", "@grey")]
    found = {name: tones[i % len(tones)] for i, name in enumerate(backends)}
    owners = {_owner(module) for _, _, module in _walk_all(root, "")}
    found |= {KERNELS: "@orange"} if KERNELS in owners else {}
    return found | ({MIXED: "@grey"} if MIXED in owners else {})


def plot_shares(key: str, shares: Mapping[str, float]) -> Figure:
    """The shares of the inference's time as one bar."""
    known = [(name, share) for name, share in shares.items() if share > 0]
    traces = [
        {
            "type": "bar", "orientation": "h", "x": [round(100 * share, 3)], "y": [""],
            "name": escape(name), "marker": {"color": series_colour(i)},
            "text": f"{escape(name)} {100 * share:.0f} %" if share >= 0.12 else "",
            "textposition": "inside", "insidetextanchor": "middle",
            "textfont": {"color": "@onfill"}, "textangle": 0,
            "hovertemplate": f"{escape(name)}: %{{x:.1f}} %<extra></extra>",
        }
        for i, (name, share) in enumerate(known)
    ]  # fmt: skip
    layout = {
        "barmode": "stack",
        "xaxis": {"visible": False, "range": [0, max(100.0, sum(100 * s for _, s in known))]},
        "yaxis": {"visible": False},
        "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
    }
    legend = tuple(
        (series_colour(i).lstrip("@"), f"{name} {100 * share:.1f} %")
        for i, (name, share) in enumerate(known)
    )
    return Figure(key, traces, layout, "Shares of the inference's time", height=64, legend=legend)


def _walk_all(module: ModuleTime, parent: str) -> Iterator[tuple[str, str, ModuleTime]]:
    """Every module with a name of its own and that of its parent; the parent comes first."""
    # A path may occur twice, where a module is called from two places.
    waiting = [(parent, "0", module)]
    while waiting:
        above, number, each = waiting.pop()
        own = f"{above}\x1f{number}" if above else number
        yield own, above, each
        waiting += [(own, str(i), child) for i, child in reversed(list(enumerate(each.children)))]


def _owner(module: ModuleTime) -> str:
    """What computed nearly all of a module."""
    total = sum(module.delegates.values())
    for name, ms in module.delegates.items():
        if total > 0 and ms >= _MOSTLY * total:
            return name or KERNELS
    return MIXED if total > 0 else KERNELS


def _label(module: ModuleTime) -> str:
    *_, above, own = ["", *module.path.split(".")]
    # "3" alone says nothing: "layers.3".
    return escape(
        (f"{above}.{own}" if own.isdigit() and above else own) or _class(module) or "model"
    )


def _class(module: ModuleTime) -> str:
    """The name of its class without the package."""
    return module.kind.rpartition(".")[2]


def _hover(module: ModuleTime, total_ms: float) -> str:
    share = f" ({100 * module.total_ms / total_ms:.1f} %)" if total_ms > 0 else ""
    lines = [
        f"<b>{escape(module.path or 'the model')}</b>",
        escape(module.kind),
        f"{duration(module.total_ms)}{share}, itself {duration(module.self_ms)}",
        *(f"{escape(name or KERNELS)}: {duration(ms)}" for name, ms in module.delegates.items()),
    ]
    return "<br>".join(line for line in lines if line)
