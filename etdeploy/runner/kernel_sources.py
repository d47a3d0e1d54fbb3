"""Which source files of a checkout hold the selected kernels.

ExecuTorch's own selection decides what is registered, not what is compiled: the files of some 200
operators are compiled for a program that calls three, and the linker drops them. This module finds
the needed files by the kernel names in ExecuTorch's yaml files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from etdeploy.plan.components import KERNELS_OPTIMIZED, operator_component
from etdeploy.program.inspect import inspect_file

_PORTABLE = "kernels/portable"
_OPTIMIZED = "kernels/optimized"
_LISTS = (f"{_PORTABLE}/functions.yaml", f"{_OPTIMIZED}/optimized.yaml")
# A function at the start of a line that returns something, as kernels are written.
_DEFINED = re.compile(r"^[\w:<>,&* ]+[&* ](\w+)\(", re.MULTILINE)
_CALLED = re.compile(r"\b(\w+)\(")
_SCHEMA_NAME = re.compile(r"[\w:]+(?:\.\w+)?")


def needed_sources(checkout: Path, operators: Iterable[str]) -> tuple[str, ...] | None:
    """Names of the files `op_*.cpp` with the kernels of the operators, sorted.

    They include the files that those call into.

    Args:
        checkout: Of ExecuTorch.
        operators: By full name, `aten::add.out`.

    Returns:
        None if the files of an operator are unknown: then all have to be compiled.
    """
    kernels = _kernels(checkout)
    wanted: set[str] = set()
    for operator in operators:
        names = kernels.get(operator)
        if not names:
            return None
        wanted |= names
    texts = _texts(checkout)
    definitions = _definitions(texts)
    needed: set[str] = set()
    for name in wanted:
        # A kernel that a macro defines is found by its name alone.
        files = definitions.get(name) or _mentioning(texts, name)
        if not files:
            return None
        needed |= files
    return tuple(sorted({Path(file).name for file in _with_called(needed, texts, definitions)}))


def aten_operators(program: Path) -> tuple[str, ...]:
    """The operators of a program file that aten's kernels provide."""
    return tuple(
        name
        for name in inspect_file(program).operators
        if operator_component(name) == KERNELS_OPTIMIZED
    )


def _definitions(texts: dict[str, str]) -> dict[str, set[str]]:
    """The files that define a function, by its name."""
    found: dict[str, set[str]] = {}
    for file, text in texts.items():
        for name in _DEFINED.findall(text):
            found.setdefault(name, set()).add(file)
    return found


def _mentioning(texts: dict[str, str], name: str) -> set[str]:
    word = re.compile(rf"\b{re.escape(name)}\b")
    return {file for file, text in texts.items() if word.search(text)}


def _with_called(
    files: set[str], texts: dict[str, str], definitions: dict[str, set[str]]
) -> set[str]:
    """The files and all files that they call into, directly or through others."""
    needed, waiting = set(files), sorted(files)
    while waiting:
        for name in _CALLED.findall(texts[waiting.pop()]):
            called = definitions.get(name, set())
            # A name that many files define is a local helper in each of them.
            if len(called) <= _SHARED:
                waiting += sorted(called - needed)
                needed |= called
    return needed


# A kernel is defined once among the portable files and once among the optimised ones.
_SHARED = 2


def _kernels(checkout: Path) -> dict[str, set[str]]:
    """The functions that the yaml files name for each operator."""
    found: dict[str, set[str]] = {}
    for name in _LISTS:
        for entry in _entries(checkout / name):
            operator = _operator(entry)
            kernels = entry.get("kernels")
            for kernel in kernels if operator and isinstance(kernels, list) else ():
                function = str(kernel.get("kernel_name", "")).rpartition("::")[2]
                found.setdefault(str(operator), set()).add(function)
    return found


def _entries(path: Path) -> list[dict[str, Any]]:
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return []
    return [e for e in content if isinstance(e, dict)] if isinstance(content, list) else []


def _operator(entry: dict[str, Any]) -> str | None:
    """`op: add.out` stands for one of aten; `func:` has the whole schema."""
    if "op" in entry:
        return f"aten::{entry['op']}"
    match = _SCHEMA_NAME.match(str(entry.get("func", "")))
    return match[0] if match else None


def _texts(checkout: Path) -> dict[str, str]:
    return {
        str(path): path.read_text(encoding="utf-8", errors="replace")
        for folder in (_PORTABLE, _OPTIMIZED)
        for path in sorted((checkout / folder / "cpu").glob("op_*.cpp"))
    }
