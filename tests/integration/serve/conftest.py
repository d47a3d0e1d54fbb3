"""A small language model to serve, and a cache with what is built for it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.export import export_workspace
from tests.support.runtime_runs import programs, text_programs

__all__ = ["export_workspace", "programs", "text_programs"]

CHAT = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"


@pytest.fixture(scope="module")
def model(text_programs: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The program of session_export, with a chat template."""
    folder = tmp_path_factory.mktemp("served")
    shutil.copytree(text_programs / "session", folder, dirs_exist_ok=True)
    (folder / "chat_template.jinja").write_text(CHAT)
    return str(folder / "program.pte")
