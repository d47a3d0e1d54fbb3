"""The text of one generation, shown as it comes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from etdeploy.program.text.incremental import TextStream
from etdeploy.program.text.tokenizer import Tokenizer


class Reply:
    """Takes new tokens, and shows their text; their ids where the model has no tokenizer.

    Args:
        tokenizer: The model's own.
        prompt: The ids before the first.
        stop_ids: Tokens that end a text; they are not shown.
        show: Called with each piece.

    Attributes:
        tokens: All ids so far.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        prompt: Sequence[int],
        stop_ids: Sequence[int],
        show: Callable[[str], None],
    ) -> None:
        self.tokens: list[int] = []
        self._stream = TextStream(tokenizer.decode, prompt) if tokenizer else None
        self._stop_ids = frozenset(stop_ids)
        self._show = show
        self._pieces: list[str] = []

    @property
    def text(self) -> str | None:
        """What was shown; None without a tokenizer."""
        return "".join(self._pieces) if self._stream else None

    def take(self, token: int) -> None:
        """The next token."""
        self.tokens.append(token)
        if self._stream is None:
            self._show(f"{token} ")
        elif token not in self._stop_ids:
            self._tell(self._stream.add(token))

    def end(self) -> None:
        """Shows what is left: no token follows."""
        if self._stream:
            self._tell(self._stream.end())

    def _tell(self, text: str) -> None:
        if text:
            self._pieces.append(text)
            self._show(text)
