"""Sessions for asyncio: what blocks happens in a thread, and cancelling a task stops the device."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from etdeploy.bench.text_generator import Answer
from etdeploy.core import cancel
from etdeploy.core.errors import SessionBusyError, UsageError
from etdeploy.core.values import Stop
from etdeploy.session.base import Prompt
from etdeploy.session.kv_cache import KeyValues
from etdeploy.session.opening import Owner
from etdeploy.session.session import Session
from etdeploy.session.state import SavedState
from etdeploy.session.text import ContinuationScore, GeneratedText, Timings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from etdeploy.bench.records.record import RunRecord

T = TypeVar("T")


class _Event:
    """Set by a cancelled task, or by the caller's own event."""

    def __init__(self, other: Stop | None = None) -> None:
        self._own, self._other = threading.Event(), other

    def set(self) -> None:
        self._own.set()

    def is_set(self) -> bool:
        return self._own.is_set() or (self._other is not None and self._other.is_set())


class _AsyncTurn:
    """Whose turn a session and its branches have: calls of several tasks wait for it."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self._task: asyncio.Task[Any] | None = None
        self._text: Callable[[], AsyncGeneratedText | None] = lambda: None

    def begin(self, text: Callable[[], AsyncGeneratedText | None]) -> None:
        """The current task has begun a text."""
        self._task, self._text = asyncio.current_task(), text

    @property
    def own_text(self) -> AsyncGeneratedText | None:
        """What the current task has begun, and would wait for; None if it is being closed."""
        is_own = self.lock.locked() and self._task is asyncio.current_task()
        return self._text() if is_own else None


class AsyncGeneratedText(AsyncIterator[str]):
    """The pieces of a text, for `async for`; see `GeneratedText`."""

    def __init__(self, pieces: AsyncGenerator[str, None], text: list[GeneratedText]) -> None:
        self._pieces, self._text = pieces, text

    async def __anext__(self) -> str:
        return await self._pieces.__anext__()

    async def aclose(self) -> None:
        """Stop, if the text has not ended."""
        await self._pieces.aclose()

    async def __aenter__(self) -> AsyncGeneratedText:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    @property
    def token_ids(self) -> list[int]:
        """The tokens so far."""
        return self._text[0].token_ids if self._text else []

    @property
    def answer(self) -> Answer:
        """As `GeneratedText.answer`."""
        if not self._text:
            raise UsageError("the text has not begun", remedy="Iterate over it first.")
        return self._text[0].answer


class AsyncSession:
    """A session whose methods are coroutines; `Session` describes them.

    Calls of several tasks wait for each other, in their order.
    """

    def __init__(
        self, session: Session, executor: ThreadPoolExecutor, turn: _AsyncTurn | None = None
    ) -> None:
        self._session, self._executor = session, executor
        self._turn = turn or _AsyncTurn()

    @property
    def sync(self) -> Session:
        """The session itself, for what does not wait: tokens, text, encode, decode, generation."""
        return self._session

    @property
    def tokens(self) -> tuple[int, ...]:
        """As `Session.tokens`."""
        return self._session.tokens

    @property
    def text(self) -> str:
        """As `Session.text`."""
        return self._session.text

    @property
    def timings(self) -> Timings:
        """As `Session.timings`."""
        return self._session.timings

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
    ) -> AsyncGeneratedText:
        """As `Session.generate`."""
        event, text = _Event(stop), list[GeneratedText]()

        def begin() -> GeneratedText:
            return self._session.generate(
                prompt, max_new_tokens, append=append, temperature=temperature, top_k=top_k,
                top_p=top_p, min_p=min_p, repetition_penalty=repetition_penalty, seed=seed,
                stop=event,
            )  # fmt: skip

        references: list[Callable[[], AsyncGeneratedText | None]] = []
        found = AsyncGeneratedText(self._pieces(begin, event, text, references), text)
        references.append(weakref.ref(found))
        return found

    async def _pieces(
        self,
        begin: Callable[[], GeneratedText],
        event: _Event,
        text: list[GeneratedText],
        references: list[Callable[[], AsyncGeneratedText | None]],
    ) -> AsyncGenerator[str, None]:
        self._require_turn()
        async with self._turn.lock:
            self._turn.begin(references[0])
            begun = await _finished(self._executor, begin, event)
            text.append(begun)
            try:
                while (
                    piece := await _finished(self._executor, lambda: next(begun, None), event)
                ) is not None:
                    yield piece
            finally:
                await _finished(self._executor, begun.close, event)

    async def _call(self, work: Callable[[_Event], T]) -> T:
        event = _Event()
        self._require_turn()
        async with self._turn.lock:
            return await _finished(self._executor, lambda: work(event), event)

    def _require_turn(self) -> None:
        """Refuse a call for which its own task would wait for ever."""
        if self._turn.own_text is not None:
            raise SessionBusyError(
                "the session still generates a text that this task has begun",
                remedy="Iterate over the text to its end, or close it: await text.aclose()",
            )

    async def logits(self, prompt: Prompt, positions: int | None = None) -> NDArray[np.float32]:
        """As `Session.logits`."""
        return await self._call(lambda e: self._session.logits(prompt, positions, stop=e))

    async def score(self, prompt: Prompt, continuation: Prompt) -> ContinuationScore:
        """As `Session.score`."""
        return await self._call(lambda e: self._session.score(prompt, continuation, stop=e))

    async def rewind(self, tokens: int) -> None:
        """As `Session.rewind`."""
        await self._call(lambda _: self._session.rewind(tokens))

    async def fork(self) -> AsyncSession:
        """As `Session.fork`; calls of both wait for each other."""
        branch = await self._call(lambda _: self._session.fork())
        return AsyncSession(branch, self._executor, self._turn)

    async def save(self, path: str | Path | None = None) -> SavedState:
        """As `Session.save`."""
        return await self._call(lambda _: self._session.save(path))

    async def restore(self, state: SavedState) -> None:
        """As `Session.restore`."""
        await self._call(lambda _: self._session.restore(state))

    async def kv_cache(self, layer: int) -> KeyValues:
        """As `Session.kv_cache`."""
        return await self._call(lambda _: self._session.kv_cache(layer))

    async def run(
        self,
        inputs: Mapping[str, Any] | Sequence[Any] | NDArray[Any],
        method: str | None = None,
        *,
        allow_nan: bool = False,
    ) -> dict[str, Any]:
        """As `Session.run`."""
        return await self._call(lambda _: self._session.run(inputs, method, allow_nan=allow_nan))

    async def benchmark(self) -> RunRecord:
        """As `Session.benchmark`."""
        return await self._call(lambda _: self._session.benchmark())

    async def reopen(self) -> None:
        """As `Session.reopen`."""
        await self._call(lambda _: self._session.reopen())

    async def close(self) -> None:
        """As `Session.close`."""
        if (text := self._turn.own_text) is not None:
            await text.aclose()
        await self._call(lambda _: self._session.close())


class AsyncOpening:
    """A session that is being opened: `async with` it, or await it and close the session."""

    def __init__(self, start: Callable[[Owner, cancel.Flag], Session]) -> None:
        self._start = start
        self._session: AsyncSession | None = None

    async def _open(self) -> AsyncSession:
        executor = ThreadPoolExecutor(1, thread_name_prefix="etdeploy session")
        owner = Owner.current_task()
        flag = cancel.Flag(cancel.current())  # of the command line, if it opens the session

        def start() -> Session:
            with cancel.bound(flag):
                return self._start(owner, flag)

        session = await _finished(executor, start, flag, lambda opened: opened.close())
        self._session = AsyncSession(session, executor)
        return self._session

    def __await__(self) -> Generator[Any, None, AsyncSession]:
        return self._open().__await__()

    async def __aenter__(self) -> AsyncSession:
        return await self._open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._session:
            await self._session.close()


async def _finished(
    executor: ThreadPoolExecutor,
    work: Callable[[], T],
    stop: _Event | cancel.Flag,
    undo: Callable[[T], None] | None = None,
) -> T:
    """Do work in a thread; a cancelled task stops it, and waits for its end.

    `undo` is called with the result of work that ended well all the same.
    """
    future = asyncio.get_running_loop().run_in_executor(executor, work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        stop.set()
        while not future.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([future])
        if future.exception() is None and undo:
            undo(future.result())
        raise
