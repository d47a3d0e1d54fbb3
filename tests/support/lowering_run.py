"""Lowers tiny language models with and without what makes that faster.

`python -m tests.support.lowering_run NAME=SCHEME...` writes one line of JSON at the end: of each
model, both ways.
"""

from __future__ import annotations

import hashlib
import io
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal
from unittest.mock import patch

from executorch.exir.dialects.edge._ops import EdgeOpOverload
from executorch.exir.pass_base import ExportPass
from torch.export import exported_program
from torch.fx import Graph

from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.generation.sources import generation_sources
from etdeploy.export.worker.lowering.quantize import quantize
from tests.support import generation_run, language_families
from tests.support.export import spec_of
from tests.support.lowered_sources import lowered


@dataclass(frozen=True)
class Lowered:
    """A model, and how it is exported."""

    make: Callable[[], Any]
    path: Literal["auto", "plain"] = "auto"
    attention: Literal["stock", "kernel"] = "stock"
    context: int = 32


def _family(name: str) -> Lowered:
    family = language_families.FAMILIES[name]
    return Lowered(lambda: language_families.tiny(family), family.path)


MODELS = {
    "llama": Lowered(lambda: generation_run.tiny("Llama")),
    "llama-segments": Lowered(lambda: generation_run.tiny("Llama"), context=512),
    "qwen3-kernel": Lowered(lambda: generation_run.tiny("Qwen3"), attention="kernel"),
    "gemma3": Lowered(lambda: generation_run.tiny("Gemma3Text")),
    "lfm2": _family("lfm2"),
    "mixtral-plain": _family("mixtral-plain"),
}


def program(model: Lowered, scheme: str, *, whole: bool) -> dict[str, Any]:
    """The digest of a model's program, and how often what takes time was done for it."""
    export = {"quantization": scheme, "generation": {"context": model.context}}
    spec = spec_of({"model": {"hf": "org/model"}, "export": export})
    if whole:
        spec = spec.model_copy(update={"wanted_versions": {"torch": "1.2.3"}})
    made = generation_sources(
        model.make(),
        context=model.context,
        prefill_tokens=8,
        path=model.path,
        attention=model.attention,
    )
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


def both_ways(name: str, scheme: str) -> dict[str, Any]:
    """The program with, and without, what makes it faster."""
    ways = ("fast", "whole")
    return {way: program(MODELS[name], scheme, whole=way == "whole") for way in ways}


if __name__ == "__main__":
    told = {name: both_ways(name, scheme) for name, scheme in (w.split("=") for w in sys.argv[1:])}
    sys.stdout.write("\n" + json.dumps(told) + "\n")
