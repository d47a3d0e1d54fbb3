"""No backend: every operator runs on ExecuTorch's own CPU kernels."""

from __future__ import annotations

from etdeploy.backends.base import Backend

PORTABLE = Backend(
    name="portable",
    embeddings=("8w", "4w"),
    own_kernels=True,
    lowering="etdeploy.export.worker.backends.portable",
)
