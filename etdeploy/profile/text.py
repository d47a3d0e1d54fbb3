"""A profile as text: the bottleneck first, then kinds of work, operators and modules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from etdeploy.bench.units import TimeUnit, unit_for
from etdeploy.core.layout import cut, fit, table
from etdeploy.profile.model import ModuleTime, OperatorTime, Profile, TextProfile

# Kinds of work as a person reads them; a delegate has its own name.
_KINDS = {
    "copy_": "copies into state (copy_)",
    "index_put": "index_put",
    "views": "slice, expand, view and other copies of layout",
    "rest": "other kernels",
    "runtime": "the runtime, in no operator",
}
# A module below this share is told with its parent.
_LEAST_SHARE = 0.01
# Columns of an operator's name, and of what stands beside it in a terminal.
_SHORTEST_NAME, _LONGEST_NAME, _OTHER_COLUMNS = 20, 64, 50
_TWO_NUMBERS = 18
TRACED = " while traced ("
"""Stands in every profile's text."""
_METHODS = ("method", "calls", "tokens", "positions", "ms a call", "outside delegates")


def profile_text(profile: Profile, rows: int = 20, depth: int = 3, width: int | None = None) -> str:
    """The profile for a terminal.

    Args:
        profile: What to show.
        rows: How many operators.
        depth: How many levels of modules below the model itself.
        width: The maximum line length; None for lines of any length.
    """
    unit = unit_for(profile.inference_ms)
    parts = [
        fit(profile.bottleneck, width),
        fit(_traced(profile, unit), width),
        _shares(profile, unit, width),
        _operators(profile, rows, unit, width),
        _modules(profile, depth, unit, width),
        "\n".join(fit(f"note: {note}", width) for note in profile.notes),
    ]
    return "\n\n".join(part for part in parts if part)


def methods_text(profiles: TextProfile, width: int | None = None) -> str:
    """A line for each method of a program that generates text.

    Args:
        profiles: Of a run.
        width: The maximum line length; None for lines of any length.
    """
    rows = [
        (name, text.calls, text.tokens, text.positions, f"{profile.inference_ms:.4g}",
         _percent(profile.outside_delegates))
        for name, profile in profiles.methods.items() if (text := profile.text)
    ]  # fmt: skip
    return table(_METHODS, rows, right=_METHODS[1:], width=width) if rows else ""


def _traced(profile: Profile, unit: TimeUnit) -> str:
    number = profile.inferences
    text = f"{unit.number(profile.inference_ms)} {unit.name} per {profile.unit}{TRACED}"
    own = "1 inference" if number == 1 else f"{number} inferences"
    text += f"{profile.text.where if profile.text else own})"
    if profile.untraced_ms is not None:
        untraced = unit.number(profile.untraced_ms, profile.inference_ms)
        text += f", {untraced} {unit.name} without the tracer"
    return f"{text}; {_percent(profile.outside_delegates)} of it outside of delegates"


def _shares(profile: Profile, unit: TimeUnit, width: int | None) -> str:
    longest = _LONGEST_NAME if width is None else max(_SHORTEST_NAME, width - _TWO_NUMBERS)
    rows = [
        (
            cut(_KINDS.get(kind, kind), longest),
            unit.number(share * profile.inference_ms, profile.inference_ms),
            _percent(share),
        )
        for kind, share in profile.shares.items()
        if share > 0
    ]
    return table(["time goes to", unit.name, "share"], rows, right=[unit.name, "share"])


def _operators(profile: Profile, rows: int, unit: TimeUnit, width: int | None) -> str:
    """Operators of one name together: a model of 30 layers would fill the screen with one row."""
    groups: dict[tuple[str, str], list[OperatorTime]] = {}
    for each in profile.operators:
        groups.setdefault((each.name, each.delegate), []).append(each)
    ranked = sorted(groups.values(), key=lambda same: -sum(each.self_ms for each in same))
    longest = (
        _LONGEST_NAME
        if width is None
        else min(max(_SHORTEST_NAME, width - _OTHER_COLUMNS), _LONGEST_NAME)
    )
    cells = [
        (
            cut(same[0].name, longest),
            sum(each.calls for each in same),
            unit.number(sum(each.self_ms for each in same), profile.inference_ms),
            _percent(sum(each.share for each in same)),
            _where(same),
        )
        for same in ranked[:rows]
    ]
    columns = ["operator", "calls", unit.name, "share", "where"]
    shown = table(columns, cells, right=columns[1:4], width=width)
    more = len(ranked) - rows
    return (
        f"{shown}\nand {more} more: -n {len(ranked)}, --json for each call" if more > 0 else shown
    )


def _where(same: Sequence[OperatorTime]) -> str:
    """Who computes it; module and line, if there is one of each; why no delegate took it."""
    is_call = bool(same[0].delegate) and same[0].name.startswith(same[0].delegate)
    own = "around its nodes" if is_call and same[0].self_ms < same[0].total_ms else ""
    reasons = {each.not_delegated for each in same} - {""}
    modules = list(dict.fromkeys(each.module for each in same if each.module))
    sources = {each.source for each in same} - {""}
    module = modules[0] if len(modules) == 1 else f"{len(modules)} modules" if modules else ""
    source = sources.pop() if len(sources) == 1 else ""
    reason = f"not delegated: {reasons.pop()}" if len(reasons) == 1 else ""
    return ", ".join(filter(None, (same[0].delegate or "CPU", module, source, own, reason)))


def _modules(profile: Profile, depth: int, unit: TimeUnit, width: int | None) -> str:
    if profile.modules is None:
        return ""
    whole_ms = profile.inference_ms
    rows = [
        (
            "  " * level + name,
            unit.number(module.total_ms, whole_ms),
            _percent(module.total_ms / whole_ms if whole_ms else 0.0),
            _inside(module),
            module.kind.rpartition(".")[2],
        )
        for level, name, module in _walk(profile.modules, depth, whole_ms * _LEAST_SHARE)
    ]
    columns = ["module", unit.name, "share", "in a delegate", "class"]
    return table(columns, rows, right=columns[1:4], width=width)


def _walk(
    module: ModuleTime, depth: int, least_ms: float, level: int = 0, around: str = ""
) -> Iterator[tuple[int, str, ModuleTime]]:
    """Level, name and module; one that only calls another is shown with it, as `1.0`."""
    inner = module
    while len(inner.children) == 1 and inner.children[0].total_ms >= inner.total_ms > 0:
        inner = inner.children[0]
    yield level, inner.path.removeprefix(around) or "the model", inner
    for child in inner.children if level < depth else ():
        if child.total_ms >= least_ms:
            yield from _walk(child, depth, least_ms, level + 1, f"{inner.path}.".lstrip("."))


def _inside(module: ModuleTime) -> str:
    inside_ms = sum(time_ms for name, time_ms in module.delegates.items() if name)
    return _percent(inside_ms / module.total_ms) if module.total_ms else "-"


def _percent(share: float) -> str:
    return "<0.1%" if 0 < share < 0.0005 else f"{share:.1%}"
