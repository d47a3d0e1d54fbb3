"""Lowering to Qualcomm's QNN backend (HTP)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from etdeploy.backends.qnn.precision import precision_notes
from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.backends.base import Lowering, Traced
from etdeploy.export.worker.backends.qnn.adaptor import check_adaptor
from etdeploy.export.worker.backends.qnn.blocks import IN_BLOCKS
from etdeploy.export.worker.backends.qnn.compile_specs import compile_specs
from etdeploy.export.worker.backends.qnn.errors import MEANINGS
from etdeploy.export.worker.backends.qnn.fitness import positional, refuse_unfit
from etdeploy.export.worker.backends.qnn.methods import (
    SHARING,
    explaining_partitions,
    shares,
)
from etdeploy.export.worker.backends.qnn.placement import placing
from etdeploy.export.worker.backends.qnn.quantizer import htp_quantizer


class QnnLowering(Lowering):
    """ExecuTorch's quantiser and entry point for QNN."""

    apart = True
    fixed_shapes = True
    meanings = MEANINGS
    sharing = f"To store them once: --set export.options.{SHARING}=true"

    def quantizer(self, spec: ExportSpec) -> Any:
        """The PT2E quantiser of the scheme, for the spec's SoC."""
        return htp_quantizer(spec)

    def lower(self, spec: ExportSpec, methods: Mapping[str, Traced]) -> Any:
        """Compiles the model for the spec's SoC; an `EdgeProgramManager` with an ETRecord.

        Several methods are compiled into one context, and share weights there if the option says
        so: two linear layers of 1 MB take 2.2 MB for two methods without, 1.1 MB with it (SM8650,
        QNN 2.49).

        Raises:
            WorkerError: A method is not fit for the HTP, or the methods do not have as many
                partitions each.
        """
        check_adaptor()
        for method in methods.values():
            refuse_unfit(method.source, method.program)
        from executorch.backends.qualcomm.utils.utils import to_edge_transform_and_lower_to_qnn

        specs = compile_specs(spec, several=len(methods) > 1)
        taken = {n: positional(each.module, each.source.inputs) for n, each in methods.items()}
        # Without gradients, as the model was traced: switching them is an operator of its own.
        with placing(), explaining_partitions(), torch.no_grad():
            return to_edge_transform_and_lower_to_qnn(
                {name: each.module for name, each in taken.items()},
                {name: each.inputs for name, each in taken.items()},
                specs,
                # In a partition, the delegate keeps a state in memory that nothing initialises, and
                # a context does not share it between methods.
                skip_mutable_buffer=True,
                # The compiler takes linear layers in blocks, too, and their outputs are wrong
                # (QNN 2.49.40: cosine 0.7 for two layers).
                convert_linear_to_conv2d=spec.quantization == IN_BLOCKS,
                generate_etrecord=spec.etrecord,
            )

    def shares_weights(self, spec: ExportSpec) -> bool | None:
        """As the option says."""
        return shares(spec)

    def preload(self, scheme: str) -> None:
        """ExecuTorch's part for QNN, whose imports take seconds; nothing of Qualcomm's."""
        check_adaptor()
        import executorch.backends.qualcomm.quantizer.quantizer
        import executorch.backends.qualcomm.utils.utils  # noqa: F401

    def adjust(self, config: Any) -> None:
        """Aligns segments as the SDK requires of a context binary in the program."""
        from executorch.backends.qualcomm.utils.utils import get_qnn_context_binary_alignment

        config.segment_alignment = int(get_qnn_context_binary_alignment())

    def notes(self, spec: ExportSpec) -> Iterator[str]:
        """In what the HTP computes floats."""
        yield from precision_notes(spec.quantization, spec.soc)


LOWERING = QnnLowering()
