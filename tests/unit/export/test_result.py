"""What an export writes of a program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from etdeploy.export.worker.result import Lowered, write_program
from etdeploy.program.folder import ETRECORD_FILE, PROGRAM_FILE
from tests.support.export import spec_of

# Of ExecuTorch, when its files are compiled for the first time.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
SPEC = spec_of({"model": {"python": "m.py:make"}, "export": {"backend": "portable"}})


class Program:
    """A program whose ETRecord is begun, and fails."""

    graph_map: Any = "graphs"

    def __init__(self, error: Exception | None) -> None:
        self.error = error

    def write_to_file(self, stream: Any) -> None:
        stream.write(b"program")

    def get_etrecord(self) -> Program:
        return self

    def save(self, path: str) -> None:
        Path(path).write_text(f"record with {self.graph_map}")
        if self.error:
            raise self.error


def written(folder: Path, error: Exception | None) -> Lowered:
    lowered = Lowered({}, Program(error), 0, etrecord=True)
    return write_program(SPEC, folder, lowered)


def test_an_etrecord_has_the_graphs_once(tmp_path: Path) -> None:
    assert written(tmp_path, None).etrecord
    assert (tmp_path / ETRECORD_FILE).read_text() == "record with None"


def test_a_program_is_written_without_an_etrecord_that_executorch_does_not_write(
    tmp_path: Path,
) -> None:
    lowered = written(tmp_path, ValueError("Serializing neg is not supported."))
    assert [path.name for path in tmp_path.iterdir()] == [PROGRAM_FILE]
    assert not lowered.etrecord
    [note] = lowered.notes
    assert note.startswith("There is no ETRecord")
    assert note.endswith("ValueError: Serializing neg is not supported.")


def test_a_full_disk_ends_the_export(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left"):
        written(tmp_path, OSError(28, "No space left on device"))
