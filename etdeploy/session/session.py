"""A program on a device, as a value of Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

from etdeploy.core.errors import (
    DeviceError,
    EtdeployError,
    UsageError,
)
from etdeploy.session.arrays import find_method, prepare_inputs, read_outputs
from etdeploy.session.language import LanguageSession
from etdeploy.session.text import (
    Timings,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from etdeploy.bench.records.record import RunRecord


class Session(LanguageSession):
    """A program on a device: a language model with one text, or methods that are called.

    `etdeploy.open` makes it; it is closed with its block, or by `close`. It has the device until
    then: others wait. It is for one thread at a time, and says so otherwise.

    Every method raises DeviceLostError when the device goes away, RunError when the runner fails
    there, and UsageError for what the program cannot do.
    """

    def fork(self) -> Session:
        """Return a session with the same text, on the same process.

        Both go on independently. Before one replaces the keys and values of the other, these are
        saved on the device, so that nothing is computed again.
        """
        with self._turn("fork", self._tokens, own=True):
            return Session(self._connection, self, self._tokens)

    def run(
        self,
        inputs: Mapping[str, Any] | Sequence[Any] | NDArray[Any],
        method: str | None = None,
        *,
        allow_nan: bool = False,
    ) -> dict[str, Any]:
        """Call a method of a program that generates no text.

        Args:
            inputs: Arrays by name, or in the method's order; one alone may be itself. Each has the
                dtype and shape of the program, or a smaller one where sizes are dynamic.
            method: By default that of the recipe.
            allow_nan: Whether inputs may have NaN.

        Returns:
            The outputs by name: arrays, and numbers as they are.

        Raises:
            UsageError: A name, dtype or shape is not the method's, or a value is NaN.
        """
        self._require_open()
        program = self._program
        if program.generator is not None:
            raise UsageError(
                "the program generates text", remedy="Use session.generate or session.logits."
            )
        if self._connection.methods is None:
            raise self._cannot_converse()
        default = program.run.recipe.benchmark.method or program.provenance.method
        called = find_method(program.program, method, default)
        stored, files = prepare_inputs(called, program.provenance, inputs, allow_nan=allow_nan)
        with self._connection.used("run"), self._connection.device_errors():
            call = self._connection.methods.call(called.name, stored, files)
            self._timings = Timings(self._connection.load_ms, run_ms=call.results.run_ms)
            return read_outputs(call, called, program.provenance)

    def benchmark(self) -> RunRecord:
        """Measure the recipe on the device, as `etdeploy run` does, and return the run record.

        The program is unloaded meanwhile; the session's text and its keys and values come back.
        """
        from etdeploy.graph.invocation import run_recipe
        from etdeploy.graph.job import StepName
        from etdeploy.graph.on_device import load_last_run

        self._require_open()
        self._require_whole("benchmark")
        state = self.save() if self._tokens and self._connection.cache else None

        def measure() -> RunRecord:
            named = replace(self._connection.named, measure_again=True)
            with run_recipe(named, StepName.BENCH) as job:
                return load_last_run(job).record

        with self._connection.used("benchmark"):
            self._connection.close()
            try:
                record = self._connection.apart(measure)
            finally:
                self._connection.open()
        if state:
            self.restore(state)
        return record

    def reopen(self) -> None:
        """Connect again after the device was lost or the runner ended, and go on with the text.

        What is missing on the device is pushed again. Keys and values are those of the last saved
        state, as far as the text begins like it; the rest is computed with the next call.
        """
        self._require_open()
        self._require_whole("reopen")
        with self._connection.used("reopen"):
            with suppress(EtdeployError, OSError):
                self._connection.close()
            self._connection.open()
            cache, state = self._connection.cache, self._state
            if (
                cache
                and state
                and state.snapshot.reused((*self._tokens, 0), self.generation.rewind)
            ):
                with self._connection.device_errors():
                    cache.restore(self._branch, state.snapshot)

    def close(self) -> None:
        """Give the device back; of a branch, only the branch ends.

        A text that is being generated is stopped.
        """
        if self._is_closed:
            return
        self._connection.close_text()
        self._connection.require_idle("close")
        self._is_closed = True
        if self._parent is None:
            with suppress(DeviceError):  # what is lost needs no end
                self._connection.close()
        elif self._connection.is_open and self._connection.cache:
            with suppress(EtdeployError):
                self._connection.cache.remove(self._branch)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _require_whole(self, what: str) -> None:
        if self._parent is not None:
            raise UsageError(
                f"{what} is for the session that was opened, not for its branches",
                remedy="Call it on the session that fork() was called on.",
            )
