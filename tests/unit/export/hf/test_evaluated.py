"""The text on which a model is evaluated, as a user may give it."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.export.hf.evaluated import EVALUATE, Excerpt, read_excerpt
from etdeploy.export.hf.refusal import Refusal


def _read(folder: Path, content: bytes, tokens: int = 10) -> Excerpt | Refusal:
    path = folder / "text.txt"
    path.write_bytes(content)
    return read_excerpt(path, tokens)


def test_a_text_is_read_as_it_is(tmp_path: Path) -> None:
    assert _read(tmp_path, "Größe\r\n".encode()) == Excerpt("Größe\r\n", whole=True)
    assert _read(tmp_path, b"\xef\xbb\xbfwith a mark") == Excerpt("with a mark", whole=True)


def test_of_a_long_text_only_the_beginning_is_read(tmp_path: Path) -> None:
    # 3 tokens have at most 192 bytes, which end within a character.
    found = _read(tmp_path, b"a" + "ä".encode() * 1000, tokens=2)
    assert found == Excerpt("a" + "ä" * 95, whole=False)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "{} has no text to evaluate the model on"),
        (b" \n\n", "{} has no text to evaluate the model on"),
        (b"abc \xe4 def", "{} is not text in UTF-8: byte 4 fits no character"),
        ("Größe".encode("utf-16"), "{} is not text in UTF-8: byte 0 fits no character"),
        (b"cut \xc3", "{} is not text in UTF-8: byte 4 fits no character"),
    ],
)
def test_what_is_no_text(tmp_path: Path, content: bytes, message: str) -> None:
    found = _read(tmp_path, content)
    assert isinstance(found, Refusal)
    assert found.message == message.format(tmp_path / "text.txt")
    assert found.key == EVALUATE
    assert found.remedy


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    found = read_excerpt(tmp_path / "gone.txt", 10)
    assert isinstance(found, Refusal)
    assert found.message == f"{tmp_path / 'gone.txt'} cannot be read: No such file or directory"
