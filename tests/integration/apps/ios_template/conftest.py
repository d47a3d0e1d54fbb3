"""Compiled once for all tests of this folder; the fixture `swift` is the compiler."""

from __future__ import annotations

from pathlib import Path

import executorch
import pytest

from tests.support.ios_template import Compiled, compile_program, make_app
from tests.support.runtime_runs import text_programs
from tests.support.swift import Swift, swift

__all__ = ["swift", "text_programs"]


@pytest.fixture(scope="session")
def inference(swift: Swift, tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    """The measuring code with a model of a few lines."""
    folder = tmp_path_factory.mktemp("inference")
    return compile_program(swift, make_app(threadpool=False), folder)


@pytest.fixture(scope="session")
def generation(swift: Swift, tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    """The generating code of a chat, with a model of a few lines and with ExecuTorch's runtime."""
    installed = Path(next(iter(executorch.__path__)))
    folder = tmp_path_factory.mktemp("generation")
    return compile_program(
        swift, make_app("generation", task="text-generation"), folder, executorch=installed
    )
