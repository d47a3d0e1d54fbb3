"""Which tokenizers the sample apps' own can stand for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from etdeploy.apps.payload import app_tokenizer

MODEL = {"type": "BPE", "vocab": {"a": 0}, "merges": []}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
MARKS = [{"type": "Prepend", "prepend": "▁"},
         {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]  # fmt: skip


def told(folder: Path, bos_id: int | None = None, **parts: Any) -> str | None:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({"model": MODEL} | parts))
    return app_tokenizer(path, bos_id)


@pytest.mark.parametrize(
    "parts",
    [
        {"pre_tokenizer": BYTES, "decoder": BYTES, "post_processor": BYTES},
        {
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [
                    {"type": "Split", "pattern": {"Regex": "x"}, "behavior": "Isolated"},
                    {"type": "Digits", "individual_digits": True},
                    BYTES,
                ],
            }
        },
        {
            "normalizer": {"type": "Sequence", "normalizers": MARKS},
            "pre_tokenizer": {"type": "Split", "pattern": {"String": " "},
                              "behavior": "MergedWithPrevious"},
            "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"},
                                                         {"type": "Fuse"}]},
        },
        {"added_tokens": [{"content": "<s>", "special": True, "normalized": True}]},
    ],
)  # fmt: skip
def test_those_of_the_usual_families_are_known(tmp_path: Path, parts: dict[str, Any]) -> None:
    assert told(tmp_path, **parts) is None


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        ({"model": {"type": "Unigram", "vocab": []}}, "the model Unigram"),
        ({"model": {**MODEL, "end_of_word_suffix": "</w>"}}, "end_of_word_suffix"),
        ({"normalizer": {"type": "Lowercase"}}, "the normalizer Lowercase"),
        (
            {"normalizer": {"type": "Replace", "pattern": {"Regex": "a"}, "content": "b"}},
            "Replace with a regular expression",
        ),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "the pre-tokenizer Whitespace"),
        ({"pre_tokenizer": {**BYTES, "add_prefix_space": True}}, "add_prefix_space"),
        (
            {"pre_tokenizer": {"type": "Split", "pattern": {"String": "-"}}},
            "Split at '-'",
        ),
        (
            {
                "pre_tokenizer": {
                    "type": "Split", "pattern": {"Regex": "a"}, "behavior": "Removed",
                    "invert": True,
                }
            },
            "Split that is Removed",
        ),
        ({"decoder": {"type": "WordPiece"}}, "the decoder WordPiece"),
        ({"added_tokens": [{"content": "<m>", "lstrip": True}]}, "lstrip of the token '<m>'"),
        (
            {
                "normalizer": {"type": "NFC"},
                "added_tokens": [{"content": "<m>", "normalized": True}],
            },
            "the normalised token '<m>'",
        ),
        ({"post_processor": {"type": "BertProcessing"}}, "the post-processor BertProcessing"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_named(tmp_path: Path, parts: dict[str, Any], named: str) -> None:
    assert named in str(told(tmp_path, **parts))


def test_only_the_first_token_may_be_added(tmp_path: Path) -> None:
    text, first = {"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "<s>"}}
    before = {"type": "TemplateProcessing", "single": [first, text]}
    after = {"type": "TemplateProcessing", "single": [first, text, first]}
    assert told(tmp_path, 1, post_processor=before) is None
    assert "before a text" in str(told(tmp_path, None, post_processor=before))
    assert "after a text" in str(told(tmp_path, 1, post_processor=after))


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    assert "tokenizer.json" in str(app_tokenizer(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer.json").write_text("[]")
    assert "tokenizer.json" in str(app_tokenizer(tmp_path / "tokenizer.json"))
