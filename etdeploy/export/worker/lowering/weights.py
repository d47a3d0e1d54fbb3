"""Weights that methods have in common, and whether a program stores them once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from etdeploy.core.console import size
from etdeploy.program.folder import PROGRAM_FILE
from etdeploy.program.inspect import inspect_file

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


def packed_weights_note(backend: str, folder: Path, shared_bytes: int) -> Iterator[str]:
    """The sentence with sizes, where the partitions show that shared weights are in each method's.

    ExecuTorch stores equal constants once, also those that a backend gives it by name, as XNNPACK
    does. A backend that packs weights into its partitions is seen by the size of these.
    """
    program = inspect_file(folder / PROGRAM_FILE)
    taken = {m.name: sum(d.size_bytes for d in m.delegates) for m in program.methods}
    heavy = {n: b for n, b in taken.items() if b > max(_GRAPH_BYTES, shared_bytes // _LEAST_SHARE)}
    # One partition that stands for several methods is stored once.
    if len(heavy) > 1 and sum(heavy.values()) <= program.size_bytes:
        told = ", ".join(f"{size(taken)} in {name}" for name, taken in heavy.items())
        sentence = separate_weights_note(backend, shared_bytes)
        yield f"{sentence[:-1]}: its partitions take {told}."
