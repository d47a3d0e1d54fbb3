"""Methods with convolutions that int8_dynamic lowers only if XNNPACK gets them as it needs them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Call = Callable[..., torch.Tensor]


class Computed(nn.Module):  # type: ignore[misc]
    """A function of layers and an image."""

    def __init__(self, call: Call, *layers: nn.Module) -> None:
        super().__init__()
        self.call, self.layers = call, nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.call(*self.layers, x)


def _conv(pixels: int = 3) -> nn.Module:
    return nn.Conv2d(8, 8, pixels, padding=pixels // 2)


def _of_tokens(linear: nn.Module, conv: nn.Module, x: torch.Tensor) -> torch.Tensor:
    tokens = linear(x.flatten(2).transpose(1, 2))
    return conv(tokens.transpose(1, 2).reshape(x.shape))


def _of_norm(norm: nn.Module, conv: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return conv(norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2))


def make() -> dict[str, Any]:
    torch.manual_seed(1)
    modules = {
        "chain": Computed(lambda a, b, x: b(functional.relu(a(x))), _conv(), _conv()),
        "unlike": Computed(lambda a, b, x: a(x) + b(x), _conv(), _conv(1)),
        "alike": Computed(lambda a, b, x: a(x.tanh()) * b(x.tanh()), _conv(), _conv()),
        "scaled": Computed(
            lambda s, a, x: a(s.weight.reshape(8, 1, 1) * x.tanh()), nn.Linear(8, 1), _conv()
        ),
        "tokens": Computed(_of_tokens, nn.Linear(8, 8), _conv()),
        "norm": Computed(_of_norm, nn.LayerNorm(8), _conv()),
        "branches": Computed(lambda a, b, x: b(a(x.tanh()) * x.tanh()), _conv(), _conv()),
        "upsampled": Computed(
            lambda a, b, x: b(functional.interpolate(a(x), scale_factor=2)), _conv(), _conv()
        ),
    }
    return {name: (module.eval(), (torch.randn(1, 8, 12, 10),)) for name, module in modules.items()}
