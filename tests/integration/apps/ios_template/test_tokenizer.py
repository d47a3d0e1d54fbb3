"""The app's tokenizer gives the tokens and texts of the tokenizers library."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from tests.support.ios_template import Compiled

pytestmark = pytest.mark.integration

_LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEXTS = [
    "the quick brown fox jumps over the lazy dog, isn't it? They'll say so.",
    "Größe, naïve café, Ελληνικά, русский, 日本語のテキスト, 한국어, हिन्दी",
    "def f(x):\n    return x ** 2  # 12345\n\n\n\tif x: pass\r\n",
    "a   b    c     d 1 22 333 4444 3.14159 ½ ² ٣ \u00a0nbsp \u3000wide",
]
_LETTERS = (
    "aábcdeé e\u0301 ñ ß \u0130ıſs'tTlLdD09٣½ \t\n\r\n\u00a0\u3000.,!?()[]{}\"_-"
    "漢字ひ한글हि\u093c😀👩\u200d🚀<|>▁"
)

_FALLBACK: dict[str, Any] = {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}


def _trained(model: models.BPE, pre: pre_tokenizers.PreTokenizer, **changes: object) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre
    for name, value in changes.items():
        setattr(tokenizer, name, value)
    return tokenizer


def _bytes(pre: pre_tokenizers.PreTokenizer, **changes: object) -> Tokenizer:
    tokenizer = _trained(models.BPE(), pre, decoder=decoders.ByteLevel(), **changes)
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(_TEXTS * 3, trainer)
    return tokenizer


def _gpt2() -> Tokenizer:
    return _bytes(pre_tokenizers.ByteLevel(add_prefix_space=False))


def _prefixed() -> Tokenizer:
    return _bytes(pre_tokenizers.ByteLevel(add_prefix_space=True))


def _llama3() -> Tokenizer:
    pre = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_LLAMA_3), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer = _bytes(pre)
    facts = json.loads(tokenizer.to_str())
    facts["model"]["ignore_merges"] = True
    return Tokenizer.from_str(json.dumps(facts))


def _qwen() -> Tokenizer:
    tokenizer = _llama3()
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def _smollm() -> Tokenizer:
    pre = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    return _bytes(pre)


def _characters() -> tuple[models.BPE, dict[str, int]]:
    """A model of characters with bytes for the rest; also tells accents that are written apart."""
    tokenizer = Tokenizer(models.BPE(**_FALLBACK))
    trainer = trainers.BpeTrainer(
        vocab_size=500, show_progress=False,
        special_tokens=["<unk>", "<s>", *(f"<0x{i:02X}>" for i in range(256))],
    )  # fmt: skip
    texts = [text.replace(" ", "▁") for text in [*_TEXTS, "é e\u0301 é e\u0301"]]
    tokenizer.train_from_iterator(texts * 3, trainer)
    facts = json.loads(tokenizer.to_str())["model"]
    merges = [tuple(pair) for pair in facts["merges"]]
    model = models.BPE(facts["vocab"], merges, **_FALLBACK)
    return model, facts["vocab"]


def _decoder() -> decoders.Decoder:
    return decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
         decoders.Strip(" ", 1, 0)]
    )  # fmt: skip


def _llama2() -> Tokenizer:
    model, _ = _characters()
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = _decoder()
    return tokenizer


def _gemma() -> Tokenizer:
    model, _ = _characters()
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer


def _metaspace(scheme: str, split: bool) -> Tokenizer:
    model, _ = _characters()
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split)
    tokenizer.decoder = _decoder()
    return tokenizer


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "gpt2": _gpt2,
    "prefixed": _prefixed,
    "llama3": _llama3,
    "qwen": _qwen,
    "smollm": _smollm,
    "llama2": _llama2,
    "gemma": _gemma,
    "metaspace first": lambda: _metaspace("first", False),
    "metaspace always": lambda: _metaspace("always", True),
    "metaspace never": lambda: _metaspace("never", True),
}


def _corpus() -> list[str]:
    chance = random.Random(4)
    texts = ["", " ", "  x", "\n\n", *_TEXTS, "<s>", "a<s>b", "<|user|> hi<|end|>\n", "<|us"]
    for _ in range(300):
        texts.append("".join(chance.choices(_LETTERS, k=chance.randint(1, 40))))
        words = "".join(_TEXTS).split()
        texts.append(" ".join(chance.choices([*words, "<|user|>", "<s>"], k=chance.randint(1, 9))))
    return texts


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_and_texts_are_the_librarys(generation: Compiled, tmp_path: Path, kind: str) -> None:
    tokenizer = KINDS[kind]()
    tokenizer.add_special_tokens([AddedToken("<s>"), AddedToken("<|user|>")])
    tokenizer.add_tokens([AddedToken("<|end|>", normalized=False)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    texts = _corpus()
    said = generation.run(
        "tokenize", "/given/tokenizer.json", stdin=json.dumps(texts), folders={"given": tmp_path}
    )
    found = json.loads(said)
    for text, each in zip(texts, found, strict=True):
        wanted = tokenizer.encode(text, add_special_tokens=False).ids
        assert each["ids"] == wanted, repr(text)
        assert each["text"] == tokenizer.decode(wanted), repr(text)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": {"type": "Unigram"}}, "is no byte pair encoding"),
        ({"normalizer": {"type": "Lowercase"}}, "a step 'Lowercase' that this app lacks"),
        ({"pre_tokenizer": {"type": "Punctuation"}}, "a step 'Punctuation' that this app lacks"),
    ],
)
def test_what_it_does_not_know_is_refused(
    generation: Compiled, tmp_path: Path, change: dict[str, object], said: str
) -> None:
    facts = {**json.loads(_gpt2().to_str()), **change}
    (tmp_path / "tokenizer.json").write_text(json.dumps(facts))
    found = generation.run(
        "tokenize", "/given/tokenizer.json", stdin="[]", folders={"given": tmp_path}
    )
    assert found.startswith("program ")
    assert said in found
