"""Quantizes `layers` of tests/data/export/qnn.py for QNN with each function that calibrates it.

    python -m tests.support.qnn_calibration RESULT.json NAME...

The result has, by the function's name, either `failure`, the message, or `samples`, `notes` and
`step`, the scale of the first quantization: that of the inputs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from etdeploy.export.spec import CodeReference
from etdeploy.export.worker.failures import WorkerError
from etdeploy.export.worker.loading.source import load_sources
from etdeploy.export.worker.lowering.quantize import quantize
from etdeploy.program.folder import FORWARD
from tests.data.export import qnn
from tests.support.qnn_lowering import SPEC


def main(result: Path, names: list[str]) -> None:
    result.write_text(json.dumps({name: _calibrated(name) for name in names}))


def _calibrated(name: str) -> dict[str, Any]:
    file = str(qnn.__file__)
    changes = {
        "quantization": "int8_static",
        "python": CodeReference(file=file, name="layers"),
        "calibration": CodeReference(file=file, name=name),
    }
    spec = SPEC.model_copy(update=changes)
    try:
        made = quantize(spec, load_sources(spec))[FORWARD]
    except WorkerError as error:
        return {"failure": error.failure.message}
    graph: Any = made.module.graph
    first = next(node for node in graph.nodes if "quantize_per_tensor" in str(node.target))
    return {"samples": made.samples, "notes": made.notes, "step": first.args[1]}


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
