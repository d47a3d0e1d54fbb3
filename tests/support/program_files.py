"""Writes small `.pte` files by the published schema, without torch or ExecuTorch."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import flatbuffers

FLOAT, INT64 = 6, 4
_NULL, _INT, _BOOL, _DOUBLE, _TENSOR = range(1, 6)
_KERNEL_CALL, _DELEGATE_CALL = 1, 2


@dataclass(frozen=True)
class Tensor:
    """A tensor value; `scalar_type` as the schema numbers it; `external` names data elsewhere."""

    shape: tuple[int, ...]
    scalar_type: int = FLOAT
    dynamism: int = 0
    external: str = ""


@dataclass(frozen=True)
class Plan:
    """A method: inputs and outputs, operators with calls, delegates by the
    index of their segment, each with the compile specs.
    """

    name: str = "forward"
    inputs: tuple[Tensor | bool | int | float | None, ...] = (Tensor((2, 16)),)
    outputs: tuple[Tensor | bool | int | float | None, ...] = (Tensor((2, 4)),)
    operators: tuple[tuple[str, str, int], ...] = ()
    delegates: tuple[tuple[str, int], ...] = ()
    compile_specs: tuple[tuple[str, bytes], ...] = ()
    buffer_sizes: tuple[int, ...] = (0, 224)


def pte(
    *plans: Plan,
    segments: Sequence[bytes] = (),
    constant_segment: int | None = None,
    named: Sequence[int] = (),
    identifier: bytes = b"ET12",
    constants: Sequence[int] = (0, 0),
) -> bytes:
    """A program with an extended header, its segments behind the FlatBuffer.

    `constants` are the offsets in the constant segment, the first of them that of no constant.
    """
    of_constants = None if constant_segment is None else (constant_segment, tuple(constants))
    flatbuffer = _program(plans, segments, of_constants, named, identifier)
    return _with_segments(bytes(flatbuffer), segments)


def ptd(*names: str) -> bytes:
    """A tensor data file with an empty weight of each name."""
    builder = flatbuffers.Builder(64)
    makers = [partial(_named_data, builder, name) for name in names]
    builder.Finish(_table(builder, 3, {2: _tables(builder, makers)}), b"FT01")
    content = bytes(builder.Output())
    # The header is between the identifier and the rest, whose place is relative to itself.
    root = struct.unpack_from("<I", content)[0] + 40
    header = struct.pack("<4sIQQQQ", b"FH01", 40, 48, len(content) - 8, len(content) + 40, 0)
    return struct.pack("<I", root) + content[4:8] + header + content[8:]


def _named_data(builder: Any, name: str) -> int:
    return _table(builder, 3, {0: builder.CreateString(name)})


def xnnpack_payload(nodes: int, keys: Sequence[str] = ()) -> bytes:
    """The payload of an XNNPACK delegate with so many (empty) nodes, and named weights."""
    builder = flatbuffers.Builder(64)
    xnodes = _tables(builder, [lambda: _table(builder, 0, {}) for _ in range(nodes)])
    named = [partial(_constant_data, builder, key) for key in ("", *keys)]
    builder.Finish(_table(builder, 9, {1: xnodes, 8: _tables(builder, named)}), b"XN01")
    graph = bytes(builder.Output())
    header = struct.pack("<4x4sHIIIQ2x", b"XH00", 30, 32, len(graph), 32 + len(graph), 0)
    return header + graph


def _constant_data(builder: Any, key: str) -> int:
    return _table(builder, 3, {2: builder.CreateString(key)})


def _program(
    plans: Sequence[Plan],
    segments: Sequence[bytes],
    constants: tuple[int, tuple[int, ...]] | None,
    named: Sequence[int],
    identifier: bytes,
) -> bytearray:
    builder = flatbuffers.Builder(256)
    fields = {1: _tables(builder, [partial(_plan, builder, p) for p in plans])}
    offsets = [sum(map(len, segments[:i])) for i in range(len(segments))]
    fields[4] = _tables(
        builder,
        [
            partial(_table, builder, 2, {}, u64={0: o, 1: len(s)})
            for o, s in zip(offsets, segments, strict=True)
        ],
    )
    if constants is not None:
        values = _numbers(builder, constants[1], 8)
        fields[5] = _table(builder, 2, {1: values}, u32={0: constants[0]})
    fields[7] = _tables(builder, [partial(_table, builder, 2, {}, u32={1: i}) for i in named])
    builder.Finish(_table(builder, 8, fields), identifier)
    output: bytearray = builder.Output()
    return output


def _with_segments(flatbuffer: bytes, segments: Sequence[bytes]) -> bytes:
    root = struct.unpack_from("<I", flatbuffer)[0] + 32
    body = flatbuffer[8:]
    size = 8 + 32 + len(body)
    base = size if segments else 0
    data = b"".join(segments)
    header = struct.pack("<4sIQQQ", b"eh00", 32, size, base, len(data))
    return struct.pack("<I", root) + flatbuffer[4:8] + header + body + data


def _plan(builder: Any, plan: Plan) -> int:
    tensors = (*plan.inputs, *plan.outputs)
    calls = [i for i, (_, _, count) in enumerate(plan.operators) for _ in range(count)]
    instructions = [
        *(partial(_instruction, builder, _KERNEL_CALL, i) for i in calls),
        *(partial(_instruction, builder, _DELEGATE_CALL, i) for i in range(len(plan.delegates))),
    ]
    fields = {
        0: builder.CreateString(plan.name),
        2: _tables(builder, [partial(_value, builder, t) for t in tensors]),
        3: _numbers(builder, tuple(range(len(plan.inputs))), 4),
        4: _numbers(builder, tuple(range(len(plan.inputs), len(tensors))), 4),
        5: _tables(builder, [lambda: _table(builder, 4, {2: _tables(builder, instructions)})]),
        6: _tables(builder, [partial(_operator, builder, o) for o in plan.operators]),
        7: _tables(
            builder, [partial(_delegate, builder, d, plan.compile_specs) for d in plan.delegates]
        ),
        8: _numbers(builder, plan.buffer_sizes, 8),
    }
    return _table(builder, 10, fields)


def _value(builder: Any, tensor: Tensor | bool | int | float | None) -> int:
    if not isinstance(tensor, Tensor):
        return _plain(builder, tensor)
    offsets = {2: _numbers(builder, tensor.shape, 4)}
    if tensor.external:
        offsets[9] = _table(builder, 5, {1: builder.CreateString(tensor.external)}, u8={2: 1})
    value = _table(builder, 10, offsets, u8={0: tensor.scalar_type, 8: tensor.dynamism})
    return _table(builder, 2, {1: value}, u8={0: _TENSOR})


def _plain(builder: Any, value: bool | int | float | None) -> int:
    if value is None:
        return _table(builder, 2, {1: _table(builder, 0, {})}, u8={0: _NULL})
    if isinstance(value, bool):
        return _table(builder, 2, {1: _table(builder, 1, {}, u8={0: value})}, u8={0: _BOOL})
    raw = struct.pack("<d" if isinstance(value, float) else "<q", value)
    number = _table(builder, 1, {}, u64={0: int.from_bytes(raw, "little")})
    return _table(builder, 2, {1: number}, u8={0: _DOUBLE if isinstance(value, float) else _INT})


def _instruction(builder: Any, kind: int, index: int) -> int:
    call = _table(builder, 2, {}, u32={0: index})
    return _table(builder, 2, {1: call}, u8={0: kind})


def _operator(builder: Any, operator: tuple[str, str, int]) -> int:
    name, overload, _ = operator
    return _table(builder, 2, {0: builder.CreateString(name), 1: builder.CreateString(overload)})


def _delegate(
    builder: Any, delegate: tuple[str, int], compile_specs: tuple[tuple[str, bytes], ...]
) -> int:
    backend_id, segment = delegate
    processed = _table(builder, 2, {}, u8={0: 1}, u32={1: segment})
    specs = _tables(builder, [partial(_compile_spec, builder, *s) for s in compile_specs])
    return _table(builder, 3, {0: builder.CreateString(backend_id), 1: processed, 2: specs})


def _compile_spec(builder: Any, key: str, value: bytes) -> int:
    content = builder.CreateByteVector(value)
    return _table(builder, 2, {0: builder.CreateString(key), 1: content})


def _table(
    builder: Any,
    slots: int,
    offsets: dict[int, int],
    u8: dict[int, int] | None = None,
    u32: dict[int, int] | None = None,
    u64: dict[int, int] | None = None,
) -> int:
    builder.StartObject(slots)
    for slot, value in offsets.items():
        builder.PrependUOffsetTRelativeSlot(slot, value, 0)
    for slot, value in (u64 or {}).items():
        builder.PrependUint64Slot(slot, value, 0)
    for slot, value in (u32 or {}).items():
        builder.PrependUint32Slot(slot, value, 0)
    for slot, value in (u8 or {}).items():
        builder.PrependUint8Slot(slot, value, 0)
    end: int = builder.EndObject()
    return end


def _tables(builder: Any, makers: Sequence[Callable[[], int]]) -> int:
    positions = [make() for make in makers]
    builder.StartVector(4, len(positions), 4)
    for position in reversed(positions):
        builder.PrependUOffsetTRelative(position)
    end: int = builder.EndVector()
    return end


def _numbers(builder: Any, values: Sequence[int], size_bytes: int) -> int:
    builder.StartVector(size_bytes, len(values), size_bytes)
    for value in reversed(values):
        (builder.PrependInt32 if size_bytes == 4 else builder.PrependInt64)(value)
    end: int = builder.EndVector()
    return end
