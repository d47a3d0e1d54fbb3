"""Nothing is lowered: portable kernels run every operator."""

from __future__ import annotations

from etdeploy.export.worker.backends.base import Lowering


class PortableLowering(Lowering):
    """Everything stays as ExecuTorch has it."""

    loads_here = True
    by_pixel = True
    shortens = True


LOWERING = PortableLowering()
