"""Which part of a model has another scheme than the rest: `export.overrides` of a recipe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING

from etdeploy.backends.schemes import first_override, is_match, module_label, modules_around
from etdeploy.core.console import count
from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.failures import fail

if TYPE_CHECKING:
    import torch

_NAMED = 8


def scheme_of(spec: ExportSpec, node: torch.fx.Node) -> str | None:
    """The scheme that overrides the spec's for a node; None where none does."""
    found = first_match(spec, [path_in_model(spec, node)])
    return found[1] if found else None


def path_in_model(spec: ExportSpec, node: torch.fx.Node) -> str:
    """The path of a node's module in the user's model.

    A language model is a part, `model`, of what its methods are traced from.
    """
    path = module_path(node)
    return path.removeprefix("model.") if spec.generation else path


def module_path(node: torch.fx.Node) -> str:
    """The path of the module whose `forward` calls an operator; empty for the model's own.

    As `named_modules()` has it. torch.export notes in `nn_module_stack` the path and type of each
    module around a call, the innermost last, and keeps that in a `.pt2` file.
    """
    stack = node.meta.get("nn_module_stack") or {}
    return next((str(path) for path, _ in reversed(stack.values())), "")


def check_overrides(spec: ExportSpec, traced: Mapping[str, torch.export.ExportedProgram]) -> None:
    """Refuses a pattern that no operator of any method is inside of."""
    paths = {path_in_model(spec, node) for program in traced.values() for node in _calls(program)}
    check_patterns(spec, lambda _: sorted(paths), "no module that computes something")


def check_patterns(spec: ExportSpec, paths: Callable[[str], Iterable[str]], nothing: str) -> None:
    """Refuses a pattern that matches no module."""
    for pattern, scheme in spec.overrides:
        modules = dict.fromkeys(each for path in paths(scheme) for each in modules_around(path))
        if not any(is_match(module, pattern) for module in modules):
            raise fail(
                "quantization",
                f"export.overrides: {nothing} matches {pattern!r}",
                file=spec.place("export", "overrides", pattern),
                remedy=_near(pattern, [module for module in modules if module]),
            )


def override_notes(spec: ExportSpec, program: torch.export.ExportedProgram) -> Iterator[str]:
    """What of a method is quantized in another way than the rest, as a sentence."""
    counts = Counter(first_match(spec, [path_in_model(spec, node)]) for node in _calls(program))
    parts = [
        f"{module_label(pattern)} with {scheme} ({count(counts[pattern, scheme], 'operator')})"
        for pattern, scheme in spec.overrides
    ]
    if parts:
        yield f"Quantized with {spec.quantization}, except: {', '.join(parts)}."


def first_match(spec: ExportSpec, paths: Iterable[str]) -> tuple[str, str] | None:
    """The pattern with its scheme that overrides the spec's for a module; None where none does."""
    return first_override(spec.overrides, paths)


def _calls(program: torch.export.ExportedProgram) -> Iterator[torch.fx.Node]:
    return (node for node in program.graph.nodes if node.op == "call_function")


def _near(pattern: str, modules: list[str]) -> str:
    if not modules:
        return "The model calls no modules: leave out export.overrides."
    near = get_close_matches(pattern, modules, n=3) or modules[:_NAMED]
    more = " and others" if len(near) < len(modules) else ""
    return f"Its modules are: {', '.join(near)}{more}."
