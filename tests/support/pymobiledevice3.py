"""The real pymobiledevice3, in an environment of its own, made once in a test run."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from etdeploy.core.files.locks import exclusive

_RELEASE = "pymobiledevice3==11.45.*"


@pytest.fixture(scope="session")
def pymobiledevice3(shared_folder: Path) -> Path:
    """The program; the test is skipped where it cannot be installed."""
    folder = shared_folder / "pymobiledevice3"
    program, outcome = folder / "bin" / "pymobiledevice3", folder / "outcome"
    with exclusive(folder.with_suffix(".lock"), "pymobiledevice3"):
        if not outcome.exists():
            problem = _install(folder)
            outcome.write_text(problem)
    if outcome.read_text():
        pytest.skip(f"pymobiledevice3 cannot be installed: {outcome.read_text()}")
    return program


def _install(folder: Path) -> str:
    """Makes the environment, and says why that fails. uv takes 4 s, pip 40 s."""
    python = str(folder / "bin" / "python")
    beside = Path(sys.executable).with_name("uv")
    uv = str(beside) if beside.exists() else shutil.which("uv")
    folder.mkdir(exist_ok=True)
    if uv:
        commands = [
            [uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(folder)],
            [uv, "pip", "install", "--quiet", "--python", python, _RELEASE],
        ]
    else:
        commands = [
            [sys.executable, "-m", "venv", str(folder)],
            [python, "-m", "pip", "install", "--quiet", _RELEASE],
        ]
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            return (done.stderr.strip() or "it says nothing").splitlines()[-1]
    return ""
