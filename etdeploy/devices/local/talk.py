"""A program on this machine that is talked with."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from etdeploy.core.processes import process
from etdeploy.core.processes.conversation import Conversation
from etdeploy.devices.base import RunOutcome
from etdeploy.devices.shell import Received

_READ = 1 << 16
# A program whose output has ended is about to end, or to be ended.
_END_S = 3.0

Ended = Callable[[int, str, float], RunOutcome]


class LocalTalk:
    """The lines of a process.

    Args:
        conversation: With it.
        outcome: Of its exit code, negative for a signal, its stderr and the seconds that it took.
    """

    def __init__(self, conversation: Conversation, outcome: Ended) -> None:
        self._conversation = conversation
        self._outcome = outcome
        self._began = time.monotonic()
        self._received = Received()
        self._has_ended = False

    def say(self, line: str) -> None:
        self._conversation.say(f"{line}\n".encode())

    def hear(self, wait_s: float) -> str | None:
        while (line := self._received.line()) is None and not self._has_ended:
            part = self._conversation.read(_READ, wait_s)
            self._has_ended = not part
            self._received.add(part)
        return self._received.rest() if line is None else line

    def end(self) -> RunOutcome:
        seconds = time.monotonic() - self._began
        try:
            # One that still prints is ended with the block.
            code = self._conversation.ended(_END_S if self._has_ended else 0)
        except TimeoutError:
            said = self._conversation.errors()
            return RunOutcome(None, None, "", said, seconds, timed_out=True)
        return self._outcome(code, self._conversation.errors(), seconds)


@contextmanager
def talking(request: process.Request, outcome: Ended) -> Iterator[LocalTalk]:
    """Starts a process to talk with, and ends it with the block.

    Args:
        request: The process.
        outcome: As LocalTalk takes it.

    Raises:
        OSError: It cannot be started.
    """
    with process.talking(request) as conversation:
        yield LocalTalk(conversation, outcome)
