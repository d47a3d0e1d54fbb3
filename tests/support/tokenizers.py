"""Small tokenizers of the kinds that models have, made on the spot."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

CHAT = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}<|end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def byte_level() -> Tokenizer:
    """One token for each byte, as GPT-2, Llama 3 and Qwen fall back to; 256 of them."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return with_special(tokenizer)


def sentence_piece() -> Tokenizer:
    """Words with a mark for the space before them, and bytes for the rest, as Llama 2 and Gemma."""
    words = ["<unk>", *(f"<0x{i:02X}>" for i in range(256)), "\u2581"]
    words += ["\u2581The", "\u2581sky", "\u2581is", "\u2581blue", "."]
    vocabulary: list[tuple[str, float]] = [(word, -1.0) for word in words]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=0, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return with_special(tokenizer)


def with_special(tokenizer: Tokenizer) -> Tokenizer:
    """The same with the special tokens of `CHAT`."""
    names = ("<s>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in names])
    return tokenizer


def save(tokenizer: Tokenizer, folder: Path, template: str | None = CHAT) -> Path:
    """Writes the files that a model comes with."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token": {"content": "<s>"}, "eos_token": "<|end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if template:
        (folder / "chat_template.jinja").write_text(template)
    return folder
