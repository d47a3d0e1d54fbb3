"""ExecuTorch's checks of a graph, run once for graphs that are alike."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import executorch.exir.verification.verifier as verifier
import torch


@contextmanager
def dtypes_checked_once() -> Iterator[None]:
    """ExecuTorch runs each graph nine times to see whether types of tensors fit operators."""
    name, passed = "_check_tensor_args_matching_op_allowed_dtype", set[str]()
    check = getattr(verifier, name)

    def once(graph: torch.fx.GraphModule) -> None:
        text = "\n".join(_described(node) for node in graph.graph.nodes)
        if text not in passed:
            check(graph)
            passed.add(text)

    setattr(verifier, name, once)
    try:
        yield
    finally:
        setattr(verifier, name, check)


def _described(node: torch.fx.Node) -> str:
    value = node.meta.get("val") if node.op == "placeholder" else None
    dtype = getattr(value, "dtype", None)
    return f"{node.op} {node.name} {node.target} {node.args} {node.kwargs} {dtype}"
