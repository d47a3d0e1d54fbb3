"""A language model on a device that is not there."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from etdeploy.devices.base import Bundle, Capabilities, DeviceState, Leftover, RunOutcome
from etdeploy.program.generation import Generation

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


class TalkingDevice:
    """A device whose runs end as they are told, one after another."""

    name = identity = "lab"

    def __init__(self, *endings: Ending, streams: bool = True) -> None:
        self.capabilities = Capabilities(streams=streams)
        self.endings = list(endings)
        self.given: list[dict[str, bytes]] = []
        self.arguments: list[tuple[str, ...]] = []
        self.open = False
        self._files: dict[str, bytes] = {}

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
        self._files[relative] = source.read_bytes()

    def stream(
        self, arguments: Sequence[str], timeout_s: float, on_line: Callable[[str], None]
    ) -> RunOutcome:
        assert timeout_s > 0
        self.arguments.append(tuple(arguments))
        self.given.append(dict(self._files))
        return self.endings.pop(0)(on_line, self._files)

    def pull(self, relative: str, to: Path) -> None:
        to.write_bytes(self._files[relative])
