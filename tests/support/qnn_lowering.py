"""Lowers the models of tests/data/export/qnn.py in one process, with Qualcomm's compiler.

    python -m tests.support.qnn_lowering RESULT.json [NAME...]

The result has, by the model's name, either `failure`, as the worker describes it, or `counts` and
`notes` of its delegation, and `inputs`, the shapes of the program's inputs. What the compiler
prints goes to the output.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from etdeploy.backends.options import option_values
from etdeploy.backends.qnn.facts import OPTIONS
from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.backends.base import Traced, lowering_of
from etdeploy.export.worker.failures import WorkerError
from etdeploy.export.worker.loading.source import MethodSource
from etdeploy.export.worker.lowering.delegation import delegation, delegation_notes
from etdeploy.export.worker.lowering.lower import emit, lower
from etdeploy.export.worker.lowering.quantize import quantize
from etdeploy.export.worker.tracing.structure import ExampleInputs
from etdeploy.export.worker.tracing.trace import trace
from etdeploy.program.folder import FORWARD
from tests.data.export.qnn import EXAMPLES, QUANTIZED
from tests.data.export.qnn import OPTIONS as CHOSEN

SPEC = ExportSpec(
    backend="qnn",
    quantization="fp16",
    soc="SM8650",
    profiled=False,
    options=option_values(OPTIONS, {}),
)


def main(result: Path, names: list[str]) -> None:
    made = {name: _lowered(name) for name in names or EXAMPLES}
    result.write_text(json.dumps(made))


def _lowered(name: str) -> dict[str, Any]:
    torch.manual_seed(0)
    module, arguments, keywords, shapes = EXAMPLES[name]()
    source = MethodSource(module.eval(), ExampleInputs(arguments, keywords), shapes)
    try:
        scheme, options = QUANTIZED.get(name, SPEC.quantization), CHOSEN.get(name, {})
        spec = SPEC.model_copy(
            update={"quantization": scheme, "options": option_values(OPTIONS, options)}
        )
        quantized = quantize(spec, {FORWARD: source}).get(FORWARD)
        model = quantized.module if quantized else source.module
        traced = trace(model, source.inputs, shapes, strict=False)
        methods = {FORWARD: Traced(model, source, traced)}
        edge = lower(spec, methods)
        counts = delegation(edge, FORWARD)
        program = emit(spec, edge, methods)
    except WorkerError as error:
        return {"failure": error.failure.model_dump()}
    notes = list(delegation_notes("qnn", counts, lowering_of(spec).apart))
    (plan,) = program.executorch_program.execution_plan
    inputs = [plan.values[index].val.sizes for index in plan.inputs]
    return {"counts": counts, "notes": notes, "inputs": inputs}


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
