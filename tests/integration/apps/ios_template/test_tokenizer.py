"""The app's tokenizer gives the tokens and texts of the tokenizers library."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import app_tokenizers
from tests.support.ios_template import Compiled

pytestmark = pytest.mark.integration

_TEXTS = 400


@pytest.mark.parametrize("kind", app_tokenizers.KINDS)
def test_tokens_and_texts_are_the_librarys(generation: Compiled, tmp_path: Path, kind: str) -> None:
    tokenizer = app_tokenizers.save(kind, tmp_path)
    texts = app_tokenizers.texts(_TEXTS, seed=4)
    said = generation.run(
        "tokenize", f"/given/{kind}.json", stdin=json.dumps(texts), folders={"given": tmp_path}
    )
    for text, found in zip(texts, json.loads(said), strict=True):
        wanted = tokenizer.encode(text, add_special_tokens=False).ids
        assert found["ids"] == wanted, repr(text)
        assert found["text"] == tokenizer.decode(wanted), repr(text)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model": {"type": "Unigram"}}, "byte pair encoding"),
        ({"normalizer": {"type": "Lowercase"}}, "'Lowercase'"),
        ({"pre_tokenizer": {"type": "Punctuation"}}, "'Punctuation'"),
    ],
)
def test_an_unknown_step_is_refused(
    generation: Compiled, tmp_path: Path, change: dict[str, object], named: str
) -> None:
    facts = json.loads(app_tokenizers.KINDS["gpt2"]().to_str()) | change
    (tmp_path / "tokenizer.json").write_text(json.dumps(facts))
    found = generation.run(
        "tokenize", "/given/tokenizer.json", stdin="[]", folders={"given": tmp_path}
    )
    assert found.startswith("program ")
    assert named in found
