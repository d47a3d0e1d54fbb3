"""Reads a trace with ExecuTorch's Inspector."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from executorch.devtools import Inspector
from executorch.devtools.etrecord import ETRecord

from etdeploy.profile.protocol import Trace, TraceEvent
from etdeploy.profile.worker.record import MethodRecord, UnreadableRecordError

# The method whose maps the Inspector reads, whichever method was traced.
_FORWARD = "forward"
# A call with its kernel and the runtime's own work; the kernel has an event of its own.
_CALL = "OPERATOR_CALL"


def read_trace(etdump: Path, record: MethodRecord | None) -> Trace:
    """All events of the inferences in a trace."""
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


def _light(record: MethodRecord) -> ETRecord:
    """An ETRecord of the traced method alone, with what the Inspector needs to find handles."""
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
