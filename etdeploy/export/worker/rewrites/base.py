"""What every rewrite is, and how it changes a graph."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument
from torch.utils import _pytree as pytree

from etdeploy.export.worker.tracing.structure import fixed_size
from etdeploy.export.worker.tracing.trace import stack_line

Program: TypeAlias = torch.export.ExportedProgram
REWRITE = "etdeploy_rewrite"
"""In a node's `meta`: the name of the rewrite that put it there."""


@dataclass
class Log:
    """What the rewrites of one export did.

    `applied` counts what each changed, and `skipped` the places that it left, with the reason (a
    clause), file and line.
    """

    names: tuple[str, ...] = ()
    applied: Counter[str] = field(default_factory=Counter)
    skipped: Counter[tuple[str, str, str | None, int | None]] = field(default_factory=Counter)

    def of(self, name: str) -> RewriteLog:
        """Return the part of the log that is one rewrite's."""
        return RewriteLog(self, name)


@dataclass(frozen=True)
class RewriteLog:
    """The part of the log that is one rewrite's."""

    log: Log
    name: str

    def applied(self) -> None:
        """One place was rewritten."""
        self.log.applied[self.name] += 1

    def skipped(self, node: torch.fx.Node, reason: str) -> None:
        """One place stays, for a reason that is a clause."""
        file, line, _ = stack_line(node.meta.get("stack_trace"))
        self.log.skipped[self.name, reason, file, line] += 1


# Changes a program in place.
Rewrite = Callable[[Program, RewriteLog], None]


class Writer:
    """Inserts operators before a node, in the place of what that node computes."""

    def __init__(self, program: Program, node: torch.fx.Node) -> None:
        self.program, self.node = program, node
        kept = ("stack_trace", "nn_module_stack", "source_fn_stack", "from_node", "torch_fn")
        self._meta = {key: node.meta[key] for key in kept if key in node.meta}

    def __call__(self, operator: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
        """An operator with nodes and numbers as its arguments."""
        args, kwargs = pytree.tree_map_only(torch.SymInt, _as_number, (args, kwargs))
        with self.node.graph.inserting_before(self.node):
            made = self.node.graph.call_function(operator, args, kwargs)
        values, named = torch.fx.map_arg((args, kwargs), lambda each: each.meta["val"])
        # With the dispatcher of Python, since some operators know dynamic sizes only there.
        with _mode_of(self.node), enable_python_dispatcher(), torch.no_grad():
            made.meta = {**self._meta, "val": operator(*values, **named)}
        return made

    def constant(self, name: str, tensor: torch.Tensor) -> torch.fx.Node:
        """A constant of the program; one for all that have its name."""
        plain = re.sub(r"\W", "_", name)
        return constant(self.program, f"p_etdeploy_{plain}", tensor, _mode_of(self.node))

    def replace(self, made: torch.fx.Node) -> None:
        """Replaces all uses of the node by `made`, and erases it."""
        self.node.replace_all_uses_with(made)
        # Outputs are named after their nodes.
        self.program.graph_signature.replace_all_uses(self.node.name, made.name)
        self.node.graph.erase_node(self.node)


def _as_number(size: torch.SymInt) -> int | torch.SymInt:
    """The size itself where it is always the same one: not every operator takes its symbol."""
    fixed = fixed_size(size)
    return size if fixed is None else fixed


def _mode_of(node: torch.fx.Node) -> Any:
    value = node.meta["val"]
    return (value[0] if isinstance(value, tuple | list) else value).fake_mode


def constant(program: Program, name: str, tensor: torch.Tensor, mode: Any) -> torch.fx.Node:
    """A new parameter of a program; the one of that name, if there is one."""
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.target == name:
            return node
    weights = torch.nn.Parameter(tensor, requires_grad=False)
    with program.graph.inserting_before(next(iter(program.graph.nodes))):
        made = program.graph.placeholder(name)
    made.meta["val"] = mode.from_tensor(weights, static_shapes=True)
    program.state_dict[name] = weights
    spec = InputSpec(InputKind.PARAMETER, TensorArgument(made.name), name)
    program.graph_signature.input_specs.insert(0, spec)
    return made


def bound(node: torch.fx.Node) -> dict[str, Any]:
    """The arguments of an operator by their names, with defaults."""
    target: Any = node.target
    schema = target._schema
    given = dict(zip((a.name for a in schema.arguments), node.args, strict=False))
    defaults = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
    return {**defaults, **given, **node.kwargs}


# What takes the place of an operator with these arguments: a node with its values; the operator
# itself where the replacement has changed its users; a reason, as a clause, why it stays; or None
# for one that the rewrite is not about.
Replacement = Callable[[Writer, dict[str, Any]], torch.fx.Node | str | None]


def replace_nodes(
    program: Program, log: RewriteLog, replacements: Mapping[Any, Replacement]
) -> None:
    """Replace operators of a graph, by their targets; in place."""
    for node in list(program.graph.nodes):
        replacement = replacements.get(node.target)
        if replacement is None:
            continue
        write = Writer(program, node)
        made = replacement(write, bound(node))
        if isinstance(made, str):
            log.skipped(node, made)
        elif made is not None:
            if made is not node:
                write.replace(made)
            log.applied()
    program.graph.eliminate_dead_code()
    program.graph_module.recompile()
