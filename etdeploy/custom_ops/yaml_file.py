"""Reads the yaml file that lists custom operators and their kernels.

The format is ExecuTorch's own (its kernels/portable/README.md). Its keys for kernels by data type
are not supported: one kernel handles every data type of its operator.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from etdeploy.core.errors import BuildError

if TYPE_CHECKING:
    from yaml import Node


_TOKEN = re.compile(
    r"""\s*(?:(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<number>-?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)"""
    r"""|(?P<text>'[^']*'|"[^"]*")|(?P<mark>->|::|[.,()\[\]?!=*]))"""
)
_SYSTEM = "::executorch::aten::"
# C++ types by their names in a schema.
_PLAIN = {
    "int": "int64_t",
    "SymInt": "int64_t",
    "float": "double",
    "bool": "bool",
    "str": "::std::string_view",
    "ScalarType": f"{_SYSTEM}ScalarType",
    "MemoryFormat": f"{_SYSTEM}MemoryFormat",
    "Tensor": f"{_SYSTEM}Tensor",
    "Scalar": f"{_SYSTEM}Scalar",
}
# These are passed by reference.
_LARGE = ("Tensor", "Scalar")
_LISTS = {"int", "SymInt", "float", "bool", "Tensor"}


class SchemaError(ValueError):
    """A schema that is invalid or not supported."""


@dataclass(frozen=True)
class Argument:
    """An argument of an operator.

    Attributes:
        name: As in the schema.
        kind: The type without its marks: `Tensor`, `int`.
        form: `` for a single value, `?`, `[]`, `[]?` or `?[]`.
        written: Whether the operator writes to it.
        output: Whether it only holds a result (keyword-only and written).
    """

    name: str
    kind: str
    form: str
    written: bool
    output: bool

    @property
    def cpp_type(self) -> str:
        """The type of the kernel's parameter."""
        value = self._value
        if self.form in ("", "?") and self.kind in _LARGE:
            return f"{value}&" if self.written and not self.form else f"const {value}&"
        return value

    @property
    def accessor(self) -> str:
        """The call on an EValue that returns this argument's value."""
        if self.form == "?[]":
            return "toListOptionalTensor()"
        if self.form.endswith("?"):
            return f"toOptional<{self._value.removeprefix('::std::optional<')[:-1]}>()"
        return f"to<{self._value}>()"

    @property
    def _value(self) -> str:
        plain = _PLAIN[self.kind]
        return {
            "": plain,
            "?": f"::std::optional<{plain}>",
            "[]": f"{_SYSTEM}ArrayRef<{plain}>",
            "[]?": f"::std::optional<{_SYSTEM}ArrayRef<{plain}>>",
            "?[]": f"{_SYSTEM}ArrayRef<::std::optional<{plain}>>",
        }[self.form]


@dataclass(frozen=True)
class Schema:
    """An operator's schema.

    Attributes:
        namespace, name: `my_ops` and `mul3.out`.
        arguments: In order.
        returns: The number of returned values; each is a tensor that it writes to.
    """

    namespace: str
    name: str
    arguments: tuple[Argument, ...]
    returns: int

    @property
    def full_name(self) -> str:
        """`my_ops::mul3.out`, as programs call it."""
        return f"{self.namespace}::{self.name}"

    @property
    def cpp_return(self) -> str:
        """The type that the kernel returns."""
        tensor = f"{_PLAIN['Tensor']}&"
        if self.returns > 1:
            return f"::std::tuple<{', '.join([tensor] * self.returns)}>"
        return tensor if self.returns else "void"


def parse_schema(text: str) -> Schema:
    """Reads `my_ops::mul3.out(Tensor input, *, Tensor(a!) out) -> Tensor(a!)`."""
    reader = _Reader(text)
    namespace = reader.name("the namespace")
    reader.expect("::", f"after the namespace {namespace}")
    name = reader.name("the operator's name")
    if reader.take("."):
        name += f".{reader.name('the overload')}"
    arguments = reader.arguments()
    returns = reader.returns()
    outputs = [a for a in arguments if a.output]
    written = outputs or [a for a in arguments if a.written]
    if not written:
        raise SchemaError(
            "it writes to no tensor; ExecuTorch needs the variant with an output argument: "
            "`..., *, Tensor(a!) out) -> Tensor(a!)`"
        )
    if returns and returns != len(written):
        raise SchemaError(f"it returns {returns} values but writes to {len(written)}")
    if not outputs and not returns:
        raise SchemaError("it has no output argument and returns nothing")
    return Schema(namespace, name, arguments, returns)


class _Reader:
    """The tokens of a schema, consumed one by one."""

    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, str]] = []
        position, text = 0, text.rstrip()
        while position < len(text):
            found = _TOKEN.match(text, position)
            if not found or not found.lastgroup:
                raise SchemaError(f"{text[position:].split()[0]!r} is not valid")
            self._tokens.append((found.lastgroup, found[found.lastgroup]))
            position = found.end()
        self._next = 0

    def peek(self) -> str:
        return self._tokens[self._next][1] if self._next < len(self._tokens) else ""

    def take(self, mark: str) -> bool:
        if self.peek() != mark:
            return False
        self._next += 1
        return True

    def expect(self, mark: str, where: str) -> None:
        if not self.take(mark):
            raise SchemaError(f"{mark!r} is expected {where}, not {self._found()}")

    def name(self, what: str) -> str:
        if self._next >= len(self._tokens) or self._tokens[self._next][0] != "name":
            raise SchemaError(f"{what} is expected, not {self._found()}")
        self._next += 1
        return self._tokens[self._next - 1][1]

    def _found(self) -> str:
        return repr(self.peek()) if self.peek() else "the end"

    def arguments(self) -> tuple[Argument, ...]:
        self.expect("(", "after the operator's name")
        found: list[Argument] = []
        by_keyword = False
        while not self.take(")"):
            if found or by_keyword:
                self.expect(",", "between arguments")
            if self.take("*"):
                by_keyword = True
                continue
            found.append(self._argument(by_keyword))
        names = [a.name for a in found]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise SchemaError(f"duplicate argument {sorted(twice)[0]}")
        return tuple(found)

    def _argument(self, by_keyword: bool) -> Argument:
        kind, form, written = self._type()
        name = self.name(f"the name of an argument of the type {kind}")
        if self.take("="):
            self._skip_default()
        if written and (kind, form) not in (("Tensor", ""), ("Tensor", "[]")):
            raise SchemaError(f"{name} is written to but is not a tensor")
        return Argument(name, kind, form, written, written and by_keyword)

    def _type(self) -> tuple[str, str, bool]:
        kind = self.name("a type")
        if kind not in _PLAIN:
            raise SchemaError(
                f"ExecuTorch's runtime has no type {kind}; it has {', '.join(_PLAIN)}"
            )
        written = self._alias()
        form = "?" if self.take("?") else ""
        if self.take("["):
            if self.peek().isdigit():
                self._next += 1
            self.expect("]", f"after {kind}[")
            form += "[]"
            written = self._alias() or written
            form += "?" if self.take("?") else ""
        if form.startswith("?[]") and (kind != "Tensor" or form != "?[]"):
            raise SchemaError(f"ExecuTorch's runtime has no lists {kind}{form}")
        if form.startswith("[]") and kind not in _LISTS:
            raise SchemaError(f"ExecuTorch's runtime has no lists of {kind}")
        return kind, form, written

    def _alias(self) -> bool:
        """`(a!)` after a type: whether it is written to."""
        if not self.take("("):
            return False
        self.name("the letter of an alias")
        written = self.take("!")
        self.expect(")", "after an alias")
        return written

    def _skip_default(self) -> None:
        """Skips a default: programs carry every argument, so the runtime does not need it."""
        depth = 0
        while self.peek() and (depth or self.peek() not in (",", ")")):
            depth += {"[": 1, "]": -1}.get(self.peek(), 0)
            self._next += 1

    def returns(self) -> int:
        self.expect("->", "after the arguments")
        count = 0
        if not self.take("("):
            self._returned()
            count = 1
        else:
            while not self.take(")"):
                if count:
                    self.expect(",", "between returned values")
                self._returned()
                count += 1
        if self.peek():
            raise SchemaError(f"{self.peek()!r} follows the returned values")
        return count

    def _returned(self) -> None:
        kind, form, written = self._type()
        if kind != "Tensor" or form or not written:
            raise SchemaError("an operator returns the tensors that it writes to: `-> Tensor(a!)`")
        if self.peek() not in ("", ",", ")"):
            self.name("the name of a returned value")


_FORM = (
    "- func: my_ops::twice.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)\n"
    "  kernels:\n"
    "    - arg_meta: null\n"
    "      kernel_name: my_ops::twice_out"
)
# Other keys of ExecuTorch's generator, which do not affect a kernel.
_WITHOUT_EFFECT = {"variants", "tags", "type_alias", "dim_order_alias"}
_GLOBAL = re.compile(r"(?<!\w)::")
_KERNEL = re.compile(r"[A-Za-z_]\w*(::[A-Za-z_]\w*)+")


@dataclass(frozen=True)
class Declared:
    """An operator with its kernel.

    Attributes:
        schema: Of the operator.
        kernel: The C++ function. Like ExecuTorch's generator, this adds the namespace `native` to
            the one in the file.
        place: `file:line` of the operator.
    """

    schema: Schema
    kernel: str
    place: str

    @property
    def signature(self) -> str:
        """The kernel's declaration, with names relative to the global namespace."""
        arguments = "".join(f", {a.cpp_type} {a.name}" for a in self.schema.arguments)
        context = "::executorch::runtime::KernelRuntimeContext& context"
        text = f"{self.schema.cpp_return} {self.kernel}({context}{arguments})"
        return _GLOBAL.sub("", text)


def read_operators(path: Path) -> tuple[Declared, ...]:
    """Every operator of the file; none if the file holds something else."""
    return tuple(_declared(entry, path) for entry in _entries(path))


def read_names(path: Path) -> tuple[str, ...]:
    """The operators' full names alone, whatever their entries say about kernels."""
    return tuple(_schema(entry, path).full_name for entry in _entries(path))


@dataclass(frozen=True)
class _Entry:
    """A mapping of the file: values by key, and the lines of both."""

    values: dict[str, Node]
    line: int


def _entries(path: Path) -> Iterator[_Entry]:
    import yaml

    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise _error(f"{path}:{line}", f"this is not YAML: {error.problem}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise _error(str(path), "this is not a YAML file in UTF-8") from error
    if isinstance(root, yaml.MappingNode) and "func" in _mapping(root, path).values:
        raise _error(f"{path}:{root.start_mark.line + 1}", "the operators must be in a list")
    if not isinstance(root, yaml.SequenceNode):
        return
    for node in root.value:
        if not isinstance(node, yaml.MappingNode):
            raise _error(
                f"{path}:{node.start_mark.line + 1}",
                "an entry must be a mapping with the key `func`",
            )
        yield _mapping(node, path)


def _mapping(node: Node, path: Path) -> _Entry:
    values: dict[str, Node] = {}
    for key, value in node.value:
        if key.value in values:
            raise _error(f"{path}:{key.start_mark.line + 1}", f"the key {key.value} appears twice")
        values[key.value] = value
    return _Entry(values, node.start_mark.line + 1)


def _schema(entry: _Entry, path: Path) -> Schema:
    place = f"{path}:{entry.line}"
    if "op" in entry.values:
        raise _error(
            place,
            f"{entry.values['op'].value}: name the operator by its whole schema, with `func:`",
        )
    if "func" not in entry.values:
        raise _error(place, "the entry has no key `func`")
    node = entry.values["func"]
    place = f"{path}:{node.start_mark.line + 1}"
    try:
        return parse_schema(str(node.value))
    except SchemaError as error:
        raise _error(place, f"the schema is not supported: {error}") from error


def _declared(entry: _Entry, path: Path) -> Declared:
    schema = _schema(entry, path)
    unknown = entry.values.keys() - _WITHOUT_EFFECT - {"func", "kernels"}
    if unknown:
        key = sorted(unknown)[0]
        line = entry.values[key].start_mark.line + 1
        raise _error(f"{path}:{line}", f"{schema.full_name}: unknown key {key!r}")
    return Declared(schema, _kernel(entry, schema, path), f"{path}:{entry.line}")


def _kernel(entry: _Entry, schema: Schema, path: Path) -> str:
    import yaml

    node = entry.values.get("kernels")
    listed = node.value if isinstance(node, yaml.SequenceNode) else []
    if len(listed) != 1 or not isinstance(listed[0], yaml.MappingNode):
        line = node.start_mark.line + 1 if node else entry.line
        raise _error(
            f"{path}:{line}",
            f"{schema.full_name}: exactly one kernel is needed, in a list; it handles all data "
            "types itself",
        )
    kernel = _mapping(listed[0], path)
    meta = kernel.values.get("arg_meta")
    if meta is not None and str(meta.tag) != "tag:yaml.org,2002:null":
        raise _error(
            f"{path}:{meta.start_mark.line + 1}",
            f"{schema.full_name}: kernels for single data types are not supported; write "
            "`arg_meta: null`, and let the kernel handle all data types",
        )
    name = kernel.values.get("kernel_name")
    text = str(name.value) if name else ""
    if name is None or not _KERNEL.fullmatch(text):
        raise _error(
            f"{path}:{(name.start_mark.line + 1) if name else kernel.line}",
            f"{schema.full_name}: kernel_name must be a function in a namespace, such as "
            "my_ops::twice_out" + (f", not {text!r}" if name else ""),
        )
    namespace, _, function = text.rpartition("::")
    return f"::{namespace}::native::{function}"


def _error(place: str, message: str) -> BuildError:
    return BuildError(message, place=place, remedy=f"Write an entry like this:\n{_FORM}")
