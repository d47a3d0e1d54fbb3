"""Decompositions before XNNPACK's partitioner, left out where they have nothing to do.

`to_edge_transform_and_lower` makes a program functional, decomposes what no partitioner may want
whole, and after asking about each node decomposes the rest. Each of the three traces the whole
graph again. The second makes a program functional, too, and in a language model the last finds
nothing: one is enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from executorch.exir.graph_module import contains_any_call_fn_target_op
from torch.export import ExportedProgram
from torch.export.decomp_utils import CustomDecompTable


@contextmanager
def decompositions_with_work() -> Iterator[None]:
    """While the block runs, a program is traced to decompose something, and for nothing else.

    Asked to make a program functional, it waits for the decomposition that always follows where a
    partitioner looks at each node: of the program, that one's `ops_to_not_decompose` reads nothing
    (exir/backend/canonical_partitioners/config_partitioner.py). A program that is decomposed
    already is functional, and stays so. ExecuTorch leaves out the same for backends that are asked
    about operators only (exir/program/_program.py).
    """
    before = ExportedProgram.run_decompositions
    decomposed: list[ExportedProgram] = []

    def run(self: ExportedProgram, table: Any = None, *args: Any, **kwargs: Any) -> ExportedProgram:
        if _is_empty(table):
            return self
        known = any(each is self for each in decomposed)
        if known and table is not None and not _has_work(self, table):
            return self
        made = before(self, table, *args, **kwargs)
        decomposed.append(made)
        return made

    ExportedProgram.run_decompositions = run
    try:
        yield
    finally:
        ExportedProgram.run_decompositions = before


def _is_empty(table: Any) -> bool:
    # PyTorch's own table is an empty dict, too, until somebody reads it.
    return type(table) is dict and not table


def _has_work(program: ExportedProgram, table: Any) -> bool:
    operators = table.materialize() if isinstance(table, CustomDecompTable) else table
    return bool(contains_any_call_fn_target_op(program.graph_module, operators))
