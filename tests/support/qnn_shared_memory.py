"""A program with a static cache, all of which is one partition of `QnnBackend`.

What it computes is said, and done, by tests/data/qnn/shared_memory.cpp.
"""

from __future__ import annotations

from typing import Any

from etdeploy.program.generation import GenerationMethod, StaticCache

CONTEXT, PART, VOCABULARY = 24, 4, 53
CACHE = StaticCache(places=CONTEXT - 1, windows=(0,), masked=-255.0, layers=((1, 2),))
METHODS = (
    GenerationMethod(
        name="prefill", role="prefill", max_tokens=PART, dynamic=True, capacity=CONTEXT
    ),
    GenerationMethod(name="decode", role="decode", max_tokens=1, dynamic=False, capacity=CONTEXT),
)


def continued(prompt: tuple[int, ...], new_tokens: int) -> list[int]:
    """The text that the program gives."""
    ids = list(prompt)
    for _ in range(new_tokens):
        total = sum((token + 1) * (at + 1) for at, token in enumerate(ids))
        ids.append(total % VOCABULARY)
    return ids[len(prompt) :]


def delegated_program() -> bytes:
    """The `.pte`, in a process that has torch."""
    import torch
    from executorch.exir import ExecutorchBackendConfig, to_edge
    from executorch.exir.backend.backend_api import to_backend
    from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
    from executorch.exir.passes import MemoryPlanningPass

    from etdeploy.export.worker.language.static_cache import StaticCalls

    class QnnBackend(BackendDetails):  # type: ignore[misc]
        @staticmethod
        def preprocess(*_: Any) -> Any:
            return PreprocessResult(processed_bytes=b"compiled")

    class Model(torch.nn.Module):  # type: ignore[misc]
        """Of the same shapes."""

        def forward(
            self, tokens: Any, positions: Any, mask: Any, keys: Any, values: Any
        ) -> tuple[Any, ...]:
            seen = (mask[:, 0, -1, :1] + keys[:, 0, 0, :1] + values[:, 0, :1, 0]) * 0
            key = (tokens + 1.0)[:, None, None].expand(1, 1, 2, tokens.shape[1])
            value = (positions + 1.0)[:, None, :, None].expand(1, 1, tokens.shape[1], 2)
            return seen.expand(1, VOCABULARY) + 1, key + 1, value + 1

    class Delegated(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, lowered: Any) -> None:
            super().__init__()
            self.lowered = lowered

        def forward(self, *inputs: Any) -> Any:
            return self.lowered(*inputs)

    methods = {}
    for method in METHODS:
        inputs = StaticCalls(CACHE).inputs([0] * method.max_tokens, 0, method.max_tokens)
        edge = to_edge(torch.export.export(Model(), inputs)).exported_program()
        lowered = to_backend("QnnBackend", edge, [])
        methods[method.name] = torch.export.export(Delegated(lowered), inputs)
    planning = MemoryPlanningPass(alloc_graph_input=False, alloc_graph_output=False)
    program = to_edge(methods).to_executorch(ExecutorchBackendConfig(memory_planning_pass=planning))
    return bytes(program.buffer)
