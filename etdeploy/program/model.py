"""A program: what inspection of a `.pte` file finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from etdeploy.backends.values import CompiledFor
from etdeploy.core.values import Value


class TensorInfo(Value):
    """An input or output tensor. `dtype` is torch's name ("float32"); `shape` the largest one."""

    dtype: str
    shape: tuple[int, ...]
    dynamic: bool = False


class PlainValue(Value):
    """An input or output that is not a tensor.

    Attributes:
        kind: By ExecuTorch's name.
        value: None also for a Double that is infinite or undefined, which JSON cannot hold.
        name: As in the model's code; empty if it is unknown.
    """

    kind: Literal["Int", "Double", "Bool", "None"]
    value: bool | int | float | None = None
    name: str = ""

    @property
    def dtype(self) -> str:
        """The kind as Python names it."""
        return {"Int": "int", "Double": "float", "Bool": "bool", "None": "None"}[self.kind]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a single value."""
        return ()


class Operator(Value):
    """An operator that a method calls outside its delegates.

    Attributes:
        name: In full: `aten::add.out`.
        calls: How often the method calls it.
        dtypes: Data types of all tensors that it is called with, by torch's names, sorted.
    """

    name: str
    calls: int
    dtypes: tuple[str, ...] = ()

    @property
    def namespace(self) -> str:
        return self.name.split("::", 1)[0]


class Delegate(Value):
    """A partition that a backend executes.

    Attributes:
        backend_id: Name of the backend.
        size_bytes: Of its payload.
        nodes: The backend's own nodes in it, if its payload can be read.
        compiled_for: What it was compiled for, if its backend compiles for a SoC.
    """

    backend_id: str
    size_bytes: int
    nodes: int | None = None
    compiled_for: CompiledFor | None = None


class Method(Value):
    """An entry point of the program.

    An input that is not a tensor accepts only the value given here, and an output that is not one
    is a constant if the method computes nothing. Values of other kinds are None in the lists.
    """

    name: str
    inputs: tuple[TensorInfo | PlainValue | None, ...]
    outputs: tuple[TensorInfo | PlainValue | None, ...]
    operators: tuple[Operator, ...]
    delegates: tuple[Delegate, ...]
    instructions: int
    planned_memory_bytes: int


class Program(Value):
    """What a `.pte` holds; `external` names its weights that are in other files (`.ptd`)."""

    sha256: str
    size_bytes: int
    schema_version: int
    constant_bytes: int
    methods: tuple[Method, ...]
    external: tuple[str, ...] = ()

    @property
    def operators(self) -> tuple[str, ...]:
        """Every operator outside the delegates, sorted."""
        return tuple(sorted({o.name for m in self.methods for o in m.operators}))

    @property
    def backend_ids(self) -> tuple[str, ...]:
        """Every backend that a delegate names, sorted."""
        return tuple(sorted({d.backend_id for m in self.methods for d in m.delegates}))

    @property
    def compiled_for(self) -> tuple[CompiledFor, ...]:
        """What its partitions were compiled for, without duplicates; see `CompiledFor`."""
        return tuple(dict.fromkeys(c for name in self.backend_ids for c in self.compiled_by(name)))

    def compiled_by(self, backend_id: str) -> tuple[CompiledFor, ...]:
        """What the partitions of one backend were compiled for, without duplicates."""
        delegates = (d for m in self.methods for d in m.delegates if d.backend_id == backend_id)
        return tuple(dict.fromkeys(d.compiled_for for d in delegates if d.compiled_for))

    def methods_on(self, backend_id: str) -> int:
        """How many methods have partitions of one backend."""
        return sum(any(d.backend_id == backend_id for d in m.delegates) for m in self.methods)


# A program that calls no operator and delegates nothing: no program requires less.
EMPTY_PROGRAM = Program(sha256="", size_bytes=0, schema_version=0, constant_bytes=0, methods=())


@dataclass(frozen=True)
class BackendShare:
    """The share of one backend in a method.

    Attributes:
        backend_id: As the program names it.
        partitions: Its delegates.
        nodes: Nodes in all of them; None if a payload cannot be read.
        size_bytes: Of all their payloads.
    """

    backend_id: str
    partitions: int
    nodes: int | None
    size_bytes: int


def backend_shares(delegates: Sequence[Delegate]) -> tuple[BackendShare, ...]:
    """One entry for each backend, in the order of the program."""
    by_backend: dict[str, list[Delegate]] = {}
    for delegate in delegates:
        by_backend.setdefault(delegate.backend_id, []).append(delegate)
    return tuple(
        BackendShare(name, len(group), _total(group), sum(d.size_bytes for d in group))
        for name, group in by_backend.items()
    )


def delegated_fraction(
    delegates: Sequence[Delegate], operators: Sequence[Operator]
) -> float | None:
    """Nodes in delegates divided by all nodes, 0 to 1; a kernel call outside counts as one node.

    None if the nodes of a delegate are unknown, or for an empty method. Backends fuse operators,
    so this is a share of the work to do, not of the time that it takes.
    """
    nodes = _total(delegates)
    calls = sum(operator.calls for operator in operators)
    if nodes is None or nodes + calls == 0:
        return None
    return nodes / (nodes + calls)


def where_it_runs(delegates: Sequence[Delegate], operators: Sequence[Operator]) -> tuple[str, ...]:
    """Sentences about what runs on backends and what stays outside of them."""
    calls = sum(operator.calls for operator in operators)
    if not delegates:
        return (f"nothing is delegated: {_calls(calls)} {_verb('run', calls)} on CPU kernels",)
    fraction = delegated_fraction(delegates, operators)
    lines = [_taken(share) for share in backend_shares(delegates)]
    if fraction is not None:
        lines[-1] += f" ({_percent(fraction)} of all nodes)"
    if calls:
        lines.append(f"{_calls(calls)} {_verb('stay', calls)} outside, on CPU kernels")
    return tuple(lines)


def _verb(verb: str, number: int) -> str:
    return f"{verb}s" if number == 1 else verb


def _taken(share: BackendShare) -> str:
    partitions = "partition" if share.partitions == 1 else "partitions"
    if share.nodes is None:
        return f"{share.backend_id} takes {share.partitions} {partitions}"
    nodes = "node" if share.nodes == 1 else "nodes"
    return f"{share.backend_id} takes {share.nodes} {nodes} in {share.partitions} {partitions}"


def _calls(calls: int) -> str:
    return "1 operator call" if calls == 1 else f"{calls} operator calls"


def _percent(fraction: float) -> str:
    # 99.9 % must not read as all of it.
    percent = 99 if 0.99 < fraction < 1 else round(100 * fraction)
    return f"{percent} %"


def _total(delegates: Sequence[Delegate]) -> int | None:
    nodes = [d.nodes for d in delegates if d.nodes is not None]
    return sum(nodes) if len(nodes) == len(delegates) else None
