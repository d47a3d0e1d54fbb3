"""Texts that a language model reads when it is exported, as a user may give them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from etdeploy.export.hf.config import ConfigProblem
from etdeploy.export.hf.named_texts import Excerpt, NamedText, named_texts, read_excerpt
from etdeploy.export.spec import CALIBRATION_TEXT, EVALUATION_TEXT
from etdeploy.recipe.paths import CALIBRATION, EVALUATE
from tests.support.export import spec_of
from tests.support.facts import lacks


def _read(folder: Path, content: bytes, tokens: int = 11) -> Excerpt | ConfigProblem:
    path = folder / "text.txt"
    path.write_bytes(content)
    return read_excerpt(NamedText(path, tokens, EVALUATE))


def test_a_text_is_read_as_it_is(tmp_path: Path) -> None:
    assert _read(tmp_path, "Größe\r\n".encode()) == Excerpt("Größe\r\n", whole=True)
    assert _read(tmp_path, b"\xef\xbb\xbfwith a mark") == Excerpt("with a mark", whole=True)
    # 3 tokens have at most 192 bytes, which end within a character.
    found = _read(tmp_path, b"a" + "ä".encode() * 1000, tokens=3)
    assert found == Excerpt("a" + "ä" * 95, whole=False)


@pytest.mark.parametrize(
    ("content", "facts"),
    [
        (b"", ("no text",)),
        (b" \n\n", ("no text",)),
        (b"abc \xe4 def", ("UTF-8", "byte 4")),
        ("Größe".encode("utf-16"), ("UTF-8", "byte 0")),
        (b"cut \xc3", ("UTF-8", "byte 4")),
    ],
)
def test_files_without_text(tmp_path: Path, content: bytes, facts: tuple[str, ...]) -> None:
    found = _read(tmp_path, content)
    assert isinstance(found, ConfigProblem)
    assert not lacks(found.message, tmp_path / "text.txt", *facts)
    assert found.key == EVALUATE
    assert found.remedy


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    found = read_excerpt(NamedText(tmp_path / "gone.txt", 10, CALIBRATION))
    assert isinstance(found, ConfigProblem)
    assert not lacks(found.message, tmp_path / "gone.txt", ": No such file")
    assert found.key == CALIBRATION


def _texts(**export: Any) -> dict[tuple[str, ...], tuple[str, bool]]:
    spec = spec_of({"model": {"hf": "org/model"}, "export": export})
    return {text.key: (text.path.name, text.is_bundled) for text in named_texts(spec)}


def test_a_model_with_quantized_layers_reads_bundled_texts() -> None:
    bundled = {EVALUATE: ("evaluation.txt", True), CALIBRATION: ("calibration.txt", True)}
    assert _texts(quantization="8da4w") == bundled
    # Scales of 8 bits are those of the largest weights.
    eight_bits = {"quantization": "8da8w"}
    assert _texts(**eight_bits) == {EVALUATE: bundled[EVALUATE]}
    assert _texts(**eight_bits, overrides={"model.layers": "8da4w"}) == bundled
    assert _texts() == _texts(quantization="int8_dynamic") == {}


def test_bundled_texts_are_long_enough_and_differ() -> None:
    calibration, evaluation = (Path(t).read_text() for t in (CALIBRATION_TEXT, EVALUATION_TEXT))
    assert len(calibration.split()) > 1600
    assert len(evaluation.split()) > 300
    words = [text.split() for text in (calibration, evaluation)]
    fives = [{tuple(each[at : at + 5]) for at in range(len(each) - 4)} for each in words]
    assert not fives[0] & fives[1]
