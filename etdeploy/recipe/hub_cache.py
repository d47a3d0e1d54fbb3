"""Models that huggingface_hub has downloaded to this machine: where their files are."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# What transformers saves of a model besides its weights.
CONFIG = "config.json"


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    content = json.loads(path.read_bytes())
    if not isinstance(content, dict):
        raise ValueError("it does not hold a JSON object")
    return content


_COMMIT = re.compile(r"[0-9a-f]{40}")


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where huggingface_hub keeps models, by the variables that it reads, in its order."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if environment.get(name):
            return _expanded(environment[name])
    if environment.get("HF_HOME"):
        return _expanded(environment["HF_HOME"]) / "hub"
    caches = environment.get("XDG_CACHE_HOME") or "~/.cache"
    return _expanded(caches) / "huggingface" / "hub"


def _expanded(path: str) -> Path:
    return Path(os.path.expandvars(path)).expanduser()


def cached_commit(model: str, revision: str) -> str | None:
    """The commit of a revision; None where it has not been asked for on this machine.

    A branch stays at the commit that it had then: what a recipe means does not change by itself.
    """
    if _COMMIT.fullmatch(revision):
        return revision
    folder = _model_folder(model)
    path = folder / "refs" / revision
    try:
        if not path.resolve().is_relative_to((folder / "refs").resolve()):
            return None
        commit = path.read_text().strip()
    except (OSError, ValueError):
        return None
    return commit if _COMMIT.fullmatch(commit) else None


def snapshot(model: str, commit: str) -> Path:
    """Where the files of a commit are, if they are there."""
    return _model_folder(model) / "snapshots" / commit


def _model_folder(model: str) -> Path:
    return cache_folder() / f"models--{model.replace('/', '--')}"
