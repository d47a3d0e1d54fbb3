"""Nothing is lowered: portable kernels run every operator."""

from __future__ import annotations

from etdeploy.export.worker.backends.base import Lowering

LOWERING = Lowering()
