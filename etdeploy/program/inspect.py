"""Reads what a `.pte` holds, without torch and without the executorch package.

Slots are those of schema/program.fbs in the ExecuTorch wheel (file identifier ET12).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from etdeploy.backends.registry import backend_of
from etdeploy.backends.values import Payload
from etdeploy.core.console import count, size, table
from etdeploy.core.errors import UsageError
from etdeploy.core.flatbuffer import CorruptError, FlatBuffer, FlatbufferTable
from etdeploy.core.hashing import sha256_file
from etdeploy.program.finished import constants, contract_of
from etdeploy.program.model import (
    Delegate,
    Method,
    Operator,
    PlainValue,
    Program,
    TensorInfo,
    backend_shares,
    where_it_runs,
)
from etdeploy.program.pte import PteFile, damaged, map_pte

# The enum ScalarType of schema/scalar_type.fbs, with torch's names.
_DTYPES = {
    0: "uint8", 1: "int8", 2: "int16", 3: "int32", 4: "int64", 5: "float16", 6: "float32",
    7: "float64", 11: "bool", 12: "qint8", 13: "quint8", 14: "qint32", 15: "bfloat16",
    16: "quint4x2", 17: "quint2x4", 22: "bits16", 23: "float8_e5m2", 24: "float8_e4m3fn",
    25: "float8_e5m2fnuz", 26: "float8_e4m3fnuz", 27: "uint16", 28: "uint32", 29: "uint64",
}  # fmt: skip

# Slots of the tables, named as in the schema.
_VERSION, _EXECUTION_PLAN, _CONSTANT_BUFFER, _DELEGATE_DATA, _SEGMENTS = range(5)
_CONSTANT_SEGMENT, _MUTABLE_DATA_SEGMENTS, _NAMED_DATA = range(5, 8)
_PLAN_NAME, _PLAN_VALUES, _PLAN_INPUTS, _PLAN_OUTPUTS = 0, 2, 3, 4
_PLAN_CHAINS, _PLAN_OPERATORS, _PLAN_DELEGATES, _PLAN_BUFFER_SIZES = range(5, 9)
_CHAIN_INSTRUCTIONS = 2
_UNION_TYPE, _UNION_VALUE = 0, 1
_TENSOR_SCALAR_TYPE, _TENSOR_SIZES, _TENSOR_PLACE, _TENSOR_DYNAMISM, _TENSOR_EXTRA = 0, 2, 6, 8, 9
_EXTRA_NAME, _EXTRA_LOCATION, _EXTERNAL = 1, 2, 1
_NAMED_KEY, _NAMED_SEGMENT = 0, 1
_KERNEL_CALL, _TENSOR_LIST, _OPTIONAL_TENSOR_LIST = 1, 10, 11
_NULL, _INT, _BOOL, _DOUBLE, _TENSOR = range(1, 6)
_CALL_OPERATOR, _CALL_ARGUMENTS = 0, 1
_DELEGATE_ID, _DELEGATE_PROCESSED = 0, 1
_LOCATION, _INDEX, _IN_SEGMENT = 0, 1, 1


def inspect_file(path: Path) -> Program:
    """What the program at `path` holds.

    Raises:
        UsageError: There is no file, it is not a program, or it is damaged or truncated.
    """
    pte = map_pte(path)
    try:
        root = FlatBuffer(pte.flatbuffer).root()
        named = set[str]()
        program = Program(
            sha256=_sha256(path),
            size_bytes=pte.size_bytes,
            schema_version=root.uint32(_VERSION),
            constant_bytes=_constant_bytes(root, pte),
            methods=tuple(_method(root, p, pte, named) for p in root.tables(_EXECUTION_PLAN)),
        )
        inside = {data.string(_NAMED_KEY) for data in root.tables(_NAMED_DATA)} if named else set()
        program = program.model_copy(update={"external": tuple(sorted(named - inside))})
    except CorruptError as error:
        raise damaged(path, str(error)) from error
    if not program.methods:
        raise damaged(path, "it has no method")
    return program


@dataclass(frozen=True)
class PlannedBuffer:
    """A tensor that a method keeps between calls, and where in its planned memory it is.

    Attributes:
        memory: Number of the memory, from 1 on.
        offset: In bytes.
    """

    dtype: str
    shape: tuple[int, ...]
    memory: int
    offset: int


def mutable_buffers(path: Path, method: str) -> tuple[PlannedBuffer, ...]:
    """Return a method's buffers with memory, in the order in which the module registered them.

    ExecuTorch emits the values of a graph's placeholders first: parameters, buffers, inputs. Those
    that the program has memory planned for, before the first input, are buffers that change.

    Raises:
        UsageError: As `inspect_file`, or the program has no such method.
    """
    pte = map_pte(path)
    try:
        for plan in FlatBuffer(pte.flatbuffer).root().tables(_EXECUTION_PLAN):
            if plan.string(_PLAN_NAME) == method:
                return tuple(_buffers(plan))
    except CorruptError as error:
        raise damaged(path, str(error)) from error
    raise UsageError(f"the program has no method {method}", place=str(path))


def _buffers(plan: FlatbufferTable) -> Iterator[PlannedBuffer]:
    for index in range(min(plan.int32s(_PLAN_INPUTS), default=0)):
        value = plan.table_at(_PLAN_VALUES, index)
        tensor = value.table(_UNION_VALUE) if value.uint8(_UNION_TYPE) == _TENSOR else None
        place = tensor.table(_TENSOR_PLACE) if tensor else None
        if tensor and place:
            low, high = place.uint32(1), place.uint32(2)
            yield PlannedBuffer(
                _dtype(tensor), tensor.int32s(_TENSOR_SIZES), place.uint32(0), low + (high << 32)
            )


def _sha256(path: Path) -> str:
    try:
        return sha256_file(path)
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", place=str(path)) from error


def _method(root: FlatbufferTable, plan: FlatbufferTable, pte: PteFile, named: set[str]) -> Method:
    """A method; `named` gets the names of weights that are not where they are used."""
    instructions, calls = _calls(plan)
    named.update(_external_tensors(plan))
    return Method(
        name=plan.string(_PLAN_NAME),
        inputs=tuple(_value(plan, i) or _plain(plan, i) for i in plan.int32s(_PLAN_INPUTS)),
        outputs=tuple(
            # A number that the method computes has no value here.
            _value(plan, i) or (None if instructions else _plain(plan, i))
            for i in plan.int32s(_PLAN_OUTPUTS)
        ),
        operators=_operators(plan, calls),
        delegates=tuple(_delegate(root, d, pte, named) for d in plan.tables(_PLAN_DELEGATES)),
        instructions=instructions,
        planned_memory_bytes=_planned_bytes(plan),
    )


def _value(plan: FlatbufferTable, index: int) -> TensorInfo | None:
    """The value as a tensor; None if it is of another kind."""
    value = plan.table_at(_PLAN_VALUES, index)
    if value.uint8(_UNION_TYPE) != _TENSOR:
        return None
    tensor = value.table(_UNION_VALUE)
    if tensor is None:
        raise CorruptError("a tensor has no description")
    shape = tensor.int32s(_TENSOR_SIZES)
    if any(size < 0 for size in shape):
        raise CorruptError(f"a tensor has the shape {list(shape)}")
    return TensorInfo(
        dtype=_dtype(tensor),
        shape=shape,
        dynamic=tensor.int8(_TENSOR_DYNAMISM) != 0,
    )


def _plain(plan: FlatbufferTable, index: int) -> PlainValue | None:
    """The value as a number, a boolean or None; None if it is of any other kind."""
    value = plan.table_at(_PLAN_VALUES, index)
    kind, content = value.uint8(_UNION_TYPE), value.table(_UNION_VALUE)
    if kind == _NULL:
        return PlainValue(kind="None")
    if kind == _INT:
        return PlainValue(kind="Int", value=content.int64(0) if content else 0)
    if kind == _BOOL:
        return PlainValue(kind="Bool", value=bool(content and content.uint8(0)))
    if kind == _DOUBLE:
        number = content.float64(0) if content else 0.0
        return PlainValue(kind="Double", value=number if math.isfinite(number) else None)
    return None


def _calls(plan: FlatbufferTable) -> tuple[int, list[FlatbufferTable]]:
    """The number of all instructions, and the kernel calls among them."""
    total = 0
    calls = []
    for chain in plan.tables(_PLAN_CHAINS):
        for instruction in chain.tables(_CHAIN_INSTRUCTIONS):
            total += 1
            if instruction.uint8(_UNION_TYPE) == _KERNEL_CALL:
                call = instruction.table(_UNION_VALUE)
                if call is None:
                    raise CorruptError("a kernel call names no operator")
                calls.append(call)
    return total, calls


def _operators(plan: FlatbufferTable, calls: list[FlatbufferTable]) -> tuple[Operator, ...]:
    """Operators by descending number of calls, including those that are never called."""
    names = [_operator_name(o) for o in plan.tables(_PLAN_OPERATORS)]
    counts: Counter[str] = Counter(dict.fromkeys(names, 0))
    dtypes: dict[str, set[str]] = {name: set() for name in names}
    known: dict[int, frozenset[str]] = {}
    for call in calls:
        index = call.int32(_CALL_OPERATOR)
        if not 0 <= index < len(names):
            raise CorruptError("a kernel call names an operator that is not in the list")
        counts[names[index]] += 1
        for argument in set(call.int32s(_CALL_ARGUMENTS)):
            if argument not in known:
                known[argument] = frozenset(_tensor_dtypes(plan, argument))
            dtypes[names[index]] |= known[argument]
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return tuple(Operator(name=n, calls=c, dtypes=tuple(sorted(dtypes[n]))) for n, c in ordered)


def _tensor_dtypes(plan: FlatbufferTable, index: int) -> Iterator[str]:
    """The data types of a tensor, or of the tensors in a list; none for another kind of value."""
    value = plan.table_at(_PLAN_VALUES, index)
    kind = value.uint8(_UNION_TYPE)
    if kind == _TENSOR:
        tensor = value.table(_UNION_VALUE)
        if tensor is None:
            raise CorruptError("a tensor has no description")
        yield _dtype(tensor)
    elif kind in (_TENSOR_LIST, _OPTIONAL_TENSOR_LIST):
        items = value.table(_UNION_VALUE)
        # -1 stands for a tensor that is not given.
        for item in set(items.int32s(0)) - {-1} if items else ():
            info = _value(plan, item)
            if info:
                yield info.dtype


def _dtype(tensor: FlatbufferTable) -> str:
    scalar_type = tensor.int8(_TENSOR_SCALAR_TYPE)
    return _DTYPES.get(scalar_type, f"type {scalar_type}")


def _operator_name(operator: FlatbufferTable) -> str:
    name, overload = operator.string(0), operator.string(1)
    return f"{name}.{overload}" if overload else name


def _external_tensors(plan: FlatbufferTable) -> Iterator[str]:
    """The names of tensors that are outside of the file."""
    for value in plan.tables(_PLAN_VALUES):
        tensor = value.table(_UNION_VALUE) if value.uint8(_UNION_TYPE) == _TENSOR else None
        extra = tensor.table(_TENSOR_EXTRA) if tensor else None
        if extra and extra.int8(_EXTRA_LOCATION) == _EXTERNAL:
            yield extra.string(_EXTRA_NAME)


def _delegate(
    root: FlatbufferTable, delegate: FlatbufferTable, pte: PteFile, named: set[str]
) -> Delegate:
    backend_id = delegate.string(_DELEGATE_ID)
    payload = _payload(root, delegate.table(_DELEGATE_PROCESSED), pte)
    backend = backend_of(backend_id)
    said = backend.read_payload(delegate, payload) if backend else Payload()
    named.update(said.data_keys)
    return Delegate(
        backend_id=backend_id,
        size_bytes=len(payload),
        nodes=said.nodes,
        compiled_for=said.compiled_for,
    )


def _payload(root: FlatbufferTable, reference: FlatbufferTable | None, pte: PteFile) -> memoryview:
    if reference is None:
        return memoryview(b"")
    index = reference.uint32(_INDEX)
    if reference.int8(_LOCATION) == _IN_SEGMENT:
        return _segment(root, index, pte)
    return root.table_at(_DELEGATE_DATA, index).content(0)


def _segment(root: FlatbufferTable, index: int, pte: PteFile) -> memoryview:
    begin, end = _segment_range(root, index, pte)
    return pte.segments[begin:end]


def _segment_range(root: FlatbufferTable, index: int, pte: PteFile) -> tuple[int, int]:
    segment = root.table_at(_SEGMENTS, index)
    offset, size = segment.uint64(0), segment.uint64(1)
    return offset, offset + len(pte.segment(offset, size))


def _constant_bytes(root: FlatbufferTable, pte: PteFile) -> int:
    """Bytes of weights and initial states, with delegates' named data but not their payloads."""
    inline = sum(len(buffer.content(0)) for buffer in root.tables(_CONSTANT_BUFFER))
    segments = {data.uint32(_NAMED_SEGMENT) for data in root.tables(_NAMED_DATA)}
    constants = root.table(_CONSTANT_SEGMENT)
    for part in (*([constants] if constants else []), *root.tables(_MUTABLE_DATA_SEGMENTS)):
        # Index 0 of the offsets stands for "no constant": a shorter segment is not used.
        if part.length(1, item_bytes=8) > 1:
            segments.add(part.uint32(0))
    return inline + _covered(_segment_range(root, index, pte) for index in segments)


def _covered(ranges: Iterable[tuple[int, int]]) -> int:
    """Bytes of ranges, once where one lies in another, as tied weights may."""
    total = reached = 0
    for begin, end in sorted(ranges):
        total += max(0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def _planned_bytes(plan: FlatbufferTable) -> int:
    """Memory for activations; entry 0 of the list is reserved by the schema."""
    sizes = plan.int64s(_PLAN_BUFFER_SIZES)[1:]
    if any(size < 0 for size in sizes):
        raise CorruptError("a memory plan has a negative size")
    return sum(sizes)


def describe(program: Program, title: str) -> str:
    """Methods with inputs, outputs, delegates and operators, and all sizes.

    Args:
        program: What inspection found.
        title: The first word, usually the path.
    """
    lines = [
        f"{title}: {size(program.size_bytes)}, constants {size(program.constant_bytes)}, "
        f"schema version {program.schema_version}",
        f"sha256 {program.sha256}",
        *([f"{count(len(program.external), 'weight')} in .ptd files"] if program.external else []),
    ]
    if contract := contract_of(program):
        lines.append(f"contract of generated text: {contract.text()}")
    facts = constants(program)
    for method in program.methods:
        if method.name not in facts:
            lines += ["", *_method_text(method)]
    if facts:
        rows = [(name, ", ".join(map(str, values))) for name, values in facts.items()]
        lines += ["", table(("method that returns facts", "value"), rows)]
    return "\n".join(lines)


def describe_tensor(info: TensorInfo | PlainValue | None) -> str:
    """`float32 [1, 3, 224, 224]`, with the largest size of a dynamic shape; `int 5` for a value."""
    if info is None:
        return "no tensor"
    if isinstance(info, PlainValue):
        return "None" if info.kind == "None" else f"{info.dtype} {info.value}"
    shape = f"[{', '.join(map(str, info.shape))}]"
    return f"{info.dtype} {'up to ' if info.dynamic else ''}{shape}"


def _method_text(method: Method) -> Iterator[str]:
    yield f"method {method.name}"
    for kind, infos in (("input", method.inputs), ("output", method.outputs)):
        for i, info in enumerate(infos):
            yield f"  {f'{kind} {i}':<10} {describe_tensor(info)}"
    yield f"  {'memory':<10} {size(method.planned_memory_bytes)} planned for activations"
    plural = "" if method.instructions == 1 else "s"
    yield f"  {'steps':<10} {method.instructions} instruction{plural}"
    for i, line in enumerate(where_it_runs(method.delegates, method.operators)):
        yield f"  {'runs on' if i == 0 else '':<10} {line}"
    for i, target in enumerate(dict.fromkeys(_targets(method))):
        yield f"  {'compiled' if i == 0 else '':<10} {target}"
    if method.delegates:
        yield ""
        yield _indented(_delegates(method))
    if method.operators:
        yield ""
        yield _indented(_operator_table(method))


def _targets(method: Method) -> Iterator[str]:
    """What each partition was compiled for, in its backend's words."""
    for delegate in method.delegates:
        backend = backend_of(delegate.backend_id)
        if backend and delegate.compiled_for:
            yield backend.describe_target(delegate.compiled_for)


def _delegates(method: Method) -> str:
    rows = [
        (share.backend_id, share.partitions, share.nodes, size(share.size_bytes))
        for share in backend_shares(method.delegates)
    ]
    columns = ("delegate", "partitions", "nodes", "size")
    return table(columns, rows, right=columns[1:])


def _operator_table(method: Method) -> str:
    title = "operator outside of delegates" if method.delegates else "operator"
    return table((title, "calls"), [(o.name, o.calls) for o in method.operators], ("calls",))


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
