"""Counts what a reader of the code has to find a way through.

    python benchmarks/structure.py [ROOT ...]

One column for each checkout: modules and their sizes, lines of code and of docstrings, modules that
one other imports, names of classes that are used twice, tests that assert on the wording of a
message, and the modules that reading a recipe and deriving its plan imports.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SMALL_LINES = 60
# A text of an assertion that is longer than an identifier or a number is wording.
WORDING = 25
PLAN = ("recipe.load", "graph.resolve", "plan.derive")


@dataclass(frozen=True)
class Module:
    """A module of a tree of Python files."""

    name: str
    text: str
    tree: ast.Module

    @property
    def lines(self) -> int:
        """How many lines it has."""
        return self.text.count("\n")


def modules(folder: Path) -> dict[str, Module]:
    """Every module below a folder, by its dotted name."""
    found = {}
    for path in sorted(folder.rglob("*.py")):
        name = ".".join((folder.name, *path.relative_to(folder).with_suffix("").parts))
        text = path.read_text()
        found[name] = Module(name, text, ast.parse(text))
    return found


def docstring_lines(module: Module) -> int:
    """Lines of the docstrings of a module, its classes and functions."""
    return sum(
        (first.end_lineno or 0) - first.lineno + 1
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(first := node.body[0], ast.Expr)
        and isinstance(first.value, ast.Constant)
        and isinstance(first.value.value, str)
    )


def code_lines(module: Module) -> int:
    """Lines that are neither blank, nor a comment, nor of a docstring."""
    written = [line.strip() for line in module.text.splitlines()]
    return sum(bool(line) and not line.startswith("#") for line in written) - sum(
        bool(line.strip())
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for line in (ast.get_docstring(node, clean=False) or "").splitlines()
    )


def imports(module: Module, known: dict[str, Module]) -> Iterator[str]:
    """The modules that a module imports, also in its functions."""
    for node in ast.walk(module.tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            for each in (name, name.rpartition(".")[0]):
                if each in known:
                    yield each
                    break


def reached(starts: Iterator[str], graph: dict[str, set[str]]) -> set[str]:
    """The modules that importing some imports."""
    found: set[str] = set()
    waiting = list(starts)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += graph[name]
    return found


def asserts_on_wording(function: ast.FunctionDef) -> bool:
    """Whether an assertion, or `match` of `pytest.raises`, has a text that is a sentence's part."""
    # The message of an assertion is for its reader.
    asserts = (node for node in ast.walk(function) if isinstance(node, ast.Assert))
    parts: list[ast.AST] = [node.test for node in asserts]
    keywords = (node for node in ast.walk(function) if isinstance(node, ast.keyword))
    parts += [node for node in keywords if node.arg == "match"]
    return any(
        isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and len(node.value) >= WORDING
        and " " in node.value
        for part in parts
        for node in ast.walk(part)
    )


def counts(root: Path) -> dict[str, str]:
    """The figures of one checkout."""
    own, tests = modules(root / "etdeploy"), modules(root / "tests")
    graph = {name: set(imports(module, own)) - {name} for name, module in own.items()}
    importers = Counter(name for names in graph.values() for name in names)
    plain = [name for name in own if not name.endswith(("__init__", "__main__"))]
    classes = Counter(
        node.name
        for module in own.values()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef)
    )
    code = sum(map(code_lines, own.values()))
    docs = sum(map(docstring_lines, own.values()))
    functions = [
        node
        for module in tests.values()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]
    small = [name for name in plain if own[name].lines < SMALL_LINES]
    planned = reached((f"etdeploy.{name}" for name in PLAN), graph)
    return {
        "packages": str(sum(name.endswith("__init__") for name in own)),
        "modules": str(len(own)),
        f"modules under {SMALL_LINES} lines": str(len(small)),
        "modules with one importer": str(sum(importers[name] == 1 for name in plain)),
        f"  of these under {SMALL_LINES} lines": str(sum(importers[name] == 1 for name in small)),
        "lines": f"{sum(module.lines for module in own.values()):,}",
        "lines of code": f"{code:,}",
        "lines of docstrings": f"{docs:,}",
        "docstrings by code": f"{docs / code:.2f}",
        "class names used twice": str(sum(count > 1 for count in classes.values())),
        "modules of load, resolve and derive": str(len(planned)),
        "lines of tests": f"{sum(module.lines for module in tests.values()):,}",
        "tests": f"{len(functions):,}",
        "tests that assert on wording": f"{sum(map(asserts_on_wording, functions)):,}",
        "golden plans": str(len(list((root / "tests" / "data" / "plans").rglob("*.*")))),
    }


def main() -> None:
    """Prints one column for each checkout."""
    roots = [Path(each) for each in sys.argv[1:] or ["."]]
    columns = [counts(root) for root in roots]
    for name in columns[0]:
        print(f"{name:40}" + "".join(f"{column[name]:>12}" for column in columns))


if __name__ == "__main__":
    main()
