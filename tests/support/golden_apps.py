"""The recorded projects of apps: a convnet, a language model and one for Qualcomm's HTP.

`python -m tests.support.golden_apps` writes them anew; look at the difference before it is kept.
A recorded project has the lines in which each file differs from its template, and the names of all
others, which are copies.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path

from etdeploy.apps.model import (
    MODEL_FILE,
    AppGeneration,
    AppModel,
    AppSize,
    AppValue,
    app_id,
)
from etdeploy.apps.platform import AppSubject, Platform
from etdeploy.apps.project import project_files, template_paths
from etdeploy.backends.values import ExtraFile, Extras
from etdeploy.core.values import ReasonedChoice
from etdeploy.graph.app_plan import platform_for
from etdeploy.plan.components import RUNTIME, THREADPOOL
from etdeploy.plan.model import Provider, RuntimePlan
from etdeploy.program.model import Program
from etdeploy.recipe.load import LoadedRecipe
from etdeploy.recipe.model import Recipe
from etdeploy.runner.generation import Sampling
from etdeploy.targets.platforms import find_target
from tests.support.runtime_values import make_method, make_program
from tests.support.text_values import METHODS

FOLDER = Path(__file__).parent.parent / "data" / "apps"
_TARGETS = {"android": "android-arm64", "ios": "ios-arm64"}
_RECIPES = {
    "convnet": {"model": {"example": "convnet"}, "app": {"name": 'It\'s <a> "net" & $more'}},
    "language-model": {"model": {"hf": "org/tiny"}, "app": {"id": "com.acme.words"}},
    "qnn": {
        "model": {"example": "convnet"},
        "export": {"backend": "qnn", "quantization": "int8_static"},
    },
}
_DELEGATES = {"convnet": "XnnpackBackend", "language-model": "XnnpackBackend", "qnn": "QnnBackend"}
# What Qualcomm's backend adds for a phone.
_QUALCOMM = Extras(
    files=(ExtraFile(name="libQnnHtp.so", source="/kits/libQnnHtp.so"),),
    folder_variables=("LD_LIBRARY_PATH", "ADSP_LIBRARY_PATH"),
)


def cases() -> list[tuple[str, str]]:
    """Platform and recipe of every recorded project: Qualcomm's HTP is in no iPhone."""
    return [
        (platform, recipe)
        for platform in _TARGETS
        for recipe in _RECIPES
        if (platform, recipe) != ("ios", "qnn")
    ]


def path_of(platform: str, recipe: str) -> Path:
    """The file with a recorded project."""
    return FOLDER / f"{platform}-{recipe}.txt"


def recorded(platform: str, recipe: str) -> str:
    """The project as it is recorded."""
    return "".join(_parts(platform_for(platform), recipe))


def _parts(platform: Platform, recipe: str) -> Iterator[str]:
    subject = app_subject(platform, recipe)
    payload = {MODEL_FILE: b"{}", "program.pte": b"program"}
    values = platform.values(subject)
    files = project_files(platform, subject, payload)
    sources = {path: source for source, path in template_paths(platform.templates, values["app"])}
    for path, content in sorted(files.items()):
        yield f"=== {path}\n"
        source = sources.get(path, "")
        if isinstance(content, bytes) and source.endswith(".j2"):
            template = (platform.templates / source).read_text()
            yield from _changed(template.splitlines(), content.decode().splitlines())


def _changed(template: list[str], made: list[str]) -> Iterator[str]:
    for line in difflib.unified_diff(template, made, n=0, lineterm=""):
        if not line.startswith(("---", "+++", "@@")):
            yield f"{line}\n"


def app_subject(
    platform: Platform, name: str, program: Program | None = None, /, **app: object
) -> AppSubject:
    """The subject of a recorded project, with another program or keys of `app`."""
    recipe = Recipe.model_validate({**_RECIPES[name], **({"app": app} if app else {})})
    loaded = LoadedRecipe(name, Path(f"/recipes/{name}.yaml"), recipe, ())
    program = program or make_program(make_method(delegates=(_DELEGATES[name],)))
    runtime = platform.runtime(recipe, program, "1.5.1", ("arm64-v8a",))
    target = _TARGETS[platform.name]
    return AppSubject(
        loaded=loaded,
        program=program,
        model=_model(loaded, program),
        plan=RuntimePlan(
            target=target, build_target=target, portable_runner=False,
            provider=ReasonedChoice(name="provider", value=Provider.PREBUILT, reason="it has all"),
            executorch_version="1.5.1", toolchain=None, options=(), program_sha256=program.sha256,
            components=(*runtime.packages, *(ReasonedChoice(name=part, reason="a part of it")
                                             for part in (RUNTIME, THREADPOOL))),
        ),
        target=find_target(target),
        abis=("arm64-v8a",),
        extras=_QUALCOMM if name == "qnn" else Extras(),
    )  # fmt: skip


def _model(loaded: LoadedRecipe, program: Program) -> AppModel:
    tensor = AppValue(kind="Tensor", dtype="float32", shape=(1,), path="inputs/0.bin")
    text = loaded.recipe.is_language_model
    return AppModel(
        app_id=app_id(loaded), name=loaded.name, workload="generation" if text else "inference",
        program="program.pte", bundled=True, program_sha256=program.sha256, program_bytes=7,
        executorch_version="1.5.1", backends=program.backend_ids, quantization="none",
        method="forward", warmup=-1, iterations=50, threads=0,
        sizes=() if text else (AppSize(inputs=(tensor,), expected=()),),
        generation=AppGeneration(
            methods=METHODS, vocabulary=100, context=256, stop_ids=(2,), bos_id=1, rewind=None,
            sampling=Sampling(), new_tokens=128, tokenizer="tokenizer.json", chat=None,
        ) if text else None,
    )  # fmt: skip


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for platform, recipe in cases():
        path_of(platform, recipe).write_text(recorded(platform, recipe))


if __name__ == "__main__":
    main()
