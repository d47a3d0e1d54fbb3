"""The worker: reads traces with ExecuTorch's Inspector; `start.py` begins it."""

from __future__ import annotations

import sys
import traceback
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from etdeploy.profile.protocol import (
    FAILURE_FILE,
    REQUEST_FILE,
    Trace,
    TraceEvent,
    TraceFailure,
    TraceRequest,
    TraceRequests,
    trace_file,
)
from etdeploy.profile.worker.record import MethodRecord, UnreadableRecordError, read_record

# The method whose maps the Inspector reads, whichever method was traced.
_FORWARD = "forward"
# A call with its kernel and the runtime's own work; the kernel has an event of its own.
_CALL = "OPERATOR_CALL"


def main(arguments: list[str]) -> int:
    """Reads the files that `request.json` names; a failure is described in `failure.json`."""
    folder = Path(arguments[0])
    # Warnings of the libraries are not about the user's files; they belong in the log.
    warnings.simplefilter("default")
    requests = TraceRequests.load(folder / REQUEST_FILE).requests
    try:
        # Before the seconds that the Inspector's imports take.
        records = [_record(each) for each in requests]
        for number, (request, record) in enumerate(zip(requests, records, strict=True)):
            _read_trace(Path(request.etdump), record).save(folder / trace_file(number))
    except UnreadableRecordError as error:
        traceback.print_exc()
        TraceFailure(file=str(error.file), message=str(error)).save(folder / FAILURE_FILE)
        return 1
    return 0


def _record(request: TraceRequest) -> MethodRecord | None:
    return read_record(Path(request.etrecord), request.method) if request.etrecord else None


def _read_trace(etdump: Path, record: MethodRecord | None) -> Trace:
    """All events of the inferences in a trace."""
    from executorch.devtools import Inspector

    try:
        inspector = Inspector(etdump_path=str(etdump), etrecord=_light(record) if record else None)
    except Exception as error:  # of flatc, of json, of the Inspector's own checks
        raise UnreadableRecordError(etdump, f"the trace cannot be read: {error!r}") from error
    blocks = (
        tuple(_event(event) for event in block.events if event.perf_data and event.name != _CALL)
        for block in inspector.event_blocks
    )
    return Trace(
        blocks=tuple(block for block in blocks if block),
        graph=record.graph if record else None,
        loops=bool(record and record.loops),
    )


def _light(record: MethodRecord) -> Any:
    """An ETRecord of the traced method alone, with what the Inspector needs to find handles."""
    import torch
    from executorch.devtools.etrecord import ETRecord

    empty: Any = SimpleNamespace(graph_module=torch.fx.GraphModule({}, torch.fx.Graph()))
    return ETRecord(
        edge_dialect_program=empty,
        _debug_handle_map={_FORWARD: record.handles},
        _delegate_map={_FORWARD: record.delegates},
        _instruction_id_to_num_outs_map={_FORWARD: record.outputs},
    )


def _event(event: Any) -> TraceEvent:
    handles = event.debug_handles
    return TraceEvent(
        name=event.name,
        instruction=event._instruction_id,
        inner=bool(event.is_delegated_op),
        backend=event.delegate_backend_name or "",
        handles=(handles,) if isinstance(handles, int) else tuple(handles or ()),
        starts_ns=tuple(event.start_time or ()),
        durations_ms=tuple(event.perf_data.raw),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
