"""Whether the tokenizer of the sample apps can stand for a model's own.

Apps read `tokenizer.json` with a tokenizer of some hundred lines, which knows byte pair encoding
and what the families of language models put around it. What it does not know is found here, so that
no app turns text into other tokens than the model was trained with.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_NORMALIZERS = frozenset({"NFC", "Prepend", "Replace"})
_PRE_TOKENIZERS = frozenset({"ByteLevel", "Split", "Digits", "Metaspace"})
_DECODERS = frozenset({"ByteLevel", "Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"})
_POST_PROCESSORS = frozenset({"ByteLevel", "TemplateProcessing"})
# What an added token may ask of the text around it.
_AROUND = ("lstrip", "rstrip", "single_word")


def app_tokenizer(path: Path, bos_id: int | None = None) -> str | None:
    """What of a `tokenizer.json` the app's tokenizer does not know, as a clause; None for nothing.

    Args:
        path: The file.
        bos_id: The token that the app puts before a text.
    """
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        return f"the file {path.name} ({error})"
    if not isinstance(content, dict):
        return f"the file {path.name}"
    return next(_unknown(content, bos_id), None)


def _unknown(content: Mapping[str, Any], bos_id: int | None) -> Iterator[str]:
    model = _object(content.get("model"))
    if model.get("type", "BPE") != "BPE" or "merges" not in model:
        yield f"the model {model.get('type')}"
    for key in ("continuing_subword_prefix", "end_of_word_suffix", "dropout"):
        if model.get(key):
            yield f"{key} of its model"
    normalizers = list(_steps(content.get("normalizer"), "normalizers"))
    yield from _others("normalizer", normalizers, _NORMALIZERS)
    yield from _patterns(normalizers)
    splits = list(_steps(content.get("pre_tokenizer"), "pretokenizers"))
    yield from _others("pre-tokenizer", splits, _PRE_TOKENIZERS)
    replaced = {_object(step.get("pattern")).get("String") for step in normalizers}
    yield from _splits(splits, replaced)
    decoders = list(_steps(content.get("decoder"), "decoders"))
    yield from _others("decoder", decoders, _DECODERS)
    yield from _added(content.get("added_tokens"), normalized=bool(normalizers))
    yield from _around(list(_steps(content.get("post_processor"), "processors")), bos_id)


def _steps(part: Any, inner: str) -> Iterator[Mapping[str, Any]]:
    """A part of the pipeline, or those that a sequence has."""
    if not isinstance(part, dict):
        return
    if part.get("type") == "Sequence":
        for each in part.get(inner) or ():
            yield from _steps(each, inner)
    else:
        yield part


def _others(noun: str, steps: list[Mapping[str, Any]], known: frozenset[str]) -> Iterator[str]:
    for step in steps:
        if step.get("type") not in known:
            yield f"the {noun} {step.get('type')}"


def _patterns(steps: list[Mapping[str, Any]]) -> Iterator[str]:
    for step in steps:
        if step.get("type") == "Replace" and "String" not in _object(step.get("pattern")):
            yield "the normalizer Replace with a regular expression"


def _splits(steps: list[Mapping[str, Any]], replaced: set[Any]) -> Iterator[str]:
    """Of the steps that split a text; what was `replaced` before does not occur in it."""
    for step in steps:
        kind = step.get("type")
        if kind == "ByteLevel" and step.get("add_prefix_space"):
            yield "the pre-tokenizer ByteLevel with add_prefix_space"
        if kind == "Metaspace" and step.get("replacement", "▁") != "▁":
            yield "the pre-tokenizer Metaspace with another mark"
        if kind != "Split":
            continue
        pattern = _object(step.get("pattern"))
        if "String" in pattern and pattern["String"] not in replaced:
            yield f"the pre-tokenizer Split at {pattern['String']!r}"
        if "Regex" in pattern and (step.get("invert") or step.get("behavior") != "Isolated"):
            yield f"the pre-tokenizer Split that is {step.get('behavior')}"


def _added(tokens: Any, *, normalized: bool) -> Iterator[str]:
    for token in tokens or ():
        for key in _AROUND:
            if token.get(key):
                yield f"{key} of the token {token.get('content')!r}"
        if normalized and token.get("normalized") and not token.get("special"):
            yield f"the normalised token {token.get('content')!r}"


def _around(steps: list[Mapping[str, Any]], bos_id: int | None) -> Iterator[str]:
    """What is added to a text, other than the token that the app adds."""
    yield from _others("post-processor", steps, _POST_PROCESSORS)
    for step in steps:
        if step.get("type") != "TemplateProcessing":
            continue
        pieces = [next(iter(each)) for each in step.get("single") or ()]
        if pieces not in (["Sequence"], ["SpecialToken", "Sequence"]):
            yield "a post-processor that adds tokens after a text"
        elif len(pieces) > 1 and bos_id is None:
            yield "a post-processor that adds a token before a text"


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
