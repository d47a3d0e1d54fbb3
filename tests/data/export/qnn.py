"""Small models with one thing each that Qualcomm's HTP does not take, or takes and gets wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

VALUES = torch.linspace(-2, 2, 128).reshape(1, 8, 16)
BYTES = torch.arange(128).reshape(1, 8, 16).to(torch.uint8)
Example = tuple[nn.Module, tuple[Any, ...], dict[str, Any], Any]


class Model(nn.Module):  # type: ignore[misc]
    """A linear layer of 16 features, and what a function makes of it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.function = function
        self.register_buffer("state", torch.full((1, 8, 16), 5.0))
        self.register_buffer("constant", torch.linspace(1, 2, 128).reshape(8, 16))

    def forward(self, *inputs: Any) -> Any:
        return self.function(self, *inputs)


class ByKeyword(nn.Module):  # type: ignore[misc]
    """Takes two inputs by keyword alone."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: Any, *, scale: Any, shift: Any) -> Any:
        return self.linear(x) * scale + shift


def _example(function: Callable[..., Any], *inputs: Any) -> Example:
    return Model(function), inputs or (VALUES,), {}, None


def _counted(model: Model, x: Any) -> Any:
    model.state.add_(model.linear(x))
    return model.state * 2


def _without_gradients(model: Model, x: Any) -> Any:
    with torch.no_grad():
        y = model.linear(x)
    return y + 1


class PackedAttention(nn.Module):  # type: ignore[misc]
    """Four heads, whose queries, keys and values come from one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.packed, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Any) -> Any:
        q, k, v = self.packed(x).view(1, 8, 3, 4, 4).permute(2, 0, 3, 1, 4).unbind(0)
        heads = torch.softmax(q @ k.transpose(-1, -2), dim=-1) @ v
        return self.out(heads.transpose(1, 2).reshape(1, 8, 16))


def _of_rank_six(model: Model, x: Any) -> Any:
    x = model.linear(x)
    x = x.reshape(1, 2, 2, 2, 4, 4).permute(5, 4, 3, 2, 1, 0)
    return model.linear(x.reshape(1, 8, 16))


def _attention() -> Example:
    attention = nn.MultiheadAttention(16, 2, batch_first=True)
    model = Model(lambda model, x: model.attention(x, x, x, need_weights=False)[0])
    model.attention = attention
    return model, (VALUES,), {}, None


def _branch(model: Model, x: Any) -> Any:
    return torch.cond(x.sum() > 0, lambda v: v + 1, lambda v: v - 1, (model.linear(x),))


def _causal(model: Model, x: Any) -> Any:
    y = model.linear(x)
    return (y @ y.transpose(1, 2)).masked_fill(torch.tril(torch.ones(8, 8)) == 0, -1e4).softmax(-1)


def _large_mask(model: Model, x: Any) -> Any:
    # 4.8 MB, of which 4 MiB would be stored.
    return model.linear(x).sum((1, 2), keepdim=True)[0] * torch.tril(torch.ones(1100, 1100))


def _constant_parts(model: Model, x: Any) -> Any:
    first, *_, last = model.constant.unbind(0)
    return model.linear(x) * first - last


def _deep_stack(model: Model, x: Any) -> Any:
    y = model.linear(x).reshape(1, 2, 4, 4, 4)
    return torch.stack([y, y * 2], 1)


class Recurrent(nn.Module):  # type: ignore[misc]
    """An LSTM that begins with zeros, and a cell that continues from its states."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(16, 16, batch_first=True)
        self.cell = nn.GRUCell(16, 16)

    def forward(self, x: Any) -> Any:
        y, (hidden, state) = self.lstm(x)
        return y, state, self.cell(y[:, -1], hidden[0])


EXAMPLES: dict[str, Callable[[], Example]] = {
    "plain": lambda: _example(lambda model, x: model.linear(x).relu()),
    "rank": lambda: _example(_of_rank_six),
    "bytes": lambda: _example(lambda model, x: model.linear(x.float() / 255), BYTES),
    "doubles": lambda: _example(lambda model, x: model.linear(x.float()), VALUES.double()),
    "all_doubles": lambda: _example(lambda _, x: x * 2 + 1, VALUES.double()),
    "bfloats": lambda: _example(lambda model, x: model.linear(x.bfloat16().float() + 1)),
    "indices": lambda: _example(lambda model, x: tuple(model.linear(x).topk(3))),
    "values": lambda: _example(lambda model, x: model.linear(x).topk(3)[0]),
    "constant": lambda: _example(lambda model, x: (model.linear(x), torch.ones(3))),
    "state": lambda: _example(_counted),
    "no_grad": lambda: _example(_without_gradients),
    "ids": lambda: _example(
        lambda model, x, at: model.linear(x).index_select(1, at), VALUES, torch.tensor([1, 3])
    ),
    "keywords": lambda: (
        ByKeyword(),
        (VALUES,),
        {"shift": VALUES - 1, "scale": VALUES * 2},
        None,
    ),
    "wide": lambda: _example(lambda _, x: x + 1, torch.tensor([2**33])),
    "branch": lambda: _example(_branch),
    "dynamic": lambda: (
        nn.Linear(16, 16),
        (VALUES,),
        {},
        {"input": {1: torch.export.Dim("rows", min=2, max=8)}},
    ),
    "remainder": lambda: _example(lambda _, x: x % 3 + 1, torch.arange(8)),
    "remainders": lambda: _example(lambda model, x: model.linear(x) % 3 + torch.arange(16) % 3),
    "divides": lambda: _example(lambda _, x: x // 2, torch.arange(8)),
    "no_kernel": lambda: _example(lambda model, x: torch.cumprod(model.linear(x), 1)),
    "attention": _attention,
    "causal": lambda: _example(_causal),
    "large_mask": lambda: _example(_large_mask),
    "constant_parts": lambda: _example(_constant_parts),
    "deep_stack": lambda: _example(_deep_stack),
    "recurrent": lambda: (Recurrent(), (VALUES[:, :2],), {}, None),
    "packed_heads": lambda: (nn.Sequential(PackedAttention()), (VALUES,), {}, None),
}
QUANTIZED = {"recurrent": "int8_static"}
OPTIONS: dict[str, dict[str, Any]] = {"packed_heads": {"mha2sha": "always"}}


class Everything(nn.Module):  # type: ignore[misc]
    """What the HTP gets wrong, in one model; each output shows another of them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.register_buffer("state", torch.full((1, 8, 16), 5.0))
        self.register_buffer("constant", torch.linspace(1, 2, 128).reshape(8, 16))

    def forward(self, pixels: Any, doubles: Any, *, ids: Any, scale: Any) -> Any:
        x = self.linear(pixels.float() / 255)
        self.state.add_(x)
        values, indices = self.linear(self.state).topk(3)
        chosen = x.index_select(1, ids) * scale
        parts = (_causal(self, x), _constant_parts(self, x))
        return values, indices, chosen, doubles * 2 + 1, torch.ones(3), *parts


def everything() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any], None]:
    """For a recipe's `model.python`; the keywords are in another order than forward's."""
    keywords = {"scale": torch.tensor(3.0), "ids": torch.tensor([1, 3])}
    return Everything(), (BYTES, VALUES.double()), keywords, None


def recurrent() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """For a recipe's `model.python`."""
    return Recurrent(), (VALUES[:, :4],)


def layers() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """A factory whose inputs have two rows."""
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), (torch.ones(2, 8),)


def no_samples() -> Iterator[tuple[torch.Tensor]]:
    yield from ()


def other_samples() -> Iterator[tuple[torch.Tensor]]:
    yield (torch.ones(2, 8),)
    yield (torch.ones(3, 8),)


def wide_samples() -> Iterator[tuple[torch.Tensor]]:
    for scale in (10.0, -20.0, 30.0):
        yield (torch.full((2, 8), scale),)
