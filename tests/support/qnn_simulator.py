"""Skips tests where Qualcomm's simulator is not installed."""

from __future__ import annotations

import platform
import sys

import pytest

from etdeploy.backends.qnn.compiler import QnnPackage, find_package

_FOUND = find_package()
_SKIPPED = (
    f"the simulator is for Linux x86_64, and this is {sys.platform} {platform.machine()}"
    if (sys.platform, platform.machine()) != ("linux", "x86_64")
    else "onnxruntime-qnn, which needs Python 3.11 or newer, is not installed"
    if _FOUND is None
    else getattr(_FOUND, "why", "")
)
NEEDS_SIMULATOR = pytest.mark.skipif(not isinstance(_FOUND, QnnPackage), reason=_SKIPPED)
