"""The worker: reads traces with ExecuTorch's Inspector; `start.py` begins it."""

from __future__ import annotations

import json
import re
import sys
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any
from zipfile import BadZipFile, ZipFile

from etdeploy.profile.protocol import (
    FAILURE_FILE,
    REQUEST_FILE,
    GraphNode,
    Trace,
    TraceEvent,
    TraceFailure,
    TraceRequest,
    TraceRequests,
    trace_file,
)

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


# Of an ETRecord only its maps and the graph without the weights are read. `parse_etrecord`
# deserializes all of it: that holds the model's weights twice in memory, and fails for every
# operator that is not registered in the process, such as the recipe's own. A graph is JSON in the
# record (torch.export's serialization), and of that only the nodes' metadata is of interest.
# The names in an ETRecord: executorch/devtools/etrecord/_etrecord.py
_IDENTIFIER = "ETRECORD_V0"
_GRAPH = "edge_dialect_exported_program"
_HANDLES = "debug_handle_map"
_DELEGATES = "delegate_map"
_OUTPUTS = "instruction_id_to_num_outs_map"
# How torch.export writes `nn_module_stack`: `key,path,class;key,path,class`.
_MODULE = re.compile(r"[^;,]*,([^;]*),([^;,]*)(?:;|$)")
_TWICE = re.compile(r"@\d+$")
_LOOP = re.compile(r"higher_order\.(map_impl|while_loop|scan)$")
_TARGET = re.compile(r"(?:^|\.)ops\.(\w+)\.(\w+)(?:\.\w+)?$")


class UnreadableRecordError(Exception):
    """A file that is damaged, or not what its name says."""

    def __init__(self, file: Path, message: str) -> None:
        super().__init__(message)
        self.file = file


@dataclass(frozen=True)
class MethodRecord:
    """An ETRecord's maps and graph for one method.

    Attributes:
        handles: Debug handles by instruction.
        delegates: Name and debug handles of its own by instruction; empty where it has none.
        outputs: Number of outputs by instruction.
        graph: Nodes by debug handle.
        loops: Whether the graph has loops.
    """

    handles: dict[str, Any]
    delegates: dict[str, Any]
    outputs: dict[str, Any]
    graph: dict[int, tuple[GraphNode, ...]]
    loops: bool = False


def read_record(path: Path, method: str) -> MethodRecord:
    """Reads the part of an ETRecord that is about one method."""
    try:
        with ZipFile(path) as record:
            names = set(record.namelist())
            if _IDENTIFIER not in names:
                raise UnreadableRecordError(path, "this is not an ETRecord")
            graph = next((n for n in (f"{_GRAPH}/{method}", _GRAPH) if n in names), None)
            maps = [_map(record, name, names) for name in (_HANDLES, _DELEGATES, _OUTPUTS)]
            if graph is None or method not in maps[0]:
                raise UnreadableRecordError(path, f"the ETRecord does not have the method {method}")
            nodes = json.loads(record.read(graph))["graph_module"]["graph"]["nodes"]
            handles, delegates, outputs = (each.get(method) or {} for each in maps)
            loops = any(_LOOP.search(node["target"]) for node in nodes)
            return MethodRecord(handles, delegates, outputs, _graph(nodes), loops)
    except (BadZipFile, EOFError, OSError, NotImplementedError) as error:
        raise UnreadableRecordError(path, f"the ETRecord is damaged: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnreadableRecordError(path, f"the ETRecord cannot be read: {error!r}") from error


def _map(record: ZipFile, name: str, names: set[str]) -> dict[str, Any]:
    content = json.loads(record.read(name)) if name in names else {}
    return content if isinstance(content, dict) else {}


def _graph(nodes: list[dict[str, Any]]) -> dict[int, tuple[GraphNode, ...]]:
    found: dict[int, list[GraphNode]] = {}
    for node in nodes:
        metadata, target = node["metadata"], _TARGET.search(node["target"])
        if not target:
            continue
        each = GraphNode(
            op=f"{target[1]}::{target[2]}",
            modules=_modules(metadata.get("nn_module_stack", "")),
            source=model_line(metadata.get("stack_trace", "")),
        )
        for handle in re.findall(r"\d+", metadata.get("debug_handle", "")):
            found.setdefault(int(handle), []).append(each)
    return {handle: tuple(each) for handle, each in found.items()}


def _modules(stack: str) -> tuple[tuple[str, str], ...]:
    # A module that is called again has `@1` after its path.
    return tuple((_TWICE.sub("", path), kind) for path, kind in _MODULE.findall(stack))


_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_INSTALLED = re.compile(r".*/(?:site|dist)-packages/(.+)")
_STANDARD_LIBRARY = re.compile(r"/python3(?:\.\d+)?/(?!(?:site|dist)-packages/)")
# Their frames are not the model's: `torch.nn.Linear.forward` is every model's.
_TOOLS = ("torch", "torchao", "executorch")


def model_line(stack: str) -> str:
    """`file:line` of the innermost frame that is the model's code; empty where there is none.

    Of an installed package the path begins with its name; of other files the name alone is given,
    since a profile goes wherever a record goes.
    """
    for file, line in reversed(_FRAME.findall(stack)):
        installed = _INSTALLED.fullmatch(file)
        if installed and installed[1].split("/")[0] not in _TOOLS:
            return f"{installed[1]}:{line}"
        if not installed and not file.startswith("<") and not _STANDARD_LIBRARY.search(file):
            return f"{PurePosixPath(file).name}:{line}"
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
