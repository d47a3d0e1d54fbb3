"""Whether a program loads and runs: what a backend has lowered, it may still refuse then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.backends.base import Traced, lowering_of
from etdeploy.export.worker.failures import failed_kernel, runtime_refusal
from etdeploy.export.worker.native_output import overheard
from etdeploy.export.worker.tracing.tensors import flat_inputs

# The portable kernel makes 0.2e9 a second. A longer wait is for the run itself.
_MOST_MULTIPLICATIONS = 2e9
# Dimensions: of a convolution over images.
_LARGEST_WEIGHT = 4


@dataclass(frozen=True)
class Refusal:
    """What is wrong with a program.

    Attributes:
        reason: A clause.
        loaded: Whether it failed when it ran with the example inputs, and not before.
        operator: Whose kernel failed, if that is known.
    """

    reason: str
    loaded: bool = False
    operator: str | None = None


def refusal(
    spec: ExportSpec, program: Path, methods: Mapping[str, Traced], convolved: Mapping[str, float]
) -> Refusal | None:
    """Loads every method with ExecuTorch's Python package and runs it, as a runner would.

    Language models are loaded only: their methods share a cache, and take long.

    Args:
        spec: Of the export.
        program: The file.
        methods: With their example inputs.
        convolved: The multiplications of each method's convolutions outside of delegates.

    Returns:
        Why the program cannot be used anywhere; None if it runs, or cannot be tried here.
    """
    if not lowering_of(spec).loads_here or spec.custom_ops:
        return None
    try:
        from executorch.runtime import Runtime, Verification
    except ImportError:
        return None
    for name, traced in methods.items():
        loaded = None
        try:
            with overheard() as said:
                # One at a time: a program keeps its methods, each with its packed weights.
                loading = Runtime.get().load_program(program, verification=Verification.Minimal)
                loaded = loading.load_method(name)
                if not spec.generation and convolved[name] <= _MOST_MULTIPLICATIONS:
                    inputs = flat_inputs(traced.source.module, traced.source.inputs)
                    loaded.execute([value.value for value in inputs])
        except RuntimeError as error:
            if reason := runtime_refusal(str(error), said()):
                where = f"the method {name}: " if len(methods) > 1 else ""
                return Refusal(f"{where}{reason}", loaded is not None, failed_kernel(said()))
    return None


def convolved_outside(program: Any) -> float:
    """The multiplications of a lowered method's convolutions that no delegate computes.

    Those before the first one over three dimensions, which its kernel refuses at once.
    """
    total = 0.0
    for node in program.graph.nodes:
        if "aten.convolution" in str(node.target):
            weight, made = node.args[1].meta["val"], node.meta["val"]
            if weight.dim() > _LARGEST_WEIGHT:
                break
            transposed = node.args[6]
            positions = node.args[0].meta["val"] if transposed else made
            counts = [*weight.shape[1:], *positions.shape]
            product = 1.0
            for count in counts:
                product *= count if isinstance(count, int) else (count.node.hint or 1)
            total += product
    return total
