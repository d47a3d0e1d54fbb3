"""What several modules of this folder run."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.core.files.basic import new_folder
from etdeploy.core.files.locks import exclusive
from tests.support.runtime_runs import export_programs


@pytest.fixture(scope="session")
def programs(shared_folder: Path) -> Path:
    """The folder with every program of tests/support/runtime_export.py; made once in a test run."""
    folder = shared_folder / "runtime-programs"
    with exclusive(folder.with_suffix(".lock"), "the runner's test programs"):
        if not folder.is_dir():
            with new_folder(folder) as work:
                export_programs(work)
    return folder
