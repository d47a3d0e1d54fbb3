"""What several tests of QNN need."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.backends.qnn import compiler
from tests.support.qnn_sdk import lay_out_package


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the libraries of Qualcomm's package, which is installed."""
    site = tmp_path / "site-packages"
    monkeypatch.setattr(compiler, "_installed", lambda name="": None if name else ("2.5.0", site))
    monkeypatch.setattr(compiler, "runs_here", lambda: True)
    monkeypatch.setattr(compiler, "_c_library", lambda: "glibc 2.35")
    return lay_out_package(site)
