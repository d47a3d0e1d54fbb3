"""Both apps, compiled once in a test run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from etdeploy.core.files.basic import new_folder
from etdeploy.core.files.locks import exclusive
from tests.support.android_app import App, Tools, missing_tools, obtain_tools, render
from tests.support.export import export_workspace
from tests.support.runtime_runs import programs, text_programs

__all__ = ["export_workspace", "programs", "text_programs"]


@pytest.fixture(scope="session")
def tools(shared_folder: Path) -> Tools:
    """Compilers and Android's framework; tests that need them are left out where they are not."""
    if missing := missing_tools():
        pytest.skip(f"needs {missing}")
    try:
        return obtain_tools(shared_folder)
    except AssertionError as error:
        if "Could not transfer artifact" in str(error) or "Unknown host" in str(error):
            pytest.skip("Maven reaches no repository")
        raise


def _compiled(tools: Tools, shared: Path, workload: str, task: str = "tensor") -> App:
    folder = shared / f"android-{workload if task == 'tensor' else task}"
    with exclusive(folder.with_suffix(".lock"), "the app of a test"):
        if not folder.is_dir():
            with new_folder(folder) as work:
                made = App(work / "project", work / "built")
                render(made.project, workload, task=task)
                made.compile(tools)
    return App(folder / "project", folder / "built")


@pytest.fixture(scope="session")
def inference_app(tools: Tools, shared_folder: Path) -> App:
    return _compiled(tools, shared_folder, "inference")


@pytest.fixture(scope="session")
def generation_app(tools: Tools, shared_folder: Path) -> App:
    return _compiled(tools, shared_folder, "generation")


@pytest.fixture(scope="session")
def photo_app(tools: Tools, shared_folder: Path) -> App:
    return _compiled(tools, shared_folder, "inference", "image-classification")


@pytest.fixture(scope="session")
def chat_app(tools: Tools, shared_folder: Path) -> App:
    return _compiled(tools, shared_folder, "generation", "text-generation")


@pytest.fixture(scope="session")
def speech_app(tools: Tools, shared_folder: Path) -> App:
    return _compiled(tools, shared_folder, "inference", "automatic-speech-recognition")


def with_values(program: Path, payload: Path, name: str, atol: float) -> dict[str, Any]:
    """Copies a program's inputs and outputs into a payload; gives them as one of its sizes."""
    described = json.loads((program / "tensors.json").read_text())
    size: dict[str, Any] = {"name": name}
    for kind in ("inputs", "expected"):
        shutil.copytree(program / kind, payload / name / kind, dirs_exist_ok=True)
        size[kind] = [
            {"name": "", "atol": atol}
            | ({"kind": "Tensor", "value": None} if "path" in value else {})
            | value
            | ({"path": f"{name}/{value['path']}"} if "path" in value else {})
            for value in described[kind]
        ]
    return size
