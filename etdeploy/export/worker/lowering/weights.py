"""Weights that a program has twice: shared by methods, or tied as embeddings and output layer.

What a program holds as a constant and, with equal bytes, as a delegate's named data is stored once.
A model that ties its output layer to its embeddings has such weights: the table is a constant that
a kernel looks up, and the layer's weights are named data of the delegate. ExecuTorch 1.5.1 writes
them twice (exir/_serialize/_program.py). A segment is a range of the file (schema/program.fbs), and
the runtime reads it by offset and size alone (runtime/executor: program.cpp, pte_data_map.cpp), so
that a segment of named data may lie inside that of the constants.
"""

from __future__ import annotations

import itertools
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etdeploy.core.console import size
from etdeploy.core.errors import UsageError
from etdeploy.core.flatbuffer import CorruptError, FlatBuffer, FlatbufferTable
from etdeploy.program.model import Program
from etdeploy.program.pte import PteFile, map_pte

if TYPE_CHECKING:
    import torch

# Weights of 4 bits, with their scales, take at least this part of 32-bit floats.
_LEAST_SHARE = 10
# A graph without weights may take this much.
_GRAPH_BYTES = 64 << 10


def shared_weight_bytes(modules: Iterable[torch.nn.Module]) -> int:
    """Bytes of the parameters that are the same objects in several methods' modules."""
    found = [{id(t): t for t in m.parameters()} for m in modules]
    count = Counter(key for each in found for key in each)
    tensors = {key: tensor for each in found for key, tensor in each.items()}
    return sum(tensors[key].nbytes for key, methods in count.items() if methods > 1)


def separate_weights_note(backend: str, shared_bytes: int) -> str:
    """The sentence for a backend that stores shared weights with each method."""
    return (
        f"The methods share {size(shared_bytes)} of weights, and {backend} stores them with each."
    )


def packed_weights_note(backend: str, program: Program, shared_bytes: int) -> Iterator[str]:
    """The sentence with sizes, where the partitions show that shared weights are in each method's.

    ExecuTorch stores equal constants once, also those that a backend gives it by name, as XNNPACK
    does. A backend that packs weights into its partitions is seen by the size of these.
    """
    taken = {m.name: sum(d.size_bytes for d in m.delegates) for m in program.methods}
    heavy = {n: b for n, b in taken.items() if b > max(_GRAPH_BYTES, shared_bytes // _LEAST_SHARE)}
    # One partition that stands for several methods is stored once.
    if len(heavy) > 1 and sum(heavy.values()) <= program.size_bytes:
        listed = ", ".join(f"{size(taken)} in {name}" for name, taken in heavy.items())
        sentence = separate_weights_note(backend, shared_bytes)
        yield f"{sentence[:-1]}: its partitions take {listed}."


# By the text of torch's type.
_BITS = {"torch.int4": 4, "torch.int8": 8}
_FLOAT_BITS = 32


_TIES = "tie_word_embeddings"


def tied_notes(model: Any, saved_bytes: int) -> Iterator[str]:
    """Sentences about the two tensors that one tensor of the model has become.

    ExecuTorch stores equal constants once, as they are where no delegate has the output layer.
    """
    if saved_bytes:
        yield (
            "Weights that are equal in a delegate and outside of it are stored once: the program "
            f"is {size(saved_bytes)} smaller."
        )
    elif model is not None and _ties_embeddings(model.config):
        table, layer = model.get_input_embeddings().weight, model.get_output_embeddings().weight
        if _are_equal(getattr(table, "qdata", None), getattr(layer, "qdata", None)):
            return
        yield (
            "The model's embeddings are its output layer's weights, too; the program has both "
            f"({_stored(table)} and {_stored(layer)}), since they are quantized or laid out "
            "differently. With 8 bits in both, they are stored once: "
            "export.embeddings 8w, and 8da8w for lm_head in export.overrides."
        )


def _ties_embeddings(config: Any) -> bool:
    """Of a model of several modalities, either configuration may say it."""
    parts = (config.get_text_config(decoder=True), config)
    return bool(next((p.tie_word_embeddings for p in parts if hasattr(p, _TIES)), False))


def _are_equal(values: torch.Tensor | None, others: torch.Tensor | None) -> bool:
    if values is None or others is None or values.shape != others.shape:
        return False
    return bool((values == others).all())


def _stored(weight: Any) -> str:
    """`14.2 MB in 4 bits`, without the scales."""
    # torchao keeps one byte for each value until the program is written.
    bits = _BITS.get(str(getattr(weight, "target_dtype", "")), _FLOAT_BITS)
    return f"{size(weight.numel() * bits // 8)} in {bits} bits"


# Slots of schema/program.fbs.
_SEGMENTS, _CONSTANT_SEGMENT, _NAMED_DATA = 4, 5, 7
_OFFSET, _SIZE = 0, 1
_INDEX, _OFFSETS = 0, 1
_NAMED_INDEX = 1
# Smaller ones are not worth a second writing of the file.
_LEAST_BYTES = 64 << 10
# Constants and segments start at multiples of this (`constant_tensor_alignment`).
_ALIGNMENT = 16
_U64 = struct.Struct("<Q")
# Size of all segments, in the extended header.
_SEGMENTS_SIZE_AT = 32


@dataclass(frozen=True)
class _Segment:
    """A segment; offsets count from where segments begin.

    `field` is where in the FlatBuffer its offset stands; None for the first, whose offset is 0.
    """

    offset: int
    size: int
    field: int | None


def store_once(path: Path, least_bytes: int = _LEAST_BYTES) -> int:
    """Writes the program again, with equal bytes once; by how many bytes it is smaller.

    A program in which nothing is stored twice, or of another layout, stays as it is.
    """
    try:
        pte = map_pte(path)
        root = FlatBuffer(pte.flatbuffer).root()
        segments = _segments(root)
        constants = root.table(_CONSTANT_SEGMENT)
        if constants is None or not _side_by_side(segments):
            return 0
        own = constants.uint32(_INDEX)
        moved = dict(_moved(root, segments, pte, least_bytes))
    except (CorruptError, UsageError, IndexError):
        return 0  # whoever inspects the program says what is wrong
    if not moved:
        return 0
    before = path.stat().st_size
    work = path.with_name(f"{path.name}.smaller")
    try:
        _write(work, path, pte, _Layout(segments, own, moved))
        work.replace(path)
    finally:
        work.unlink(missing_ok=True)
    return before - path.stat().st_size


@dataclass(frozen=True)
class _Layout:
    """What is to become of the segments: `moved` has those that are to lie in the constants' own.

    By their index, with where they are to lie.
    """

    segments: list[_Segment]
    own: int
    moved: Mapping[int, int]


def _segments(root: FlatbufferTable) -> list[_Segment]:
    return [
        _Segment(table.uint64(_OFFSET), table.uint64(_SIZE), table.position(_OFFSET))
        for table in root.tables(_SEGMENTS)
    ]


def _side_by_side(segments: list[_Segment]) -> bool:
    order = sorted(segments, key=lambda each: each.offset)
    return all(a.offset + a.size <= b.offset for a, b in itertools.pairwise(order))


def _moved(
    root: FlatbufferTable, segments: list[_Segment], pte: PteFile, least_bytes: int
) -> Iterator[tuple[int, int]]:
    """Segments of named data, by index, with where equal constants are among the constants."""
    table = root.table(_CONSTANT_SEGMENT)
    if table is None:
        return
    own = segments[table.uint32(_INDEX)]
    starts = sorted({*table.int64s(_OFFSETS), own.size})
    rooms = {start: end - start for start, end in itertools.pairwise(starts)}
    for index in sorted({named.uint32(_NAMED_INDEX) for named in root.tables(_NAMED_DATA)}):
        segment = segments[index]
        if segment is own or segment.field is None or segment.size < least_bytes:
            continue
        content = pte.segment(segment.offset, segment.size)
        for start, room in rooms.items():
            fits = 0 <= room - segment.size < _ALIGNMENT
            if fits and pte.segment(own.offset + start, segment.size) == content:
                yield index, start
                break


def _write(path: Path, source: Path, pte: PteFile, layout: _Layout) -> None:
    """The file without the moved segments; what follows them moves up."""
    with source.open("rb") as stream:
        head = bytearray(stream.read(pte.size_bytes - len(pte.segments)))
    segments = layout.segments
    order = sorted(range(len(segments)), key=lambda index: segments[index].offset)
    ends = [*(segments[index].offset for index in order[1:]), len(pte.segments)]
    kept, starts, size = [], {}, 0
    for index, end in zip(order, ends, strict=True):
        if index not in layout.moved:
            begin = segments[index].offset
            kept.append((begin, end))
            starts[index], size = size, size + end - begin
    starts |= {index: starts[layout.own] + at for index, at in layout.moved.items()}
    for index, segment in enumerate(segments):
        if segment.field is not None:
            _U64.pack_into(head, segment.field, starts[index])
    _U64.pack_into(head, _SEGMENTS_SIZE_AT, size)
    with path.open("wb") as stream:
        stream.write(head)
        for begin, end in kept:
            stream.write(pte.segments[begin:end])
