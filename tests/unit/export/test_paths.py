"""Installed packages come before the user's folders, whatever lies there."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import sysconfig
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

from etdeploy.export.protocol import ExportFailure
from etdeploy.export.worker.failures import WorkerError, describe_errors
from etdeploy.export.worker.loading import paths
from etdeploy.export.worker.loading.user_code import run_file
from tests.support.facts import lacks

LIBRARY = sysconfig.get_path("stdlib")


@pytest.fixture(autouse=True)
def imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A path, finders and modules of the test's own."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.setattr(paths.user_folders, "folders", [])
    monkeypatch.setattr(SourceFileLoader, "set_data", SourceFileLoader.set_data)
    before = dict(sys.modules)
    yield
    sys.modules.clear()
    sys.modules.update(before)


def _write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    importlib.invalidate_caches()
    return folder


def _install(tmp_path: Path, files: dict[str, str]) -> Path:
    folder = _write(tmp_path / "site-packages", files)
    sys.path.append(str(folder))
    return folder


def test_an_installed_module_wins_and_the_rest_is_found(tmp_path: Path) -> None:
    _install(tmp_path, {"installed_one.py": "FROM = 'installed'"})
    mine = {"installed_one.py": "FROM = 'user'", "own_one.py": "FROM = 'user'"}
    paths.add_user_folder(_write(tmp_path / "user", mine))
    assert importlib.import_module("installed_one").FROM == "installed"
    assert importlib.import_module("own_one").FROM == "user"


def test_imports_leave_bytecode_beside_installed_modules_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    installed = _install(tmp_path, {"installed_two.py": ""})
    monkeypatch.setattr("site.getusersitepackages", lambda: str(installed))
    user = _write(tmp_path / "user", {"model.py": "import part.of_it", "part/of_it.py": ""})
    paths.add_user_folder(tmp_path)
    run_file(user / "model.py")
    importlib.import_module("installed_two")
    found = {path.parent for path in tmp_path.rglob("__pycache__")}
    assert found == {installed}


def test_a_checkout_is_not_mixed_with_an_installed_namespace_package(tmp_path: Path) -> None:
    site = _install(tmp_path, {"spaced/inner/here.py": ""})
    clone = {"spaced/__init__.py": "", "spaced/inner/here.py": "", "spaced/inner/only.py": ""}
    paths.add_user_folder(_write(tmp_path / "user", clone))
    found = importlib.import_module("spaced.inner")
    assert list(found.__path__) == [str(site / "spaced/inner")]


def test_a_folder_on_the_python_path_goes_behind(tmp_path: Path) -> None:
    sys.path[:] = [str(tmp_path), "/opt/mine", LIBRARY, str(tmp_path)]
    paths.add_user_folder(tmp_path)
    # What a .pth file added comes behind installed packages already, and its metadata is there.
    assert sys.path == ["/opt/mine", LIBRARY, str(tmp_path)]


def test_the_working_folder_is_searched_last(tmp_path: Path) -> None:
    for name in ("working", "model", "calibration"):
        paths.add_user_folder(tmp_path / name)
    names = [Path(folder).name for folder in paths.user_folders.folders]
    assert names == ["model", "calibration", "working"]


def test_a_later_change_of_the_path_does_not_move_executorch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Another test of this process may have imported it.
    for name in [name for name in sys.modules if name.split(".")[0] == "executorch"]:
        monkeypatch.delitem(sys.modules, name)
    site = _install(tmp_path, {"executorch/exir.py": ""})
    sys.path[:] = [LIBRARY, str(site)]
    user = _write(tmp_path / "user", {"executorch/exir.py": "", "executorch/more.py": ""})
    paths.add_user_folder(user)
    paths.pin_installed()
    sys.path.insert(0, str(user))
    importlib.invalidate_caches()
    assert importlib.util.find_spec("executorch.more") is None
    exir = importlib.util.find_spec("executorch.exir")
    assert exir is not None
    assert exir.origin == str(site / "executorch/exir.py")


def test_a_model_file_leaves_the_name_of_an_installed_module_alone(tmp_path: Path) -> None:
    _install(tmp_path, {"installed_one.py": "FROM = 'installed'"})
    files = {"installed_one.py": "import installed_one as other\nFROM = 'user'"}
    module = run_file(_write(tmp_path / "user", files) / "installed_one.py")
    assert (module.FROM, module.other.FROM) == ("user", "installed")


def test_a_model_file_is_run_once_and_its_helpers_can_import_it(tmp_path: Path) -> None:
    helper_text = "import own_model\nruns = []\ndef count():\n    runs.append(1)\n"
    files = {
        "own_model.py": "import own_helper\nown_helper.count()",
        "own_helper.py": helper_text,
    }
    path = _write(tmp_path / "user", files) / "own_model.py"
    assert run_file(path) is run_file(path)
    helper: ModuleType = sys.modules["own_helper"]
    assert helper.own_model is run_file(path)
    assert helper.runs == [1]


@pytest.mark.parametrize(
    "code",
    [
        "from installed_one import missing",
        "import installed_one.part",
        "import installed_one\ninstalled_one.missing",
    ],
)
def test_a_hidden_module_of_the_user_is_told(tmp_path: Path, code: str) -> None:
    _install(tmp_path, {"installed_one.py": ""})
    mine = {"installed_one.py": "missing = 1", "model_file.py": code}
    user = _write(tmp_path / "user", mine)
    remedy = _failure(user / "model_file.py").remedy
    assert not lacks(remedy, "as installed_one,", f"{user}/installed_one.py:", "Rename")


def test_a_missing_name_of_the_users_own_module_is_no_hidden_one(tmp_path: Path) -> None:
    mine = {"own_one.py": "", "model_file.py": "from own_one import missing"}
    assert _failure(_write(tmp_path / "user", mine) / "model_file.py").remedy is None


def _failure(path: Path) -> ExportFailure:
    with (
        pytest.raises(WorkerError) as caught,
        describe_errors("factory-raised", "importing raised"),
    ):
        run_file(path)
    return caught.value.failure
