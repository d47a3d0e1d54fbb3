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
from etdeploy.custom_ops.schema import Schema, SchemaError, parse_schema

if TYPE_CHECKING:
    from yaml import Node

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
    """Every operator of the file; none if the file holds something else.

    Raises:
        BuildError: It is not YAML, or an entry is not supported; the place is its line.
    """
    return tuple(_declared(entry, path) for entry in _entries(path))


def read_names(path: Path) -> tuple[str, ...]:
    """The operators' full names alone, whatever their entries say about kernels.

    Raises:
        BuildError: It is not YAML, or a schema is invalid.
    """
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
            raise _error(f"{path}:{key.start_mark.line + 1}", f"{key.value} is given twice")
        values[key.value] = value
    return _Entry(values, node.start_mark.line + 1)


def _schema(entry: _Entry, path: Path) -> Schema:
    place = f"{path}:{entry.line}"
    if "op" in entry.values:
        raise _error(
            place, f"{entry.values['op'].value}: give the operator's whole schema, with `func:`"
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
