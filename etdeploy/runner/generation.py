"""Request and results of a runner that generates text.

The request is a file of lines, words separated by one space:

    method NAME ROLE MAX_TOKENS DYNAMIC CAPACITY
    encoder NAME REPETITIONS INPUTS
    embedding NAME ID
    positions ROWS PATH
    static PLACES MASKED WINDOW [WINDOW ...]
    rewind TOKENS
    load_mode MODE
    load END PATH PATH
    save PATH
    verify NAME TOKENS
    speculation KIND
    draft NAME ROLE MAX_TOKENS DYNAMIC CAPACITY
    draft_rewind TOKENS
    draft_load_mode MODE
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
to any other. etdeploy/program/generation.py describes both. MODE is `mmap`, which holds without
that line, or `file`. With a line `load`, a text is in the
cache at first: its tokens are in the first file, and their keys and values in the second one, which
a line `save` of another request named, END being the furthest end of a call; DEPTH tokens of it
stay. With a line `save`, that file is written at the end. With a
line `speculation`, tokens are proposed and verified, several in a call: a line `verify` names a
method that gives the logits of up to so many tokens. KIND is `lookup`, or `draft`: the program of
the option `--draft` proposes, whose methods the lines `draft` name as the lines `method` do those
of the other, and `draft_rewind` and `draft_load_mode` are for it.

With TEMPERATURE 0, the most probable token is taken. PATH, which may have spaces, is a file of
little-endian int64 token ids, relative to the request.

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
from etdeploy.program.generation import Draft, GenerationMethod, LoadMode, StaticCache
from etdeploy.recipe.sections.benchmark import Speculation
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


class CallCounts(Value):
    """What a text took after its first token.

    Attributes:
        calls: Calls of methods.
        verified_calls: Those of them that verified proposed tokens.
        proposed: Tokens that these calls verified.
        accepted: Those of them that were right.
        draft_ms: Time of a draft in these calls; 0 without one.
    """

    calls: int = Field(default=0, ge=0)
    verified_calls: int = Field(default=0, ge=0)
    proposed: int = Field(default=0, ge=0)
    accepted: int = Field(default=0, ge=0)
    draft_ms: float = Field(default=0, ge=0)


class GenerationRun(CallCounts):
    """One repetition of a point.

    Attributes:
        point: Its name.
        prefill_ms: Time of each call that took a part of the prompt, from the first on.
        first_token_ms: From the start of the prefill until the first token was chosen.
        token_ms: Time of each further token: call and choice. Tokens that one call verified have
            equal parts of its time.
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
        load_draft_ms: Loading the draft with its methods; 0 without one.
        encode_ms: Time of each run of the encoder; empty without one.
        huge_page_bytes: How much of the memory after loading, weights above all, was put into huge
            pages; 0 where the kernel has none.
        shared_memory_bytes: How much of a static cache program's inputs and outputs is in memory
            that the HTP shares; 0 where each call copies them.
        traced: What is in each trace, by the method's name; empty without --etdump.
        runs: In the order in which they ran.
    """

    load_methods_ms: dict[str, float] = Field(min_length=1)
    load_draft_ms: float = Field(default=0, ge=0)
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
    speculation: Speculation = "none",
    draft: Draft | None = None,
    load_mode: LoadMode = "mmap",
) -> str:
    """The text of the file that the runner's --generation names.

    Results of points that follow a text have the logits of `logit_ids`. `draft` proposes tokens if
    `speculation` names a model.
    """
    lines = [_method_line("method", method) for method in methods]
    if encoder is not None:
        lines += encoder.lines
    if static_cache is not None:
        numbers = (static_cache.places, static_cache.masked, *static_cache.windows)
        lines.append(" ".join(["static", *map(str, numbers)]))
    if rewind is not None:
        lines.append(f"rewind {rewind}")
    if load_mode != "mmap":
        lines.append(f"load_mode {load_mode}")
    if speculation != "none":
        lines += [f"verify {m.name} {m.verify_tokens}" for m in methods if m.verify_tokens > 1]
        lines.append(f"speculation {'draft' if draft else speculation}")
    if speculation != "none" and draft:
        lines += [_method_line("draft", method) for method in draft.methods]
        lines += [] if draft.rewind is None else [f"draft_rewind {draft.rewind}"]
        lines += [] if draft.load_mode == "mmap" else [f"draft_load_mode {draft.load_mode}"]
    lines.append(" ".join(["sampling", *sampling.words]))
    lines.append(" ".join(["stop", *map(str, stop_ids)]))
    if logit_ids:
        lines.append(" ".join(["logits", *map(str, logit_ids)]))
    lines += [point.line for point in points]
    return "\n".join(lines) + "\n"


def _method_line(word: str, m: GenerationMethod) -> str:
    return f"{word} {m.name} {m.role} {m.max_tokens} {int(m.dynamic)} {m.capacity}"


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
SAVED, LOADED, REMOVED = "saved", "loaded", "removed"
"""The runner's lines when a file has the cache, the cache is a file's, and a file is gone."""
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


class End(CallCounts):
    """An answer has ended: a stop token, as many tokens as asked for, or a line that said so.

    Without speculation, calls are not counted.
    """

    reason: Ending


class TokenScore(Value):
    """A token of a text after those before it.

    Attributes:
        log_probability: Natural logarithm of its probability.
        best_id: The most probable token there; the first of several.
        best_log_probability: The same of this one.
    """

    log_probability: float
    best_id: int
    best_log_probability: float


class FeedEnd(Value):
    """Tokens are in the cache, all of them unless a line stopped it."""

    stopped: bool
    took_ms: float


def feed_line(position: int, ids: Sequence[int]) -> str:
    """The line that puts tokens into the cache after the first `position`."""
    return " ".join(map(str, ("feed", position, *ids)))


def logits_line(position: int, count: int, path: str, ids: Sequence[int]) -> str:
    """The same, for a file with the logits of the last `count` tokens, float32, row by row."""
    return " ".join(map(str, ("logits", position, count, path, *ids)))


def score_line(position: int, count: int, ids: Sequence[int]) -> str:
    """The line that asks for a `TokenScore` of each of the last `count` tokens.

    The last token does not get into the cache.
    """
    return " ".join(map(str, ("score", position, count, *ids)))


def save_line(path: str) -> str:
    """The line that asks for a file with the cache."""
    return f"save {path}"


def load_line(furthest: int, tokens: str, image: str) -> str:
    """The line that restores the cache from the snapshot `image`.

    `furthest` is the furthest position that a call reached since the cache was empty. `tokens` is
    the file with the ids of the cached tokens; its name has no spaces.
    """
    return f"load {furthest} {tokens} {image}"


def remove_line(path: str) -> str:
    """The line that removes a file with a cache."""
    return f"remove {path}"


def answer_line(position: int, new_tokens: int, sampling: Sampling, ids: Sequence[int]) -> str:
    """The line that asks for an answer, at most `new_tokens`, to the prompt `ids`.

    `position` tokens of the cache stay.
    """
    return " ".join(map(str, ("answer", position, new_tokens, *sampling.words, *ids)))


Event = PrefillProgress | Token | TokenScore | End | FeedEnd


def parse_event(line: str) -> Event:
    """Parse a line of a runner that listens; ValueError for another line."""
    match line.split():
        case ["taken", tokens]:
            return PrefillProgress(tokens=int(tokens))
        case ["token", identity, took_ns]:
            return Token(id=int(identity), took_ms=int(took_ns) / 1e6)
        case ["score", log_probability, best, best_log_probability]:
            return TokenScore(
                log_probability=float(log_probability), best_id=int(best),
                best_log_probability=float(best_log_probability),
            )  # fmt: skip
        case ["end", ("stop_token" | "new_tokens" | "stop") as reason]:
            return End(reason=reason)
        case ["end", ("done" | "stop") as reason, took_ns]:
            return FeedEnd(stopped=reason == "stop", took_ms=int(took_ns) / 1e6)
        case ["end", ("stop_token" | "new_tokens" | "stop") as reason, *numbers] if len(
            numbers
        ) in (4, 5):
            calls, verified, proposed, accepted, *draft = map(int, numbers)
            return End(
                reason=reason, calls=calls, verified_calls=verified,
                proposed=proposed, accepted=accepted, draft_ms=sum(draft) / 1e6,
            )  # fmt: skip
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
