"""What locates the first wrong node of a program: observed values, and their replay in eager.

An export with a `NodeObservation` returns values of nodes beside its outputs. It leaves
the graph and a list of these nodes in the program folder. After a run, a child process evaluates
the graph node by node, from the device's own values of each node's inputs (`worker/diff/`).
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from etdeploy.backends.base import Backend
from etdeploy.backends.schemes import EIGHT_BITS
from etdeploy.core.errors import ExportError
from etdeploy.core.processes import process
from etdeploy.core.values import Progress, Value
from etdeploy.export.preload import replay_command
from etdeploy.export.protocol import ExportFailure, parse_progress
from etdeploy.export.run import crash_error, failure_error
from etdeploy.export.spec import ExportSpec
from etdeploy.program.folder import Stored, TensorFile

# Beside the program: the list of its nodes, and the graph with their values as outputs.
NODES_FILE = "nodes.json"
GRAPH_FILE = "observed.pt2"
# In a provenance's details: what the quantization of each module costs, and how far rounding moves
# the logits of a language model that is observed.
SENSITIVITY, LOGIT_NOISE = "sensitivity", "logit_noise"


class ModelNode(Value):
    """A node of the lowered graph whose value a program can return.

    Attributes:
        name: In the graph; unique.
        operator: Its target.
        module: The path of the module that calls it; empty for the model's own forward.
        file, line, code: The user's line.
        dtype, shape: Of its value.
        size_bytes: Of its value.
        step: Of the value's quantization; None for floats.
        rewrite: What put it there; None for the model's own.
    """

    name: str
    operator: str
    module: str = ""
    file: str | None = None
    line: int | None = None
    code: str | None = None
    dtype: str = ""
    shape: tuple[int, ...] = ()
    size_bytes: int = 0
    step: float | None = None
    rewrite: str | None = None


class RewriteError(Value):
    """The first value that the graph has before and after the rewrites, and that they change.

    Attributes:
        node: Whose value it is.
        error: The largest difference, both computed eagerly.
        allowed: What rounding explains.
        rewrites: Those that changed the nodes from which it is computed.
    """

    node: ModelNode
    error: float
    allowed: float
    rewrites: tuple[str, ...]


class LayerSensitivity(Value):
    """What a module's quantization costs, by the relative error of the outputs.

    Attributes:
        module: Its path.
        operators: Of quantized operators in it.
        weights: Numbers in their weights.
        alone: The error if only this module is quantized.
        without: The error if all but this module is; None if that was not measured.
    """

    module: str
    operators: int
    weights: int
    alone: float
    without: float | None


class Sensitivity(Value):
    """What the quantization of each module costs.

    Attributes:
        inputs: How many inputs it was measured with.
        error: Root mean square of the outputs' differences from the unquantized model's, by that of
            the outputs; of the output that it moves most.
        weights: Numbers in all quantized weights.
        layers: Ordered by what they cost.
        overrides: Modules that halve the error together if they stay in floats.
        reached: The error with these, computed eagerly.
        scheme: What these have in `reached`; None for floats, of a graph that was not exported so.
        problem: Why nothing was measured.
    """

    inputs: int = 0
    error: float = 0.0
    weights: int = 0
    layers: tuple[LayerSensitivity, ...] = ()
    overrides: tuple[str, ...] = ()
    reached: float = 0.0
    scheme: str | None = None
    problem: str | None = None


class ObservedGraph(Value):
    """The graph of a program that was exported with an `NodeObservation`.

    Attributes:
        method: Whose graph it is.
        nodes: Those whose values can be observed, in their order.
        outputs: What each output of the program is the value of; None for one that is not a tensor
            that is computed from the inputs.
        added: How many of the outputs, at the end, are not the model's.
        rewrite_error: The first value that the rewrites change; None if they change none.
    """

    method: str
    nodes: tuple[ModelNode, ...]
    outputs: tuple[ModelNode | None, ...]
    added: int
    rewrite_error: RewriteError | None = None

    @property
    def observed(self) -> tuple[str, ...]:
        """The nodes whose values the program returns beside the model's outputs."""
        own = len(self.outputs) - self.added
        return tuple(node.name for node in self.outputs[own:] if node)


class NodeError(Value):
    """How far a node's value on the device is from the eager one.

    Attributes:
        node: The node.
        segment: The nodes from which its value is computed, without those that were observed
            before; in their order, the node itself last.
        sources: The observed nodes from which the segment is computed.
        local_error: The largest difference from the value that eager computes from the device's own
            values of the sources; None if the value is undefined on one side only.
        allowed_error: The largest difference that rounding and the quantization explain.
        accumulated_error: The largest difference from the eager model's value.
        relative_error: Root mean square of the latter difference by that of the value.
        largest: The largest magnitude of the value.
        odd_places: Values that are NaN or infinite on one side only.
    """

    node: ModelNode
    segment: tuple[str, ...]
    sources: tuple[str, ...]
    local_error: float | None
    allowed_error: float
    accumulated_error: float | None
    relative_error: float | None
    largest: float
    odd_places: int = 0

    @property
    def strain(self) -> float:
        """The local error by what is allowed: more than 1 for a wrong node."""
        if self.local_error is None or self.odd_places:
            return float("inf")
        return self.local_error / self.allowed_error if self.allowed_error else self.local_error


class ReplayRequest(Value):
    """Outputs of a program with observed nodes, to be compared with eager.

    Attributes:
        spec: Of its export.
        folder: The program folder.
        inputs: Of its method.
        outputs: Tensors with absolute paths by their place; None for an output that is not one.
    """

    spec: ExportSpec
    folder: str
    inputs: tuple[Stored, ...]
    outputs: tuple[TensorFile | None, ...]


class Replay(Value):
    """What a replay found.

    Attributes:
        errors: Of each observed node, in the graph's order.
        random: Nodes that give something else each time, in eager too.
        undefined: The first node whose eager value has NaN or infinite values, and whose inputs
            have none; None if there is none.
        undefined_inputs: Inputs with NaN or infinite values.
        missing: Observed nodes whose values the device did not return.
        failure: Why there was no replay.
    """

    errors: tuple[NodeError, ...] = ()
    random: tuple[ModelNode, ...] = ()
    undefined: ModelNode | None = None
    undefined_inputs: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    failure: ExportFailure | None = None


def replay(request: ReplayRequest, progress: Progress, log: Path) -> Replay:
    """Evaluates the graph in eager with the device's values, in a child process.

    Raises:
        ExportError: The child process failed.
    """
    with tempfile.TemporaryDirectory(prefix="etdeploy-diff-") as temporary:
        asked, answered = (Path(temporary, name) for name in ("request.json", "answer.json"))
        request.save(asked)
        command = replay_command(request.spec, asked, answered)
        outcome = process.run(replace(command, log=log, on_line=lambda line: _tell(line, progress)))
        if not answered.is_file():
            raise crash_error(outcome, log)
        found = Replay.load(answered)
    if found.failure:
        error = failure_error(found.failure, log)
        raise ExportError(error.message, place=error.place, remedy=error.remedy, log=log)
    return found


def _tell(line: str, progress: Progress) -> None:
    if step := parse_progress(line):
        progress(*step)


# What parts of a quantized model have instead, the first that their backend offers. Floats would
# take eight times the memory of 4 bits.
_MORE_EXACT = ("none", "16a8w")
_MORE_BITS = {"8da4w": (EIGHT_BITS,)}


def more_exact_scheme(backend: Backend, scheme: str | None) -> str | None:
    """Return the scheme that parts of a quantized model can have instead; None where it has one."""
    mixed = backend.mixed_with(scheme)
    exact = _MORE_BITS.get(str(scheme), _MORE_EXACT)
    return next((each for each in exact if each in mixed), None)
