"""ETDumps written by hand: executorch/devtools/etdump/etdump_schema_flatcc.fbs."""

from __future__ import annotations

from collections.abc import Sequence

import flatbuffers

# Name, start and end of an event, in nanoseconds.
Event = tuple[str, int, int]


def make_etdump(*runs: Sequence[Event]) -> bytes:
    """The file of a trace with the events of each execution."""
    builder = flatbuffers.Builder()
    found = [_table(builder, {3: _list(builder, [_event(builder, e) for e in run])})
             for run in runs]  # fmt: skip
    root = _table(builder, {1: _list(builder, found)})
    builder.Finish(root, b"ED00")
    content = bytes(builder.Output())
    return len(content).to_bytes(4, "little") + content


def _event(builder: flatbuffers.Builder, event: Event) -> int:
    name, start_ns, end_ns = event
    text = builder.CreateString(name)
    builder.StartObject(8)
    builder.PrependUOffsetTRelativeSlot(0, text, 0)
    builder.PrependUint64Slot(6, start_ns, 0)
    builder.PrependUint64Slot(7, end_ns, 0)
    return _table(builder, {0: builder.EndObject()})


def _table(builder: flatbuffers.Builder, fields: dict[int, int]) -> int:
    builder.StartObject(4)
    for slot, offset in fields.items():
        builder.PrependUOffsetTRelativeSlot(slot, offset, 0)
    return int(builder.EndObject())


def _list(builder: flatbuffers.Builder, offsets: list[int]) -> int:
    builder.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        builder.PrependUOffsetTRelative(offset)
    return int(builder.EndVector())
