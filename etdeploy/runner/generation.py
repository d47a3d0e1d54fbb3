"""Request and results of a runner that generates text.

The request is a file of lines, words separated by one space:

    method NAME ROLE MAX_TOKENS DYNAMIC CAPACITY
    encoder NAME REPETITIONS INPUTS
    embedding NAME ID
    positions ROWS PATH
    static PLACES MASKED WINDOW [WINDOW ...]
    rewind TOKENS
    sampling TEMPERATURE TOP_K TOP_P SEED MIN_P REPETITION_PENALTY
    stop ID ID ...
    logits ID ID ...
    point NAME DEPTH NEW_TOKENS REPETITIONS PATH
    follow NAME NEW_TOKENS PATH

DYNAMIC is 0 or 1. The encoder runs before everything else; INPUTS is a list of its inputs as
`--inputs` names one (runner/protocol.py), relative to the request. Several lines are several calls
of it, and its time is that of all. With a line `embedding`, the methods take embeddings in place of
tokens: NAME gives them, and the encoder those of the token ID, one row after the other. With a line
`positions`, they take ROWS further positions of each token, for a prompt those in its file of int64
numbers, row by row; after the last one of a row, numbers go on by one. With a line `static`, keys
and values are inputs and outputs of methods. Without the line `rewind`, a position may be set back
to any other. etdeploy/program/generation.py describes both. With TEMPERATURE 0, the most probable
token is taken. PATH, which may have spaces, is a file of little-endian int64 token ids, relative to
the request.

DEPTH tokens are in the cache before the prompt, made of its tokens again and again; filling it is
not timed, and is done anew for a repetition where the one before went too far to be set back. The
last new token is chosen and not fed back: DEPTH + prompt + NEW_TOKENS - 1 positions have to be
there.

A point that follows a text feeds that text's tokens in place of those that it chooses: after the
prompt, its file has NEW_TOKENS - 1 of them. For each new token its results have the logits of the
tokens in the line `logits`.

No repetition is a warm-up: a point of its own, before the others, can be one. Every repetition
starts the generator of random numbers anew, so all repetitions of a point give the same text.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from etdeploy.core.values import Value
from etdeploy.program.generation import GenerationMethod, StaticCache
from etdeploy.runner.protocol import StartResults


class Sampling(Value):
    """How the next token is chosen (templates/runner/generation/sampling.h has the algorithm).

    Attributes:
        temperature: Logits are divided by it; 0 takes the most probable token.
        top_k: Only so many of the most probable tokens; 0 for all.
        top_p: Of those, the fewest most probable tokens whose probabilities add up to this.
        seed: Of the generator; equal logits and seeds give equal tokens on every device.
        min_p: Of those, tokens with at least this share of the most probable one's probability.
        repetition_penalty: The logits of all tokens of the text, prompt included, are divided by it
            if they are positive and multiplied if they are negative, before anything else; 1 leaves
            them, more makes repetitions less probable.
    """

    temperature: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    top_k: int = Field(default=0, ge=0, lt=2**63)
    top_p: float = Field(default=1.0, gt=0, le=1)
    seed: int = Field(default=0, ge=0, lt=2**63)
    min_p: float = Field(default=0.0, ge=0, le=1)
    repetition_penalty: float = Field(default=1.0, gt=0, allow_inf_nan=False)

    @property
    def words(self) -> tuple[str, ...]:
        """As the runner reads them."""
        return tuple(repr(getattr(self, name)) for name in type(self).model_fields)


class EncoderRun(Value):
    """The encoder, before the prompts.

    Attributes:
        method: Its name.
        repetitions: How often it runs.
        paths: The lists of its inputs, one for each call, relative to the request.
        embedding: The method that gives the embeddings of tokens, and the token whose embeddings
            are the encoder's rows; None where methods take tokens.
        positions: The number of rows, and the path, of the table of positions; None without one.
    """

    method: str
    repetitions: int = Field(default=1, ge=1)
    paths: tuple[Annotated[str, Field(pattern=r"^[^\s][^\r\n]*$")], ...] = Field(min_length=1)
    embedding: tuple[str, int] | None = None
    positions: tuple[int, str] | None = None

    @property
    def lines(self) -> list[str]:
        """In a request."""
        calls = [f"encoder {self.method} {self.repetitions} {path}" for path in self.paths]
        named = {"embedding": self.embedding, "positions": self.positions}
        return calls + [f"{name} {of[0]} {of[1]}" for name, of in named.items() if of]


class PromptRun(Value):
    """One prompt, with what is generated after it.

    Attributes:
        name: Names it in the results.
        depth: Tokens that are in the cache before the prompt.
        new_tokens: The most that are generated; fewer where a stop token comes.
        repetitions: How often; each time from the same state.
        path: File with the prompt's token ids, relative to the request.
        follows: Whether that file also has the `new_tokens` - 1 ids that are fed after the prompt,
            whatever the most probable tokens are.
    """

    name: str = Field(pattern=r"^\S+$")
    depth: int = Field(default=0, ge=0, lt=2**63)
    new_tokens: int = Field(ge=1, lt=2**63)
    repetitions: int = Field(default=1, ge=1, lt=2**63)
    path: str = Field(pattern=r"^[^\s][^\r\n]*$")
    follows: bool = False

    @property
    def line(self) -> str:
        """In a request."""
        if self.follows:
            return f"follow {self.name} {self.new_tokens} {self.path}"
        return f"point {self.name} {self.depth} {self.new_tokens} {self.repetitions} {self.path}"


class GenerationRun(Value):
    """One repetition of a point.

    Attributes:
        point: Its name.
        prefill_ms: Time of each call that took a part of the prompt, from the first on.
        first_token_ms: From the start of the prefill until the first token was chosen.
        token_ms: Time of each further token: call and choice.
        token_ids: All new tokens, with the one that ended the text.
        logits: Of the tokens in the request's line `logits`, for each new token; empty unless the
            point follows a text.
        stopped: Whether a stop token ended it.
    """

    point: str
    prefill_ms: tuple[float, ...] = Field(min_length=1)
    first_token_ms: float
    token_ms: tuple[float, ...]
    token_ids: tuple[int, ...] = Field(min_length=1)
    logits: tuple[tuple[float, ...], ...] = ()
    stopped: bool


class TracedCalls(Value):
    """The calls of a method in its trace; `position` is that of their first token in the text."""

    calls: int = Field(ge=1)
    tokens: int = Field(ge=1)
    position: int = Field(ge=0)


class RunnerGeneration(Value):
    """What a runner with --generation adds to results.json, as `generation`.

    Attributes:
        load_methods_ms: Loading each method, by name.
        encode_ms: Time of each run of the encoder; empty without one.
        huge_page_bytes: How much of the memory after loading, weights above all, was put into huge
            pages; 0 where the kernel has none.
        shared_memory_bytes: How much of a static cache program's inputs and outputs is in memory
            that the HTP shares; 0 where each call copies them.
        traced: What is in each trace, by the method's name; empty without --etdump.
        runs: In the order in which they ran.
    """

    load_methods_ms: dict[str, float] = Field(min_length=1)
    encode_ms: tuple[float, ...] = ()
    huge_page_bytes: int = Field(default=0, ge=0)
    shared_memory_bytes: int = Field(default=0, ge=0)
    traced: dict[str, TracedCalls] = {}
    runs: tuple[GenerationRun, ...] = Field(min_length=1)


class GenerationResults(StartResults):
    """results.json of a runner with --generation; `protocol.load_results_as` reads it.

    Its `processors` are those from the first point on, filling the cache included.

    Attributes:
        generation: What was generated.
    """

    generation: RunnerGeneration


def tokens_per_s(tokens: int, took_ms: float) -> float:
    """A rate; 0 where the clock is too coarse to see any time."""
    return 1000 * tokens / took_ms if took_ms > 0 else 0.0


def prompt_bytes(ids: Sequence[int]) -> bytes:
    """The contents of the file that a point's `path` names."""
    return struct.pack(f"<{len(ids)}q", *ids)


def request_lines(
    methods: Sequence[GenerationMethod],
    sampling: Sampling,
    stop_ids: Sequence[int],
    points: Sequence[PromptRun],
    rewind: int | None = None,
    logit_ids: Sequence[int] = (),
    encoder: EncoderRun | None = None,
    static_cache: StaticCache | None = None,
) -> str:
    """The text of the file that the runner's --generation names.

    Results of points that follow a text have the logits of `logit_ids`.
    """
    lines = [
        f"method {m.name} {m.role} {m.max_tokens} {int(m.dynamic)} {m.capacity}" for m in methods
    ]
    if encoder is not None:
        lines += encoder.lines
    if static_cache is not None:
        numbers = (static_cache.places, static_cache.masked, *static_cache.windows)
        lines.append(" ".join(["static", *map(str, numbers)]))
    if rewind is not None:
        lines.append(f"rewind {rewind}")
    lines.append(" ".join(["sampling", *sampling.words]))
    lines.append(" ".join(["stop", *map(str, stop_ids)]))
    if logit_ids:
        lines.append(" ".join(["logits", *map(str, logit_ids)]))
    lines += [point.line for point in points]
    return "\n".join(lines) + "\n"


def generation_arguments(
    program: str,
    request: str,
    results: str,
    *,
    threads: int = 0,
    stream: bool = False,
    watched: bool = False,
    etdump: str | None = None,
) -> tuple[str, ...]:
    """The command line of a runner that generates; it takes no option of the other workload.

    All paths are as the runner sees them. With `stream`, each token id becomes a line on stdout as
    soon as it is chosen. `etdump` is where the traces go, one for each method (`trace_path`).
    """
    arguments = [
        "--program", program,
        "--generation", request,
        "--threads", str(threads),
        "--results", results,
    ]  # fmt: skip
    if stream:
        arguments += ["--stream", "1"]
    if watched:
        arguments += ["--watch-memory", "1"]
    if etdump is not None:
        arguments += ["--etdump", etdump]
    return tuple(arguments)


def trace_path(etdump: str, method: str) -> str:
    """The file with a method's trace; only methods that were called have one.

    It has the last calls of the method, ten at most, of the last repetition that called it; where
    only filling the cache did, of that.
    """
    return f"{etdump}.{method}"


STOP = "stop"
"""The line that ends an answer."""
READY = "ready"
"""The runner's first line."""

Ending = Literal["stop_token", "new_tokens", "stop"]


class PrefillProgress(Value):
    """A call took a part of the prompt: so many tokens are in the cache now."""

    tokens: int


class Token(Value):
    """A new token. `took_ms` is call and choice; of the first, the time since the prefill began."""

    id: int
    took_ms: float


class End(Value):
    """An answer has ended: a stop token, as many tokens as asked for, or a line that said so."""

    reason: Ending


def answer_line(position: int, new_tokens: int, sampling: Sampling, ids: Sequence[int]) -> str:
    """The line that asks for an answer, at most `new_tokens`, to the prompt `ids`.

    `position` tokens of the cache stay.
    """
    return " ".join(map(str, ("answer", position, new_tokens, *sampling.words, *ids)))


def parse_event(line: str) -> PrefillProgress | Token | End:
    """Parse a line of a runner that listens; ValueError for another line."""
    match line.split():
        case ["taken", tokens]:
            return PrefillProgress(tokens=int(tokens))
        case ["token", identity, took_ns]:
            return Token(id=int(identity), took_ms=int(took_ns) / 1e6)
        case ["end", ("stop_token" | "new_tokens" | "stop") as reason]:
            return End(reason=reason)
        case _:
            raise ValueError(f"{line[:80]!r} is not a line of an answer")


def listening_arguments(
    program: str, request: str, *, idle_timeout_s: int, threads: int = 0
) -> tuple[str, ...]:
    """The command line of a runner that listens; it exits after `idle_timeout_s` without a line.

    `request` has no points, and its sampling does not count.
    """
    usual = generation_arguments(program, request, "results.json", threads=threads)
    return (*usual, "--listen", str(idle_timeout_s))
