"""Factories of models that cannot be exported, each for a reason of its own."""

import ctypes
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

Function = Callable[[torch.Tensor], Any]


class Model(nn.Module):  # type: ignore[misc]
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self.linear(x))


def branches(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        return x
    return -x


def reads_a_size(x: torch.Tensor) -> torch.Tensor:
    return torch.ones(int(x.abs().sum().item()))


def raises(x: torch.Tensor) -> torch.Tensor:
    raise ValueError("no such thing")


def reads_its_address(x: torch.Tensor) -> torch.Tensor:
    return x * x.data_ptr()


def transforms(x: torch.Tensor) -> torch.Tensor:
    return torch.fft.rfft(x).abs()


def takes_a_part(x: torch.Tensor) -> torch.Tensor:
    return x[torch.argsort(x[:, 0])][: (x > 0).sum()]


def convolves_volumes(x: torch.Tensor) -> torch.Tensor:
    # More than would be computed to try the program.
    return torch.conv3d(x.mean() + torch.zeros(1, 64, 10, 64, 64), torch.ones(64, 64, 3, 3, 3))


KEPT = torch.zeros(4, 8)


def writes_a_constant(x: torch.Tensor) -> torch.Tensor:
    KEPT.add_(x)
    return x + KEPT


def decomposes_a_matrix(x: torch.Tensor) -> torch.Tensor:
    values: torch.Tensor = torch.linalg.svd(x)[1]
    return values


@torch.library.custom_op("failing::double", mutates_args=())  # type: ignore[untyped-decorator]
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@double.register_fake  # type: ignore[untyped-decorator]
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def writes_the_input(x: torch.Tensor) -> torch.Tensor:
    return x.add_(1)


def gives_text(x: torch.Tensor) -> dict[str, Any]:
    return {"out": x, "name": "x"}


FUNCTIONS: dict[str, Function] = {
    "branches": branches,
    "reads_a_size": reads_a_size,
    "raises": raises,
    "reads_its_address": reads_its_address,
    "transforms": transforms,
    "takes_a_part": takes_a_part,
    "writes_a_constant": writes_a_constant,
    "decomposes_a_matrix": decomposes_a_matrix,
    "custom": double,
    "gives_text": gives_text,
    "convolves_volumes": convolves_volumes,
    "works": torch.relu,
}


def make(function: str = "works") -> tuple[nn.Module, tuple[torch.Tensor]]:
    return Model(FUNCTIONS[function]), (torch.randn(4, 8),)


def no_linear() -> tuple[nn.Module, tuple[torch.Tensor]]:
    return nn.ReLU(), (torch.randn(4, 8),)


def too_many_inputs() -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    return Model(torch.relu), (torch.randn(4, 8), torch.randn(4, 8))


def scripted() -> tuple[nn.Module, tuple[torch.Tensor]]:
    return torch.jit.script(nn.ReLU()), (torch.randn(4, 8),)


def reads_a_missing_file() -> None:
    torch.load("no/such/file.pt")


class Scaled(nn.Module):  # type: ignore[misc]
    def forward(self, x: torch.Tensor, mode: Any) -> torch.Tensor:
        return x if isinstance(mode, str) else x * mode


def text_input() -> tuple[nn.Module, Any]:
    return Scaled(), (torch.randn(4, 8), "fast")


def open_number() -> tuple[nn.Module, Any, Any]:
    return Scaled(), {"x": torch.randn(4, 8), "mode": 3}, {"x": None, "mode": torch.export.Dim.AUTO}


def swapped_calls() -> tuple[nn.Module, Any, Any, Any]:
    return Scaled(), {"mode": 3}, (torch.randn(4, 8),), None


def lone_tensor() -> tuple[nn.Module, torch.Tensor]:
    return Model(torch.relu), torch.randn(4, 8)


def writes_its_input() -> tuple[nn.Module, tuple[torch.Tensor]]:
    class Writes(nn.Module):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return writes_the_input(x)

    return Writes(), (torch.randn(4, 8),)


def only_a_module() -> nn.Module:
    return Model(torch.relu)


def no_module() -> tuple[Function, tuple[torch.Tensor]]:
    return branches, (torch.randn(4, 8),)


def factory_raises(width: int = 3) -> None:
    raise RuntimeError(f"no width {width}\nand a second line")


def fixed_width() -> tuple[nn.Module, tuple[torch.Tensor], Any]:
    return Model(torch.relu), (torch.randn(4, 8),), {"x": {1: torch.export.Dim("w", max=99)}}


def allocates() -> tuple[torch.Tensor, tuple[torch.Tensor]]:
    return torch.zeros(1 << 50), (torch.randn(4, 8),)


def is_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def crashes() -> None:
    ctypes.string_at(0)


def lone_samples() -> Iterator[torch.Tensor]:
    yield torch.randn(4, 8)


def no_samples() -> Iterator[tuple[torch.Tensor]]:
    yield from ()


def wrong_samples() -> Iterator[tuple[torch.Tensor]]:
    yield (torch.randn(4, 7),)
