"""What the server of `forked.py` imports, and a first lowering, which traces XNNPACK's patterns."""

from __future__ import annotations

import importlib
import warnings

_MODULES = (
    "executorch.devtools.etrecord",
    "torchao.quantization.pt2e.quantize_pt2e",
    "torchao.quantization.quant_api",
    "transformers.modeling_utils",
)


def _lower_once() -> None:
    import torch
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    torch.set_num_threads(1)  # a fork of a process with OpenMP's threads would wait for them
    traced = torch.export.export(torch.nn.Linear(4, 4), (torch.zeros(1, 4),))
    to_edge_transform_and_lower(
        traced, partitioner=[XnnpackPartitioner()], generate_etrecord=True
    ).to_executorch()


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    for name in _MODULES:
        importlib.import_module(name)
    _lower_once()
