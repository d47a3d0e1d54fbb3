"""Lowers tiny models with and without what makes that faster.

`python -m tests.support.lowering_run NAME=SCHEME...` writes one line of JSON at the end: of each
model, both ways. A name is one of MODELS, `BACKEND:FUNCTION` of lowered_models.py, or
`BACKEND:FILE:FUNCTION`, the file from the root.
"""

from __future__ import annotations

import hashlib
import io
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

from executorch.exir.dialects.edge._ops import EdgeOpOverload
from executorch.exir.pass_base import ExportPass
from torch.export import exported_program
from torch.fx import Graph

from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.language.sources import generation_sources
from etdeploy.export.worker.loading.recorder import FileRecorder
from etdeploy.export.worker.lowering.quantize import quantize
from etdeploy.export.worker.pipeline import run
from etdeploy.program.folder import EXPORT_INFO, PROGRAM_FILE
from tests.support import generation_run, language_families
from tests.support.export import spec_of
from tests.support.lowered_sources import lowered

_ROOT = Path(__file__).parents[2]
FACTORIES = Path(__file__).with_name("lowered_models.py")


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


def program(name: str, scheme: str, *, whole: bool) -> dict[str, Any]:
    """The digest of a model's program, and how often what takes time was done for it."""
    if ":" in name:
        backend, *file, function = name.split(":")
        factory = f"{_ROOT / file[0] if file else FACTORIES}:{function}"
        return _of_factory(backend, factory, scheme, whole=whole)
    return _of_text(MODELS[name], scheme, whole=whole)


def _of_factory(backend: str, factory: str, scheme: str, *, whole: bool) -> dict[str, Any]:
    """Of a whole export, with its rewrites and with what counts their gain."""
    export = {"backend": backend, "quantization": scheme}
    spec = _spec({"model": {"python": factory}, "export": export}, whole=whole)
    with (
        tempfile.TemporaryDirectory() as folder,
        _counted() as counts,
        _another_release() if whole else nullcontext(),
    ):
        run(spec, Path(folder), lambda *_: None, FileRecorder())
        content = (Path(folder) / PROGRAM_FILE).read_bytes()
        info = json.loads((Path(folder) / EXPORT_INFO).read_text())
    digest = hashlib.sha256(content).hexdigest()
    return {"digest": digest, "rewrites": info.get("rewrites"), **counts}


def _of_text(model: Lowered, scheme: str, *, whole: bool) -> dict[str, Any]:
    export = {"quantization": scheme, "generation": {"context": model.context}}
    spec = _spec({"model": {"hf": "org/model"}, "export": export}, whole=whole)
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


def _spec(recipe: dict[str, Any], *, whole: bool) -> ExportSpec:
    spec = spec_of(recipe)
    return spec.model_copy(update={"wanted_versions": {"torch": "1.2.3"}}) if whole else spec


def _digest(spec: ExportSpec, sources: Any) -> str:
    stream = io.BytesIO()
    lowered(spec, sources).write_to_file(stream)
    return hashlib.sha256(stream.getvalue()).hexdigest()


@contextmanager
def _another_release() -> Iterator[None]:
    """While the block runs, what replaces parts of ExecuTorch and PyTorch cannot be imported."""
    patches = "etdeploy.export.worker.lowering.upstream_patches"
    with patch.dict(sys.modules, {patches: None}):
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
    return {way: program(name, scheme, whole=way == "whole") for way in ways}


if __name__ == "__main__":
    told = {word: both_ways(*word.split("=")) for word in sys.argv[1:]}
    sys.stdout.write("\n" + json.dumps(told) + "\n")
