"""What is said to a runner that listens, and what it answers; all pure.

A runner with --listen loads its methods once, and then reads lines from standard input:

    answer POSITION NEW_TOKENS TEMPERATURE TOP_K TOP_P SEED MIN_P REPETITION_PENALTY ID ID ...
    stop

The first is a prompt whose first id comes at POSITION: what the cache has from there on is
forgotten, what it has before stays. The other ends the answer that is on its way, after the call
that is running. Standard output tells that the methods are loaded, and what each call gave:

    ready
    taken TOKENS        tokens of the prompt that are in the cache
    token ID TOOK_NS    a new token; of the first, the time since the prefill began
    end REASON          stop_token, new_tokens or stop

The last new token is chosen and not fed back, as with every request. The runner ends with its
input, and after so many seconds without a call or a line: one whose caller is gone without a word
would stay for hours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from etdeploy.core.values import Value
from etdeploy.runner.generation import Sampling, generation_arguments

STOP = "stop"
"""The line that ends an answer."""
READY = "ready"
"""What the runner says first."""

Ending = Literal["stop_token", "new_tokens", "stop"]


class Taken(Value):
    """A call took a part of the prompt.

    Attributes:
        tokens: Of the prompt that are in the cache now.
    """

    tokens: int


class Token(Value):
    """A new token.

    Attributes:
        id: In the vocabulary.
        took_ms: Call and choice; of the first, the time since the prefill began.
    """

    id: int
    took_ms: float


class End(Value):
    """An answer has ended.

    Attributes:
        reason: A stop token, as many tokens as were asked for, or a line that said so.
    """

    reason: Ending


def answer_line(position: int, new_tokens: int, sampling: Sampling, ids: Sequence[int]) -> str:
    """The line that asks for an answer.

    Args:
        position: Tokens of the cache that stay.
        new_tokens: The most that are generated.
        sampling: How they are chosen.
        ids: Of the prompt, from that position on; at least one.
    """
    return " ".join(map(str, ("answer", position, new_tokens, *sampling.words, *ids)))


def parse_told(line: str) -> Taken | Token | End:
    """What a line of the runner's tells.

    Raises:
        ValueError: It is no such line.
    """
    match line.split():
        case ["taken", tokens]:
            return Taken(tokens=int(tokens))
        case ["token", identity, took_ns]:
            return Token(id=int(identity), took_ms=int(took_ns) / 1e6)
        case ["end", ("stop_token" | "new_tokens" | "stop") as reason]:
            return End(reason=reason)
        case _:
            raise ValueError(f"{line[:80]!r} tells nothing of an answer")


def listening_arguments(
    program: str, request: str, *, forgotten_s: int, threads: int = 0
) -> tuple[str, ...]:
    """The command line of a runner that listens.

    Args:
        program: Path of the program, as the runner sees it, as all paths here.
        request: Path of a request without points, whose sampling does not count.
        forgotten_s: After so many seconds without a call or a line it ends.
        threads: In ExecuTorch's pool; 0 for ExecuTorch's choice.
    """
    usual = generation_arguments(program, request, "results.json", threads=threads)
    return (*usual, "--listen", str(forgotten_s))
