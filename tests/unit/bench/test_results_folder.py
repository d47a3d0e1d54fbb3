"""The folder of a run: never another run's, and what stays of it when the run fails."""

from __future__ import annotations

import errno
import secrets
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime, timezone
from pathlib import Path

import pytest

from etdeploy.bench.results_folder import require_output, results_folder, run_id
from etdeploy.bench.run_pass import RUNNER_LOG
from etdeploy.core.errors import UsageError

_WHEN = datetime(2026, 11, 21, 8, 44, 49, tzinfo=timezone.utc)


def _open(output: Path) -> AbstractContextManager[Path]:
    return results_folder(output, _WHEN, "mlp", "host")


def _with_folder(output: Path, act: Callable[[Path], None]) -> None:
    with _open(output) as folder:
        act(folder)


def _fail(output: Path, error: Exception) -> None:
    """A run that fails when results of every kind are there."""
    with _open(output) as folder:
        (folder / RUNNER_LOG).write_text("said")
        (folder / "timing.json").write_text("{}")
        (folder / "outputs").mkdir()
        (folder / "outputs" / "0.bin").write_bytes(b"0")
        raise error


def _ids(monkeypatch: pytest.MonkeyPatch, *tails: str) -> None:
    words = iter(tails)
    monkeypatch.setattr(secrets, "token_hex", lambda _: next(words))


@pytest.mark.parametrize(
    ("output", "why"),
    [
        ("file", "{0}/file "),
        ("file/below", "{0}/file "),
        ("cache/programs", "in the cache"),
        ("cache/logs/mine", "in the cache"),
    ],
)
def test_an_output_folder_that_cannot_be_used_is_told_before_the_work(
    tmp_path: Path, output: str, why: str
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError) as caught:
        require_output(tmp_path / output, tmp_path / "cache")
    assert why.format(tmp_path) in caught.value.message
    assert str(caught.value.remedy).endswith("--output FOLDER")


@pytest.mark.parametrize("output", ["new/folder", "there", "cache", "cache/mine"])
def test_asking_for_an_output_folder_leaves_nothing(tmp_path: Path, output: str) -> None:
    (tmp_path / "there").mkdir()
    require_output(tmp_path / output, tmp_path / "cache")
    assert [path.name for path in tmp_path.rglob("*")] == ["there"]


def test_a_run_that_fails_removes_its_own_folder_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _ids(monkeypatch, "aa", "aa", "bb")
    with _open(tmp_path) as first:
        (first / "record.json").write_text("first")
    with pytest.raises(KeyError):
        _fail(tmp_path, KeyError())
    assert (first / "record.json").read_text() == "first"
    assert sorted(p.name for p in tmp_path.glob("*/*")) == ["record.json", RUNNER_LOG]


def test_ids_that_never_end_are_a_fault_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secrets, "token_hex", lambda _: "aa")
    with _open(tmp_path), pytest.raises(RuntimeError, match="10 run ids"), _open(tmp_path):
        pass


def test_ids_sort_by_time_and_have_32_random_bits() -> None:
    made = run_id(_WHEN, "my recipe", "android:10.0.0.1:5555")
    assert made.startswith("20261121T084449Z-my_recipe-android_10.0.0.1_5555-")
    assert len(made.rsplit("-", 1)[1]) == 8
    assert run_id(_WHEN, "a", "b") != run_id(_WHEN, "a", "b")


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(errno.ENOENT, "No such file", "/elsewhere/expected/0.bin"),
        ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
    ],
)
def test_other_system_errors_are_not_blamed_on_the_output_folder(
    tmp_path: Path, error: OSError
) -> None:
    with pytest.raises(type(error)), _open(tmp_path):
        raise error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_stays_one_and_names_the_folder(tmp_path: Path, number: int) -> None:
    with pytest.raises(OSError, match="no room") as raised, _open(tmp_path):
        raise OSError(number, "no room")
    assert raised.value.errno == number
    assert Path(str(raised.value.filename)).parent == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_a_result_that_cannot_be_written_is_told_with_its_path(tmp_path: Path) -> None:
    def write(folder: Path) -> None:
        (folder / "outputs").mkdir()
        (folder / "outputs").write_text("")

    with pytest.raises(UsageError, match="Is a directory") as raised:
        _with_folder(tmp_path, write)
    assert str(raised.value.place).endswith("outputs")
    assert "--output" in str(raised.value.remedy)


def test_git_ignores_an_output_folder_that_is_new_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    for output in ("mine", "new"):
        with results_folder(tmp_path / output, datetime.now(timezone.utc), "mlp", "host"):
            pass
    assert [path.parent.name for path in tmp_path.rglob(".gitignore")] == ["new"]
