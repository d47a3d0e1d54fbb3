"""Models that cannot be talked with, by their files."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.core.errors import UsageError
from etdeploy.program.tokenizer import require_speech
from tests.support.tokenizers import byte_level, save


def test_a_model_without_a_chat_template(tmp_path: Path) -> None:
    plain = save(byte_level(), tmp_path, template=None)
    with pytest.raises(UsageError) as raised:
        require_speech(plain, "chat", place="models/m")
    assert str(raised.value) == (
        "models/m: the model has no chat template, so it cannot chat\n  what to do: Use etdeploy "
        "generate, or name a model that is made for chats: --model ID_OR_PATH"
    )


def test_a_model_whose_tokenizer_cannot_be_loaded() -> None:
    with pytest.raises(UsageError) as raised:
        require_speech(None, "text", why="KeyError: 'model'")
    assert raised.value.message == (
        "the model's tokenizer cannot be loaded (KeyError: 'model'), so it takes no text"
    )
    assert raised.value.remedy == (
        "Put the model's tokenizer (tokenizer.json) into its folder, or give it the ids of tokens: "
        "--prompt '1 15 27'"
    )
