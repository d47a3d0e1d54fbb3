"""Drives the real command line in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class CliResult:
    """How a command line ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)


@dataclass(frozen=True)
class Cli:
    """etdeploy with a cache and a working folder of the test's own."""

    cache: Path
    folder: Path
    env: Mapping[str, str]

    def __call__(self, *arguments: str, **env: str) -> CliResult:
        done = subprocess.run(
            self.argv(*arguments),
            cwd=self.folder,
            env={**self.environment(), **env},
            capture_output=True,
            text=True,
            check=False,
        )
        return CliResult(done.returncode, done.stdout, done.stderr)

    def ok(self, *arguments: str, **env: str) -> CliResult:
        """The same, and it has to end well."""
        result = self(*arguments, **env)
        assert result.code == 0, f"exit {result.code}\n{result.stdout}\n{result.stderr}"
        return result

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Starts it in a process group of its own, for tests that interrupt it."""
        return subprocess.Popen(
            self.argv(*arguments),
            cwd=self.folder,
            env=self.environment(),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def argv(self, *arguments: str) -> list[str]:
        """The command line; a measurement has one start unless the test says how many."""
        once = arguments[:1] in (("run",), ("bench",)) and "--runs" not in arguments
        return [sys.executable, "-m", "etdeploy", *arguments, *(("--runs", "1") if once else ())]

    def environment(self) -> dict[str, str]:
        return {**os.environ, "ETDEPLOY_CACHE_DIR": str(self.cache), **self.env}

    def recipe(self, text: str, name: str = "recipe.yaml") -> str:
        """Writes a recipe into the working folder and gives its path."""
        path = self.folder / name
        path.write_text(text)
        return str(path)
