"""Where the time goes: the modules of the model as an icicle, and the shares as a bar."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from etdeploy.profile.model import ModuleTime, Profile
from etdeploy.report.document import Figure
from etdeploy.report.figures.base import SERIES, Values, colour, plain, rounded
from etdeploy.report.formatting import duration

KERNELS = "CPU kernels"
MIXED = "several"
# Above that share of a module's time, it has the colour of one backend.
_MOSTLY = 0.9
# Deeper levels are a click away.
_LEVELS = 6


def icicle(key: str, profile: Profile, root: ModuleTime) -> Figure:
    """The tree of modules; the width is the time, the colour what computed it."""
    colours = delegate_colours(root)
    rows = list(_walk(root, ""))
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
        "customdata": [_words(module, total) for _, _, module in rows],
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
    backends = sorted({name for _, _, m in _walk(root, "") for name in m.delegates if name})
    # Orange is the kernels'.
    tones = [tone for tone in SERIES if tone not in ("@orange", "@grey")]
    found = {name: tones[i % len(tones)] for i, name in enumerate(backends)}
    owners = {_owner(module) for _, _, module in _walk(root, "")}
    found |= {KERNELS: "@orange"} if KERNELS in owners else {}
    return found | ({MIXED: "@grey"} if MIXED in owners else {})


def shares_bar(key: str, shares: Mapping[str, float]) -> Figure:
    """The shares of the inference's time as one bar."""
    known = [(name, share) for name, share in shares.items() if share > 0]
    traces = [
        {
            "type": "bar", "orientation": "h", "x": [round(100 * share, 3)], "y": [""],
            "name": plain(name), "marker": {"color": colour(i)},
            "text": f"{plain(name)} {100 * share:.0f} %" if share >= 0.12 else "",
            "textposition": "inside", "insidetextanchor": "middle",
            "textfont": {"color": "@onfill"}, "textangle": 0,
            "hovertemplate": f"{plain(name)}: %{{x:.1f}} %<extra></extra>",
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
        (colour(i).lstrip("@"), f"{name} {100 * share:.1f} %")
        for i, (name, share) in enumerate(known)
    )
    return Figure(key, traces, layout, "Shares of the inference's time", height=64, legend=legend)


def _walk(module: ModuleTime, parent: str) -> Iterator[tuple[str, str, ModuleTime]]:
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
    return plain(
        (f"{above}.{own}" if own.isdigit() and above else own) or _class(module) or "model"
    )


def _class(module: ModuleTime) -> str:
    """The name of its class without the package."""
    return module.kind.rpartition(".")[2]


def _words(module: ModuleTime, total_ms: float) -> str:
    share = f" ({100 * module.total_ms / total_ms:.1f} %)" if total_ms > 0 else ""
    lines = [
        f"<b>{plain(module.path or 'the model')}</b>",
        plain(module.kind),
        f"{duration(module.total_ms)}{share}, itself {duration(module.self_ms)}",
        *(f"{plain(name or KERNELS)}: {duration(ms)}" for name, ms in module.delegates.items()),
    ]
    return "<br>".join(line for line in lines if line)
