"""Text of token ids that come one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
