"""Lowers a tiny language model to Core ML; only Apple's systems run what comes of it.

`python -m tests.support.coreml_text FOLDER` writes one line of JSON at the end.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from etdeploy.export.worker.backends.base import lowering_of
from etdeploy.export.worker.language.sources import generation_sources
from etdeploy.program.inspect import inspect_file
from etdeploy.program.model import TensorInfo
from tests.support.export import spec_of
from tests.support.generation_run import tiny
from tests.support.lowered_sources import lowered

CONTEXT, PART = 32, 4


def found(folder: Path) -> dict[str, Any]:
    """What each method takes, and what of it Core ML computes."""
    export = {"backend": "coreml", "quantization": "fp16"}
    spec = spec_of({"model": {"hf": str(folder)}, "export": export})
    fixed = lowering_of(spec).fixed_shapes
    made = generation_sources(
        tiny("Llama"), context=CONTEXT, prefill_tokens=PART, path="auto", fixed=fixed
    )
    path = folder / "program.pte"
    with path.open("wb") as stream:
        lowered(spec, made.sources).write_to_file(stream)
    return {
        method.name: {
            "inputs": [v.shape for v in method.inputs if isinstance(v, TensorInfo)],
            "delegates": [delegate.backend_id for delegate in method.delegates],
            "operators": {operator.name: operator.calls for operator in method.operators},
        }
        for method in inspect_file(path).methods
    }


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(found(Path(sys.argv[1]))) + "\n")
