"""The files that a recipe names: made absolute and checked, or made relative for a record."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

from etdeploy.backends.schemes import LANGUAGE_RECIPE
from etdeploy.core.commands import python_command, quoted
from etdeploy.core.errors import Problem
from etdeploy.core.files.basic import not_regular
from etdeploy.recipe import llm_config
from etdeploy.recipe.document import Document, SourceLocation
from etdeploy.recipe.find import resolved
from etdeploy.recipe.rules.common import LANGUAGE_MODELS
from etdeploy.recipe.sections.benchmark import DRAFT
from etdeploy.recipe.tasks import TEXT_GENERATION, complete_task, generates

EVALUATE = ("export", "generation", "evaluate")
CALIBRATION = ("export", "calibration")
# In place of a file with a text.
NO_TEXT = "none"
_FILE_KEYS = (
    ("model", "exported"),
    ("model", "program"),
    ("model", "weights"),
    ("model", "checkpoint"),
    ("model", "params"),
    ("export", "custom_ops"),
    EVALUATE,
    (*CALIBRATION, "text"),
    ("benchmark", "input", "image"),
    ("benchmark", "input", "audio"),
    ("app", "aar"),
)
# An id on the Hugging Face hub, or a folder.
TIMM = ("model", "timm")
_MODEL_KEYS = (("model", "hf"), TIMM, ("model", "remote_code"))
# How timm writes where a model is, with the revision of an id; and a name of its own with a tag.
_TIMM_PLACE = re.compile(r"(hf[-_]hub|local-dir):(?P<id>[^@]+)(@(?P<revision>.+))?")
_TIMM_NAME = re.compile(r"[A-Za-z0-9_]+\.[A-Za-z0-9_.-]+")
_TIMM_IDS = "timm/"
LORA = ("model", "lora")
GGUF = ("model", "gguf")
_GGUF_SUFFIX = ".gguf"
# Of the file that a model is in: the key of the section `model`.
KEYS_BY_SUFFIX = {_GGUF_SUFFIX: "gguf", ".pte": "program", ".pth": "checkpoint"}
# A repository of the hub, perhaps as an address; a file in it, perhaps in a folder there.
_REPOSITORY = (
    r"((https?://)?(www\.)?(huggingface\.co|hf\.co)/)?"
    r"(?P<id>[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})"
)
_FILE = r"(?P<file>([\w-][\w.-]*/)*[\w-][\w.-]*"
_REVISION = r"(?P<revision>[\w.-]+)/"
_QUERY = r"([?#].*)?"
_HUB_FILE = re.compile(rf"{_REPOSITORY}/((blob|resolve)/{_REVISION})?{_FILE}\.gguf){_QUERY}")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,95}(/[A-Za-z0-9][A-Za-z0-9_.-]{0,95})?")
# The address of a model's page, perhaps at a revision.
_ADDRESS = re.compile(
    r"(https?://)?(www\.)?(huggingface\.co|hf\.co)/(?P<id>(?!(datasets|spaces)/)[\w.-]+/[\w.-]+?)"
    r"(/(tree|commit)/(?P<revision>[\w.-]+))?/?([?#].*)?"
)
PROGRAM = ("model", "program")
# A repository of the hub, or a program in it.
_HUB_PROGRAM = re.compile(
    rf"{_REPOSITORY}(/((blob|resolve|tree)/{_REVISION}?)?({_FILE}\.pte))?)?{_QUERY}"
)
SPECULATION = ("benchmark", "generation", "speculation")
# In a folder that an export wrote.
_PROGRAM_FILE = "program.pte"
_FOLDER_KEYS = (("runtime", "source"), ("runtime", "custom_ops"))
# Values that name a function: `file.py:function` or `package.module:function`.
_FUNCTION_KEYS = (("model", "python"), CALIBRATION, ("benchmark", "inputs"))


def absolute_paths(document: Document) -> list[Problem]:
    """Makes paths absolute, relative to the file that names them; a missing file is a problem."""
    problems = [*llm_config.embed_file(document), *llm_config.absolute_files(document)]
    models = [*_absolute_models(document)]
    complete_task(document.data)
    texts = _text_keys(document.data)
    for keys in (*_FILE_KEYS, *_FOLDER_KEYS, *_FUNCTION_KEYS):
        section = _section_of(document.data, keys)
        value = section.get(keys[-1])
        if not isinstance(value, str) or (keys in texts and value == NO_TEXT):
            continue
        place, key = document.places[keys], ".".join(keys)
        file, suffix = value, ""
        if keys in _FUNCTION_KEYS and keys not in texts:
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
        found = _match_hub_program(file) if keys == PROGRAM and problem else None
        if found and not Path(path).exists():
            _name_in_hub(section, PROGRAM, found)
            continue
        section[keys[-1]] = path + suffix
        problems += [problem] if problem else []
    return [*problems, *models, *_absolute_gguf(document), *_absolute_draft(document)]


def _absolute_draft(document: Document) -> Iterator[Problem]:
    """Makes the program of a draft an absolute path; of a folder, the program in it."""
    section = _section_of(document.data, SPECULATION)
    value = section.get(SPECULATION[-1])
    if not isinstance(value, str) or not value.startswith(DRAFT):
        return
    name = value.removeprefix(DRAFT).strip()
    if not name:
        return  # the model of the recipe says what it takes
    place, key = document.places[SPECULATION], ".".join(SPECULATION)
    try:
        named = resolved(place.folder, name)
        is_folder = named.is_dir()
    except OSError:  # too long for a path
        named, is_folder = Path(name), False
    path = named / _PROGRAM_FILE if is_folder else named
    if path.suffix == ".pte" and path.is_file():
        section[SPECULATION[-1]] = DRAFT + str(path)
        return
    if is_folder:
        model, what = str(named), f"the folder {named} has no {_PROGRAM_FILE}"
    elif path.suffix == ".pte":
        model, what = "MODEL", f"the file {path} does not exist"
    else:
        model = name if "/" in name and _ID.fullmatch(name) else "MODEL"
        what = f"{name!r} is neither a program (.pte) nor a folder with one"
    export = f"etdeploy export --recipe {LANGUAGE_RECIPE} --model {quoted(model)} --output draft"
    hint = f"a draft is exported before, with {export}, and named {DRAFT}draft"
    yield Problem(str(place), f"{key}: {what}", hint)


def _text_keys(data: Any) -> tuple[tuple[str, ...], ...]:
    """Keys that name a text, or `none`."""
    model, export = (_section_of(data, (name, "")) for name in ("model", "export"))
    generated = generates(model.get("task") or TEXT_GENERATION, export.get("generation"))
    loaded = any(model.get(source) is not None for source in LANGUAGE_MODELS)
    return (EVALUATE, *((CALIBRATION,) if loaded and generated else ()))


def _absolute_models(document: Document) -> Iterator[Problem]:
    """Makes the folder of a model absolute; anything else is an ID."""
    for keys in _model_keys(document.data):
        section = _section_of(document.data, keys)
        if isinstance(section.get(keys[-1]), str) and section[keys[-1]]:
            yield from _absolute_model(section, keys, document.places[keys])


def _absolute_model(
    section: dict[str, Any], keys: tuple[str, ...], place: SourceLocation
) -> Iterator[Problem]:
    key, value = ".".join(keys), _without_address(section, keys)
    path, problem = _existing(place, key, value, folder=True)
    if problem is None:
        section[keys[-1]] = path
    elif keys == TIMM and "/" not in value and not Path(path).exists():
        yield from _name_of_timm(section, place, value)
    elif Path(path).suffix == _GGUF_SUFFIX:
        message = f"{key}: {value} is a file in GGUF, not a folder"
        of_adapter = "name the folder that the save_pretrained of a peft model wrote"
        hint = of_adapter if keys[: len(LORA)] == LORA else f"name it as {'.'.join(GGUF)}"
        yield Problem(str(place), message, hint)
    elif not _ID.fullmatch(value) or Path(path).exists():
        if Path(path).with_name("config.json").is_file():
            yield replace(problem, hint=f"name the folder that has it: {Path(path).parent}")
        elif _is_path(value) or Path(path).exists():
            yield problem
        else:
            yield _no_model(place, key, value)


def _without_address(section: dict[str, Any], keys: tuple[str, ...]) -> str:
    """The folder or ID in what names a model, with its revision put into the section."""
    value = str(section[keys[-1]])
    found = _ADDRESS.fullmatch(value)
    if keys == TIMM and found is None:
        found = _TIMM_PLACE.fullmatch(value)
    if found is None:
        return value
    section[keys[-1]] = value = found["id"]
    if found["revision"] and keys in _MODEL_KEYS:
        section.setdefault("revision", found["revision"])
    return value


def _name_of_timm(section: dict[str, Any], place: SourceLocation, name: str) -> Iterator[Problem]:
    """Make a name of timm the id of its weights; one without a tag stands for several."""
    if _TIMM_NAME.fullmatch(name):
        section[TIMM[-1]] = _TIMM_IDS + name
        return
    what = f"{'.'.join(TIMM)}: {name!r} is neither a folder nor the name of weights of timm"
    hint = (
        "a name has the tag of its weights, like resnet18.a1_in1k; for a list: "
        + python_command("import timm; print(*timm.list_pretrained({name}))", name=f"{name}*")
    )
    yield Problem(str(place), what, hint)


def _model_keys(data: Any) -> tuple[tuple[str, ...], ...]:
    """Keys that name a model or an adapter: a folder, or an id on the Hugging Face hub."""
    adapters = _section_of(data, LORA).get(LORA[-1])
    if isinstance(adapters, dict):
        return (*_MODEL_KEYS, *((*LORA, str(name)) for name in adapters))
    return (*_MODEL_KEYS, LORA)


def _absolute_gguf(document: Document) -> Iterator[Problem]:
    """Makes the path of a GGUF file absolute; one in a repository becomes `ORG/NAME/FILE`."""
    section = _section_of(document.data, GGUF)
    value = section.get(GGUF[-1])
    if not isinstance(value, str) or not value:
        return
    place, key = document.places[GGUF], ".".join(GGUF)
    path, problem = _existing(place, key, value, folder=False)
    if problem is None:
        section[GGUF[-1]] = path
    elif (found := _HUB_FILE.fullmatch(value)) and not Path(path).exists():
        _name_in_hub(section, GGUF, found)
    elif Path(path).is_dir():
        yield replace(problem, hint=f"name a file in it that ends in {_GGUF_SUFFIX}")
    else:
        hint = "a file in a repository of the Hugging Face hub is like ORG/NAME/model-Q4_0.gguf"
        yield replace(problem, hint=hint)


def hub_model(name: str) -> tuple[str, str] | None:
    """The id on the hub and the revision that --model names; None for a file or a folder."""
    found = _ADDRESS.fullmatch(name) or _TIMM_PLACE.fullmatch(name)
    model = found["id"] if found else name
    is_id = _ID.fullmatch(model) and Path(model).suffix not in KEYS_BY_SUFFIX
    if not is_id or Path(model).exists():
        return None
    return model, (found and found["revision"]) or "main"


def hub_program(name: str) -> tuple[str, str] | None:
    """The repository of the hub, and the program in it, that a text names; None for a path.

    The name of the program is empty where the repository has to have a single one.
    """
    found = _match_hub_program(name)
    return (found["id"], found["file"] or "") if found else None


def _match_hub_program(name: str) -> re.Match[str] | None:
    found = _HUB_PROGRAM.fullmatch(name)
    return None if found is None or found["id"].endswith(".pte") else found


def _name_in_hub(section: dict[str, Any], keys: tuple[str, ...], found: re.Match[str]) -> None:
    section[keys[-1]] = "/".join(filter(None, (found["id"], found["file"])))
    if found["revision"]:
        section.setdefault("revision", found["revision"])


def _is_path(name: str) -> bool:
    """Whether it can only be meant as a path: `./model`, `~/model`, `a/b/c`, `/model`, `model/`."""
    if "://" in name:
        return False
    return name.startswith((".", "~", "/")) or name.endswith("/") or name.count("/") > 1


def _no_model(place: SourceLocation, key: str, name: str) -> Problem:
    return Problem(
        str(place),
        f"{key}: {name!r} is neither a folder nor an id on the Hugging Face hub",
        "an id is like HuggingFaceTB/SmolLM2-135M",
    )


def _existing(
    place: SourceLocation, key: str, name: str, *, folder: bool
) -> tuple[str, Problem | None]:
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
    """A loaded recipe's values, with absolute paths made relative to a folder."""
    result = deepcopy(content)
    for keys in (*_FILE_KEYS, *_FOLDER_KEYS, *_model_keys(result), GGUF, *_FUNCTION_KEYS):
        section = _section_of(result, keys)
        value = section.get(keys[-1])
        if not isinstance(value, str):
            continue
        # Also works for `file.py:function`; a module is not an absolute path.
        if Path(value).is_absolute():
            section[keys[-1]] = relative_path(Path(value), folder)
    grid = _section_of(result, SPECULATION)
    if str(draft := grid.get(SPECULATION[-1])).startswith(DRAFT):
        program = Path(str(draft).removeprefix(DRAFT))
        if program.is_absolute():
            grid[SPECULATION[-1]] = DRAFT + relative_path(program, folder)
    export = _section_of(result, llm_config.LLM_CONFIG)
    if config := export.get("llm_config"):
        export["llm_config"] = llm_config.relative(config, folder, relative_path)
    return result


def _section_of(data: Any, keys: Sequence[str]) -> dict[str, Any]:
    """The section that a key is in; an empty one where there is none."""
    for key in keys[:-1]:
        data = data.get(key) if isinstance(data, dict) else None
    return data if isinstance(data, dict) else {}


def relative_path(path: Path, folder: Path) -> str:
    """The path relative to the folder, with `..` outside of it; absolute on another drive."""
    try:
        return Path(os.path.relpath(path, folder)).as_posix()
    except ValueError:
        return path.as_posix()
