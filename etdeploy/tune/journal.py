"""What a search has found out, in a file that is only appended to.

An event is safe once it is appended: after Ctrl-C, a kill, or a lost device, the same command reads
them and continues. Combinations are named by what they change, so a search with another objective,
other limits or further knobs uses what earlier ones measured. Everything else is in the name of the
folder: the recipe, the program of the recipe as it is, and the device.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from etdeploy.compare.model import Comparison
from etdeploy.core.values import Value

JOURNAL_FILE = "tune.jsonl"


class ProgramMade(Value):
    """An export with its build.

    Attributes:
        program: The changes that need it, as JSON.
        seconds: What it took.
        is_new: Whether it was exported, and not found in the cache.
        figures: What is known of it.
        has_high_loss: Whether etdeploy warns of what quantization costs.
        notes: Of the export.
    """

    kind: Literal["program"] = "program"
    program: str
    seconds: float
    is_new: bool
    figures: dict[str, float]
    has_high_loss: bool
    notes: tuple[str, ...] = ()


class ProgramFailed(Value):
    """An export or a build that failed."""

    kind: Literal["program failed"] = "program failed"
    program: str
    seconds: float
    reason: str


class MeasuredCandidate(Value):
    """A combination in a session.

    Attributes:
        candidate: Its changes, as JSON.
        series: What stands for each start, by metric, where there is more than one number.
        figures: All numbers; those of an earlier session are repeated where this one has none.
        record: The folder of the run record.
        outputs_differ: Which output is not the model's; empty if all are right.
    """

    candidate: str
    series: dict[str, tuple[float, ...]]
    figures: dict[str, float]
    record: str
    outputs_differ: str = ""


class SessionEnded(Value):
    """Combinations that were measured together.

    Attributes:
        phase: Why.
        failed: Those that failed on the device, with the reason.
        seconds: What it took, pushes included.
    """

    kind: Literal["session"] = "session"
    phase: str
    measured: tuple[MeasuredCandidate, ...]
    failed: dict[str, str] = {}
    seconds: float


class LayersFound(Value):
    """The first and the last layer with weights."""

    kind: Literal["layers"] = "layers"
    layers: tuple[str, ...]
    seconds: float


class Compared(Value):
    """Two combinations that were measured start by start at the end of a search.

    Attributes:
        a, b: Their changes, as JSON.
        comparison: B against A.
    """

    kind: Literal["compared"] = "compared"
    a: str
    b: str
    comparison: Comparison
    seconds: float


class TimeSpent(Value):
    """Time for something that gave no result: an interrupted session, a failed export."""

    kind: Literal["spent"] = "spent"
    what: str
    seconds: float


Event = ProgramMade | ProgramFailed | SessionEnded | LayersFound | Compared | TimeSpent
_EVENT: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="kind")])


@dataclass
class Found:
    """All events, by what they are about.

    Attributes:
        programs: Finished exports.
        failures: Why an export, or a combination on the device, failed.
        sessions: In the order of time.
        layers: None while they were not looked for.
        comparisons: By the two combinations.
        spent_s: All time that was used.
    """

    programs: dict[str, ProgramMade] = field(default_factory=dict)
    program_failures: dict[str, str] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    sessions: list[SessionEnded] = field(default_factory=list)
    layers: tuple[str, ...] | None = None
    comparisons: dict[tuple[str, str], Comparison] = field(default_factory=dict)
    spent_s: float = 0.0

    def add(self, event: Event) -> None:
        """Take an event in."""
        self.spent_s += event.seconds
        if isinstance(event, ProgramMade):
            self.programs[event.program] = event
            self.program_failures.pop(event.program, None)
        elif isinstance(event, ProgramFailed):
            self.program_failures[event.program] = event.reason
        elif isinstance(event, SessionEnded):
            self.sessions.append(event)
            self.failures |= event.failed
        elif isinstance(event, LayersFound):
            self.layers = event.layers
        elif isinstance(event, Compared):
            self.comparisons[event.a, event.b] = event.comparison

    @property
    def figures(self) -> dict[str, dict[str, float]]:
        """The numbers of each measured combination, those of later sessions over earlier ones."""
        found: dict[str, dict[str, float]] = {}
        for session in self.sessions:
            for each in session.measured:
                found[each.candidate] = {**found.get(each.candidate, {}), **each.figures}
        return found

    @property
    def wrong_outputs(self) -> Mapping[str, str]:
        """Which output of a combination is not the model's."""
        return {
            each.candidate: each.outputs_differ
            for session in self.sessions
            for each in session.measured
            if each.outputs_differ
        }

    @property
    def export_s(self) -> list[float]:
        """What exports took."""
        return [each.seconds for each in self.programs.values() if each.is_new]

    @property
    def measure_s(self) -> list[float]:
        """What a combination took in each session."""
        return [s.seconds / max(1, len(s.measured) + len(s.failed)) for s in self.sessions]


class Journal:
    """The file of one recipe on one device; its events are in `found`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / JOURNAL_FILE
        self.found = Found()
        self._read()

    def append(self, event: Event) -> None:
        """Write an event and wait for the disk."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as stream:
            stream.write(event.model_dump_json().encode() + b"\n")
            stream.flush()
            os.fsync(stream.fileno())
        self.found.add(event)

    def forget(self) -> None:
        """Begin anew."""
        self.path.unlink(missing_ok=True)
        self.found = Found()

    def _read(self) -> None:
        """Read the events; a last line that was not written whole is cut off."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return
        whole = content.rfind(b"\n") + 1
        if whole != len(content):
            with self.path.open("r+b") as stream:
                stream.truncate(whole)
        for line in content[:whole].splitlines():
            try:
                self.found.add(_EVENT.validate_python(json.loads(line)))
            except (ValueError, ValidationError):
                continue  # another release wrote it; what it says is measured again
