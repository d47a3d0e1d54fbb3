"""Recipes, templates and toolchain files, from a checkout or from the installed package."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent


def resource_folder(name: str) -> Path:
    """The folder `recipes`, `templates` or `toolchains`.

    In a checkout they stand at the top of the tree; a wheel carries them in `etdeploy/data`.
    """
    installed = _PACKAGE / "data" / name
    return installed if installed.is_dir() else _PACKAGE.parent / name
