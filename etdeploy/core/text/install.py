"""The commands that install what is missing, for remedies."""

from __future__ import annotations

import sys
from pathlib import Path

from etdeploy.core.text.shell import quoted

_ROOT = Path(__file__).resolve().parents[3]


def pip_command(requirement: str) -> str:
    """The command that installs a package for the Python that runs etdeploy.

    Environments created by uv have no pip. In a clone, `etdeploy[extra]` is the clone with its
    extra: no registry has to have etdeploy.
    """
    from importlib.util import find_spec

    if requirement.startswith("etdeploy[") and (_ROOT / "pyproject.toml").is_file():
        requirement = f"--editable={_ROOT}{requirement.removeprefix('etdeploy')}"
    python, wanted = quoted(sys.executable), quoted(requirement)
    if find_spec("pip") is None:
        return f"uv pip install --python {python} {wanted}"
    return f"{python} -m pip install {wanted}"


def system_command(package: str) -> str:
    """The command that installs a package of the system."""
    return f"brew install {package}" if sys.platform == "darwin" else f"apt-get install {package}"
