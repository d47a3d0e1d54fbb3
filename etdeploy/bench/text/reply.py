"""The text of one generation, shown as it comes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from etdeploy.core.console import count
from etdeploy.core.errors import Interrupted
from etdeploy.program.text.incremental import TextStream
from etdeploy.program.text.tokenizer import Tokenizer

# Fewer are a table or a list; no period is longer than a paragraph.
_LEAST_REPEATED, _LEAST_PERIODS, _LONGEST_PERIOD = 96, 4, 64


class RepetitionError(Interrupted):
    """An answer was stopped because it only repeated itself.

    Attributes:
        period: Tokens of the part that was repeated.
    """

    def __init__(self, period: int) -> None:
        super().__init__(f"the answer repeated the same {count(period, 'token')}")
        self.period = period


def repeated_tokens(tokens: Sequence[int]) -> int:
    """The number of tokens that a text repeats at its end, again and again; 0 if it does not.

    A part counts from four repetitions on that have 96 tokens or more together.
    """
    for period in range(1, _LONGEST_PERIOD + 1):
        length = max(_LEAST_REPEATED, _LEAST_PERIODS * period)
        end = tokens[-length:]
        if len(end) == length and end[period:] == end[:-period]:
            return period
    return 0


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
