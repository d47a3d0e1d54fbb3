"""Nothing is lowered: portable kernels run every operator."""

from __future__ import annotations

from etdeploy.export.worker.backends.base import Lowering


class PortableLowering(Lowering):
    """Everything stays as ExecuTorch has it."""

    shortens = True


LOWERING = PortableLowering()
