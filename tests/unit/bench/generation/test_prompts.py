"""Prompts as token ids, and token ids as text."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from etdeploy.bench.generation.work import random_ids, text_of, tokenised
from etdeploy.core.errors import UsageError
from tests.support.text_values import make_generation
from tests.support.tokenizers import save

PLACE = "tiny.yaml:3:5"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A program folder with a tokenizer of words."""
    words = {"<unk>": 0, "<s>": 1, "</s>": 2, "good": 3, "morning": 4}
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))  # noqa: S106
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.add_special_tokens(["<s>", "</s>"])
    save(made, tmp_path / "tokenizer")
    return tmp_path


def test_random_prompts_begin_alike_and_never_end_a_text() -> None:
    generation = make_generation(vocabulary=6)
    short, long = random_ids((4, 200), generation, seed=0)
    assert long[:4] == short
    assert long[0] == generation.bos_id
    assert set(long[1:]) == {0, 1, 4, 5}
    assert random_ids((200,), generation, seed=0) == (long,)
    assert random_ids((200,), generation, seed=1) != (long,)


def test_without_a_first_token_of_its_own_a_model_gets_random_ones() -> None:
    generation = make_generation(bos_id=None, vocabulary=4, stop_ids=(1, 2, 3))
    assert random_ids((3,), generation, seed=5) == ((0, 0, 0),)


def test_a_text_becomes_what_the_models_tokenizer_makes_of_it(folder: Path) -> None:
    generation = make_generation(tokenizer="tokenizer")
    assert tokenised("good morning", generation, folder, PLACE) == (1, 3, 4)
    assert text_of((3, 4, 2), generation, folder) == "good morning"


def test_a_prompt_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no tokenizer for the prompt") as raised:
        tokenised("good", make_generation(), tmp_path, PLACE)
    assert raised.value.place == PLACE
    assert text_of((1,), make_generation(), tmp_path) is None


def test_a_tokenizer_that_is_gone_is_named(tmp_path: Path) -> None:
    generation = make_generation(tokenizer="tokenizer")
    with pytest.raises(UsageError, match="tokenizer cannot be read") as raised:
        tokenised("good", generation, tmp_path, PLACE)
    assert raised.value.place == str(tmp_path / "tokenizer" / "tokenizer.json")
    assert text_of((1,), generation, tmp_path) is None


def test_without_the_package_the_prompt_is_refused_and_the_ids_stay(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    generation = make_generation(tokenizer="tokenizer")
    with pytest.raises(UsageError, match="reads the model's tokenizer, is not installed") as raised:
        tokenised("good", generation, folder, PLACE)
    assert raised.value.place == PLACE
    assert "[llm]'" in str(raised.value.remedy)
    assert text_of((3,), generation, folder) is None
