"""A program that generates no text, loaded once; its methods are called one after the other."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from etdeploy.bench.program_run import PROGRAM, IdleExitError, ListeningProcess
from etdeploy.core.errors import RunError
from etdeploy.core.values import Value
from etdeploy.program.folder import Stored
from etdeploy.runner.generation import READY
from etdeploy.runner.protocol import RunnerOutput, inputs_list

_INPUTS, _OUTPUTS = "inputs.txt", "outputs"


class MethodResults(Value):
    """outputs.json of a call.

    Attributes:
        load_ms: Time of loading the method; 0 if it was loaded.
        run_ms: Time of the call.
        outputs: In the method's order; paths are relative to their folder.
    """

    load_ms: float
    run_ms: float
    outputs: tuple[RunnerOutput, ...]


@dataclass(frozen=True)
class MethodCall:
    """What a call gave; `folder` has the files of the outputs until the next call."""

    folder: Path
    results: MethodResults


class MethodProcess(ListeningProcess):
    """A runner that calls methods."""

    def _arguments(self) -> tuple[str, ...]:
        return (
            "--program", PROGRAM, "--threads", str(self._run.threads),
            "--listen", str(self._idle_timeout_s),
        )  # fmt: skip

    def call(
        self, method: str, inputs: tuple[Stored, ...], files: Mapping[str, bytes]
    ) -> MethodCall:
        """Call a method.

        Args:
            method: Its name.
            inputs: All of them; tensors with paths among `files`.
            files: Contents of the tensors, contiguous.

        Raises:
            RunError: The runner refuses the inputs, or fails.
            DeviceError: The device went away.
        """
        for name, content in files.items():
            self._run.put(name, content)
        self._run.put(_INPUTS, inputs_list(inputs))
        line = f"run {method} {_INPUTS} {_OUTPUTS}"
        try:
            self._request(line, READY)
        except IdleExitError:
            self._request(line, READY)
        folder = self._run.here / _OUTPUTS
        self._run.folder.pull(_OUTPUTS, folder)
        return MethodCall(folder, _load(folder / "outputs.json"))


def _load(path: Path) -> MethodResults:
    try:
        return MethodResults.model_validate(json.loads(path.read_text()))
    except (OSError, ValueError, ValidationError) as error:
        raise RunError(f"the runner's results cannot be read: {error}", place=str(path)) from error
