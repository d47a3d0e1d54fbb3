"""Layers of experts, as transformers' interface for them takes them.

A token's output is the sum of its experts' outputs, weighted by the router. What the others give is
weighted by zero here, so that no operator depends on which were chosen: of data-dependent shapes
nothing is delegated, and looking up the chosen experts' weights copies them for each token.

The experts of a layer are joined into one gated MLP then, whose inner values are weighted between
its linear layers. These are quantised and delegated as any others, and there are as many in a model
with 128 experts as in one with 8.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.integrations.moe import ExpertsInterface, _default_apply_gate

from etdeploy.export.worker.generation.cache import MisfitError

JOINED = "etdeploy_joined"


def register() -> None:
    """Makes the computation known to transformers, by its name."""
    ExpertsInterface.register(JOINED, joined_experts)


def join_experts(model: Any) -> None:
    """Joins the experts of each layer, in place; nothing where a model has none."""
    every = (m for m in model.modules() if hasattr(m, "has_post_expert_norm"))
    found = [experts for experts in every if not hasattr(experts, "joined")]
    for experts in found:
        if experts.has_post_expert_norm:
            raise MisfitError("its experts' outputs are normalised before they are weighted")
    for experts in found:
        experts.joined = Joined(experts)
        for name in ("gate_up_proj", "up_proj", "down_proj"):
            for each in (name, f"{name}_bias"):
                if each in experts._parameters:
                    delattr(experts, each)
    if found:
        model.set_experts_implementation(JOINED)


def cost_note(model: Any) -> str | None:
    """A sentence about what joined experts cost; None where a model has none."""
    joined = next((m for m in model.modules() if isinstance(m, Joined)), None)
    if joined is None:
        return None
    chosen = getattr(model.config.get_text_config(decoder=True), "num_experts_per_tok", None)
    of_them = f", {chosen} of which its router chooses" if chosen else ""
    return (
        f"Each token computes all {joined.count} experts of a layer{of_them}: a program cannot "
        "leave out what only depends on values."
    )


class Joined(torch.nn.Module):  # type: ignore[misc]
    """The weights of a layer's experts, in linear layers.

    Attributes:
        count: Number of experts.
        into: One layer, or that of the gates and the other; out of it or each, experts in turn.
        out: From all experts' inner values.
        bias: Of shape (experts, hidden), or None.
    """

    def __init__(self, experts: Any) -> None:
        super().__init__()
        first = _rows(experts, "gate_up_proj" if experts.has_gate else "up_proj")
        last = _rows(experts, "down_proj")
        self.count, hidden, inner = last.shape
        bias = _bias(experts, "gate_up_proj" if experts.has_gate else "up_proj")
        halves = experts.has_gate and type(experts)._apply_gate is _default_apply_gate
        size = inner if halves else first.shape[1]
        self.into = torch.nn.ModuleList(
            _linear(
                first[:, start : start + size].reshape(-1, hidden),
                None if bias is None else bias[:, start : start + size].reshape(-1),
            )
            for start in range(0, first.shape[1], size)
        )
        self.out = _linear(last.transpose(0, 1).reshape(hidden, -1), None)
        self.bias = _bias(experts, "down_proj")


def joined_experts(
    self: Any,
    hidden_states: torch.Tensor,
    top_k_index: torch.Tensor,
    top_k_weights: torch.Tensor,
) -> torch.Tensor:
    """The output of a layer of experts."""
    joined: Joined = self.joined
    none = torch.zeros(hidden_states.shape[0], joined.count)
    weights = none.scatter(1, top_k_index, top_k_weights.to(none.dtype))
    values = [layer(hidden_states) for layer in joined.into]
    if len(values) > 1:
        inner = self.act_fn(values[0]) * values[1]
    else:
        each = values[0].reshape(-1, joined.count, values[0].shape[-1] // joined.count)
        inner = self._apply_gate(each) if self.has_gate else self.act_fn(each)
    inner = inner.reshape(-1, joined.count, joined.out.in_features // joined.count)
    weighted = inner * weights.unsqueeze(-1)
    out: torch.Tensor = joined.out(weighted.reshape(-1, joined.out.in_features))
    return out if joined.bias is None else out + weights @ joined.bias


def _rows(experts: Any, name: str) -> torch.Tensor:
    """Weights of shape (experts, outputs, inputs)."""
    weight: torch.Tensor = getattr(experts, name).detach()
    return weight.transpose(1, 2) if experts.is_transposed else weight


def _bias(experts: Any, name: str) -> torch.nn.Parameter | None:
    if not experts.has_bias:
        return None
    return torch.nn.Parameter(getattr(experts, f"{name}_bias").detach(), requires_grad=False)


def _linear(weight: torch.Tensor, bias: torch.Tensor | None) -> torch.nn.Linear:
    layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    layer.weight = torch.nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        layer.bias = torch.nn.Parameter(bias, requires_grad=False)
    return layer
