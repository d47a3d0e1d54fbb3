"""Random numbers are seeded right after the import that brings their generator."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from etdeploy.export.worker.__main__ import seed_at_import
from etdeploy.export.worker.loading.recorder import FileRecorder

_TORCH = """
import own_part
import sys
SEEDS = []
def manual_seed(seed):
    SEEDS.append(seed)
"""


@pytest.fixture
def fake_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module called torch that notes its seeds."""
    (tmp_path / "torch.py").write_text(_TORCH)
    (tmp_path / "own_part.py").write_text("")
    (tmp_path / "own_module.py").write_text("import torch\nSEEN = list(torch.SEEDS)")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    before = dict(sys.modules)
    sys.modules.pop("torch", None)
    yield
    sys.modules.clear()
    sys.modules.update(before)


@pytest.mark.usefixtures("fake_torch")
def test_the_seed_is_set_before_the_importing_file_goes_on() -> None:
    entered = []

    @contextmanager
    def around(name: str) -> Iterator[None]:
        assert name == "torch"
        assert "own_part" not in sys.modules
        yield
        entered.append("own_part" in sys.modules)

    seed_at_import(7, around)
    import own_module  # type: ignore[import-not-found]

    assert own_module.SEEN == [7]
    assert entered == [True]


@pytest.mark.usefixtures("fake_torch")
def test_what_torch_itself_reads_is_not_the_users(tmp_path: Path) -> None:
    recorder = FileRecorder()
    seed_at_import(7, recorder.ignoring)
    with recorder.recording():
        import own_module  # noqa: F401
    names = sorted(Path(name).name for name in recorder.sources().files)
    assert names == ["own_module.py"]


def test_pythons_own_numbers_are_seeded_at_once() -> None:
    seed_at_import(3, FileRecorder().ignoring)
    state = random.getstate()
    random.seed(4)
    seed_at_import(3, FileRecorder().ignoring)
    assert random.getstate() == state
