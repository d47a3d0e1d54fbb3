"""Lowers a tiny language model with or without what makes that faster.

`python -m tests.support.lowering_run NAME SCHEME` writes one line of JSON at the end: both ways.
"""

from __future__ import annotations

import hashlib
import io
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

from executorch.exir.pass_base import ExportPass

from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.backends import xnnpack_passes
from etdeploy.export.worker.generation.sources import generation_sources
from etdeploy.export.worker.lowering import lower as lowering
from etdeploy.export.worker.lowering.quantize import quantize
from tests.support.export import spec_of
from tests.support.generation_run import tiny
from tests.support.lowered_sources import lowered


def program(name: str, scheme: str, *, whole: bool) -> dict[str, Any]:
    """The digest of a model's program, and how often a graph was traced for it."""
    export = {"quantization": scheme, "generation": {"context": 32}}
    spec = spec_of({"model": {"hf": "org/model"}, "export": export})
    model = tiny(name)
    made = generation_sources(model, context=32, prefill_tokens=8, path="auto")
    if scheme != "none":
        quantize(spec, made.sources)
    with _traces() as count, _everything() if whole else nullcontext():
        digest = _digest(spec, made.sources)
    return {"digest": digest, "traces": len(count)}


def _digest(spec: ExportSpec, sources: Any) -> str:
    stream = io.BytesIO()
    lowered(spec, sources).write_to_file(stream)
    return hashlib.sha256(stream.getvalue()).hexdigest()


@contextmanager
def _everything() -> Iterator[None]:
    """While the block runs, models are lowered as ExecuTorch does it."""
    with (
        patch.object(lowering, "_shortened", lambda _: nullcontext()),
        patch.object(xnnpack_passes, "needed_passes_only", nullcontext),
    ):
        yield


@contextmanager
def _traces() -> Iterator[list[None]]:
    """An element for each time that a pass traces a graph again."""
    found, call = list[None](), ExportPass.call_submodule

    def counted(self: Any, *args: Any) -> Any:
        found.append(None)
        return call(self, *args)

    with patch.object(ExportPass, "call_submodule", counted):
        yield found


if __name__ == "__main__":
    told = {way: program(*sys.argv[1:3], whole=way == "whole") for way in ("fast", "whole")}
    sys.stdout.write("\n" + json.dumps(told) + "\n")
