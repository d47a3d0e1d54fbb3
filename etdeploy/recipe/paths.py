"""The files that a recipe names: made absolute and checked, or made relative for a record."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from etdeploy.core.errors import Problem
from etdeploy.core.files.basic import not_regular
from etdeploy.recipe.document import Document
from etdeploy.recipe.find import resolved
from etdeploy.recipe.place import Place

_FILE_KEYS = (
    ("model", "exported"),
    ("model", "program"),
    ("model", "weights"),
    ("export", "custom_ops"),
)
_FOLDER_KEYS = (("runtime", "source"), ("runtime", "custom_ops"))
# Values that name a function: `file.py:function` or `package.module:function`.
_FUNCTION_KEYS = (("model", "python"), ("export", "calibration"), ("benchmark", "inputs"))


def absolute_paths(document: Document) -> list[Problem]:
    """Makes paths absolute, relative to the file that names them; a missing file is a problem."""
    problems = []
    for keys in (*_FILE_KEYS, *_FOLDER_KEYS, *_FUNCTION_KEYS):
        section: Any = document.data.get(keys[0])
        value = section.get(keys[1]) if isinstance(section, dict) else None
        if not isinstance(value, str):
            continue
        place, key = document.places[keys], ".".join(keys)
        file, suffix = value, ""
        if keys in _FUNCTION_KEYS:
            file, colon, function = value.rpartition(":")
            if not colon or not file or not function.isidentifier():
                hint = "write file.py:function or package.module:function"
                problems.append(
                    Problem(str(place), f"{key}: {value!r} does not name a function", hint)
                )
                continue
            if not file.endswith(".py"):
                continue
            suffix = f":{function}"
        path, problem = _existing(place, key, file, folder=keys in _FOLDER_KEYS)
        section[keys[1]] = path + suffix
        problems += [problem] if problem else []
    return problems


def _existing(place: Place, key: str, name: str, *, folder: bool) -> tuple[str, Problem | None]:
    kind = "folder" if folder else "file"
    try:
        path = resolved(place.folder, name)
        if path.is_dir() if folder else path.is_file():
            return str(path), None
        what = f"is {not_regular(path) or 'a file'}" if path.exists() else "does not exist"
        return str(path), Problem(str(place), f"{key}: the {kind} {path} {what}")
    except OSError as error:
        return name, Problem(
            str(place), f"{key}: {name!r} cannot be the path of a {kind} ({error.strerror})"
        )


def relative_paths(content: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A loaded recipe's values, with absolute paths made relative to a folder.

    Args:
        content: The recipe as JSON.
        folder: Absolute.
    """
    result = {
        name: dict(section) if isinstance(section, dict) else section
        for name, section in content.items()
    }
    for section, key in (*_FILE_KEYS, *_FOLDER_KEYS, *_FUNCTION_KEYS):
        value = result.get(section, {}).get(key)
        if not isinstance(value, str):
            continue
        # Also works for `file.py:function`; a module is not an absolute path.
        if Path(value).is_absolute():
            result[section][key] = relative_path(Path(value), folder)
    return result


def relative_path(path: Path, folder: Path) -> str:
    """The path relative to the folder, with `..` outside of it; absolute on another drive."""
    try:
        return Path(os.path.relpath(path, folder)).as_posix()
    except ValueError:
        return path.as_posix()
