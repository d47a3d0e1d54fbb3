"""From traced methods to a `.pte`, through the backend's own lowering."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from etdeploy.backends.registry import release_of
from etdeploy.export.needs import may_replace_parts
from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.backends.base import Traced, lowering_of
from etdeploy.export.worker.failures import fail
from etdeploy.export.worker.lowering.lower_failures import explain_errors
from etdeploy.program.generation import ENCODER


def lower(spec: ExportSpec, methods: Mapping[str, Traced]) -> Any:
    """Hands the traced methods to the backend; an `EdgeProgramManager` with an ETRecord."""
    release = release_of(str(spec.backend))
    whose = f" of the package {release}" if release else ""
    lowering, prefix = lowering_of(spec), f"lowering to {spec.backend}{whose} failed:"
    with explain_errors(prefix, graphs(methods), failures=lowering.failures), _shortened(spec):
        return lowering.lower(spec, methods)


def partitioned(spec: ExportSpec, methods: Mapping[str, Traced]) -> dict[str, int]:
    """What the backend would take of the methods without rewrites of their graphs."""
    from etdeploy.export.worker.rewrites.base import Log
    from etdeploy.export.worker.rewrites.gain import counted

    lowering, totals = lowering_of(spec), {"partitions": 0, "outside": 0}
    prefix = f"lowering to {spec.backend} without rewrites failed:"
    with explain_errors(prefix, graphs(methods), failures=lowering.failures), _shortened(spec):
        for method in methods.values():
            (partitioner,) = lowering.partitioners(spec)
            program = method.original or method.program
            found = counted(program, partitioner, lowering.passes(spec, Log()))
            totals = {key: totals[key] + found[key] for key in totals}
    return totals


def emit(
    spec: ExportSpec,
    edge: Any,
    methods: Mapping[str, Traced],
    constants: Mapping[str, Any] | None = None,
) -> Any:
    """Plans the memory and makes the program; an `ExecutorchProgramManager`.

    It also has a method for each of `constants`, which returns its value.
    """
    if constants:  # which not all lowerings to a backend take
        edge._config_methods = {**(edge._config_methods or {}), **constants}
    with (
        explain_errors("making the program failed:", graphs(methods)),
        _shortened(spec, emits=True),
        _conditional(spec, edge, methods),
    ):
        made = edge.to_executorch(_backend_config(spec, edge, methods))
    for name in methods:
        _drop_named_data(edge.exported_program(name).graph_module)
    return made


def _drop_named_data(graph: torch.nn.Module) -> None:
    """Of delegates whose data the program has now; caches of ExecuTorch hold their graphs."""
    for module in graph.modules():
        if hasattr(module, "_named_data_store_output"):
            module._named_data_store_output = None


def _conditional(
    spec: ExportSpec, edge: Any, methods: Mapping[str, Traced]
) -> AbstractContextManager[None]:
    if spec.generation is None or not lowering_of(spec).conditional:
        return nullcontext()
    from etdeploy.export.worker.language.experts import conditional_experts  # imports transformers

    return conditional_experts(edge.exported_program(name) for name in methods)


@contextmanager
def _shortened(spec: ExportSpec, *, emits: bool = False) -> Iterator[None]:
    """Without what ExecuTorch repeats: most of its time, minutes for a large graph."""
    if not shortens(spec) or not may_replace_parts(spec):
        yield
        return
    from etdeploy.export.worker.lowering.upstream_patches import (
        signatures_listed_once,
        upstream_patches,
    )

    listing = signatures_listed_once() if emits else nullcontext()
    with upstream_patches(), lowering_of(spec).shortened(), listing:
        yield


def shortens(spec: ExportSpec) -> bool:
    """Whether lowering does without what ExecuTorch repeats, with the releases that are tested."""
    return spec.shortened and (lowering_of(spec).shortens or spec.generation is not None)


def graphs(methods: Mapping[str, Traced]) -> list[torch.export.ExportedProgram]:
    """The traced graphs, in which a failure's line is looked for."""
    return [method.program for method in methods.values()]


def _backend_config(spec: ExportSpec, edge: Any, methods: Mapping[str, Traced]) -> Any:
    from executorch.exir import ExecutorchBackendConfig
    from executorch.exir.passes import MemoryPlanningPass
    from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass

    starting = [s for name in methods for s in _states_with_values(edge.exported_program(name))]
    config = ExecutorchBackendConfig(
        passes=[InitializedMutableBufferPass(list(dict.fromkeys(starting)))]
    )
    share = bool(shared_state(methods, edge))
    if share:
        config.memory_planning_pass = MemoryPlanningPass(share_mutable_buffers=True)
    programs = [edge.exported_program(name) for name in methods]
    if spec.generation or (spec.shortened and _has_caches(programs)):
        # A cache is written in place then, in microseconds, and not copied whole for each token.
        config.run_reinplace_pass = True
        # Each call of a decoder takes what the encoder gave: where it is, without a copy.
        copies = not (spec.generation and ENCODER in methods)
        # Keys and values that are inputs and outputs stay in the runner's memory.
        static = any(method.source.caches for method in methods.values())
        config.memory_planning_pass = planning_in_place(
            share_mutable_buffers=share,
            alloc_graph_input=copies and not static,
            alloc_graph_output=not static,
        )
    # A quantized embedding is looked up by a separate operator; without, the whole table is made
    # floats for each token.
    config.do_quant_fusion_and_const_prop = spec.embeddings is not None
    lowering_of(spec).adjust(config, spec)
    return config


def _has_caches(programs: Sequence[torch.export.ExportedProgram]) -> bool:
    """Whether all that methods write by index are buffers that nothing reads as they were before.

    ExecuTorch's pass does not see that a view is still read after its buffer was written.
    """
    from executorch.exir.dialects._ops import ops

    found = False
    for program in programs:
        signature = program.graph_signature
        written = set(signature.buffers_to_mutate.values())
        buffers = {p for p, name in signature.inputs_to_buffers.items() if name in written}
        for node in program.graph.nodes:
            if node.target is ops.edge.aten.index_put.default:
                found = True
                buffer = node.args[0]
                if buffer.target not in buffers or len(buffer.users) > 1 or not _writes_rows(node):
                    return False
    return found


def _writes_rows(node: torch.fx.Node) -> bool:
    """Whether values go to places along one dimension: ExecuTorch's kernel in place takes no other.

    It does not broadcast them, either.
    """
    buffer, indices, values, *accumulate = node.args
    dims = [dim for dim, index in enumerate(indices) if index is not None]
    if len(dims) != 1 or any(accumulate):
        return False
    index = indices[dims[0]].meta["val"]
    wanted = list(buffer.meta["val"].shape)
    wanted[dims[0]] = index.shape[0]
    found = values.meta["val"].shape
    sizes = zip(wanted, found, strict=False)
    return bool(
        index.dim() == 1
        and index.dtype == torch.int64
        and len(found) == len(wanted)
        and all(statically_known_true(a == b) for a, b in sizes)
    )


def planning_in_place(**options: Any) -> Any:
    """ExecuTorch's memory planning, where the results that go to buffers need no further memory.

    In ExecuTorch 1.5.1, an operator that writes a buffer in place shares the buffer's memory
    (`_alias_inplace_result_specs` of exir/memory_planning.py), but the graph's output node still
    describes the result as another tensor, so the planner reserves all buffers once more.
    """
    from executorch.exir.passes import MemoryPlanningPass

    class InPlacePlanning(MemoryPlanningPass):  # type: ignore[misc]
        def run(self, graph_module: Any, graph_signature: Any = None) -> Any:
            if graph_signature is not None:
                _return_buffers(graph_module.graph, graph_signature)
            return super().run(graph_module, graph_signature)

    return InPlacePlanning(**options)


def _return_buffers(graph: torch.fx.Graph, signature: Any) -> None:
    """Describes results that go to buffers as these buffers."""
    names = {buffer: placeholder for placeholder, buffer in signature.inputs_to_buffers.items()}
    specs = {node.name: node.meta.get("spec") for node in graph.nodes if node.op == "placeholder"}
    output = graph.output_node()
    results = zip(output.args[0], output.meta["spec"], strict=True)
    output.meta["spec"] = [
        specs[names[signature.buffers_to_mutate[result.name]]]
        if isinstance(result, torch.fx.Node) and result.name in signature.buffers_to_mutate
        else spec
        for result, spec in results
    ]


def _states_with_values(lowered: torch.export.ExportedProgram) -> Iterator[str]:
    """Placeholders of the buffers that the model writes to and that do not start at zero.

    Without the pass above such a buffer starts at zero on the device. One that is all zero, as an
    empty cache is, needs no place in the file.
    """
    signature = lowered.graph_signature
    written = set(signature.buffers_to_mutate.values())
    for placeholder, name in signature.inputs_to_buffers.items():
        if name in written and _buffer(lowered, name).count_nonzero():
            yield placeholder


def _buffer(lowered: torch.export.ExportedProgram, name: str) -> torch.Tensor:
    """A buffer, also one that is not part of the state dict."""
    stored = lowered.state_dict if name in lowered.state_dict else lowered.constants
    return stored[name]


@dataclass(frozen=True)
class State:
    """A buffer that a method writes to or reads.

    Attributes:
        tensor: Before quantization, which copies it: the same object in methods that share it.
        kept: Whether the lowered program has it outside of delegates.
        written: Whether the lowered program writes to it.
    """

    method: str
    name: str
    tensor: torch.Tensor
    kept: bool
    written: bool


def shared_state(methods: Mapping[str, Traced], edge: Any) -> tuple[str, ...]:
    """The names of the buffers that one method writes to, and that others have, too.

    ExecuTorch gives buffers of one name the same memory in every method
    (`MemoryPlanningPass(share_mutable_buffers=True)`), so names and tensors have to agree.
    """
    states = [state for name, of in methods.items() for state in _states(name, of, edge)]
    written = {id(state.tensor) for state in states if state.written}
    groups = [[s for s in states if id(s.tensor) == tensor] for tensor in written]
    shared = [group for group in groups if len({s.method for s in group}) > 1]
    for group in shared:
        _check_names(group)
        _check_kept(group)
    names = {group[0].name for group in shared}
    tensors = {id(group[0].tensor) for group in shared}
    # All buffers of a name get the same memory as soon as any are shared.
    for name in {s.name for s in states if s.written} if shared else ():
        _check_apart([s for s in states if s.name == name], tensors)
    return tuple(sorted(names))


def _states(method: str, of: Traced, edge: Any) -> Iterator[State]:
    signature = edge.exported_program(method).graph_signature
    kept, written = signature.inputs_to_buffers.values(), signature.buffers_to_mutate.values()
    used = set(of.program.graph_signature.inputs_to_buffers.values())
    for name, tensor in of.source.module.named_buffers(remove_duplicate=False):
        if name in used:
            yield State(method, name, tensor, name in kept, name in written)


def _check_names(group: Sequence[State]) -> None:
    names = {state.method: state.name for state in group}
    if len(set(names.values())) > 1:
        listed = ", ".join(f"{name} in {method}" for method, name in names.items())
        raise fail(
            "outputs",
            f"methods share a state under different names, {listed}; ExecuTorch shares it only "
            "under one",
            remedy="Let the modules of all methods hold the part with that state under one name.",
        )


def _check_kept(group: Sequence[State]) -> None:
    for state in group:
        if not state.kept:
            writer = next(s.method for s in group if s.written)
            raise fail(
                "lowering",
                f"the method {state.method} reads {state.name}, which {writer} changes, but the "
                "backend made it a constant there",
                remedy=f"Let {state.method} write it, too: self.{state.name}.add_(0); or\n"
                "--set export.backend=portable",
            )


def _check_apart(same_name: Sequence[State], shared: set[int]) -> None:
    tensors = {id(state.tensor) for state in same_name}
    if len(tensors) > 1:
        methods = ", ".join(dict.fromkeys(state.method for state in same_name))
        own = "one shares it" if tensors & shared else "other state is shared"
        raise fail(
            "outputs",
            f"the methods {methods} have different states of the name {same_name[0].name}, and "
            f"{own}; ExecuTorch would give them one memory",
            remedy="Rename one of the buffers.",
        )
