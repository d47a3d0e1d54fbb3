"""In which order XNNPACK's operators take an image's values: by pixel (NHWC), or by channel.

What follows a convolution stays by pixel where ExecuTorch's pass takes the order for indifferent.
That of ExecuTorch 1.5.1 takes it so for a softmax, too, which is then one over channels, whatever
its dimension: outputs are wrong.

Where activations are quantised at run time, the pass looks for what to copy for a convolution by
following first operands, past the quantisation and up to the start of the partition. It turns that
round for all who take it: a layer scale has no four dimensions, and the lowering fails; a LayerNorm
by pixel gets another shape, and the program fails when it runs.

XNNPACK packs what it quantises for a matrix product, also for a convolution of one pixel. A larger
convolution that takes the same tensor reads it as if it were not packed, and outputs are wrong.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from executorch.backends.xnnpack._passes.channels_last_tagged_reshape_pass import (
    ChannelsLastTaggedReshapePass,
)
from executorch.backends.xnnpack.utils.quant_utils import is_dynamic_qdq
from executorch.exir.dialects._ops import ops

from etdeploy.export.worker.backends.xnnpack_passes import NeededPasses, preprocessing_with

_quantized = torch.ops.quantized_decomposed


def own_quantisations(program: torch.export.ExportedProgram) -> None:
    """Gives operators of unlike kinds a dynamic quantisation each, where they share one; in place.

    Args:
        program: As it was traced after PT2E.
    """
    for node in list(program.graph.nodes):
        if node.target is _quantized.dequantize_per_tensor.tensor:
            _share_among_alike(program.graph, node)
    program.graph_module.recompile()


def _share_among_alike(graph: torch.fx.Graph, dequantised: torch.fx.Node) -> None:
    kinds: dict[str, list[torch.fx.Node]] = {}
    for user in dequantised.users:
        kinds.setdefault(_kind(user), []).append(user)
    quantised: Any = dequantised.args[0]
    for users in [*kinds.values()][1:]:
        with graph.inserting_after(dequantised):
            own = graph.node_copy(quantised)
        with graph.inserting_after(own):
            copy = graph.node_copy(dequantised)
        copy.replace_input_with(quantised, own)
        for user in users:
            user.replace_input_with(dequantised, copy)


def _kind(node: torch.fx.Node) -> str:
    """Alike are those that XNNPACK computes with one kind of kernel."""
    if "conv" not in str(node.target):
        return str(node.target)
    weight: Any = node.args[1]
    return str((node.target, tuple(weight.meta["val"].shape[2:]), node.args[3:], node.kwargs))


class SoftmaxByChannel(ChannelsLastTaggedReshapePass):  # type: ignore[misc]
    """Gives a softmax, which is over the last dimension, the tensor in the order of its sizes."""

    def requires_nchw_inputs(self, node: torch.fx.Node) -> bool:
        """As in the base class."""
        return node.target is ops.edge.aten._softmax.default or bool(
            super().requires_nchw_inputs(node)
        )


class CopiesWhatIsQuantised(SoftmaxByChannel):
    """Copies the tensor whose values are quantised, for that quantisation alone."""

    def input_to_nhwc(
        self, graph_module: torch.fx.GraphModule, input_node: torch.fx.Node, target: torch.fx.Node
    ) -> None:
        """As in the base class."""
        chain = _chain(input_node)
        if chain is None or not all(map(self.requires_nhwc_input, input_node.users)):
            super().input_to_nhwc(graph_module, input_node, target)
            return
        source, taking = chain
        if self.is_nhwc_node(source):
            return
        copy = source.meta.get(self.PARTNER_NODE)
        if copy is None:
            with graph_module.graph.inserting_after(source):
                copy = self.create_call_function_node(
                    graph_module=graph_module,
                    target=ops.edge.aten._to_copy.default,
                    args=(source,),
                    memory_format=torch.channels_last,
                )
            self.mark_as_nhwc_node(copy)
            self.make_partners(source, copy)
        for node in taking:
            node.replace_input_with(source, copy)


def _chain(node: torch.fx.Node) -> tuple[torch.fx.Node, list[torch.fx.Node]] | None:
    """What a dynamic dequantisation's values were, and the nodes of its chain that take them.

    None for any other node, and where several dequantisations share what was quantised.
    """
    quantised: Any = node.args[0] if node.args else None
    if not is_dynamic_qdq(node) or not isinstance(quantised, torch.fx.Node):
        return None
    if not is_dynamic_qdq(quantised) or len(quantised.users) > 1:
        return None
    source: Any = quantised.args[0]
    choices = [each.args[0] for each in quantised.all_input_nodes[1:] if each.args]
    chosen = [each for each in choices if isinstance(each, torch.fx.Node) and source in each.args]
    return source, list(dict.fromkeys([quantised, *chosen]))


class _Passes(NeededPasses):
    layouts: type[SoftmaxByChannel] = SoftmaxByChannel

    def __init__(self, exported_program: Any, passes: Any = None) -> None:
        super().__init__(exported_program, passes)
        other = {ChannelsLastTaggedReshapePass: self.layouts}
        every: list[Any] = vars(self)["passes"]
        self.passes = [other.get(each, each) for each in every]


def preprocessing_by_layout(
    *, is_dynamic: bool = False, skips: bool = True
) -> AbstractContextManager[None]:
    """While the block runs, ExecuTorch's preprocessing has the passes above.

    Args:
        is_dynamic: Whether activations are quantised at run time.
        skips: Whether passes with nothing to do are left out.
    """
    layouts = CopiesWhatIsQuantised if is_dynamic else SoftmaxByChannel
    return preprocessing_with(type("_Passes", (_Passes,), {"layouts": layouts, "skips": skips}))
