"""Quantizes models of tests/data/export/quantized.py, and runs them eagerly before and after.

    python -m tests.support.quantized_models RESULT.json CASES

The cases are keys of export specs, by name, as JSON. The result has for each either `failure` or
what the export records: `loss` and `notes`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from etdeploy.export.spec import CodeReference, ExportSpec
from etdeploy.export.worker.failures import WorkerError
from etdeploy.export.worker.loading.source import load_sources
from etdeploy.export.worker.quantization import LayerFacts, quantized_modules
from etdeploy.export.worker.rewrites.base import Log
from etdeploy.export.worker.steps import Steps, import_executorch
from etdeploy.program.folder import FORWARD
from tests.data.export import quantized


def main(result: Path, cases: dict[str, dict[str, Any]]) -> None:
    import_executorch(Steps(lambda _, __: None))
    result.write_text(json.dumps({name: _quantized_case(case) for name, case in cases.items()}))


def _quantized_case(case: dict[str, Any]) -> dict[str, Any]:
    functions = {
        key: CodeReference(file=quantized.__file__, name=case[key])
        for key in ("python", "calibration")
        if key in case
    }
    spec = ExportSpec.model_validate({"backend": "xnnpack", **case, **functions})
    try:
        sources = load_sources(spec)
        made = quantized_modules(spec, sources, tuple(sources), Log(spec.rewrites), LayerFacts())[
            FORWARD
        ]
    except WorkerError as error:
        return {"failure": error.failure.model_dump()}
    return {"loss": [loss.model_dump() for loss in made.outputs().losses], "notes": made.notes}


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
