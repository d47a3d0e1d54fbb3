"""Tables of embeddings: most of a small language model's file, and only looked up.

ExecuTorch 1.5.1 has operators that look up rows of 8-bit and 4-bit weights
(`quantized_decomposed::embedding_byte`, `embedding_4bit`): fewer bits cost no time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from etdeploy.backends.schemes import FLOAT_SCHEMES, GROUPED_EMBEDDINGS
from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.lowering.layers.found import DEFAULT_GROUP_SIZE, Layer, apply
from etdeploy.export.worker.lowering.overrides import first_match

Tables = Sequence[Layer[torch.nn.Embedding]]


def quantize_embeddings(spec: ExportSpec, tables: Tables) -> Iterator[str]:
    """Quantises the tables that no override leaves in floats; yields sentences for the user."""
    chosen = [table for table in tables if not _stays(spec, table)]
    group_size = spec.group_size or DEFAULT_GROUP_SIZE
    grouped = [table for table in chosen if _in_groups(spec, table, group_size)]
    rest = [table for table in chosen if table not in grouped]
    if grouped:
        apply(_config(group_size), grouped, "the embeddings")
        yield f"The weights of embeddings have 4 bits, with a scale for each {group_size} of them."
    if rest:
        apply(_config(None), rest, "the embeddings")
        yield _rest_note(spec, rest, group_size)
    if not tables:
        yield "The model has no table of embeddings to quantise."


def _stays(spec: ExportSpec, table: Layer[Any]) -> bool:
    found = first_match(spec, table.paths)
    return found is not None and found[1] in FLOAT_SCHEMES


def _in_groups(spec: ExportSpec, table: Layer[torch.nn.Embedding], group_size: int) -> bool:
    grouped = spec.embeddings in GROUPED_EMBEDDINGS
    return grouped and table.module.embedding_dim % group_size == 0


def _config(group_size: int | None) -> Any:
    """4 bits in groups of that size; 8 bits for each token without."""
    from torchao.quantization.granularity import PerAxis, PerGroup
    from torchao.quantization.quant_api import IntxWeightOnlyConfig

    if group_size is None:
        return IntxWeightOnlyConfig(weight_dtype=torch.int8, granularity=PerAxis(0))
    return IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(group_size))


def _rest_note(spec: ExportSpec, rest: Tables, group_size: int) -> str:
    if spec.embeddings not in GROUPED_EMBEDDINGS:
        return "The weights of embeddings have 8 bits, with a scale for each token."
    sizes = ", ".join(f"{t.name} ({t.module.embedding_dim})" for t in rest)
    return (
        "Embeddings that have 8 bits, since their size is not a multiple of the group size "
        f"{group_size}: {sizes}."
    )
