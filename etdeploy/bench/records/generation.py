"""Text that was generated, and how fast: a workload of the run record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from etdeploy.bench.records.outputs import OutputCheck, TextCheck
from etdeploy.bench.records.performance import Latency, Spread, Start, WorkloadKind
from etdeploy.core.values import Value
from etdeploy.program.generation import Evaluation
from etdeploy.runner.generation import CallCounts, Sampling

TOKEN_MS, TTFT_MS = "token_ms", "ttft_ms"


class DraftRecord(Value):
    """The draft model's program, which proposes tokens.

    Attributes:
        name: Of its folder, or of its file.
        sha256, size_bytes: Of the file.
    """

    name: str
    sha256: str
    size_bytes: int


class SpeculatedCalls(Value):
    """What speculative decoding did, in all generations of a text that count.

    Attributes:
        calls: Calls after the first token of each generation.
        verified_calls: Those of them that verified proposed tokens; the others took a single one.
        proposed: Tokens that were verified.
        accepted: Those of them that were right.
        acceptance_rate: `accepted` by `proposed`; null where nothing was proposed.
        tokens_per_call: New tokens after the first of each generation, by `calls`; null where
            there is only a first one.
        draft_ms: Time of the draft in all of them, with the prompts that it took; it is part of
            `token_ms`. null without a draft.
    """

    calls: int
    verified_calls: int
    proposed: int
    accepted: int
    acceptance_rate: float | None
    tokens_per_call: float | None
    draft_ms: float | None = None

    @property
    def text(self) -> str:
        """In words: `2.41 tokens per call, 71 % of 120 proposed tokens accepted`."""
        ms = self.draft_ms
        took = None if ms is None else f"{ms:.1f} ms" if ms < 1000 else f"{ms / 1000:.2f} s"
        draft = f", draft {took}" if took else ""
        if self.acceptance_rate is None or self.tokens_per_call is None:
            return f"nothing proposed{draft}"
        return (
            f"{self.tokens_per_call:.2f} tokens per call, {100 * self.acceptance_rate:.0f} % of "
            f"{self.proposed:,} proposed tokens accepted{draft}"
        )


def speculated(
    runs: Sequence[CallCounts], tokens: int, *, has_draft: bool = False
) -> SpeculatedCalls:
    """What runs say together, which gave so many tokens after their first ones."""
    calls, proposed = sum(run.calls for run in runs), sum(run.proposed for run in runs)
    accepted = sum(run.accepted for run in runs)
    return SpeculatedCalls(
        calls=calls,
        verified_calls=sum(run.verified_calls for run in runs),
        proposed=proposed,
        accepted=accepted,
        acceptance_rate=accepted / proposed if proposed else None,
        tokens_per_call=tokens / calls if calls else None,
        draft_ms=sum(run.draft_ms for run in runs) if has_draft else None,
    )


class GenerationPoint(Value):
    """A prompt with what was generated after it; all times are of whole generations that were
    timed, in all starts.

    Attributes:
        prompt_tokens: Tokens of the prompt.
        new_tokens: The most that a generation gives; the first one is among them.
        depth: Tokens that were in the cache before the prompt.
        ttft_ms: Time to first token: from the prompt's token ids in hand until the first new token
            is chosen; the median over the generations. Loading, tokenizing and filling the cache up
            to `depth` are not in it.
        prefill_tokens_per_s: `prompt_tokens` by `ttft_ms`.
        decode_tokens_per_s: Tokens after the first by the time that they took together, call and
            choice; the median over the generations. null where there is only a first token.
        first_token_ms: The same time of each generation.
        token_ms: Time of each token after the first, call and choice; null where there is none.
            Tokens that one call verified have equal parts of its time.
        token_ids: All new tokens of the first generation, with the one that ended the text.
        text: The same as text, without what the prompt says; null where the program has no
            tokenizer, or where the package to read it was not installed.
        stopped: Whether a token that ends texts ended that generation. Random prompts go on after
            such a token, so that each generation has as many.
        generations: How many were timed.
        distinct: How many different texts they gave. With one seed it is 1 wherever what is
            computed does not depend on chance.
        speculation: What speculative decoding did; null without it.
    """

    prompt_tokens: int
    new_tokens: int
    depth: int
    ttft_ms: float
    prefill_tokens_per_s: float
    decode_tokens_per_s: float | None
    first_token_ms: Latency
    token_ms: Latency | None
    token_ids: tuple[int, ...]
    text: str | None
    stopped: bool
    generations: int
    distinct: int
    speculation: SpeculatedCalls | None = None

    @property
    def label(self) -> str:
        """The point in words: `prompt 128, new 64, depth 1,024`."""
        depth = f", depth {self.depth:,}" if self.depth else ""
        return f"prompt {self.prompt_tokens:,}, new {self.new_tokens:,}{depth}"

    @property
    def key(self) -> str:
        """The same as part of a metric's name: `p128-n64-d1024`."""
        return f"p{self.prompt_tokens}-n{self.new_tokens}-d{self.depth}"

    @property
    def counted(self) -> tuple[int, int, int]:
        """What makes two points the same."""
        return self.prompt_tokens, self.new_tokens, self.depth


class EncodedInput(Value):
    """The input from which a model with an encoder generates its text.

    Attributes:
        is_real: Whether it is the user's, or a text; else it is random, and hides errors.
        preprocess_ms: Time of the model's processor to make tensors of it, on the machine that runs
            etdeploy.
        encode_ms: Time of the encoder, for an image in several parts of all its calls, in all
            starts, each time after a first one that does not count. Neither this nor
            `preprocess_ms` is part of `ttft_ms`.
        audio_s: Length of the speech in seconds; null for text and images.
        real_time_factor: Time of the encoder and the text of the first point, by `audio_s`: below 1
            where speech is recognized faster than it is spoken. null for text and images.
    """

    is_real: bool
    preprocess_ms: float
    encode_ms: Latency
    audio_s: float | None
    real_time_factor: float | None


class MethodTrace(Value):
    """Where a method of the program spends its time, from its trace in the profile pass.

    The trace has the last calls of the method, ten at most, of a generation of the first point. A
    method that the first point does not call is traced where the points with the most and with the
    fewest positions call it; one that only fills the cache up to a `depth`, there.

    Attributes:
        method: Its name.
        calls: How many were traced, one after the other.
        tokens: Taken in all of them together.
        position: Of the first of these tokens in the sequence.
        call_ms: Mean time of a call while it was traced.
        outside_delegates: Share of that time that is in no delegate, from 0 to 1, with what the
            runtime does between operators: (`Method::execute` - `DELEGATE_CALL`) /
            `Method::execute`.
    """

    method: str
    calls: int
    tokens: int
    position: int
    call_ms: float
    outside_delegates: float

    @property
    def positions(self) -> str:
        """Of the tokens in the sequence: `154 to 163`."""
        last = f" to {self.position + self.tokens - 1:,}" if self.tokens > 1 else ""
        return f"{self.position:,}{last}"

    @property
    def where(self) -> str:
        """The calls in words: `10 calls at positions 154 to 163`."""
        calls = "1 call" if self.calls == 1 else f"{self.calls} calls"
        return f"{calls} at position{'s' if self.tokens > 1 else ''} {self.positions}"


class TextGeneration(Value):
    """A workload that generates text: each prompt is taken in chunks, then one token follows the
    other.

    Where the recipe names several numbers of tokens, everything but `points` is about the first
    point.

    Attributes:
        kind: `generation`.
        points: One for each combination of the recipe's `prompt_tokens`, `new_tokens` and `depth`,
            in its order.
        sampling: How the next token is chosen.
        prompt: The recipe's own prompt; null where prompts are random token ids.
        texts: What the program gave of texts that are known of the eager model; empty where none
            are.
        evaluation: How well the model predicts the recipe's text, and what quantization costs it,
            as found at export; null where the recipe names none.
        first_ttft_ms: Time to first token of the first generation in a process, before any warm-up;
            the median over the starts.
        huge_page_bytes: How much of a start's memory after loading, weights above all, was in huge
            pages: the least of the starts. null where the runner did not say.
        runs: The starts of the runner. Their samples are those of `token_ms`; where only a first
            token is generated, those of `first_token_ms`. `first_inference_ms` is the time to
            first token of their first generation, and `warmup` counts the generations before those
            that were timed.
        spread: Within and between the starts.
        methods: One entry for each method that the profile pass traced; empty without one.
        encoder: Of a model with an encoder; null for others.
        draft: Of speculative decoding with a draft model; null without one.
    """

    kind: Literal[WorkloadKind.GENERATION] = WorkloadKind.GENERATION
    points: tuple[GenerationPoint, ...] = Field(min_length=1)
    sampling: Sampling
    prompt: str | None
    texts: tuple[TextCheck, ...] = ()
    evaluation: Evaluation | None = None
    first_ttft_ms: float
    huge_page_bytes: int | None = None
    runs: tuple[Start, ...] = Field(min_length=1)
    spread: Spread
    methods: tuple[MethodTrace, ...] = ()
    encoder: EncodedInput | None = None
    draft: DraftRecord | None = None

    @property
    def first(self) -> GenerationPoint:
        """The point that stands for the run."""
        return self.points[0]

    @property
    def metric(self) -> str:
        """What `timed` has."""
        return TOKEN_MS if self.first.token_ms else TTFT_MS

    @property
    def timed(self) -> Latency:
        """The times by which runs are compared; the starts' samples."""
        return self.first.token_ms or self.first.first_token_ms

    @property
    def sample(self) -> str:
        """What each of them is of."""
        return "token" if self.first.token_ms else "first token"

    @property
    def first_ms(self) -> float:
        """What a process takes before any warm-up."""
        return self.first_ttft_ms

    @property
    def all_outputs(self) -> tuple[OutputCheck, ...]:
        """The texts."""
        return tuple(text.as_output for text in self.texts)

    @property
    def outputs_compared(self) -> bool:
        """Whether texts were compared with the model's."""
        return bool(self.texts)
