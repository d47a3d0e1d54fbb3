"""Compiles the Android templates against ExecuTorch's real Java API.

    python -m tests.support.android_real_api
    python -m tests.support.android_real_api --version 1.5.0
    python -m tests.support.android_real_api --aar executorch.aar

The first takes org.pytorch:executorch-android:1.5.1 from Maven. The tests compile against a
stand-in (`android_api`), since the AAR is not in every Maven repository; where it is, this shows in
two minutes whether each app, with its tests, and each library still fit. It needs a JDK, Maven and
a C++ compiler.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from etdeploy.apps.android.tools import FBJNI, NATIVE_LOADER
from etdeploy.apps.library import AndroidLibrary
from tests.support.android_app import App, Tools, compile_kotlin, obtain_tools, render, resolve
from tests.support.golden_apps import app_subject
from tests.support.libraries import write_library

_APPS = (
    ("inference", "tensor"),
    ("generation", "tensor"),
    ("inference", "image-classification"),
    ("generation", "text-generation"),
    ("inference", "automatic-speech-recognition"),
)
_LIBRARIES = ("convnet", "language-model")


def api_classes(folder: Path, aar: Path | None, version: str) -> str:
    """The class path of the API with what it refers to; `folder` gets the classes of AARs."""
    needed = {"fbjni": f"{FBJNI.coordinates}:aar", "loader": f"{NATIVE_LOADER.coordinates}:jar"}
    if aar is None:
        needed["api"] = f"org.pytorch:executorch-android:{version}:aar*"
    found = resolve(folder / "maven", needed)
    paths = [Path(path) for text in found.values() for path in text.split(":")]
    return ":".join(map(str, _jars(folder, [*paths, *([aar] if aar else [])])))


def _jars(folder: Path, paths: Sequence[Path]) -> Iterator[Path]:
    for number, path in enumerate(paths):
        if path.suffix == ".aar":
            with zipfile.ZipFile(path) as opened:
                jar = folder / f"{number}-{path.stem}.jar"
                jar.write_bytes(opened.read("classes.jar"))
                yield jar
        else:
            yield path


def compile_all(tools: Tools, api: str, work: Path) -> Iterator[tuple[str, str]]:
    """The name of each project with what the compiler said; nothing where it fits."""
    for workload, task in _APPS:
        name = f"app {workload} {task}"
        app = App(work / name / "project", work / name / "built")
        render(app.project, workload, task=task)
        yield name, _said(partial(app.compile, tools, api))
    path: list[str | Path] = [
        tools.framework, api, tools.standard_library, tools.paths["coroutines"],
        tools.paths["junit"], tools.folder / "monitor.jar",
    ]  # fmt: skip
    for recipe in _LIBRARIES:
        name, platform = f"library {recipe}", AndroidLibrary()
        files = {"program.pte": b"", "model.json": b"{}"}
        folder = write_library(platform, app_subject(platform, recipe), files, work / name)
        sources = sorted(folder.rglob("*.kt"))
        yield name, _said(partial(compile_kotlin, tools, path, folder / "classes", sources))


def _said(work: Callable[[], object]) -> str:
    try:
        work()
    except AssertionError as error:  # of a tool that failed
        return str(error)
    return ""


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--aar", type=Path, help="the AAR, where Maven does not have it")
    parser.add_argument("--version", default="1.5.1", help="of the AAR (%(default)s)")
    parser.add_argument("--tools", type=Path, help="folder that keeps what is downloaded")
    asked = parser.parse_args(words)
    failed = 0
    with tempfile.TemporaryDirectory() as made:
        work = Path(made)
        try:
            api = api_classes(work, asked.aar, asked.version)
            tools = obtain_tools(asked.tools or work)
        except (AssertionError, OSError, KeyError, zipfile.BadZipFile) as error:
            print(f"cannot get the API or the tools: {error}", file=sys.stderr)  # noqa: T201
            return 2
        for name, said in compile_all(tools, api, work):
            failed += bool(said)
            print(f"{'DIFFERS' if said else 'fits':<8}{name}\n{said}".rstrip())  # noqa: T201
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
