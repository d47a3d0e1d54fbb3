"""Factories of models whose export needs some care."""

import struct
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn


class Nested(nn.Module):  # type: ignore[misc]
    """Takes and gives nested structures."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(
        self, pair: dict[str, torch.Tensor], rest: list[torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        total = pair["a"] + pair["b"]
        return {"sum": self.linear(total), "picked": rest[0][rest[1]]}


class Counter(nn.Module):  # type: ignore[misc]
    """Keeps state: one buffer that starts at five, one at zero."""

    count: torch.Tensor
    total: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.full((1,), 5.0), persistent=False)
        self.register_buffer("total", torch.zeros(4))
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        self.total.add_(x[0])
        out: torch.Tensor = self.linear(x) + self.count + self.total
        return out


class Dropped(nn.Module):  # type: ignore[misc]
    """Gives random outputs unless it is in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 40))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x)
        return out


class Cache:
    """A cache as those of language models are: no module, so torch does not know its tensors."""

    def __init__(self) -> None:
        self.keys = torch.zeros(1, 8, 4)


class Cached(nn.Module):  # type: ignore[misc]
    """Writes into its cache, whose tensor is a buffer, too."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = Cache()
        self.register_buffer("keys", self.cache.keys, persistent=False)
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        self.cache.keys.index_copy_(1, position, self.linear(x))
        return self.cache.keys.sum(1)


class Computed(nn.Module):  # type: ignore[misc]
    """A linear layer with a function after it."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.linear(x))


def cached() -> tuple[nn.Module, Any]:
    return Cached(), (torch.ones(1, 1, 4), torch.tensor([2]))


def with_numpy() -> tuple[nn.Module, Any]:
    """TorchDynamo alone can trace it."""
    module = Computed(lambda x: torch.from_numpy(np.tanh(x.detach().numpy())))
    return module, (torch.randn(2, 8),)


def with_c_function() -> tuple[nn.Module, Any]:
    """TorchDynamo cannot trace it."""
    return Computed(lambda x: x * struct.calcsize("<i")), (torch.randn(2, 8),)


def nested() -> tuple[nn.Module, Any]:
    pair = {"a": torch.randn(2, 8), "b": torch.randn(2, 8)}
    return Nested(), (pair, [torch.randn(5), torch.tensor([4, 0, 2])])


def counter() -> tuple[nn.Module, Any]:
    return Counter(), (torch.ones(2, 4),)


def dropped() -> tuple[nn.Module, Any]:
    return Dropped(), (torch.randn(1, 8),)


def rows() -> tuple[nn.Module, Any, Any]:
    return Dropped(), (torch.randn(3, 8),), {"x": {0: torch.export.Dim("rows", min=1, max=16)}}


def scaled_by_a_number() -> tuple[nn.Module, Any, Any]:
    """Reads a number from a tensor; ExecuTorch writes no ETRecord of that."""
    module = Computed(lambda x: x * x.max().item())
    return module, (torch.randn(3, 8),), {"x": {0: torch.export.Dim("rows", min=1, max=16)}}


def mixed_sizes() -> tuple[nn.Module, Any]:
    layers = nn.Sequential(nn.Linear(64, 40), nn.ReLU(), nn.Linear(40, 32))
    return layers, (torch.randn(2, 64),)


def attending() -> tuple[nn.Module, Any]:
    layer = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
    return nn.TransformerEncoder(layer, 1).eval(), (torch.randn(1, 6, 32),)


def samples() -> Iterator[tuple[torch.Tensor]]:
    for _ in range(3):
        yield (torch.randn(2, 64),)


def open_batch() -> tuple[nn.Module, Any, Any]:
    """The batch is left open twice; the code fixes it once, the example's size once."""
    batch = torch.export.Dim.AUTO(max=16)
    return Joined(), (torch.randn(3, 8), torch.randn(1, 8)), ({0: batch}, {0: batch})


class Joined(nn.Module):  # type: ignore[misc]
    """Fixes the first dimension of its first input by its code."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, pair: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear(x.reshape(3, 8) + pair)
        return out


@dataclass
class Result:
    """Outputs in a class of the user's own."""

    logits: torch.Tensor
    hidden: Any


torch.export.register_dataclass(Result, serialized_type_name="Result")


class Everything(nn.Module):  # type: ignore[misc]
    """Takes and gives all that a program can hold, in a class of its own or in a dict."""

    def __init__(self, kind: Any = Result) -> None:
        super().__init__()
        self.kind = kind
        self.linear = nn.Linear(8, 4)

    def forward(
        self,
        x: torch.Tensor,
        repeat: int,
        scale: float,
        flag: bool,
        mask: torch.Tensor | None,
        *,
        bias: torch.Tensor,
    ) -> dict[str, Any]:
        out = self.linear(x) * scale + bias
        if flag:
            out = out * repeat
        if mask is not None:
            out = out * mask
        result = self.kind(logits=out + 1, hidden=(out - 1, {"last/one": out * 2}))
        return {
            "result": result,
            "repeat": repeat,
            "scale": scale,
            "rows": x.shape[0],
            "mask": mask,
        }


def everything() -> tuple[nn.Module, Any, Any, Any]:
    inputs = (torch.randn(3, 8), 2, 0.5, True, None)
    shapes = {"x": {0: torch.export.Dim("rows", max=16)}}
    fixed = dict.fromkeys(("repeat", "scale", "flag", "mask", "bias"))
    return Everything(), inputs, {"bias": torch.ones(4)}, {**shapes, **fixed}


def by_keyword() -> tuple[nn.Module, Any]:
    return Everything(), {
        "bias": torch.randn(4),
        "mask": torch.ones(3, 4),
        "x": torch.randn(3, 8),
        "flag": False,
        "scale": 2.0,
        "repeat": 7,
    }


class LookedUp(nn.Module):  # type: ignore[misc]
    """Takes indices, and a float for every half of them."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 8)

    def forward(self, ids: torch.Tensor, halves: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.table(ids) * halves.repeat_interleave(2, 0).unsqueeze(1)
        return out


def looked_up() -> tuple[nn.Module, Any, Any]:
    pairs = torch.export.Dim("pairs", min=1, max=16)
    inputs = {"halves": torch.tensor([0.5, -0.5]), "ids": torch.tensor([8, 8, 3, 5])}
    return LookedUp(), inputs, {"ids": {0: 2 * pairs}, "halves": {0: pairs}}


def own_inputs(pairs: int) -> dict[str, torch.Tensor]:
    return {"ids": torch.arange(2 * pairs) % 9, "halves": torch.ones(pairs)}


def short_inputs(pairs: int) -> dict[str, torch.Tensor]:
    return {"ids": torch.arange(2 * pairs) % 9, "halves": torch.ones(1)}


class Pixels(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.last = nn.Conv2d(3, 8, 3), nn.Linear(8, 4)
        self.register_buffer("scale", torch.ones(1).expand(4))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        found = torch.relu(self.convolution(image)).mean((2, 3))
        out: torch.Tensor = self.last(found) * self.scale
        return out


def _photo() -> torch.Tensor:
    return torch.from_numpy(np.random.randint(0, 256, (12, 10, 3), np.uint8))


def photo() -> tuple[nn.Module, Any]:
    """As images are usually prepared."""
    return Pixels(), (_photo().permute(2, 0, 1)[None].float() / 255,)


def photos() -> Iterator[tuple[torch.Tensor]]:
    for _ in range(2):
        yield photo()[1]


def by_pixel() -> tuple[nn.Module, Any]:
    """Weights and image are by pixel on purpose."""
    order = torch.channels_last
    return Pixels().to(memory_format=order), (torch.rand(2, 3, 12, 10).to(memory_format=order),)


def transposed() -> tuple[nn.Module, Any]:
    return nn.Linear(8, 4), (torch.randn(8, 5).T,)


class InParts(nn.Module):  # type: ignore[misc]
    """Takes a part of a sequence, with the state of the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(8, 6, batch_first=True)

    def forward(self, x: torch.Tensor, state: tuple[torch.Tensor, torch.Tensor]) -> Any:
        y, state = self.rnn(x, state)
        return y, state


def in_parts() -> tuple[nn.Module, Any]:
    return InParts(), (torch.randn(1, 4, 8), (torch.randn(1, 1, 6), torch.randn(1, 1, 6)))


class Frames(nn.Module):  # type: ignore[misc]
    """Casts and copies permuted tensors of five dimensions, and shifts bits of integers."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 4)

    def forward(self, frames: torch.Tensor) -> Any:
        values = frames.permute(0, 4, 1, 2, 3).float().div_(255.0)
        bins = frames.int() >> 2
        bins = (bins << 3) + (bins << bins % 3)
        return self.last(values.flatten(2)), values.permute(0, 2, 1, 3, 4).clone(), bins


def frames() -> tuple[nn.Module, Any]:
    return Frames(), (torch.randint(0, 255, (1, 1, 2, 3, 4), dtype=torch.uint8),)


def computed_weights() -> tuple[nn.Module, Any]:
    first = nn.utils.parametrizations.weight_norm(nn.Linear(64, 32))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the older function is deprecated
        second = nn.utils.weight_norm(nn.Linear(32, 32))
    return nn.Sequential(first, nn.ReLU(), second), (torch.randn(2, 64),)
