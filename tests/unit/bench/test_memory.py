"""The memory pass of a record, from what a runner reads."""

from __future__ import annotations

import pytest

from etdeploy.bench.assemble import make_memory
from etdeploy.bench.records.performance import WeightsKind
from etdeploy.program.model import Delegate, Method, Program
from etdeploy.runner.protocol import MemoryState, RunnerMemory, RunnerResults

_MB = 1_000_000
_METHOD = Method(
    name="forward",
    inputs=(),
    outputs=(),
    operators=(),
    delegates=(Delegate(backend_id="A", size_bytes=15 * _MB),),
    instructions=1,
    planned_memory_bytes=4096,
)
_PROGRAM = Program(
    sha256="", size_bytes=21 * _MB, schema_version=0, constant_bytes=5 * _MB, methods=(_METHOD,)
)


def _results(memory: RunnerMemory | None, peak: int = 32 * _MB) -> RunnerResults:
    return RunnerResults(
        schema_version=1,
        executorch_version="1",
        method="forward",
        started_unix_s=0,
        threads=1,
        warmup=0,
        load_program_ms=1,
        load_method_ms=1,
        rss_after_load_bytes=0,
        first_inference_ms=1,
        outputs=(),
        peak_rss_bytes=peak,
        samples_ms=(1,),
        memory=memory,
    )


def _read(copied: int | None, resident: int | None) -> RunnerMemory:
    allocated = None if copied is None else _MB + copied
    return RunnerMemory(
        before_load=MemoryState(rss_bytes=4 * _MB, pss_bytes=None, anonymous_bytes=_MB),
        after_load=MemoryState(rss_bytes=20 * _MB, pss_bytes=None, anonymous_bytes=allocated),
        peak_pss_bytes=27 * _MB,
        peak_footprint_bytes=None,
        program_resident_bytes=resident,
        points=((0.0, 4 * _MB, None), (0.01, 20 * _MB, 18 * _MB)),
    )


@pytest.mark.parametrize(
    ("copied", "resident", "kind"),
    [
        (20 * _MB, 4096, WeightsKind.LOADED),
        (10 * _MB, 4096, WeightsKind.LOADED),
        (0, 20 * _MB, WeightsKind.MAPPED),
        (100_000, 5 * _MB, WeightsKind.MAPPED),
        (15 * _MB, 5 * _MB, WeightsKind.BOTH),
        (0, 4096, None),
        (None, 4096, None),
        (0, None, None),
    ],
    ids=[
        "packed", "packed into half", "used in the file", "rows of an embedding",
        "a delegate and constants", "on an accelerator", "not reported", "no maps",
    ],
)  # fmt: skip
def test_where_the_weights_are(
    copied: int | None, resident: int | None, kind: WeightsKind | None
) -> None:
    assert make_memory(_results(_read(copied, resident)), _PROGRAM, _METHOD).weights == kind


def test_planned_memory_is_no_copy_of_weights() -> None:
    method = _METHOD.model_copy(update={"planned_memory_bytes": 18 * _MB})
    memory = make_memory(_results(_read(19 * _MB, 20 * _MB)), _PROGRAM, method)
    assert memory.weights == WeightsKind.MAPPED


def test_nothing_is_said_of_few_weights() -> None:
    method = _METHOD.model_copy(update={"delegates": ()})
    program = _PROGRAM.model_copy(update={"constant_bytes": 1000})
    assert make_memory(_results(_read(20 * _MB, 4096)), program, method).weights is None


def test_a_system_that_reports_nothing() -> None:
    memory = make_memory(_results(None, peak=0), _PROGRAM, _METHOD)
    assert memory.peak_rss_bytes is None
    assert (memory.planned_bytes, memory.weights, memory.points) == (4096, None, ())
