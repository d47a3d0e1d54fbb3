"""Graphs that are sorted in place, and copies that torch.fx sorts.

`python -m tests.support.sorted_graphs` writes one line of JSON at the end: of each pair what later
steps of a lowering may see, and whether a cycle is reported.
"""

from __future__ import annotations

import json
import operator
import random
import sys
import warnings
from typing import Any

import executorch.exir.lowered_backend_module as lowered_backend_module
import torch
from torch.fx.passes.tools_common import legalize_graph

from etdeploy.export.worker.lowering.upstream_patches import sorted_in_place


def disordered(seed: int) -> torch.fx.GraphModule:
    """A module of operators of random inputs, of which some come before these in its graph."""
    chosen, graph = random.Random(seed), torch.fx.Graph()
    nodes = [graph.placeholder("x"), graph.placeholder("y")]
    for _ in range(14):
        inputs = (chosen.choice(nodes), chosen.choice(nodes))
        kind = chosen.choice(("relu", "add", "operator", "method"))
        if kind == "method":
            nodes.append(graph.call_method("sin", inputs[:1]))
        elif kind == "relu":
            nodes.append(graph.call_function(torch.relu, inputs[:1]))
        else:
            add = operator.add if kind == "operator" else torch.add
            nodes.append(graph.call_function(add, inputs))
    graph.output(tuple(nodes[-3:]))
    for _ in range(6):
        chosen.choice(nodes[2:]).append(chosen.choice(nodes[2:]))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def described(module: torch.fx.GraphModule) -> list[Any]:
    """Everything about a graph: order, users, tables, names that nodes get later, and values."""
    graph = module.graph
    nodes = list(graph.nodes)
    found: list[Any] = [
        [node.name, node.op, str(node.target), str(node.args), [user.name for user in node.users]]
        for node in nodes
    ]
    found += [[node.name for node in reversed(graph.nodes)], sorted(nodes) == nodes]
    found += [[n.name for n in graph.find_nodes(op="call_method", target="sin", sort=False)]]
    with graph.inserting_before(graph.output_node()):
        found += [graph.call_function(torch.relu, (nodes[0],)).name for _ in range(2)]
    module.recompile()
    x = torch.arange(24.0).reshape(4, 6)
    return [*found, module.code, [output.tolist() for output in module(x, x)]]


def reports_a_cycle() -> bool:
    """Whether a graph that cannot be sorted is an error."""
    module = disordered(0)
    nodes = [node for node in module.graph.nodes if node.op == "call_function"]
    nodes[0].args = (nodes[0],)
    try:
        lowered_backend_module.legalize_graph(module)
    except RuntimeError as error:
        return "cycles" in str(error)
    return False


def main() -> None:
    """Prints what is found."""
    warnings.simplefilter("ignore")
    pairs = []
    with sorted_in_place():
        for seed in range(8):
            made = lowered_backend_module.legalize_graph(disordered(seed))
            pairs.append((described(made), described(legalize_graph(disordered(seed)))))
        cycle = reports_a_cycle()
    sys.stdout.write(json.dumps({"pairs": pairs, "cycle": cycle}) + "\n")


if __name__ == "__main__":
    main()
