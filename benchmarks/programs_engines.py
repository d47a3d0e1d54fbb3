"""Times a model in ONNX's format in onnxruntime or OpenVINO, for `programs.py`, which starts it.

    python benchmarks/programs_engines.py REQUEST.json

Writes REQUEST.result beside it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Engine = tuple[Callable[[], Any], Callable[[], Any]]


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Milliseconds of each inference by the clock, and the mean processor time of all of them.

    The first output goes to `request["output"]`.

    Inputs are set before, once, as in etdeploy's runner: an inference is the call alone.
    """
    import numpy

    inputs = [
        numpy.fromfile(each["path"], each["dtype"]).reshape(each["shape"])
        for each in request["inputs"]
    ]
    start = {"onnxruntime": _onnxruntime, "openvino": _openvino}[request["engine"]]
    infer, output = start(request["model"], inputs, request["threads"])
    infer()
    numpy.ascontiguousarray(output(), numpy.float32).tofile(request["output"])
    began_s = time.process_time()
    for _ in range(request["warmup"]):
        infer()
    samples_ms = []
    for _ in range(request["iterations"]):
        started_ns = time.perf_counter_ns()
        infer()
        samples_ms.append((time.perf_counter_ns() - started_ns) / 1e6)
    processor_s = time.process_time() - began_s
    inferences = request["warmup"] + request["iterations"]
    return {"samples_ms": samples_ms, "processor_ms": 1000 * processor_s / inferences}


def _onnxruntime(model: str, inputs: list[Any], threads: int) -> Engine:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for described, value in zip(session.get_inputs(), inputs, strict=True):
        binding.bind_cpu_input(described.name, value)
    binding.bind_output(session.get_outputs()[0].name)
    return (
        lambda: session.run_with_iobinding(binding),
        lambda: binding.copy_outputs_to_cpu()[0],
    )


def _openvino(model: str, inputs: list[Any], threads: int) -> Engine:
    import openvino

    # In 32-bit floats as all others; on a processor with bfloat16 it takes that by itself.
    options = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "f32",
    }
    core = openvino.Core()
    request = core.compile_model(core.read_model(model), "CPU", options).create_infer_request()
    for i, value in enumerate(inputs):
        request.set_input_tensor(i, openvino.Tensor(value))
    return lambda: request.infer(share_outputs=True), lambda: request.get_output_tensor(0).data


def main(arguments: list[str]) -> None:
    path = Path(arguments[0])
    # Else `import openvino` finds the benchmark of that name.
    sys.path.remove(str(Path(__file__).parent))
    path.with_suffix(".result").write_text(json.dumps(run(json.loads(path.read_text()))))


if __name__ == "__main__":
    main(sys.argv[1:])
