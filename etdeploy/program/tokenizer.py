"""The model's own tokenizer, on this machine: text to token ids, and back.

The tokenizers library alone reads it in some ms; transformers would import torch, which takes
seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from etdeploy.core.commands import pip_command
from etdeploy.core.console import count
from etdeploy.core.errors import UsageError
from etdeploy.core.files.basic import inside
from etdeploy.program.generation import Generation

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Inner


TOKENIZER_FILE = "tokenizer.json"
"""The format of the tokenizers library, with everything that is needed to use one."""
_EXTRA = "etdeploy[llm]"


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer that was read.

    Attributes:
        folder: With its files.
        inner: The library's.
        bos_id: What a text begins with; None where nothing is added.
    """

    folder: Path
    inner: Inner
    bos_id: int | None = None

    def encode(self, text: str) -> tuple[int, ...]:
        """The ids of a text as the model was trained with it: with the tokens that it adds.

        Raises:
            UsageError: It was made of bytes that are no text.
        """
        ids = tuple(self.inner.encode(_sound(text)).ids)
        # Some models say in another file only that it is added.
        missing = self.bos_id is not None and ids[:1] != (self.bos_id,)
        return (self.bos_id, *ids) if missing and self.bos_id is not None else ids

    def encode_rendered(self, text: str) -> tuple[int, ...]:
        """The ids of what a chat template gave, which has all special tokens already.

        Raises:
            UsageError: It was made of bytes that are no text.
        """
        return tuple(self.inner.encode(_sound(text), add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, without special tokens."""
        return str(self.inner.decode(list(ids)))


def _sound(text: str) -> str:
    """The text itself, if it has no byte of a command line or a terminal that is no UTF-8."""
    strange = [c for c in text if "\ud800" <= c <= "\udfff"]
    if not strange:
        return text
    raise UsageError(
        f"the text is not UTF-8, in {count(len(strange), 'byte')}: "
        + ", ".join(f"0x{ord(c) & 0xFF:02X}" for c in strange[:4]),
        remedy="Give it in UTF-8; iconv converts other encodings.",
    )


def tokenizer_folder(generation: Generation, program_folder: Path) -> Path | None:
    """Where the files of a program's tokenizer are; None for a model that has none."""
    return inside(program_folder, generation.tokenizer) if generation.tokenizer else None


def load_tokenizer(generation: Generation, program_folder: Path) -> Tokenizer | None:
    """The tokenizer of a program; None for a model that has none.

    Raises:
        UsageError: The library that reads it is not installed, or it cannot be read.
    """
    folder = tokenizer_folder(generation, program_folder)
    if folder is None:
        return None
    try:
        from tokenizers import Tokenizer as Library
    except ImportError as error:
        raise UsageError(
            "the package tokenizers, which reads the model's tokenizer, is not installed",
            remedy=pip_command(_EXTRA),
        ) from error
    path = folder / TOKENIZER_FILE
    try:
        inner = Library.from_file(str(path))
    except Exception as error:  # the library raises nothing more special
        raise UsageError(
            f"the model's tokenizer cannot be read: {error}",
            place=str(path),
            remedy="Export the model again, after: etdeploy clean programs\n"
            f"or install the release of the library that wrote it: {pip_command(_EXTRA)}",
        ) from error
    return Tokenizer(folder, inner, generation.bos_id)


# What decoders give for bytes that are no whole character.
_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
# More than a character has bytes, with a token before it.
_CONTEXT = 6


class TextStream:
    """Gives text as soon as it can no longer change.

    A token may be a part of a character, and decoders of SentencePiece drop the space with which a
    text begins. So each token is decoded together with those before it that gave the last piece of
    text, or end the prompt, and what these give alone is taken away. They begin with a whole
    character: some decoders give nothing for all bytes in a row of which one is amiss.

    Args:
        decode: The text of ids.
        prompt: The ids before the first.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], prompt: Sequence[int] = ()) -> None:
        self._decode = decode
        ends = (list(prompt[-size:]) for size in range(_CONTEXT, 0, -1))
        self._before = next((ids for ids in ends if _INCOMPLETE not in decode(ids)), [])
        self._new: list[int] = []

    def add(self, token: int) -> str:
        """The text that is certain with one more id; often empty."""
        self._new.append(token)
        before, now = self._decoded()
        if not now.startswith(before) or now.endswith(_INCOMPLETE):
            return ""
        return self._told(now[len(before) :])

    def end(self) -> str:
        """What is left, however incomplete: no id follows."""
        before, now = self._decoded()
        return self._told(now[len(before) :])

    def _decoded(self) -> tuple[str, str]:
        return self._decode(self._before), self._decode([*self._before, *self._new])

    def _told(self, text: str) -> str:
        if text:
            self._before, self._new = self._new, []
        return text
