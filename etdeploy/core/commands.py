"""Commands for remedies: they install what is missing, or run code. Commands for CI."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]


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


def python_command(code: str, **values: str | list[str]) -> str:
    """The command that runs code with the Python that runs etdeploy, which has its packages.

    Args:
        code: A format string; with double quotes, a shell's single ones around it are readable.
        values: What it names in braces; they become literals.
    """
    # JSON's strings and lists of strings are Python's, too.
    literals = {name: json.dumps(value, ensure_ascii=False) for name, value in values.items()}
    return f"{quoted(sys.executable)} -c {quoted(code.format(**literals))}"


def system_command(package: str) -> str:
    """The command that installs a package of the system."""
    return f"brew install {package}" if sys.platform == "darwin" else f"apt-get install {package}"


def quoted(path: Path | str) -> str:
    """One word of a POSIX shell's command line; a plain path stays as it is."""
    return shlex.quote(str(path))


_PERCENT = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_MESSAGE = str.maketrans(_PERCENT)
_PROPERTY = str.maketrans({**_PERCENT, ":": "%3A", ",": "%2C"})


def workflow_command(name: str, message: str, **properties: str) -> str:
    """A line of output that GitHub Actions acts on, escaped as its toolkit does.

    Args:
        name: `error`, `warning` or `notice`.
        message: Any text.
        properties: Such as `title`.
    """
    given = ",".join(f"{key}={value.translate(_PROPERTY)}" for key, value in properties.items())
    return f"::{name}{' ' if given else ''}{given}::{message.translate(_MESSAGE)}"
