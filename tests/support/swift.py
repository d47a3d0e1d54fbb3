"""Swift on Linux: compiles, runs and checks the style of an app's files.

from tests.support.swift import swift

def test_something(swift, tmp_path):
    swift.run("swiftc", "main.swift", folder=tmp_path)
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.debian import RootUnavailable
from tests.support.swift_root import obtain_swift_root

_INIT = Path(__file__).with_name("swift_init.sh")


@dataclass(frozen=True)
class Swift:
    """Runs programs in the root folder with Swift, in which `folder` is /work."""

    root: Path

    def run(
        self,
        *argv: str,
        folder: Path,
        mounts: Mapping[str, Path] | None = None,
        check: bool = True,
        stdin: str = "",
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program of the root folder.

        Args:
            argv: The program and its arguments; paths relative to `folder`, or absolute ones.
            folder: Where it runs; it may write there.
            mounts: Further folders by the absolute path that they get.
            check: Whether a failure fails the test, with what the program said.
            stdin: What it reads.
        """
        unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
        given = [word for path, here in (mounts or {}).items() for word in (path, str(here))]
        ended = subprocess.run(
            [*unshare, "sh", str(_INIT), str(self.root), str(folder), *given, "--", *argv],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
        )  # fmt: skip
        if check:
            assert ended.returncode == 0, f"{' '.join(argv)}\n{ended.stdout}{ended.stderr}"
        return ended


@pytest.fixture(scope="session")
def swift() -> Swift:
    """Swift, where this machine can have it."""
    try:
        if not shutil.which("unshare"):
            raise RootUnavailable("Swift needs unshare")
        return Swift(obtain_swift_root())
    except RootUnavailable as reason:
        pytest.skip(str(reason))
