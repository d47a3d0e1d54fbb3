from __future__ import annotations

import json
from typing import Any

from etdeploy.profile.calls import Reasons
from etdeploy.profile.profiled import profile_from
from etdeploy.profile.viewers import graph_collection
from tests.support.bench_values import make_record
from tests.support.traces import TRACE

_PROFILE = profile_from(make_record([10.0]), TRACE, Reasons(None, None))


def _graph() -> Any:
    collection = json.loads(json.dumps(graph_collection(_PROFILE)))
    # Model Explorer knows a collection by these two keys.
    assert collection.keys() == {"label", "graphs"}
    [graph] = collection["graphs"]
    return graph


def test_each_call_is_a_node_in_its_module() -> None:
    nodes = {node["label"]: node for node in _graph()["nodes"]}
    assert len(nodes) == len(_PROFILE.spans) == 5
    assert nodes["Gemm"]["namespace"] == "layers"
    assert nodes["aten::mean.out"]["namespace"] == "norm"
    attributes = {each["key"]: each["value"] for each in nodes["aten::mean.out"]["attrs"]}
    assert attributes["source"] == "net.py:9"
    assert (attributes["ms"], attributes["share"]) == ("1", "10.0%")


def test_modules_have_their_times() -> None:
    groups = _graph()["groupNodeAttributes"]
    assert groups["layers"] == {"class": "torch.nn.layers", "ms": "6", "share": "60.0%"}
    assert groups[""]["bottleneck"] == _PROFILE.bottleneck
