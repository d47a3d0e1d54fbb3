"""The digest of etdeploy's own code."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.core.hashing import code_digest


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for name in ("plan/rules.py", "plan/deep/er.py", "cli/run.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {name}\n")
    return tmp_path


def _digest(package: Path) -> str:
    code_digest.cache_clear()
    return code_digest("plan", package=package)


@pytest.mark.parametrize("name", ["rules.py", "deep/er.py", "new.py"])
def test_the_digest_follows_every_file_of_the_parts_and_no_other(package: Path, name: str) -> None:
    before = _digest(package)
    (package / "cli/run.py").write_text("# another message\n")
    (package / "plan/notes.txt").write_text("")
    assert _digest(package) == before
    (package / "plan" / name).write_text("# another rule\n")
    assert _digest(package) != before
