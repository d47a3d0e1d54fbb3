"""Failures of lowering a traced model, reported at the user's line."""

from __future__ import annotations

import os
import re
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from etdeploy.core.diagnostics import FailureTable
from etdeploy.export.diagnostics import LOWERING_FAILURES
from etdeploy.export.protocol import ExportFailure, FailureKind
from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.backends.base import REASON, Traced, lowering_of
from etdeploy.export.worker.failures import (
    SourceLine,
    WorkerError,
    exception_text,
    failed_kernel,
    failed_pass,
    failure_at,
    is_memory,
    named_operator,
    runtime_refusal,
    user_line,
)
from etdeploy.export.worker.tracing.tensors import flat_inputs
from etdeploy.export.worker.tracing.trace import node_place, stack_line
from etdeploy.program.generation import ENCODER

_NO_OUT_VARIANT = re.compile(r"Missing out variants: \{(.+?)\}")
_WHO_IS_AT_FAULT = (
    "The log has the whole traceback. This shows whether the backend is at fault:\n"
    "--set export.backend=portable --set export.quantization=none"
)

# The methods as they were traced; which of them a failure is about, it seldom says.
Graphs = Sequence[torch.export.ExportedProgram]


@contextmanager
def explain_errors(
    doing: str,
    graphs: Graphs,
    spared: type[Exception] | tuple[()] = (),
    failures: FailureTable | None = None,
) -> Iterator[None]:
    """Describes any exception of the block, at the line of the model that it is about."""
    try:
        yield
    except (WorkerError, MemoryError):
        raise
    except Exception as error:
        if is_memory(error) or isinstance(error, spared):
            raise
        if isinstance(error.__cause__, WorkerError):
            raise error.__cause__  # noqa: B904 - raised in a pass; its manager lists those before
        failure = (
            _out_variant_failure(error, graphs)
            or _known_failure(error, graphs, failures)
            or _unknown_failure(error, doing)
        )
        raise WorkerError(failure) from error


def _known_failure(
    error: Exception, graphs: Graphs, failures: FailureTable | None
) -> ExportFailure | None:
    """The failure that the backend's table or the general one has for an exception."""
    tables = filter(None, (failures, LOWERING_FAILURES))
    diagnoses = (each.diagnose(str(error), error=exception_text(error)) for each in tables)
    found = next(filter(None, diagnoses), None)
    if found is None:
        return None
    operator = operator_in(str(error), found.facts)
    place: SourceLine = (None, None, None)
    left = _left_node(error)
    if tensor := found.facts.get("tensor"):
        place = _in_one(graphs, lambda traced: _writing_place(tensor, traced))
    elif left:
        place = stack_line(left.meta.get("stack_trace"))
    if operator and not place[0]:
        place = operator_place(operator, graphs)
    kind = cast(FailureKind, found.facts["kind"])
    place = place if place[0] else stack_line(str(error))
    reason = f" ({left.meta[REASON]})" if left and REASON in left.meta else ""
    return failure_at(place, kind, found.cause + reason, operator=operator, remedy=found.remedy)


def _left_node(error: Exception) -> torch.fx.Node | None:
    """The node that ExecuTorch's check found neither delegated nor decomposed.

    Its exception names only the operator, which may be delegated elsewhere in the model.
    """
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_name == "_sanity_check_graph_for_non_decomp_ops":
            found = frame.f_locals.get("node")
            return found if isinstance(found, torch.fx.Node) else None
    return None


def operator_in(text: str, facts: Mapping[str, str]) -> str | None:
    """The operator that a failure is about, by its pattern or by the exception's text."""
    if "namespace" in facts:
        return f"{facts['namespace']}::{facts['name']}"
    return facts.get("operator") or named_operator(text)


def operator_place(operator: str | None, graphs: Graphs) -> SourceLine:
    """Where a model calls an operator, itself or through one that decomposes into it."""
    found: SourceLine = (None, None, None)
    return _in_one(graphs, lambda traced: _place(operator, traced)) if operator else found


def _in_one(
    graphs: Graphs, look: Callable[[torch.export.ExportedProgram], SourceLine]
) -> SourceLine:
    """The first place that is found in any of the graphs."""
    places = (look(traced) for traced in graphs)
    return next((place for place in places if place[0]), (None, None, None))


def _writing_place(tensor: str, traced: torch.export.ExportedProgram) -> SourceLine:
    """Where the model writes into a tensor that torch names so."""
    for spec in traced.graph_signature.input_specs:
        if spec.target != tensor:
            continue
        for node in traced.graph.nodes:
            schema = getattr(node.target, "_schema", None)
            if schema and schema.is_mutable and any(a.name == spec.arg.name for a in node.args[:1]):
                return stack_line(node.meta.get("stack_trace"))
    return None, None, None


def _unknown_failure(error: Exception, doing: str) -> ExportFailure:
    place = user_line(error)
    return failure_at(
        place if place[0] else stack_line(str(error)),
        "lowering",
        f"{doing} {_text(error)}",
        operator=named_operator(str(error)),
        remedy=_WHO_IS_AT_FAULT,
    )


def _text(error: Exception) -> str:
    """The exception; for one of a pass, what it raised without the list of all passes before."""
    name = failed_pass(str(error))
    if name is None or error.__cause__ is None:
        return exception_text(error)
    return f"ExecuTorch's pass {name} raised {exception_text(error.__cause__)}"


def _out_variant_failure(error: Exception, graphs: Graphs) -> ExportFailure | None:
    """The failure of an operator of the user that writes to no output argument."""
    found = _NO_OUT_VARIANT.search(str(error))
    if found is None:
        return None
    operator = min(name.strip(" '\"") for name in found[1].split(","))
    why, remedy = _without_out_variant(operator)
    message = f"the operator {operator} {why}"
    place = operator_place(operator, graphs)
    return failure_at(place, "operator", message, operator=operator, remedy=remedy)


def _place(operator: str, traced: torch.export.ExportedProgram) -> SourceLine:
    """Where the model calls the operator, itself or through one that decomposes into it."""
    place = node_place(traced, operator)
    if not place[0]:
        # Lowering may have taken constants away, without which the program decomposes no more.
        with suppress(KeyError):
            return node_place(traced.run_decompositions(), operator)
    return place


# The portable kernel makes 0.2e9 a second. A longer wait is for the run itself.
_MOST_MULTIPLICATIONS = 2e9
# Dimensions: of a convolution over images.
_LARGEST_WEIGHT = 4


@dataclass(frozen=True)
class ProgramProblem:
    """What is wrong with a program.

    `loaded` if it failed when it ran with the example inputs, and not before; `operator` if its
    kernel failed.
    """

    reason: str
    loaded: bool = False
    operator: str | None = None


def load_check(
    spec: ExportSpec, program: Path, methods: Mapping[str, Traced], convolved: Mapping[str, float]
) -> ProgramProblem | None:
    """Loads every method with ExecuTorch's Python package and runs it, as a runner would.

    Language models without an encoder are loaded only: their methods share a cache, and take long.
    """
    if not lowering_of(spec).loads_here or spec.custom_ops:
        return None
    try:
        from executorch.runtime import Runtime, Verification
    except ImportError:
        return None
    for name, traced in methods.items():
        loaded = None
        try:
            with capture_output() as said:
                # One at a time: a program keeps its methods, each with its packed weights.
                loading = Runtime.get().load_program(program, verification=Verification.Minimal)
                loaded = loading.load_method(name)
                runs = not spec.generation or ENCODER in methods
                if runs and convolved[name] <= _MOST_MULTIPLICATIONS:
                    inputs = flat_inputs(traced.source.module, traced.source.inputs)
                    loaded.execute([value.value for value in inputs])
        except RuntimeError as error:
            if reason := runtime_refusal(str(error), said()):
                where = f"the method {name}: " if len(methods) > 1 else ""
                return ProgramProblem(f"{where}{reason}", loaded is not None, failed_kernel(said()))
    return None


def convolved_outside(program: Any) -> float:
    """The multiplications of a lowered method's convolutions that no delegate computes.

    Those before the first one over three dimensions, which its kernel refuses at once.
    """
    total = 0.0
    for node in program.graph.nodes:
        if "aten.convolution" in str(node.target):
            weight, made = node.args[1].meta["val"], node.meta["val"]
            if weight.dim() > _LARGEST_WEIGHT:
                break
            transposed = node.args[6]
            positions = node.args[0].meta["val"] if transposed else made
            counts = [*weight.shape[1:], *positions.shape]
            product = 1.0
            for count in counts:
                product *= count if isinstance(count, int) else (count.node.hint or 1)
            total += product
    return total


_STREAMS = (1, 2)


@contextmanager
def capture_output() -> Iterator[Callable[[], str]]:
    """Collects all that this process prints meanwhile, and prints it afterwards.

    C++ writes to the descriptors, so these are exchanged. Their new file keeps what is written,
    while a pipe would have to be read by another thread, which native code could keep from running.
    """
    said: list[bytes] = []
    with tempfile.TemporaryFile() as file:
        kept = [os.dup(stream) for stream in _STREAMS]
        try:
            for stream in _STREAMS:
                os.dup2(file.fileno(), stream)
            yield lambda: b"".join(said).decode(errors="replace")
        finally:
            for stream, original in zip(_STREAMS, kept, strict=True):
                os.dup2(original, stream)
                os.close(original)
            file.seek(0)
            said.append(file.read())
            with os.fdopen(os.dup(_STREAMS[0]), "wb") as output:
                output.write(said[0])


def _without_out_variant(operator: str) -> tuple[str, str]:
    """Why ExecuTorch cannot call a registered operator, and what to do."""
    namespace, name = operator.split("::", 1)
    packet = getattr(getattr(torch.ops, namespace), name)
    overloads = packet.overloads()
    schema = getattr(packet, overloads[0])._schema
    line = _definition(operator, schema)
    if "out" in overloads:
        why = (
            f"has the variant {packet.out._schema}, whose arguments are not those of {schema} and "
            "an output argument after them, which ExecuTorch calls"
        )
        return why, f"Register it so:\n{line}" if line else f"Change {operator}.out."
    why = "has no variant with an output argument (.out), which ExecuTorch calls"
    if line is None:
        return why, "Replace the operator with one that returns only tensors."
    return why, (
        f"Register it beside {operator}, with an implementation that writes to its output:\n"
        f"{line}\nIts C++ kernel goes into the folder that runtime.custom_ops names."
    )


def _definition(operator: str, schema: torch.FunctionSchema) -> str | None:
    """The line that registers the variant with output arguments; None without tensors to write."""
    if not schema.returns or {str(r.type) for r in schema.returns} != {"Tensor"}:
        return None
    arguments = str(schema).partition("(")[2].rpartition(") -> ")[0]
    star = () if any(a.kwarg_only for a in schema.arguments) else ("*",)
    outs = list(_outs(len(schema.returns)))
    parts = (*([arguments] if arguments else []), *star, *(f"{t} {name}" for t, name in outs))
    types = ", ".join(t for t, _ in outs)
    returns = types if len(outs) == 1 else f"({types})"
    return f'torch.library.define("{operator}.out", "({", ".join(parts)}) -> {returns}")'


def _outs(count: int) -> Iterator[tuple[str, str]]:
    for index in range(count):
        yield f"Tensor({chr(ord('a') + index)}!)", "out" if count == 1 else f"out{index}"
