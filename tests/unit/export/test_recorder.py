"""Which files are sources of a program."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from etdeploy.export.worker.loading.recorder import FileRecorder


def test_compiled_modules_are_no_sources_wherever_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With PYTHONPYCACHEPREFIX they are in a folder of their own, those of packages, too."""
    prefix = tmp_path / "compiled"
    monkeypatch.setattr(sys, "pycache_prefix", str(prefix))
    source, compiled = tmp_path / "model.py", prefix / "home" / "model.cpython-311.pyc"
    beside = tmp_path / "__pycache__" / "model.cpython-311.pyc"
    for path in (source, compiled, beside):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    recorder = FileRecorder()
    with recorder.recording():
        for path in (source, compiled, beside):
            path.read_bytes()
    assert list(recorder.sources().files) == [str(source)]
