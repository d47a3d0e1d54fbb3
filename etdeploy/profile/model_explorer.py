"""A profile as one graph that Model Explorer opens: its calls in their modules, coloured by time.

The form is that of a graph collection in its `input_graph.ts`: https://ai.google.dev/edge/model-explorer
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from etdeploy.profile.model import ModuleTime, OperatorTime, Profile, Span

# The colours of the least and of the most expensive call, each as red, green, blue.
_LEAST, _MOST = (255, 255, 255), (240, 90, 60)


def graph_collection(profile: Profile) -> dict[str, Any]:
    """A graph with a node for each call of one inference.

    Edges are the order of execution. Colours and the times in the attributes of a node are those of
    its operator in its module, the means over the traced inferences.
    """
    known = {(each.name, each.module, each.delegate): each for each in profile.operators}
    most = max((each.share for each in profile.operators), default=0.0) or 1.0
    nodes = [
        _node(number, span, known.get((span.name, span.module, span.delegate)), most)
        for number, span in enumerate(profile.spans)
    ]
    groups = dict(_groups(profile.modules, profile.inference_ms)) if profile.modules else {}
    overall = {"bottleneck": profile.bottleneck, "ms": f"{profile.inference_ms:.4g}"}
    graph = {"id": "profile", "nodes": nodes, "groupNodeAttributes": {**groups, "": overall}}
    return {"label": profile.run_id, "graphs": [graph]}


def _node(number: int, span: Span, known: OperatorTime | None, most: float) -> dict[str, Any]:
    told = {"ms in this inference": f"{span.duration_ms:.4g}", "delegate": span.delegate}
    if known:
        told |= {
            "ms": f"{known.self_ms:.4g}",
            "calls in the module": str(known.calls),
            "share": f"{known.share:.1%}",
            "source": known.source,
            "not delegated": known.not_delegated,
        }
    return {
        "id": str(number),
        "label": span.name,
        "namespace": _namespace(span.module),
        "attrs": [{"key": key, "value": value} for key, value in told.items() if value],
        "incomingEdges": [
            {"sourceNodeId": str(number - 1), "sourceNodeOutputId": "0", "targetNodeInputId": "0"}
        ]
        if number
        else [],
        "style": {"backgroundColor": _colour((known.share if known else 0.0) / most)},
    }


def _groups(module: ModuleTime, whole_ms: float) -> Iterator[tuple[str, dict[str, str]]]:
    share = module.total_ms / whole_ms if whole_ms else 0.0
    told = {"class": module.kind, "ms": f"{module.total_ms:.4g}", "share": f"{share:.1%}"}
    yield _namespace(module.path), told
    for child in module.children:
        yield from _groups(child, whole_ms)


def _namespace(module: str) -> str:
    return module.replace(".", "/")


def _colour(part: float) -> str:
    levels = (round(low + (high - low) * part) for low, high in zip(_LEAST, _MOST, strict=True))
    return "#" + "".join(f"{level:02x}" for level in levels)
