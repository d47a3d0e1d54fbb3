"""Runs models of tests/support/real, eagerly and as programs; started as a process of its own.

    python -m tests.support.real.execute CASES.json

The file has an object of cases: `[FAMILY, {NETWORK: FOLDER, ...}]`, where the folders have
programs; a network without one is run eagerly, in floats. Prints as the last line a JSON object
with, for each case, `figures` of the task and `losses` of each network's outputs.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tests.support.real.files import FAMILIES, Family, Runner


def main(cases: dict[str, tuple[str, dict[str, str]]]) -> None:
    references: dict[str, _Reference] = {}
    found = {}
    for case, (name, folders) in cases.items():
        if name not in references:
            references[name] = _Reference(FAMILIES[name])
        found[case] = references[name].accuracy(folders)
    # After the runtime's own lines, which it prints to the same place.
    sys.stdout.write("\n" + json.dumps(found) + "\n")


class _Reference:
    """The float models of a family, with each call that solving its task makes."""

    def __init__(self, family: Family) -> None:
        self.module: Any = importlib.import_module(family.module)
        self.eager = {name: eager_runner(family, name) for name in family.networks}
        self.calls: dict[str, list[tuple[Any, Any]]] = {name: [] for name in self.eager}
        runners = {name: _recording(run, self.calls[name]) for name, run in self.eager.items()}
        self.figures = self.module.evaluate(runners)

    def accuracy(self, folders: Mapping[str, str]) -> dict[str, Any]:
        """The task's figures, and how far the outputs are from the float ones for its inputs."""
        if not folders:
            return {"figures": self.figures, "losses": {}}
        programs = {name: program_runner(Path(folder)) for name, folder in folders.items()}
        figures = self.module.evaluate({**self.eager, **programs})
        losses = {}
        for name, run in programs.items():
            expected = [outputs for _, outputs in self.calls[name]]
            actual = [run(*inputs) for inputs, _ in self.calls[name]]
            losses[name] = _losses(expected, actual)
            if hasattr(self.module, "compare"):
                figures |= self.module.compare(expected, actual)
        return {"figures": figures, "losses": losses}


def eager_runner(family: Family, name: str) -> Runner:
    """The model itself, with its weights."""
    network = family.networks[name]
    model, _ = getattr(importlib.import_module(family.module), network.factory)()
    model.load_state_dict(_state(network.weights), strict=True)

    def run(*inputs: Any) -> list[Any]:
        with torch.no_grad():
            outputs = model(*inputs)
        return list(outputs) if isinstance(outputs, tuple) else [outputs]

    return run


def program_runner(folder: Path) -> Runner:
    """A program in ExecuTorch's Python runtime."""
    import executorch.kernels.quantized  # noqa: F401 - registers the kernels
    from executorch.runtime import Runtime

    method = Runtime.get().load_program(folder / "program.pte").load_method("forward")
    if method is None:
        raise RuntimeError(f"{folder} has no method forward")

    def run(*inputs: Any) -> list[Any]:
        # The outputs are in memory that the next call writes to.
        return [output.clone() for output in method.execute(inputs)]

    return run


def _recording(run: Runner, calls: list[tuple[Any, Any]]) -> Runner:
    def recorded(*inputs: Any) -> list[Any]:
        outputs = list(run(*inputs))
        calls.append((inputs, outputs))
        return outputs

    return recorded


def _losses(expected: list[Any], actual: list[Any]) -> list[dict[str, Any]]:
    """Of each output, over all inputs."""
    from etdeploy.export.worker.tracing.tensors import NamedValue, losses

    def joined(calls: list[Any]) -> list[NamedValue]:
        outputs = zip(*calls, strict=True)
        return [NamedValue(f"output_{i}", torch.stack(list(o))) for i, o in enumerate(outputs)]

    return [loss.model_dump() for loss in losses(joined(expected), joined(actual))]


def _state(path: Path) -> dict[str, Any]:
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return dict(load_file(path))
    return dict(torch.load(path, weights_only=True, map_location="cpu"))


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
