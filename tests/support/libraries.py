"""Subjects of libraries, with the small programs of runtime_export and generation_export."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from etdeploy.apps.model import AppChat, AppGeneration, AppModel, AppSize, AppValue, Payload, app_id
from etdeploy.apps.platform import AppSubject, Platform
from etdeploy.apps.project import project_files
from etdeploy.backends.values import Extras
from etdeploy.core.hashing import sha256_file
from etdeploy.core.values import ReasonedChoice
from etdeploy.plan.model import Provider, RuntimePlan
from etdeploy.program.inspect import inspect_file
from etdeploy.program.model import Program
from etdeploy.recipe.load import LoadedRecipe
from etdeploy.recipe.model import Recipe
from etdeploy.runner.generation import Sampling
from etdeploy.targets.platforms import find_target
from tests.support.app_tokenizers import words
from tests.support.generation_values import CAPACITY, METHODS, VOCABULARY

_TARGETS = {"android": "android-arm64", "ios": "ios-arm64"}


def inference_subject(
    platform: Platform, program: Path, name: str, names: dict[str, list[str]] | None = None
) -> tuple[AppSubject, Payload]:
    """A program with its example inputs, whose inputs and outputs get names."""
    described = json.loads((program / "tensors.json").read_text())

    def values(kind: str, atol: float) -> tuple[AppValue, ...]:
        own = (names or {}).get(kind, [])
        return tuple(
            AppValue(
                **({"kind": "Tensor"} | value | {"atol": atol}
                   | ({"name": own[i]} if i < len(own) else {}))
            )
            for i, value in enumerate(described[kind])
        )  # fmt: skip

    size = AppSize(inputs=values("inputs", 0.0), expected=values("expected", 1e-5))
    subject = _subject(platform, program / "program.pte", name, {"sizes": (size,)}, "inference")
    files = [v.path for v in (*size.inputs, *size.expected) if v.path]
    return subject, {
        "program.pte": program / "program.pte",
        "model.json": b"{}",
        **{path: program / path for path in files},
    }


def text_subject(
    platform: Platform, programs: Path, name: str, folder: Path
) -> tuple[AppSubject, Payload]:
    """A program that generates text of a few words; `folder` gets its tokenizer."""
    words().save(str(folder / "tokenizer.json"))
    made = AppGeneration(
        methods=METHODS["dynamic"], vocabulary=VOCABULARY, context=CAPACITY, stop_ids=(),
        bos_id=None, rewind=None, sampling=Sampling(), new_tokens=20, tokenizer="tokenizer.json",
        chat=AppChat(before="T", after="?"),
    )  # fmt: skip
    program = programs / "dynamic.pte"
    subject = _subject(platform, program, name, {"generation": made}, "generation")
    tokenizer = folder / "tokenizer.json"
    return subject, {"program.pte": program, "model.json": b"{}", "tokenizer.json": tokenizer}


def _subject(
    platform: Platform, path: Path, name: str, facts: dict[str, Any], workload: str
) -> AppSubject:
    program = inspect_file(path)
    recipe = Recipe.model_validate({"model": {"program": str(path)}})
    loaded = LoadedRecipe(name, Path(f"/recipes/{name}.yaml"), recipe, ())
    model = AppModel(
        app_id=app_id(loaded), name=name, workload=workload, program="program.pte", bundled=True,
        program_sha256=sha256_file(path), program_bytes=path.stat().st_size,
        executorch_version="1.5.1", backends=program.backend_ids, quantization="none",
        method="forward", warmup=0, iterations=1, threads=1, **facts,
    )  # fmt: skip
    target = _TARGETS.get(platform.name, "linux-x86_64")
    runtime = platform.runtime(recipe, program, "1.5.1", ("arm64-v8a",))
    return AppSubject(
        loaded=loaded,
        program=program,
        model=model,
        plan=_plan(program, target, runtime.packages),
        target=find_target(target),
        abis=("arm64-v8a",),
        extras=Extras(),
    )


def _plan(program: Program, target: str, packages: tuple[ReasonedChoice, ...]) -> RuntimePlan:
    return RuntimePlan(
        target=target, build_target=target, portable_runner=False,
        provider=ReasonedChoice(name="provider", value=Provider.PREBUILT, reason="it has all"),
        executorch_version="1.5.1", toolchain=None, options=(), program_sha256=program.sha256,
        components=packages,
    )  # fmt: skip


def with_model(subject: AppSubject, **changed: Any) -> AppSubject:
    """The subject with other facts in its model."""
    return replace(subject, model=subject.model.model_copy(update=changed))


def write_library(platform: Platform, subject: AppSubject, payload: Payload, folder: Path) -> Path:
    """The project of a library in a folder."""
    for path, content in project_files(platform, subject, payload).items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content if isinstance(content, bytes) else content.read_bytes())
    return folder
