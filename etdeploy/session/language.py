"""The language model of a session: texts, logits, and keys and values."""

from __future__ import annotations

import weakref
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from etdeploy.bench.snapshot import Message, SnapshotHeader
from etdeploy.bench.text_generator import (
    Answer,
    GenerationOutput,
    StreamedText,
    make_answer,
    remaining_context,
    summary,
)
from etdeploy.core import console
from etdeploy.core.errors import (
    UsageError,
)
from etdeploy.core.values import Stop
from etdeploy.runner.generation import Sampling, Token
from etdeploy.session.base import Prompt, SessionBase
from etdeploy.session.branches import BranchedCache
from etdeploy.session.kv_cache import KeyValues, read_layers
from etdeploy.session.sampling import resolve_sampling
from etdeploy.session.state import SavedState
from etdeploy.session.text import (
    ContinuationScore,
    GeneratedText,
    TextRecord,
    Timings,
    is_count,
    stream_single,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


_IMAGE = "image.bin"


class LanguageSession(SessionBase):
    """Generates texts, scores them, and saves and restores their keys and values."""

    def generate(
        self,
        prompt: Prompt | None = None,
        max_new_tokens: int = 256,
        *,
        append: bool = False,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float | None = None,
        seed: int | None = None,
        stop: Stop | None = None,
    ) -> GeneratedText:
        """Continue a prompt, and give the text piece by piece.

        What the prompt has in common with the text in the cache is not computed again.

        Args:
            prompt: Text or token ids, which become the session's text. None continues that text. A
                model with an encoder takes none: its input is part of the recipe.
            max_new_tokens: A stop token or a full context may end the text earlier.
            append: Whether the prompt comes after the session's text, and begins no other one.
            temperature: Randomness; 0 always takes the most probable token. By default, this and
                the following are as the recipe says.
            top_k: Only so many of the most probable tokens; 0 for all.
            top_p: The fewest of the most probable tokens whose probabilities add up to this.
            min_p: Tokens with at least this share of the most probable one's probability.
            repetition_penalty: Makes tokens of the text less probable; 1 does not.
            seed: The same seed gives the same text; by default a new one for each text.
            stop: Ends the text when it is set, such as a threading.Event.

        Raises:
            UsageError: The prompt does not fit, or a value is not possible.
            SessionBusyError: Another thread or an unfinished text uses the session.
        """
        sampling = resolve_sampling(
            self.recipe,
            {
                "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p,
                "repetition_penalty": repetition_penalty, "seed": seed,
            },
        )  # fmt: skip
        ids = self._prompt(prompt, append=append)
        return self.generate_ids(ids, max_new_tokens, sampling, stop)

    def generate_ids(
        self,
        ids: tuple[int, ...],
        max_new_tokens: int,
        sampling: Sampling,
        stop: Stop | None = None,
    ) -> GeneratedText:
        """Do what `generate` does, with token ids and all values of the sampling."""
        if not is_count(max_new_tokens):
            raise UsageError(
                f"max_new_tokens is {max_new_tokens!r}; it must be a whole number from 1 on"
            )
        remaining = remaining_context(self.generation, len(ids))
        record = TextRecord()
        self._connection.acquire("generate")
        pieces = self._pieces(record, ids, (remaining, max_new_tokens), sampling, stop)
        try:
            next(pieces)
        except BaseException:
            self._connection.release()
            raise
        text = GeneratedText(record, pieces)
        self._connection.text = weakref.ref(text)
        return text

    def _pieces(
        self,
        record: TextRecord,
        prompt: tuple[int, ...],
        most: tuple[int, int],
        sampling: Sampling,
        stop: Stop | None,
    ) -> Generator[str, None, None]:
        """The pieces of a text; the first step gives an empty one, and only marks the beginning.

        `most` are the new tokens that fit, and those that were asked for.
        """
        arrived: list[Token] = []
        shown: list[str] = []
        streamed = StreamedText(self.tokenizer, prompt, self.generation.stop_ids, shown.append)
        cached = 0
        output: GenerationOutput | None = None
        try:
            yield ""
            with self._connection.device_errors():
                if cache := self._connection.cache:
                    cache.take_turn(self._branch, prompt)
                    cached = cache.process.reusable(prompt)
                tokens = self._stream(prompt, min(most), sampling, stop)
                try:
                    while True:
                        token = next(tokens)
                        arrived.append(token)
                        record.token_ids.append(token.id)
                        streamed.take(token.id)
                        yield from self._taken(shown)
                except StopIteration as end:
                    output = end.value
                finally:
                    tokens.close()
            streamed.end()
            yield from self._taken(shown)
        finally:
            self._tokens = (*prompt, *record.token_ids)
            if output is None:
                output = _partial(arrived, len(prompt) - cached)
            answer = make_answer(output, prompt, streamed.text, *most, sampling)
            record.answer = answer
            self._timings = self._timings_of(answer, output)
            self._connection.release()

    @staticmethod
    def _taken(shown: list[str]) -> Iterator[str]:
        pieces = tuple(shown)
        shown.clear()
        yield from pieces

    def _stream(
        self, prompt: tuple[int, ...], new_tokens: int, sampling: Sampling, stop: Stop | None
    ) -> Generator[Token, None, GenerationOutput]:
        if cache := self._connection.cache:
            return cache.process.stream(prompt, new_tokens, sampling, stop)
        flag = self._connection.flag
        return stream_single(self._generator, prompt, new_tokens, sampling, flag, stop)

    def _timings_of(self, answer: Answer, output: GenerationOutput) -> Timings:
        return Timings(
            load_ms=self._connection.load_ms,
            prompt_tokens=answer.prompt_tokens,
            cached_tokens=answer.cached_tokens,
            first_token_ms=answer.ttft_ms,
            prefill_tokens_per_s=answer.prefill_tokens_per_s,
            decode_tokens_per_s=answer.decode_tokens_per_s,
            token_ms=output.token_ms,
            encode_ms=answer.encode_ms,
        )

    def summary(self, answer: Answer) -> str:
        """Return one line about an answer."""
        return summary(answer, self.generation, self.simulated)

    def logits(
        self, prompt: Prompt, positions: int | None = None, *, stop: Stop | None = None
    ) -> NDArray[np.float32]:
        """Return the logits after a prompt; the session's text stays as it is.

        Args:
            prompt: Text or token ids.
            positions: After how many of the last tokens; None for the last alone. A program that
                can verify several tokens in a call gives them in few calls.
            stop: Raises Interrupted when it is set.

        Returns:
            float32 of shape (vocabulary,), or (positions, vocabulary) if `positions` is given.
        """
        import numpy as np

        ids = self._prompt(prompt)
        wanted = 1 if positions is None else positions
        if not 1 <= wanted <= len(ids):
            raise UsageError(
                f"positions is {wanted}; the prompt has {console.count(len(ids), 'token')}"
            )
        remaining_context(self.generation, len(ids))
        with self._turn("logits", ids) as cache:
            found = cache.process.logits(ids, wanted, stop)
            self._timings = Timings(self._connection.load_ms, len(ids))
        rows = np.frombuffer(found, np.float32).reshape(wanted, self.generation.vocabulary)
        return rows[0] if positions is None else rows

    def score(
        self, prompt: Prompt, continuation: Prompt, *, stop: Stop | None = None
    ) -> ContinuationScore:
        """Return how probable a continuation is after a prompt; the session's text stays as it is.

        Args:
            prompt: Text or token ids; not empty.
            continuation: Text, without tokens that begin one, or token ids; not empty.
            stop: Raises Interrupted when it is set.
        """
        import numpy as np

        before = self._prompt(prompt)
        after = self._appended(continuation)
        if not before or not after:
            raise UsageError("a score needs a prompt and a continuation, and one of them is empty")
        ids = (*before, *after)
        # The last token is not fed.
        remaining_context(self.generation, len(ids) - 1)
        with self._turn("score", ids) as cache:
            scores = cache.process.score(ids, len(after), stop)
            self._timings = Timings(self._connection.load_ms, len(ids))
        return ContinuationScore(
            after,
            np.array([each.log_probability for each in scores]),
            np.array([each.best_id for each in scores]),
            np.array([each.best_log_probability for each in scores]),
        )

    def rewind(self, tokens: int) -> None:
        """Remove the last tokens of the session's text.

        Where the program cannot set its cache back so far, the rest is computed again.
        """
        self._require_open()
        if not 0 <= tokens <= len(self._tokens):
            raise UsageError(
                f"{tokens} tokens cannot be removed: the text has {len(self._tokens):,}"
            )
        with self._connection.used("rewind"):
            self._tokens = self._tokens[: len(self._tokens) - tokens]

    def save(
        self,
        path: str | Path | None = None,
        *,
        system: str | None = None,
        messages: Sequence[Message] = (),
    ) -> SavedState:
        """Save the text with its keys and values; `reopen` begins with the last one.

        Args:
            path: A file, which `etdeploy generate --load-cache` reads, too. Without one, the state
                is in a temporary file of this machine as long as the value exists.
            system: The system prompt of a conversation, which is stored with it.
            messages: The conversation.
        """
        with self._turn("save", self._tokens, own=True) as cache:
            header, image = self._pull_image(cache)
            header = header.model_copy(update={"system": system, "messages": tuple(messages)})
            self._state = SavedState.make(header, image, None if path is None else Path(path))
            return self._state

    def _pull_image(self, cache: BranchedCache) -> tuple[SnapshotHeader, Path]:
        process, program = cache.process, self._program
        filled = self._tokens[:-1]
        process.feed(filled)
        if filled:
            process.save_image(_IMAGE)
            image = process.pull_image(_IMAGE)
        else:
            image = self._generator.here / _IMAGE
            image.write_bytes(b"")
        header = SnapshotHeader(
            program=program.digest, lora=program.lora, tokens=filled, pending=self._tokens[-1:],
            furthest=process.furthest if filled else 0,
        )  # fmt: skip
        return header, image

    def restore(self, state: SavedState) -> None:
        """Make the text that of a state, with its keys and values.

        Raises:
            UsageError: The state is of another program or adapter, or damaged.
        """
        state.snapshot.require(*self.identity)
        with self._turn("restore", (), own=True) as cache:
            cache.restore(self._branch, state.snapshot)
            self._tokens = state.tokens
            self._state = state

    def kv_cache(self, layer: int) -> KeyValues:
        """Return keys and values of a layer for the session's text, but for its last token.

        They are float32 of shape (kv_heads, positions, head_dim), whatever the program stores.

        Raises:
            UsageError: There is no such layer, or the program has no cache of keys and values, such
                as one with recurrent layers.
        """
        program = self._program
        with self._turn("kv_cache", self._tokens, own=True) as cache:
            header, image = self._pull_image(cache)
            if not header.tokens:
                raise UsageError("the session has no text", remedy="Generate some first.")
            layers = read_layers(
                image, program.folder, program.program, self.generation, len(header.tokens),
                header.furthest,
            )  # fmt: skip
        if not 0 <= layer < len(layers):
            raise UsageError(f"there is no layer {layer}: the program has {len(layers)}")
        return layers[layer]


def _partial(tokens: Sequence[Token], prefilled: int) -> GenerationOutput:
    """Of a text that was not read to its end."""
    times = [token.took_ms for token in tokens] or [0.0]
    return GenerationOutput(
        prefilled=prefilled, first_token_ms=times[0], token_ms=tuple(times[1:]),
        token_ids=tuple(token.id for token in tokens), stopped=False, interrupted=True,
    )  # fmt: skip
