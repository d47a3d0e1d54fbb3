"""Answers a request to replay the graph of a program folder with the outputs of a device."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch.fx import Node

from etdeploy.backends.rewrites import LINEARS
from etdeploy.export.diff import (
    GRAPH_FILE,
    NODES_FILE,
    ModelNode,
    ObservedGraph,
    Replay,
    ReplayRequest,
)
from etdeploy.export.protocol import progress_line
from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.diff.instrument import (
    bound_constants,
    is_dequantization,
    is_quantization,
    located,
)
from etdeploy.export.worker.diff.replay import ObservedValue, Replayed, is_undefined
from etdeploy.export.worker.failures import fail, failure_of
from etdeploy.export.worker.loading.paths import add_user_folder, pin_installed
from etdeploy.export.worker.loading.source import prepare
from etdeploy.export.worker.loading.user_code import run_user_files
from etdeploy.program.folder import TensorFile
from etdeploy.program.model import PlainValue

# What schemes compute values of 32 bits in.
_COMPUTED_IN = {"fp16": torch.float16}
# Of all values: below, one thread evaluates the graph.
_SMALL_BYTES = 64 << 20


def read_replay(request: ReplayRequest, tell: Callable[[str, float], None]) -> Replay:
    """Replays a program folder's graph with the outputs of a device."""
    tell("importing ExecuTorch", 0.0)
    add_user_folder(Path.cwd())
    pin_installed()
    run_user_files(request.spec)
    import executorch.exir  # noqa: F401 - registers the operators of quantized graphs

    if request.spec.generation:  # those of language models
        import etdeploy.export.worker.language.attention
        import etdeploy.export.worker.language.experts
    if LINEARS in request.spec.rewrites:
        import etdeploy.export.worker.lowering.linear_kernel  # noqa: F401

    prepare(request.spec)
    folder = Path(request.folder)
    graph = ObservedGraph.load(folder / NODES_FILE)
    tell("reading the graph", 0.05)
    program = torch.export.load(folder / GRAPH_FILE)
    given = {**bound_constants(program), **_inputs(program, folder, request)}
    observed, missing = _observed(program, graph, request.outputs)
    dtype = _COMPUTED_IN.get(str(request.spec.quantization))
    if sum(node.size_bytes for node in graph.nodes) < _SMALL_BYTES:
        torch.set_num_threads(1)  # small operators lose more by waiting for threads
    replayed = Replayed(program, given, observed, len(graph.outputs) - graph.added, dtype)
    replayed.run(lambda text, share: tell(text, 0.1 + 0.9 * share))
    undefined = replayed.undefined
    names = {node.name: node for node in (*graph.nodes, *filter(None, graph.outputs))}
    return Replay(
        errors=tuple(replayed.errors),
        random=tuple(_named(request.spec, node, names) for node in replayed.random),
        undefined=_named(request.spec, undefined, names) if undefined else None,
        undefined_inputs=tuple(_undefined_inputs(folder, request)),
        missing=tuple(missing),
    )


def _named(spec: ExportSpec, node: Node, names: Mapping[str, ModelNode]) -> ModelNode:
    return names.get(node.name) or located(spec, node)


def _undefined_inputs(folder: Path, request: ReplayRequest) -> Iterator[str]:
    for each in request.inputs:
        if isinstance(each, TensorFile) and is_undefined(_tensor(folder, each)):
            yield each.name


def _inputs(
    program: torch.export.ExportedProgram, folder: Path, request: ReplayRequest
) -> dict[str, Any]:
    names = [str(name) for name in program.graph_signature.user_inputs]
    placeholders = [n for n in program.graph.nodes if n.op == "placeholder"]
    own = [n.name for n in placeholders if n.name not in bound_constants(program)]
    if len(own) == len(request.inputs):
        names = own
    values = [
        each.value if isinstance(each, PlainValue) else _tensor(folder, each)
        for each in request.inputs
    ]
    return dict(zip(names, values, strict=False))


def _tensor(folder: Path, file: TensorFile) -> torch.Tensor:
    """A tensor of raw bytes; an absolute path is not in the folder."""
    data = bytearray((folder / file.path).read_bytes())
    dtype: torch.dtype = getattr(torch, file.dtype)
    if len(data) != prod(file.shape) * dtype.itemsize:
        raise fail("outputs", f"{Path(file.path).name} has {len(data)} bytes, for {file.dtype} "
                   f"{list(file.shape)}")  # fmt: skip
    if not data:
        return torch.empty(file.shape, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype).reshape(file.shape)


def _observed(
    program: torch.export.ExportedProgram,
    graph: ObservedGraph,
    outputs: Sequence[TensorFile | None],
) -> tuple[dict[Node, ObservedValue], list[str]]:
    nodes = {node.name: node for node in program.graph.nodes}
    found: dict[Node, ObservedValue] = {}
    missing = []
    for place, name in enumerate(program.graph_signature.user_outputs):
        described = graph.outputs[place]
        if described is None:
            continue
        at = nodes[str(name)]
        source = at.args[0] if is_dequantization(at) else None
        at = source if isinstance(source, Node) and is_quantization(source) else at
        file = outputs[place] if place < len(outputs) else None
        expected = at.meta["val"]
        if file is None or tuple(file.shape) != tuple(expected.shape):
            missing.append(described.name)
            continue
        found.setdefault(at, ObservedValue(described, at, _tensor(Path(), file)))
    return found, missing


def _tell(text: str, share: float) -> None:
    os.write(1, f"{progress_line(text, share)}\n".encode())


def answer(request_file: str, answer_file: str) -> int:
    """Writes the answer to a request; a failure is described in it."""
    try:
        result = read_replay(ReplayRequest.load(Path(request_file)), _tell)
        result.save(Path(answer_file))
    except Exception as error:
        traceback.print_exc()
        Replay(failure=failure_of(error)).save(Path(answer_file))
        return 1
    return 0
