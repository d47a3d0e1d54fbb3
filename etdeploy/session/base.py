"""What every session has: what it is of, its text as token ids, and its turn on the device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from etdeploy.bench.text_generator import (
    TextGenerator,
)
from etdeploy.core.errors import (
    UsageError,
)
from etdeploy.program.generation import Generation
from etdeploy.program.tokenizer import (
    ChatTemplate,
    Tokenizer,
    no_tokenizer,
    required_template,
)
from etdeploy.recipe.model import Recipe
from etdeploy.session.branches import BranchedCache
from etdeploy.session.connection import SessionConnection
from etdeploy.session.opening import OpenProgram
from etdeploy.session.state import SavedState
from etdeploy.session.text import (
    Timings,
    prompt_ids,
    require_ids,
    require_short,
)

if TYPE_CHECKING:
    from etdeploy.backends.values import Simulated
    from etdeploy.devices.base import DeviceFacts

Prompt = str | Sequence[int]


class SessionBase:
    """A program on a device, and a text."""

    def __init__(
        self,
        connection: SessionConnection,
        parent: SessionBase | None = None,
        tokens: tuple[int, ...] = (),
    ) -> None:
        self._connection = connection
        self._tokens = tokens
        self._parent = parent
        self._is_closed = False
        self._state: SavedState | None = None
        self._timings = Timings()
        cache = connection.cache
        self._branch: int = cache.add(parent._branch if parent else 0) if cache else 0

    @property
    def device(self) -> str:
        """The device's name."""
        return str(self._connection.named.devices[0])

    @property
    def device_facts(self) -> DeviceFacts:
        """What is known of the device."""
        return self._program.run.device.facts()

    @property
    def simulated(self) -> Simulated | None:
        """What computes in place of the device's processor; None for the device itself."""
        return self._facts.run.simulated

    @property
    def tokens(self) -> tuple[int, ...]:
        """The text: the last prompt and what was generated after it, as token ids."""
        return self._tokens

    @property
    def text(self) -> str:
        """The text without special tokens.

        Raises:
            UsageError: The model has no tokenizer.
        """
        return self.decode(self._tokens)

    @property
    def timings(self) -> Timings:
        """Times of the last call."""
        return self._timings

    @property
    def generation(self) -> Generation:
        """What is known of a program that generates text: context, vocabulary, stop tokens."""
        return _generator_of(self._facts).generation

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The model's tokenizer; None for a model that has none."""
        return self._facts.tokenizer

    @property
    def recipe(self) -> Recipe:
        """The recipe, with all settings."""
        return self._facts.run.recipe

    @property
    def generates(self) -> bool:
        """Whether the program generates text; else its methods are called with `run`."""
        return self._facts.generator is not None

    @property
    def identity(self) -> tuple[str, str | None]:
        """Digest of the program with its weights, and the adapter: states of others do not fit."""
        return self._facts.digest, self._facts.lora

    @property
    def converses(self) -> bool:
        """Whether the program stays loaded between calls."""
        return self._connection.cache is not None or self._connection.methods is not None

    @property
    def chat_template(self) -> ChatTemplate:
        """The model's own chat template.

        Raises:
            UsageError: The model has no tokenizer, or no template.
        """
        if self.tokenizer is None:
            raise no_tokenizer("chat")
        return required_template(self.tokenizer.folder)

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the token ids of a text, with those that the model's tokenizer adds."""
        require_short(text, self.generation)
        return prompt_ids(self.tokenizer, text)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, without special tokens."""
        if self.tokenizer is None:
            raise UsageError("the model has no tokenizer", remedy="Use token ids: session.tokens")
        return self.tokenizer.decode(ids)

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else f"{len(self._tokens):,} tokens"
        return f"<Session {self._connection.named.recipes[0]} on {self.device}, {state}>"

    @property
    def _program(self) -> OpenProgram:
        self._require_open()
        return self._connection.program

    @property
    def _facts(self) -> OpenProgram:
        """The program for facts that do not need the device, which may be away."""
        self._require_open()
        return self._connection.last_program

    @property
    def _generator(self) -> TextGenerator:
        return _generator_of(self._program)

    def _prompt(self, prompt: Prompt | None, *, append: bool = False) -> tuple[int, ...]:
        encoder = self.generation.encoder
        if encoder is not None:
            if prompt is not None:
                raise UsageError(
                    "the model continues no prompt: it generates its text from an input",
                    remedy="Give the input when opening: settings={'benchmark.input.audio': FILE}",
                )
            return encoder.prompt_ids
        if prompt is None:
            if not self._tokens:
                raise UsageError("the session has no text to continue", remedy="Pass a prompt.")
            return self._tokens
        if append:
            return (*self._tokens, *self._appended(prompt))
        if isinstance(prompt, str):
            return require_ids(self.encode(prompt), self.generation)
        return require_ids(prompt, self.generation)

    def _appended(self, text: Prompt) -> tuple[int, ...]:
        """The ids of a text that is not the beginning."""
        if not isinstance(text, str):
            return require_ids(text, self.generation)
        require_short(text, self.generation)
        if self.tokenizer is None:
            return require_ids(prompt_ids(None, text), self.generation)
        return self.tokenizer.encode_rendered(text)

    @contextmanager
    def _turn(self, what: str, ids: Sequence[int], *, own: bool = False) -> Iterator[BranchedCache]:
        """Use the cache: for the session's text if it is its `own`, else for another one."""
        self._require_open()
        self._connection.require_open()
        cache = self._connection.cache
        if cache is None:
            encoder = self.generation.encoder
            raise self._has_no_cache(what) if encoder else self._cannot_converse()
        with self._connection.used(what), self._connection.device_errors():
            # A state that cannot be set back would be that of the longer text.
            longer = tuple(ids[: len(self._tokens)]) == self._tokens
            same = own or (longer and self.generation.rewind is None)
            cache.take_turn(self._branch if same and self._tokens else 0, ids)
            yield cache

    @staticmethod
    def _has_no_cache(what: str) -> UsageError:
        return UsageError(
            f"{what} is not possible for a model with an encoder: what the encoder gave is in no "
            "cache"
        )

    def _cannot_converse(self) -> UsageError:
        return UsageError(
            f"{self.device} cannot stream stdin to a running process: only generate() works there",
            remedy="Open another device: etdeploy devices",
        )

    def _require_open(self) -> None:
        if self._is_closed or (self._parent is not None and self._parent.is_closed):
            raise UsageError(
                f"the session on {self.device} is closed", remedy="Open another: etdeploy.open(...)"
            )

    @property
    def is_closed(self) -> bool:
        """Whether it was closed, or the session that it is a branch of."""
        return self._is_closed or (self._parent is not None and self._parent.is_closed)


def _generator_of(program: OpenProgram) -> TextGenerator:
    if program.generator is None:
        raise UsageError(
            "the program generates no text",
            remedy="Call its methods: session.run(inputs)\n"
            "Or open a language model: etdeploy.open(model=ID_OR_PATH)",
        )
    return program.generator
