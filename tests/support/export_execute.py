"""Runs exported programs in ExecuTorch's Python runtime; started as a process of its own.

    python -m tests.support.export_execute FOLDER...

Prints a JSON object: for each folder, how far each output is from the expected one.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from executorch.runtime import Runtime

from etdeploy.export.worker.tracing.tensors import NamedValue, losses, with_strides
from etdeploy.program.folder import BY_PIXEL, Provenance, Stored, load_provenance
from etdeploy.program.model import PlainValue
from etdeploy.program.quality import OutputLoss


def main(folders: list[Path]) -> None:
    found = {folder.name: _run(folder) for folder in folders}
    # After the runtime's own lines, which it prints to the same place.
    sys.stdout.write("\n" + json.dumps(found) + "\n")


def _run(folder: Path) -> list[dict[str, Any]]:
    made = load_provenance(folder)
    names = tuple(made.methods) or (made.method,)
    return [distance for name in names for distance in _run_method(folder, made.of(name))]


def _run_method(folder: Path, provenance: Provenance) -> list[dict[str, Any]]:
    # Loaded alone, as a run does: methods may share state.
    method = Runtime.get().load_program(folder / "program.pte").load_method(provenance.method)
    if method is None:
        raise RuntimeError(f"{folder} has no method {provenance.method}")
    found = []
    for each in provenance.measured.values():
        by_pixel = provenance.details.get(BY_PIXEL, ())
        given = [with_strides(_read(folder, t), by_pixel=t.name in by_pixel) for t in each.inputs]
        outputs = method.execute(given)
        expected = [NamedValue(t.name, _read(folder, t)) for t in each.expected]
        actual = [NamedValue(t.name, v) for t, v in zip(each.expected, outputs, strict=True)]
        found += [_told(loss) for loss in losses(expected, actual)]
    return found


def _told(loss: OutputLoss) -> dict[str, Any]:
    """Equal integers count as an angle of 0."""
    angle = loss.cosine_similarity
    if loss.equal_percent is not None:
        angle = float(loss.equal_percent == 100)
    return {**loss.model_dump(), "cosine_similarity": angle}


def _read(folder: Path, tensor: Stored) -> Any:
    if isinstance(tensor, PlainValue):
        return tensor.value
    data = bytearray((folder / tensor.path).read_bytes())
    return torch.frombuffer(data, dtype=getattr(torch, tensor.dtype)).reshape(tensor.shape)


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])
