"""What the export step and its worker process exchange.

The worker gets the path of a spec and a folder to fill. Beside the spec it leaves `sources.json`,
the files that the model was made from, or `failure.json`. Lines of its output that start with
`::progress` report its progress; everything else is for the log.
"""

from __future__ import annotations

from typing import Literal

from etdeploy.core.values import Value
from etdeploy.program.folder import TensorFile
from etdeploy.program.task import TaskResult

SPEC_FILE = "spec.json"
SOURCES_FILE = "sources.json"
FAILURE_FILE = "failure.json"
PROGRESS_PREFIX = "::progress"

FailureKind = Literal[
    "custom-ops",
    "factory-missing",
    "factory-raised",
    "factory-result",
    "arguments",
    "inputs",
    "sizes",
    "outputs",
    "model-raised",
    "weights",
    "exported-file",
    "hub",
    "checkpoint",
    "speech",
    "evaluation",
    "calibration",
    "quantization",
    "dynamic-shapes",
    "data-dependent",
    "trace",
    "operator",
    "lowering",
    "memory",
    "write",
]


class ExportFailure(Value):
    """Why the worker gave up, for the user.

    Attributes:
        kind: What sort of failure.
        message: What happened, in a sentence or two.
        method: The one that it is about, of a program with several.
        operator: The operator that cannot be exported or lowered.
        file, line: The user's own line.
        code: The text of that line.
        remedy: What to do.
    """

    kind: FailureKind
    message: str
    method: str | None = None
    operator: str | None = None
    file: str | None = None
    line: int | None = None
    code: str | None = None
    remedy: str | None = None


class ModelSources(Value):
    """What the model was made from, as the worker saw it.

    Attributes:
        files: SHA-256 of each file by absolute path: imported modules of the user, and files that
            the user's code opened for reading.
        distributions: Version of each installed distribution that the user's code imported.
        commit: Of a language model from the Hugging Face hub.
        program: The finished program that is taken, where the hub has it.
    """

    files: dict[str, str] = {}
    commit: str | None = None
    program: str | None = None
    distributions: dict[str, str] = {}


class TaskRequest(Value):
    """Outputs of a task from which the worker reads a result, without the model.

    Attributes:
        program: The program folder, with `processor/`.
        outputs: Files with absolute paths, in the order of the program's outputs.
        file: Path, without a suffix, of an image or a WAV file that belongs to the result.
    """

    program: str
    outputs: tuple[TensorFile, ...]
    file: str


class TaskAnswer(Value):
    """The worker's answer: a result, or the failure."""

    result: TaskResult | None = None
    failure: ExportFailure | None = None


def progress_line(text: str, fraction: float) -> str:
    """The line for a step that begins when `fraction` of the work is done."""
    return f"{PROGRESS_PREFIX} {fraction:.2f} {text}"


def parse_progress(line: str) -> tuple[str, float] | None:
    """Text and completed fraction of a progress line; None for any other line."""
    parts = line.split(" ", 2)
    if len(parts) != 3 or parts[0] != PROGRESS_PREFIX:
        return None
    try:
        return parts[2], min(max(float(parts[1]), 0.0), 1.0)
    except ValueError:
        return None
