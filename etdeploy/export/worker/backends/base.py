"""How a backend lowers a model: the part of it that imports torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import torch

from etdeploy.backends.registry import backend_named
from etdeploy.core.diagnostics import FailureTable
from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.failures import fail
from etdeploy.export.worker.loading.source import MethodSource
from etdeploy.export.worker.rewrites.base import Log
from etdeploy.export.worker.tracing.trace import SHIFTS

REASON = "etdeploy_reason"
"""In a node's `meta`: why its backend left it to the CPU, as a clause; a lowering may set it."""


@contextmanager
def patched(owner: Any, **values: Any) -> Iterator[None]:
    """While the block runs, attributes of an upstream class or module have other values."""
    inherited = object()
    before = {name: vars(owner).get(name, inherited) for name in values}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is inherited:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


@dataclass(frozen=True)
class Traced:
    """A method, ready to be lowered.

    Attributes:
        module: The model as it was traced, for an entry point that traces it again.
        source: Its inputs and dynamic shapes, and the model before quantization.
        log: What the rewrites of the graph did; one for all methods.
        original: The graph before them; None where there are none.
    """

    module: torch.nn.Module
    source: MethodSource
    program: torch.export.ExportedProgram
    log: Log = field(default_factory=Log)
    original: torch.export.ExportedProgram | None = None


class Lowering:
    """What `LOWERING` of a backend's module is; the methods have a default each.

    A backend with a partitioner gives that, and its quantizer if it has schemes of PT2E. One with
    another entry point replaces `lower`.

    Attributes:
        folds_weights: Whether PT2E stores quantized weights as integers; without, they stay floats
            that the graph quantizes and dequantizes.
        grouped_outputs: 8da4w leaves a linear layer in floats whose number of outputs is not a
            multiple of this.
        apart: Whether its partitions run elsewhere than on the CPU, so that what stays there and
            the tensors that pass between both cost time: a note names them.
        fixed_shapes: Whether each tensor has one size only: a language model's prompts are taken in
            parts of one length then, the last one padded.
        rotary_tables: Whether rotary embeddings are looked up by position, since it computes angles
            too inexactly.
        failures: What exceptions of its lowering mean, by their text; `kind` among the facts of a
            pattern is that of `ExportFailure`.
        stores_once: Whether its named data may begin at any multiple of 16 bytes: it can then lie
            among the program's constants if one of these has equal bytes.
        loads_here: Whether ExecuTorch's Python package can load its programs on this machine.
        by_pixel: Whether its programs can take images by pixel (NHWC), which it knows from the
            example input; another delegate reads their memory as if they were by channel.
        shortens: Whether its programs were seen to stay the same, byte for byte, without what
            ExecuTorch's lowering repeats. Language models are lowered without it with any backend.
        copies_layers: Whether its programs were seen to stay the same, byte for byte, if a few of a
            language model's layers are traced and the others are copies of them.
        conditional: Whether its partitions were tested in a branch of a condition, where those of
            experts are.
        sharing: How weights that methods share could be stored once; empty where they cannot.
    """

    folds_weights = True
    grouped_outputs = 1
    apart = False
    fixed_shapes = False
    rotary_tables = False
    failures: FailureTable | None = None
    stores_once = False
    loads_here = False
    by_pixel = False
    shortens = False
    copies_layers = False
    conditional = False
    sharing = ""

    def quantizer(self, spec: ExportSpec) -> Any:
        """The PT2E quantizer of the spec's scheme: any but `none`, `fp16` and `8da4w`."""
        raise fail(
            "quantization", f"the backend {spec.backend} has no quantizer for {spec.quantization}"
        )

    def simplified(self, program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
        """The graph that PT2E quantizes: another one than was traced if the quantizer needs that.

        `program` stays as it is. Language models are quantized as they were traced.
        """
        return program

    def partitioners(self, spec: ExportSpec) -> list[Any]:
        """ExecuTorch's partitioners, in order; each takes what those before it left."""
        return []

    def passes(self, spec: ExportSpec, log: Log) -> Any:
        """Passes over the graph before it is partitioned, also of rewrites; None for none."""
        return None

    def lower(self, spec: ExportSpec, methods: Mapping[str, Traced]) -> Any:
        """Lowers methods by name; an `EdgeProgramManager`, with an ETRecord if the spec says so."""
        from executorch.exir import to_edge_transform_and_lower

        return to_edge_transform_and_lower(
            {name: method.program for name, method in methods.items()},
            partitioner=self.partitioners(spec),
            transform_passes=self.passes(spec, next(iter(methods.values())).log),
            compile_config=edge_config(),
            generate_etrecord=spec.etrecord,
        )

    def shortened(self) -> AbstractContextManager[None]:
        """While the block runs, this backend's lowering does without what it repeats.

        For the releases that are tested; what repeats with every backend is in
        `lowering/upstream_patches.py`. The program stays the same, byte for byte.
        """
        return nullcontext()

    def preload(self, scheme: str) -> None:
        """Imports what every export of a scheme needs, in the process that exports are forks of.

        What ExecuTorch computes once for all models can be computed here, too. Whatever is raised
        goes to the log: the export that needs it raises it again.
        """

    def adjust(self, config: Any, spec: ExportSpec) -> None:
        """Changes the `ExecutorchBackendConfig` with which the program is made."""

    def shares_weights(self, spec: ExportSpec) -> bool | None:
        """Whether weights that several methods have in common are stored once.

        None, the default, where the size of the partitions shows it.
        """
        return None

    def notes(self, spec: ExportSpec) -> Iterator[str]:
        """Sentences for the user about a program of this spec."""
        yield from ()


def edge_config() -> Any:
    """ExecuTorch's `EdgeCompileConfig`, with all operators that it has kernels for."""
    from executorch.exir import EdgeCompileConfig

    return EdgeCompileConfig(_core_aten_ops_exception_list=list(SHIFTS.values()))


def lowering_of(spec: ExportSpec) -> Lowering:
    """The lowering of the spec's backend, from the module that the backend names."""
    return lowering_for(str(spec.backend))


def lowering_for(backend: str) -> Lowering:
    """The lowering of a backend, by that one's name."""
    name = backend_named(backend).lowering
    found = getattr(import_module(str(name)), "LOWERING", None)
    if not isinstance(found, Lowering):
        raise fail("lowering", f"{name} has no LOWERING, which the backend {backend} names")
    return found
