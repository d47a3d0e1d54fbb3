from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from etdeploy.profile.protocol import GraphNode
from etdeploy.profile.worker.__main__ import UnreadableRecordError, read_record

_STACK = 'File "/home/me/net.py", line 7, in forward\n    return x.mean()\n'


def _node(target: str, handle: str | None, **metadata: str) -> dict[str, Any]:
    return {"target": target, "metadata": metadata | ({"debug_handle": handle} if handle else {})}


_NODES = [
    _node(
        "executorch.exir.dialects.edge.ops.aten.mean.dim",
        "3",
        nn_module_stack="L__self__,,net.Net;L__self__a.b,a.b@1,torch.nn.Norm",
        stack_trace=_STACK,
    ),
    _node("executorch.exir.dialects.edge.ops.mine.twice.default", "[3, 4]"),
    _node("executorch.exir.dialects.edge.ops.dim_order_ops._clone_dim_order.default", None),
    _node("_operator.getitem", "5"),
]


def _write(folder: Path, *leave_out: str, method: str = "forward", nodes: Any = _NODES) -> Path:
    graph = {"graph_module": {"graph": {"nodes": nodes}}}
    members: dict[str, Any] = {
        "ETRECORD_V0": "",
        "edge_dialect_exported_program/" + method: graph,
        "debug_handle_map": {method: {"0": 3}},
        "delegate_map": {method: {"1": {"name": "Npu", "delegate_map": {}}}},
        "instruction_id_to_num_outs_map": {method: {"1": 2}},
    }
    path = folder / "etrecord.bin"
    with ZipFile(path, "w") as archive:
        for name in members.keys() - set(leave_out):
            archive.writestr(name, json.dumps(members[name]))
    return path


def test_the_graph_is_read_without_weights_and_registered_operators(tmp_path: Path) -> None:
    record = read_record(_write(tmp_path), "forward")
    modules = (("", "net.Net"), ("a.b", "torch.nn.Norm"))
    mean = GraphNode(op="aten::mean", modules=modules, source="net.py:7")
    twice = GraphNode(op="mine::twice")
    assert record.graph == {3: (mean, twice), 4: (twice,)}
    assert not record.loops
    assert (record.handles, record.outputs) == ({"0": 3}, {"1": 2})
    assert record.delegates["1"]["name"] == "Npu"


def test_a_program_without_delegates_has_no_map_of_them(tmp_path: Path) -> None:
    path = _write(tmp_path, "delegate_map", "instruction_id_to_num_outs_map")
    assert read_record(path, "forward").delegates == {}


def test_a_loop_is_seen(tmp_path: Path) -> None:
    nodes = [*_NODES, _node("torch.ops.higher_order.while_loop", "9")]
    assert read_record(_write(tmp_path, nodes=nodes), "forward").loops


@pytest.mark.parametrize(
    ("leave_out", "message"),
    [
        ("ETRECORD_V0", "not an ETRecord"),
        ("edge_dialect_exported_program/forward", "does not have the method forward"),
        ("debug_handle_map", "does not have the method forward"),
    ],
)
def test_what_is_no_etrecord_is_told(tmp_path: Path, leave_out: str, message: str) -> None:
    with pytest.raises(UnreadableRecordError, match=message):
        read_record(_write(tmp_path, leave_out), "forward")


def test_a_truncated_etrecord_is_told(tmp_path: Path) -> None:
    path = _write(tmp_path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UnreadableRecordError, match="is damaged"):
        read_record(path, "forward")


@pytest.mark.parametrize("nodes", [None, [{}], [{"target": 1, "metadata": {}}], "text"])
def test_a_graph_in_another_form_is_told(tmp_path: Path, nodes: object) -> None:
    with pytest.raises(UnreadableRecordError, match="cannot be read"):
        read_record(_write(tmp_path, nodes=nodes), "forward")
