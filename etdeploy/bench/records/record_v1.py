"""Version 1 of the run record, as one of version 2.

In version 1 the results of inference were at the top level, paths were absolute, and `load_ms`
included the check of the program.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

_OF_THE_WORKLOAD = ("latency_ms", "first_inference_ms", "outputs", "outputs_compared")


def converted(content: dict[str, Any]) -> dict[str, Any]:
    """The same run with the keys of version 2.

    Files outside the record's folder, the program and the ETRecord in the cache, are left out.

    Raises:
        KeyError: A key is missing.
        TypeError, AttributeError: A value has another type.
    """
    kept = {key: value for key, value in content.items() if key not in _OF_THE_WORKLOAD}
    moved = {key: content[key] for key in _OF_THE_WORKLOAD}
    return kept | {
        "schema_version": 2,
        "workload": {"kind": "inference", **moved},
        "files": _files(content["files"]),
        "recipe": _recipe(content["recipe"]),
    }


def _files(files: dict[str, str]) -> dict[str, str]:
    """Relative to the folder that the record was written in; it may be another one now."""
    folder = PurePath(files["record"]).parent
    return {
        name: PurePath(path).relative_to(folder).as_posix()
        for name, path in files.items()
        if PurePath(path).is_relative_to(folder)
    }


def _recipe(recipe: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in recipe.items() if key != "path"}
    files = {PurePath(path).name: sha256 for path, sha256 in recipe["files"].items()}
    return kept | {"file": PurePath(recipe["path"]).name, "files": files}
