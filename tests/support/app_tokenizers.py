"""Trained tokenizers of the kinds that language models have, and texts that are hard for them."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.trainers import BpeTrainer

from tests.support.generation_values import VOCABULARY

_LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN = _LLAMA_3.replace(r"\p{N}{1,3}", r"\p{N}")
_SPECIAL = ("<|begin|>", "<|user|>", "<|end|>")
_TRAINED_ON = (
    "The quick brown fox jumps over the lazy dog, and the dog doesn't mind: it's 2024!\n",
    "Größe, Straße, fünf; naïve café. Привет, мир! こんにちは世界。你好，世界 🎉🎉\n",
    "def main():\n    return 12345 + 0x1F  # comment\n\n",
    "  two  spaces,\ttabs and\r\nlines; I'LL, we've, THEY'RE 100% sure...\n",
)
_PARTS = (
    *"abcxyzéßøñ0123456789.,;:!?'\"()[]{}<>|_-+*/=%&@#$~^`\\",
    " ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u2003", "\u3000", "\u0085", "\u2028", "'s", "'LL",
    "the", " The", " and", "ing", "tion", "12", "2024", "½", "٣", "Ⅷ", "あ", "世界", "мир", "ﬁ",
    "e\u0301", "\u0301", "🎉", "👩\u200d👩\u200d👧", "\U0001d518", "\u200b", "\ufeff",
    "▁", "<0x41>",
    *_SPECIAL, "<|", "|>",
)  # fmt: skip


def _byte_level(*steps: pre_tokenizers.PreTokenizer, regex: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    return _trained(tokenizer, trainer)


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def _pieces(
    normalizer: normalizers.Normalizer | None,
    pre_tokenizer: pre_tokenizers.PreTokenizer | None,
    *further: decoders.Decoder,
) -> Tokenizer:
    """Of characters, with a mark for spaces and bytes for what is not in the vocabulary."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))  # noqa: S106
    trainer = BpeTrainer(
        vocab_size=600, show_progress=False,
        special_tokens=["<unk>", *(f"<0x{i:02X}>" for i in range(256))],
        limit_alphabet=80,
    )  # fmt: skip
    # Trained on marked words, as sentencepiece does.
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    _trained(tokenizer, trainer)
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *further]
    )
    return tokenizer


def _trained(tokenizer: Tokenizer, trainer: BpeTrainer) -> Tokenizer:
    tokenizer.train_from_iterator(_TRAINED_ON * 3, trainer)
    tokenizer.add_special_tokens(
        [AddedToken(name, special=True, normalized=False) for name in _SPECIAL]
    )
    tokenizer.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    return tokenizer


def _qwen() -> Tokenizer:
    tokenizer = _byte_level(_split(_QWEN), regex=False)
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "gpt2": lambda: _byte_level(regex=True),
    "llama3": lambda: _byte_level(_split(_LLAMA_3), regex=False),
    "qwen": _qwen,
    "smollm": lambda: _byte_level(pre_tokenizers.Digits(individual_digits=True), regex=True),
    "llama2": lambda: _pieces(
        normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
        None,
        decoders.Strip(" ", 1, 0),
    ),
    "gemma": lambda: _pieces(
        normalizers.Replace(" ", "▁"), pre_tokenizers.Split(" ", "merged_with_previous")
    ),
    "mistral": lambda: _pieces(
        None,
        pre_tokenizers.Metaspace(prepend_scheme="first", split=False),
        decoders.Strip(" ", 1, 0),
    ),
    "metaspace": lambda: _pieces(None, pre_tokenizers.Metaspace(prepend_scheme="always")),
    "metaspace-never": lambda: _pieces(
        None, pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    ),
}


def texts(count: int, seed: int) -> list[str]:
    """Texts of parts that are hard to take apart; the same for a seed."""
    chance = random.Random(seed)
    made = ["".join(chance.choices(_PARTS, k=chance.randint(1, 24))) for _ in range(count)]
    return ["", *_TRAINED_ON, *made]


def save(kind: str, folder: Path) -> Tokenizer:
    """Writes `<kind>.json`."""
    tokenizer = KINDS[kind]()
    tokenizer.save(str(folder / f"{kind}.json"))
    return tokenizer


_WORDS = "the a blue sky is light of sun and air scatters short waves more than long ones"


def words() -> Tokenizer:
    """As many tokens as the exported model has, some of them whole words."""
    letters = ["Ġ", *"abcdefghijklmnopqrstuvwxyz", ".", "?", "T"]
    whole = [f"Ġ{word}" for word in _WORDS.split()]
    vocabulary = {text: i for i, text in enumerate([*letters, *whole][:VOCABULARY])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
