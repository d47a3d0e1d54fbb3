"""Counts the nodes in the payload of an XNNPACK delegate.

A payload begins with a header: 4 zero bytes, "XH00", its length (u16), offset and size of a
FlatBuffer (u32 each), offset (u32) and size (u64) of constant data. Payloads of old exports are
the FlatBuffer alone. Sources: backends/xnnpack/serialization/ of the ExecuTorch wheel,
xnnpack_graph_serialize.py and schema.fbs (table XNNGraph).
"""

from __future__ import annotations

import struct

from etdeploy.core.flatbuffer import CorruptError, FlatBuffer

_HEADER = struct.Struct("<4x4sHII")
_HEADER_MAGIC = b"XH00"
_GRAPH_MAGIC = b"XN"
_XNODES = 1


def count_nodes(payload: memoryview) -> int | None:
    """The number of XNNPACK nodes; None for a payload in an unknown format.

    Raises:
        CorruptError: A part of the payload lies outside of it.
    """
    magic = bytes(payload[4:8])
    if magic[:2] == _GRAPH_MAGIC:
        return _nodes(payload)
    if magic != _HEADER_MAGIC or len(payload) < _HEADER.size:
        return None
    _, _, offset, size = _HEADER.unpack_from(payload)
    if offset + size > len(payload):
        raise CorruptError("an XNNPACK partition extends beyond its data")
    return _nodes(payload[offset : offset + size])


def _nodes(graph: memoryview) -> int:
    return FlatBuffer(graph).root().length(_XNODES, item_bytes=4)
