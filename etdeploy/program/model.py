"""A program: what inspection of a `.pte` file finds."""

from __future__ import annotations

from typing import Literal

from etdeploy.backends.values import CompiledFor
from etdeploy.core.values import Value


class TensorInfo(Value):
    """An input or output tensor. `dtype` is torch's name ("float32"); `shape` the largest one."""

    dtype: str
    shape: tuple[int, ...]
    dynamic: bool = False


class Plain(Value):
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

    An input that is not a tensor accepts only the value given here. Outputs that are not tensors,
    and inputs of other kinds, are None in the lists.
    """

    name: str
    inputs: tuple[TensorInfo | Plain | None, ...]
    outputs: tuple[TensorInfo | None, ...]
    operators: tuple[Operator, ...]
    delegates: tuple[Delegate, ...]
    instructions: int
    planned_memory_bytes: int


class Program(Value):
    """What a `.pte` holds."""

    sha256: str
    size_bytes: int
    schema_version: int
    constant_bytes: int
    methods: tuple[Method, ...]

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
