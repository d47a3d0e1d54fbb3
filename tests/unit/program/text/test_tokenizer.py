"""The model's own tokenizer."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from etdeploy.core.errors import UsageError
from etdeploy.program.generation import Generation
from etdeploy.program.tokenizer import Tokenizer, load_tokenizer
from tests.support.tokenizers import byte_level, save


def _generation(tokenizer: str | None = "tokenizer", bos_id: int | None = None) -> Generation:
    return Generation(
        methods=(), vocabulary=300, context=64, bos_id=bos_id, tokenizer=tokenizer, model="m",
        path="plain", path_reason="a test",
    )  # fmt: skip


def test_the_first_token_is_added_where_only_the_model_says_so(tmp_path: Path) -> None:
    library = byte_level()
    bos = library.token_to_id("<s>")
    save(library, tmp_path / "tokenizer")
    tokenizer = load_tokenizer(_generation(bos_id=bos), tmp_path)
    assert tokenizer is not None
    assert tokenizer.encode("a")[0] == bos
    assert tokenizer.encode("<s>a") == tokenizer.encode("a")
    assert tokenizer.encode("") == (bos,)
    # A template has it where the model wants it.
    assert len(tokenizer.encode_rendered("a")) == 1


def test_a_missing_library_is_named_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UsageError, match="tokenizers") as caught:
        load_tokenizer(_generation(), tmp_path)
    assert "install" in str(caught.value.remedy)
    assert "[llm]'" in str(caught.value.remedy)


@pytest.mark.parametrize("content", [None, "{}", "no JSON"])
def test_a_damaged_file_is_named(tmp_path: Path, content: str | None) -> None:
    (tmp_path / "tokenizer").mkdir()
    path = tmp_path / "tokenizer/tokenizer.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UsageError, match="cannot be read") as caught:
        load_tokenizer(_generation(), tmp_path)
    assert caught.value.place == str(path)


def test_a_folder_elsewhere_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="leads out of"):
        load_tokenizer(_generation("../tokenizer"), tmp_path)


@pytest.mark.parametrize("rendered", [False, True])
def test_bytes_that_are_no_text_are_told(rendered: bool) -> None:
    tokenizer = Tokenizer(Path("tokenizer"), byte_level())
    encode = tokenizer.encode_rendered if rendered else tokenizer.encode
    text = b"caf\xe9 \xff".decode(errors="surrogateescape")
    with pytest.raises(UsageError, match="2 bytes: 0xE9, 0xFF"):
        encode(text)
