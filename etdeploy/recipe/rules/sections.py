"""Rules between the keys of one section; the models check single keys."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from etdeploy.recipe.rules.common import MODEL_SOURCES, NAMED_ADAPTERS, RecipeFinding, keys_of
from etdeploy.recipe.rules.export import export_rules
from etdeploy.recipe.tasks import TASKS, TIMM_TASKS
from etdeploy.targets.platforms import android_id_problem

# Keys of `model` that say more about one of transformers.
OF_HF = ("revision", "task", "remote_code", "lora")
ONE_SOURCE = f"name one model source: {', '.join(MODEL_SOURCES[:-1])} or {MODEL_SOURCES[-1]}"
# Keys that need a build of ExecuTorch itself, with the value that needs none.
BUILD_KEYS: Mapping[str, Any] = {
    "source": None,
    "thread_pool": "default",
    "optimize": "speed",
    "log_level": "error",
    "kleidiai": None,
    "weight_cache": False,
    "cmake": {},
}

_CMAKE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TEAM = re.compile(r"[A-Z0-9]{10}")
_SIZE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")


def model_rules(section: Mapping[str, Any]) -> Iterator[RecipeFinding]:
    """The rules of the section `model`."""
    given = [name for name in MODEL_SOURCES if section.get(name) is not None]
    if not given:
        return  # `recipe_rules` knows whether the recipe names its model elsewhere.
    if len(given) != 1:
        yield "", f"{ONE_SOURCE}; {len(given)} are given: {', '.join(given)}"
        return
    if section.get("weights") is not None and given != ["python"]:
        yield "weights", "weights need a `python` model source"
    if section.get("arguments") and given[0] not in ("python", "example"):
        yield "arguments", "arguments need a `python` or `example` source"
    yield from _hf_findings(section)


def _hf_findings(section: Mapping[str, Any]) -> Iterator[RecipeFinding]:
    if section.get("merge") is False and not isinstance(section.get("lora"), Mapping):
        yield "merge", f"adapters that are not merged need names, to choose one: {NAMED_ADAPTERS}"
    model, code = section.get("hf"), section.get("remote_code")
    file = section.get("gguf") or section.get("checkpoint")
    if section.get("params") is not None and section.get("checkpoint") is None:
        yield "params", "params belong to a `checkpoint`, and none is named"
    if model is None and file is None:
        yield from _findings_without_hf(section)
        return
    if section.get("revision") is not None and str(model or file).startswith("/"):
        kind = "folder" if model else "file"
        yield "revision", f"a {kind} on this machine has no revisions, and {model or file} is one"
    if code is not None and model is None:
        yield "remote_code", "no code in that file is run, so there is nothing to allow"
    elif code is not None and code != model:
        yield (
            "remote_code",
            f"code runs only for the model that is named here, {code!r}, and `hf` is {model!r}",
        )


def _findings_without_hf(section: Mapping[str, Any]) -> Iterator[RecipeFinding]:
    timm, task = section.get("timm"), section.get("task")
    named = timm or section.get("program")
    allowed = ["revision"] if named and not str(named).startswith("/") else []
    allowed += ["task"] if timm else []
    for key in (key for key in OF_HF if key not in allowed):
        if section.get(key) is None:
            continue
        if timm and key == "revision":
            yield key, f"a folder on this machine has no revisions, and {timm} is one"
        else:
            yield key, "this key is about a model of `hf`, and none is named"
    if timm and task in TASKS and task not in TIMM_TASKS:
        yield "task", f"a model of timm is for {' or '.join(TIMM_TASKS)}, not {task}"


def runtime_rules(section: Mapping[str, Any]) -> Iterator[RecipeFinding]:
    """The rules of the section `runtime`."""
    if section.get("provider") == "wheel":
        for key in keys_needing_build(section):
            yield (
                key,
                "the provider `wheel` is prebuilt; this needs `provider: source` (or `auto`)",
            )
    if section.get("custom_ops_target") is not None and section.get("custom_ops") is None:
        yield "custom_ops_target", "also set custom_ops, the folder of its CMakeLists.txt"
    options = section.get("cmake")
    for name in options if isinstance(options, Mapping) else ():
        if not isinstance(name, str) or not _CMAKE_NAME.fullmatch(name):
            yield "cmake", f"{name!r} is not a valid name of a cmake option"
        elif name.startswith("ETDEPLOY_"):
            yield "cmake", f"{name} is set by the plan and cannot be overridden"


def keys_needing_build(section: Mapping[str, Any]) -> list[str]:
    """The keys of the section `runtime` that need a build of ExecuTorch."""
    return [key for key, none in BUILD_KEYS.items() if section.get(key) not in (None, none)]


def benchmark_rules(section: Mapping[str, Any]) -> Iterator[RecipeFinding]:
    """The rules of the section `benchmark`."""
    sizes = section.get("sizes")
    for name in sizes if isinstance(sizes, Mapping) else ():
        if not _SIZE_NAME.fullmatch(name):
            yield (
                f"sizes.{name}",
                "the name of a size is part of file names: use up to 32 letters, digits, dashes "
                "and underscores",
            )
    if section.get("inputs") is not None and not sizes:
        yield "inputs", "this function makes the inputs for `sizes`, and there are none"
    yield from _sampling_findings(keys_of(section.get("generation")))


def _sampling_findings(generation: Mapping[str, Any]) -> Iterator[RecipeFinding]:
    if generation.get("temperature"):
        return
    for key, of_all in (("top_k", 0), ("top_p", 1), ("min_p", 0)):
        if generation.get(key) not in (None, of_all):
            text = "nothing is drawn with temperature 0; also set benchmark.generation.temperature"
            yield f"generation.{key}", text


def app_rules(section: Mapping[str, Any]) -> Iterator[RecipeFinding]:
    """The rules of the section `app`."""
    if isinstance(app_id := section.get("id"), str) and (wrong := android_id_problem(app_id)):
        yield "id", f"{app_id!r} is not an app ID: {wrong}"
    team = section.get("team")
    if isinstance(team, str) and not _TEAM.fullmatch(team):
        yield "team", f"{team!r} is not a team: Apple's have 10 capital letters and digits"
    name = section.get("name")
    if isinstance(name, str) and (not name.isprintable() or not name.strip()):
        yield "name", "the name needs letters or digits, and no control characters"
    if section.get("aar") and section.get("build") == "gradle":
        yield "aar", "Gradle downloads ExecuTorch's release itself; this is for `build: sdk`"


RULES: Mapping[str, Callable[[Mapping[str, Any]], Iterator[RecipeFinding]]] = {
    "model": model_rules,
    "export": export_rules,
    "runtime": runtime_rules,
    "benchmark": benchmark_rules,
    "app": app_rules,
}
