"""Lowers a tiny language model with or without what makes that faster.

`python -m tests.support.lowering_run NAME SCHEME` writes one line of JSON at the end: both ways.
"""

from __future__ import annotations

import hashlib
import io
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

from executorch.exir.dialects.edge._ops import EdgeOpOverload
from executorch.exir.pass_base import ExportPass
from torch.export import exported_program
from torch.fx import Graph

from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.generation.sources import generation_sources
from etdeploy.export.worker.lowering.quantize import quantize
from tests.support.export import spec_of
from tests.support.generation_run import tiny
from tests.support.lowered_sources import lowered


def program(name: str, scheme: str, *, whole: bool) -> dict[str, Any]:
    """The digest of a model's program, and how often what takes time was done for it."""
    export = {"quantization": scheme, "generation": {"context": 32}}
    spec = spec_of({"model": {"hf": "org/model"}, "export": export})
    if whole:
        spec = spec.model_copy(update={"wanted_versions": {"torch": "1.2.3"}})
    model = tiny(name)
    made = generation_sources(model, context=32, prefill_tokens=8, path="auto")
    if scheme != "none":
        quantize(spec, made.sources)
    with _counted() as counts, _another_release() if whole else nullcontext():
        digest = _digest(spec, made.sources)
    return {"digest": digest, **counts}


def _digest(spec: ExportSpec, sources: Any) -> str:
    stream = io.BytesIO()
    lowered(spec, sources).write_to_file(stream)
    return hashlib.sha256(stream.getvalue()).hexdigest()


@contextmanager
def _another_release() -> Iterator[None]:
    """While the block runs, what replaces parts of ExecuTorch and PyTorch cannot be imported."""
    worker = "etdeploy.export.worker"
    replacing = (
        f"{worker}.lowering.shortcuts",
        f"{worker}.backends.xnnpack_passes",
        f"{worker}.backends.xnnpack_decompositions",
    )
    with patch.dict(sys.modules, dict.fromkeys(replacing)):
        yield


# By what is counted: whose method, or function of a module, it is.
_COUNTED: dict[str, tuple[Any, str]] = {
    "traces": (ExportPass, "call_submodule"),
    "decompositions": (exported_program, "_decompose_exported_program"),
    "operators": (EdgeOpOverload, "__call__"),
    "compiled": (Graph, "python_code"),
}


@contextmanager
def _counted() -> Iterator[Counter[str]]:
    """How often each of them is called."""
    found = Counter[str]()
    with ExitStack() as stack:
        for what, (owner, name) in _COUNTED.items():
            counting = _counting(found, what, getattr(owner, name))
            stack.enter_context(patch.object(owner, name, counting))
        yield found


def _counting(found: Counter[str], what: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def counted(*args: Any, **kwargs: Any) -> Any:
        found[what] += 1
        return call(*args, **kwargs)

    return counted


if __name__ == "__main__":
    told = {way: program(*sys.argv[1:3], whole=way == "whole") for way in ("fast", "whole")}
    sys.stdout.write("\n" + json.dumps(told) + "\n")
