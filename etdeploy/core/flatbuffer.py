"""Reads tables of a FlatBuffer by the slots of their fields, and trusts none of its bytes.

The `flatbuffers` runtime knows the format of a table; this adds what it omits: every offset and
length is checked against the buffer, and the work that a file can cause is bounded, since many
offsets of a crafted file may point to the same large table.

A field's slot is its position in the schema's table, counted from 0; a union takes two slots, its
type and its value. https://flatbuffers.dev/internals/
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

_FIRST_SLOT_BYTES = 4
_SLOT_BYTES = 2
_LENGTH = struct.Struct("<I")
_LONGEST_STRING = 4096
# A valid file has few shared parts: reading it costs less than this many times its size.
_WORK_PER_BYTE = 4


class CorruptError(ValueError):
    """The bytes are not a valid FlatBuffer of the expected schema."""


class FlatBuffer:
    """The bytes of one FlatBuffer, its root table at the offset in its first four bytes."""

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self._budget = _WORK_PER_BYTE * len(data) + 4096

    def root(self) -> FlatbufferTable:
        """The root table."""
        return FlatbufferTable(self, self.follow(0))

    def spend(self, work: int) -> None:
        """Accounts for `work` bytes of reading."""
        self._budget -= work
        if self._budget < 0:
            raise CorruptError("its parts refer to each other too often")

    def u32(self, position: int) -> int:
        """The unsigned number at `position`."""
        if not 0 <= position <= len(self.data) - 4:
            raise CorruptError(f"an offset leads to byte {position} of {len(self.data)}")
        return int(_LENGTH.unpack_from(self.data, position)[0])

    def follow(self, position: int) -> int:
        """Where the offset at `position` leads."""
        self.spend(4)
        return position + self.u32(position)

    def vector(self, position: int, item_bytes: int) -> tuple[int, int]:
        """First byte and number of items of the vector at `position`, all inside the buffer."""
        count = self.u32(position)
        if count * item_bytes > len(self.data) - position - 4:
            raise CorruptError(f"a list of {count} items leads out of the file")
        return position + 4, count


class FlatbufferTable:
    """One table; an absent field reads as its default, as the format requires."""

    def __init__(self, buffer: FlatBuffer, position: int) -> None:
        from flatbuffers import number_types, table

        self._types: Any = number_types
        self._buffer = buffer
        self._table: Any = table.Table(buffer.data, _plausible(position, buffer))

    def int8(self, slot: int, default: int = 0) -> int:
        return self._scalar(slot, self._types.Int8Flags, default)

    def uint8(self, slot: int, default: int = 0) -> int:
        return self._scalar(slot, self._types.Uint8Flags, default)

    def int32(self, slot: int, default: int = 0) -> int:
        return self._scalar(slot, self._types.Int32Flags, default)

    def uint32(self, slot: int, default: int = 0) -> int:
        return self._scalar(slot, self._types.Uint32Flags, default)

    def int64(self, slot: int, default: int = 0) -> int:
        return self._scalar(slot, self._types.Int64Flags, default)

    def float64(self, slot: int, default: float = 0.0) -> float:
        return float(self._number(slot, self._types.Float64Flags, default))

    def uint64(self, slot: int, default: int = 0) -> int:
        return self._scalar(slot, self._types.Uint64Flags, default)

    def string(self, slot: int) -> str:
        """A name; empty when absent."""
        field = self._field(slot)
        if field is None:
            return ""
        start, count = self._buffer.vector(self._buffer.follow(field), 1)
        if count > _LONGEST_STRING:
            raise CorruptError(f"a name has {count} bytes")
        self._buffer.spend(count)
        text = bytes(self._buffer.data[start : start + count]).decode(errors="replace")
        if not text.isprintable() or "\ufffd" in text:
            raise CorruptError("a name is not readable text")
        return text

    def position(self, slot: int) -> int | None:
        """Where in the buffer a field's value stands; None when absent."""
        return self._field(slot)

    def table(self, slot: int) -> FlatbufferTable | None:
        """The table that the field refers to; None when absent."""
        field = self._field(slot)
        return None if field is None else FlatbufferTable(self._buffer, self._buffer.follow(field))

    def tables(self, slot: int) -> Iterator[FlatbufferTable]:
        """The items of a list of tables, in order."""
        start, count = self._list(slot, 4)
        for i in range(count):
            yield FlatbufferTable(self._buffer, self._buffer.follow(start + 4 * i))

    def table_at(self, slot: int, index: int) -> FlatbufferTable:
        """One item of a list of tables."""
        start, count = self._list(slot, 4)
        if not 0 <= index < count:
            raise CorruptError(f"item {index} of a list with {count} items is asked for")
        return FlatbufferTable(self._buffer, self._buffer.follow(start + 4 * index))

    def int32s(self, slot: int) -> tuple[int, ...]:
        return self._numbers(slot, "i", 4)

    def int64s(self, slot: int) -> tuple[int, ...]:
        return self._numbers(slot, "q", 8)

    def length(self, slot: int, item_bytes: int) -> int:
        """How many items of `item_bytes` a list has; 0 when absent."""
        return self._list(slot, item_bytes)[1]

    def content(self, slot: int) -> memoryview:
        """A list of bytes, without a copy."""
        start, count = self._list(slot, 1)
        return self._buffer.data[start : start + count]

    def _numbers(self, slot: int, code: str, item_bytes: int) -> tuple[int, ...]:
        start, count = self._list(slot, item_bytes)
        self._buffer.spend(item_bytes * count)
        return struct.unpack_from(f"<{count}{code}", self._buffer.data, start)

    def _list(self, slot: int, item_bytes: int) -> tuple[int, int]:
        field = self._field(slot)
        if field is None:
            return 0, 0
        return self._buffer.vector(self._buffer.follow(field), item_bytes)

    def _scalar(self, slot: int, flags: Any, default: int) -> int:
        return int(self._number(slot, flags, default))

    def _number(self, slot: int, flags: Any, default: float) -> Any:
        field = self._field(slot)
        if field is None:
            return default
        try:
            return self._table.Get(flags, field)
        except struct.error as error:
            raise CorruptError("a field lies outside of the file") from error

    def _field(self, slot: int) -> int | None:
        """Absolute position of a field's value."""
        self._buffer.spend(_SLOT_BYTES)
        try:
            offset = self._table.Offset(_FIRST_SLOT_BYTES + _SLOT_BYTES * slot)
        except (struct.error, TypeError) as error:
            # TypeError: the runtime refuses a negative position.
            raise CorruptError("a table's layout lies outside of the file") from error
        return self._table.Pos + offset if offset else None


def _plausible(position: int, buffer: FlatBuffer) -> int:
    if position > len(buffer.data) - 4:
        raise CorruptError(f"a table is said to be at byte {position} of {len(buffer.data)}")
    return position
