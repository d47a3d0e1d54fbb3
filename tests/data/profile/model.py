"""A model with two methods, whose norms XNNPACK leaves to the CPU's kernels."""

from __future__ import annotations

import torch


class Norm(torch.nn.Module):  # type: ignore[misc]
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)


class Block(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(64, 64)
        self.norm = Norm()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(torch.relu(self.linear(x)))


class Net(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(2))
        self.head = torch.nn.Linear(64, 512)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)

    def tail(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks[1].norm(x))


def make() -> dict[str, object]:
    net = Net().eval()
    return {"forward": (net, (torch.randn(1, 8, 64),)), "tail": (net, (torch.randn(1, 4, 64),))}
