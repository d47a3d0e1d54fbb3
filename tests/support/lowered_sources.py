"""Sources of a program's methods, traced and lowered as an export does it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.backends.base import Traced
from etdeploy.export.worker.loading.source import MethodSource
from etdeploy.export.worker.lowering.lower import emit, lower
from etdeploy.export.worker.tracing.trace import trace


def lowered(spec: ExportSpec, sources: Mapping[str, MethodSource]) -> Any:
    """ExecuTorch's manager of the program, which writes it."""
    methods = {
        name: Traced(s.module, s, trace(s.module, s.inputs, s.dynamic_shapes, strict=False))
        for name, s in sources.items()
    }
    return emit(spec, lower(spec, methods), methods)
