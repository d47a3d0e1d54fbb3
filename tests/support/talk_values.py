"""A language model on a device that is not there."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from etdeploy.bench.chat_process import ChatProcess
from etdeploy.bench.text_generator import GenerationOutput, open_generator
from etdeploy.core import cancel
from etdeploy.core.errors import Interrupted
from etdeploy.core.values import Stop
from etdeploy.devices.base import (
    Bundle,
    Capabilities,
    Device,
    DeviceState,
    Leftover,
    ProcessLaunch,
    RunOutcome,
)
from etdeploy.graph.options import JobOptions
from etdeploy.program.folder import Provenance
from etdeploy.program.generation import Generation
from etdeploy.program.model import EMPTY_PROGRAM
from etdeploy.program.tokenizer import Tokenizer
from etdeploy.recipe.model import Recipe
from etdeploy.runner.generation import Sampling
from etdeploy.session.connection import SessionConnection
from etdeploy.session.opening import OpenProgram, Owner
from etdeploy.session.session import Session
from tests.support.runtime_values import make_recipe

STOP = 260
GENERATION = Generation(
    methods=(), vocabulary=300, context=64, stop_ids=(STOP,), tokenizer="tokenizer", model="m",
    path="plain", path_reason="a test",
)  # fmt: skip
# How a run ends, from the lines that it printed and what it was given.
Ending = Callable[[Callable[[str], None], dict[str, bytes]], RunOutcome]


def printing(tokens: Sequence[int], *, stopped: bool = False, lines: Sequence[str] = ()) -> Ending:
    """A run that generates these tokens: 10 ms for the first, 2 ms for each further one."""

    def end(on_line: Callable[[str], None], files: dict[str, bytes]) -> RunOutcome:
        for line in lines or [str(token) for token in tokens]:
            on_line(line)
        run = {
            "point": "prompt", "prefill_ms": [9.0], "first_token_ms": 10.0,
            "token_ms": [2.0] * (len(tokens) - 1), "token_ids": list(tokens), "stopped": stopped,
        }  # fmt: skip
        files["results.json"] = json.dumps(
            {
                "schema_version": 1, "executorch_version": "1.5.1", "started_unix_s": 0,
                "threads": 1, "load_program_ms": 1.0, "rss_after_load_bytes": 1,
                "peak_rss_bytes": 1,
                "generation": {"load_methods_ms": {"decode": 1.0}, "runs": [run]},
            }
        ).encode()  # fmt: skip
        return RunOutcome(0, None, "", "", 0.1)

    return end


class ListeningTalk:
    """A runner that listens, and answers as it is told.

    Args:
        answers: The lines of each answer; what is called instead happens before the next line.
        outcome: How it ends once it has no answer left.
    """

    def __init__(self, answers: Sequence[Sequence[str | Callable[[], None]]], outcome: RunOutcome):
        self.said: list[str] = []
        self.writes = 0
        self.closed = False
        self._answers = [list(answer) for answer in answers]
        self._lines: list[str | Callable[[], None]] = ["ready"]
        self._outcome = outcome

    def write_line(self, line: str) -> None:
        self.writes += 1
        for each in line.split("\n"):
            self.said.append(each)
            if each == "stop":
                self._lines = ["end stop"]
            elif self._answers:
                self._lines = self._answers.pop(0)

    def read_line(self, wait_s: float) -> str | None:
        assert wait_s >= 0
        while self._lines:
            line = self._lines.pop(0)
            if isinstance(line, str):
                return line
            line()
        return None

    def end(self) -> RunOutcome:
        return self._outcome


def told(tokens: Sequence[int], taken: Sequence[int] = (1,), why: str = "stop_token") -> list[str]:
    """The lines of an answer: 10 ms for the first token, 2 ms for each further one."""
    times = [10, *[2] * (len(tokens) - 1)]
    return [
        *(f"taken {number}" for number in taken),
        *(f"token {token} {ms * 1_000_000}" for token, ms in zip(tokens, times, strict=True)),
        f"end {why}",
    ]


class TalkingDevice:
    """A device whose runs end as they are told, one after another."""

    name = identity = "lab"

    def __init__(
        self, *endings: Ending, streams: bool = True, talks: Sequence[ListeningTalk] = ()
    ) -> None:
        self.capabilities = Capabilities(streams=streams, converses=bool(talks))
        self.endings = list(endings)
        self.talks = list(talks)
        self.given: list[dict[str, bytes]] = []
        self.arguments: list[tuple[str, ...]] = []
        self.open = False
        self.files: dict[str, bytes] = {}

    @property
    def prompts(self) -> list[tuple[int, ...]]:
        """The token ids that each run was given."""
        contents = [files["prompt.bin"] for files in self.given]
        return [struct.unpack(f"<{len(content) // 8}q", content) for content in contents]

    def state(self) -> DeviceState:
        return DeviceState()

    def end_leftovers(self) -> tuple[Leftover, ...]:
        return ()

    @contextmanager
    def open_run(self, bundle: Bundle, run_id: str) -> Iterator[Any]:
        assert bundle
        assert run_id
        self.open = True
        try:
            yield self
        finally:
            self.open = False

    def put(self, source: Path, relative: str) -> None:
        self.files[relative] = source.read_bytes()

    def stream(
        self, arguments: Sequence[str], timeout_s: float, on_line: Callable[[str], None]
    ) -> RunOutcome:
        assert timeout_s > 0
        self.arguments.append(tuple(arguments))
        self.given.append(dict(self.files))
        return self.endings.pop(0)(on_line, self.files)

    @contextmanager
    def converse(self, arguments: Sequence[str]) -> Iterator[ListeningTalk]:
        self.arguments.append(tuple(arguments))
        self.given.append(dict(self.files))
        talk = self.talks.pop(0)
        try:
            yield talk
        finally:
            talk.closed = True

    def pull(self, relative: str, to: Path) -> None:
        to.write_bytes(self.files[relative])


@contextmanager
def opened_session(
    device: TalkingDevice,
    folder: Path,
    *,
    generation: Generation = GENERATION,
    tokenizer: Tokenizer | None = None,
    recipe: Recipe | None = None,
) -> Iterator[Session]:
    """A session of a language model on such a device."""
    named = JobOptions(("talk",), devices=(device.name,))
    connection = SessionConnection(named, Owner.current_thread(), cancel.current(), apart=False)
    bundle = Bundle(files=(), launch=ProcessLaunch(argv=("runner",)))
    with open_generator(
        cast(Device, device), bundle, generation, recipe or make_recipe(), folder / "log"
    ) as generator:
        made = Provenance(source="m", generation=generation)
        connection.use(OpenProgram(generator, EMPTY_PROGRAM, made, folder, "abc", None, tokenizer))
        with Session(connection) as session:
            yield session


def answered(
    chat: ChatProcess,
    prompt: Sequence[int],
    new_tokens: int,
    sampling: Sampling,
    on_token: Callable[[int], None],
    stop: Stop | None = None,
) -> GenerationOutput:
    """The whole answer of a process that listens; raises Interrupted if it was stopped."""
    tokens = chat.stream(prompt, new_tokens, sampling, stop)
    while True:
        try:
            on_token(next(tokens).id)
        except StopIteration as end:
            output: GenerationOutput = end.value
            break
    if output.interrupted:
        raise Interrupted
    return output
