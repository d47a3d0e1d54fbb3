"""What others export of a model, for `programs.py`, which starts it.

    python benchmarks/programs_worker.py MODEL FOLDER ARTIFACT...

A model that cannot be exported in one way may be in the others, so each
artifact has a file of its own or, where it failed, `ARTIFACT.error` with the reason:

* `eager`: the inputs and the output of the module itself, as `N.bin` and `eager.json`.
* `official-SCHEME`: the program of ExecuTorch's own export, as its documentation for XNNPACK
  writes it, as `official-SCHEME.pte`.
* `onnx`: `model.onnx`, by torch.onnx.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path
from typing import Any

GROUP_SIZE = 32


def make(name: str, folder: Path, artifacts: list[str]) -> None:
    from programs_further import every

    factory = every()[name]
    for artifact in artifacts:
        print(f"making {artifact} of {name}", flush=True)
        try:
            _make(artifact, *factory(), folder)
        except Exception as error:  # whatever another's exporter raises is a result
            traceback.print_exc()
            (folder / f"{artifact}.error").write_text(f"{type(error).__name__}: {error}")


def _make(artifact: str, module: Any, inputs: Any, folder: Path) -> None:
    kind, _, scheme = artifact.partition("-")
    if kind == "eager":
        _write_eager(module, inputs, folder)
    elif kind == "onnx":
        _write_onnx(module, inputs, folder)
    else:
        content = _official(module, inputs, scheme).buffer
        (folder / f"{artifact}.pte").write_bytes(content)


def _write_eager(module: Any, inputs: Any, folder: Path) -> None:
    import torch

    with torch.no_grad():
        output = module(*inputs)
    tensors = []
    for i, tensor in enumerate((*inputs, output)):
        path = folder / f"{i}.bin"
        path.write_bytes(tensor.contiguous().numpy().tobytes())
        dtype = str(tensor.dtype).removeprefix("torch.")
        tensors.append({"path": path.name, "dtype": dtype, "shape": list(tensor.shape)})
    (folder / "eager.json").write_text(json.dumps(tensors))


def _write_onnx(module: Any, inputs: Any, folder: Path) -> None:
    import torch

    torch.onnx.export(
        module, inputs, str(folder / "model.onnx"), dynamo=True, external_data=False, verbose=False
    )


def _official(module: Any, inputs: Any, scheme: str) -> Any:
    """ExecuTorch 1.5, docs/source/backends/xnnpack: overview and quantization."""
    import torch
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    if scheme == "8da4w":
        _quantize_linears(module)
    elif scheme != "fp32":
        module = _quantized(module, inputs, dynamic=scheme == "int8_dynamic")
    return to_edge_transform_and_lower(
        torch.export.export(module, inputs), partitioner=[XnnpackPartitioner()]
    ).to_executorch()


def _quantized(module: Any, inputs: Any, *, dynamic: bool) -> Any:
    import torch
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
    )
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    config = get_symmetric_quantization_config(is_per_channel=True, is_dynamic=dynamic)
    quantizer = XNNPACKQuantizer().set_global(config)
    prepared = prepare_pt2e(torch.export.export(module, inputs).module(), quantizer)
    prepared(*inputs)
    return convert_pt2e(prepared)


def _quantize_linears(module: Any) -> None:
    import torch
    from torchao.quantization.granularity import PerGroup
    from torchao.quantization.quant_api import Int8DynamicActivationIntxWeightConfig, quantize_

    def fits(layer: Any, _name: str) -> bool:
        return isinstance(layer, torch.nn.Linear) and layer.in_features % GROUP_SIZE == 0

    config = Int8DynamicActivationIntxWeightConfig(
        weight_dtype=torch.int4, weight_granularity=PerGroup(GROUP_SIZE)
    )
    quantize_(module, config, filter_fn=fits)


def main(arguments: list[str]) -> None:
    model, folder, *artifacts = arguments
    make(model, Path(folder), artifacts)


if __name__ == "__main__":
    main(sys.argv[1:])
