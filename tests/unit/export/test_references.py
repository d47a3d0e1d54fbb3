"""What a model gave before it was quantized, kept for its other exports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from etdeploy.export.worker.language.references import References

VALUE = {"tokens": (1, 2), "best": 0.1 + 0.2, "logits": torch.tensor([1.5, -torch.inf])}


class Model:
    """Counts how often it is asked."""

    def __init__(self, value: Any = VALUE) -> None:
        self.value, self.asked = value, 0

    def __call__(self) -> Any:
        self.asked += 1
        return self.value


def is_same(found: Any) -> bool:
    rest = {name: each for name, each in found.items() if name != "logits"}
    logits = torch.equal(found["logits"], VALUE["logits"])
    return logits and rest == {"tokens": (1, 2), "best": 0.1 + 0.2}


def test_it_is_computed_once_for_what_it_depends_on(tmp_path: Path) -> None:
    model, known = Model(), References(tmp_path / "model" / "files")
    assert all(is_same(known.of("texts", ("a prompt", 8), model)) for _ in range(3))
    assert model.asked == 1
    known.of("texts", ("another prompt", 8), model)
    known.of("evaluation", ("a prompt", 8), model)
    References(tmp_path / "another").of("texts", ("a prompt", 8), model)
    assert model.asked == 4


def test_another_number_of_threads_sums_in_another_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, known = Model(), References(tmp_path)
    for threads in (1, 2):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        known.of("texts", (), model)
    assert model.asked == 2


@pytest.mark.parametrize("content", [b"", b"no archive", None])
def test_a_damaged_file_is_made_again(tmp_path: Path, content: bytes | None) -> None:
    model, known = Model(), References(tmp_path)
    known.of("texts", (), model)
    [path] = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-100] if content is None else content)
    assert is_same(known.of("texts", (), model))
    assert model.asked == 2
    assert is_same(known.of("texts", (), model))
    assert model.asked == 2


def test_nothing_is_kept_of_a_failure_or_without_a_folder(tmp_path: Path) -> None:
    model = Model(None)
    for known in (References(tmp_path), References()):
        for _ in range(2):
            assert known.of("texts", (), model) is None
    assert model.asked == 4
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_to_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert is_same(References(tmp_path / "file").of("texts", (), Model()))
