"""How much of each method's time is outside of delegates, from the traces of the profile pass."""

from __future__ import annotations

from pathlib import Path

from etdeploy.bench.records.generation import MethodTrace
from etdeploy.core.errors import RunError
from etdeploy.core.flatbuffer import CorruptError
from etdeploy.runner.etdump import Executed, read_executed
from etdeploy.runner.generation import GenerationResults, TracedCalls, trace_of


def traced_methods(results: GenerationResults, etdump: Path) -> tuple[MethodTrace, ...]:
    """Every method that a pass traced.

    Args:
        results: Of the pass.
        etdump: With which the paths of its traces begin (`trace_of`).

    Raises:
        RunError: A trace is damaged.
    """
    traced = results.generation.traced
    return tuple(_of(method, calls, etdump) for method, calls in traced.items())


def _of(method: str, calls: TracedCalls, etdump: Path) -> MethodTrace:
    executed = _executed(Path(trace_of(str(etdump), method)))
    return MethodTrace(
        method=method,
        calls=calls.calls,
        tokens=calls.tokens,
        position=calls.position,
        call_ms=executed.total_ms / max(1, executed.calls),
        outside_delegates=executed.outside,
    )


def _executed(path: Path) -> Executed:
    """The calls of a trace.

    Raises:
        RunError: It is damaged.
    """
    try:
        return read_executed(path.read_bytes())
    except CorruptError as error:
        raise RunError(
            f"the runner left a damaged trace: {error}",
            place=path.name,
            remedy="Try it again, or leave the trace out: --set benchmark.profile=false",
        ) from error
