"""The documentation builds as a site; MkDocs checks every link, anchor and entry of the menu."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_MKDOCS = [sys.executable, "-m", "mkdocs", "build"]

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        importlib.util.find_spec("material") is None, reason="mkdocs-material is not installed"
    ),
]


def build(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [*_MKDOCS, "--config-file", str(root / "mkdocs.yml"), "--site-dir", str(site)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=env)


def test_the_site_builds_without_a_broken_link(tmp_path: Path) -> None:
    done = build(ROOT, tmp_path / "site")
    assert done.returncode == 0, done.stderr
    assert "first model in five minutes" in (tmp_path / "site" / "index.html").read_text()


def test_a_broken_link_is_an_error(tmp_path: Path) -> None:
    config = (ROOT / "mkdocs.yml").read_text()
    (tmp_path / "mkdocs.yml").write_text(config[: config.index("\nnav:")])
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Page\n\n[gone](other.md)\n")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode != 0
    assert "other.md" in done.stderr
