"""The files that a recipe names: made absolute, and looked for."""

from __future__ import annotations

from typing import Any

from etdeploy.core.errors import Problem
from etdeploy.recipe.document import Document
from etdeploy.recipe.find import resolved
from etdeploy.recipe.place import Place

_FILE_KEYS = (("model", "exported"), ("model", "program"), ("model", "weights"))
# Values that name a function: `file.py:function` or `package.module:function`.
_FUNCTION_KEYS = (("model", "python"), ("export", "calibration"))


def absolute_paths(document: Document) -> list[Problem]:
    """Makes paths absolute against the file that names them; what is not there is a problem."""
    problems = []
    for keys in (*_FILE_KEYS, *_FUNCTION_KEYS):
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
                problems.append(Problem(str(place), f"{key}: {value!r} names no function", hint))
                continue
            if not file.endswith(".py"):
                continue
            suffix = f":{function}"
        path, problem = _file(place, key, file)
        section[keys[1]] = path + suffix
        problems += [problem] if problem else []
    return problems


def _file(place: Place, key: str, name: str) -> tuple[str, Problem | None]:
    try:
        path = resolved(place.folder, name)
        if path.is_file():
            return str(path), None
        what = "is a folder" if path.is_dir() else "does not exist"
        return str(path), Problem(str(place), f"{key}: the file {path} {what}")
    except OSError as error:
        return name, Problem(str(place), f"{key}: {name!r} names no file ({error.strerror})")
