"""Factories of programs with several methods."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

CAPACITY, WIDTH = 8, 32
Entry = tuple[Any, ...]


class Decoder(nn.Module):  # type: ignore[misc]
    """Writes what it is given into a cache, and answers with a sum over it."""

    cache: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.key, self.out = nn.Linear(WIDTH, 4096), nn.Linear(4096, WIDTH)
        self.register_buffer("cache", torch.zeros(CAPACITY, 4096), persistent=False)

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        self.cache.index_copy_(0, position, self.key(x))
        out: torch.Tensor = self.out(torch.relu(self.cache).sum(0, keepdim=True) + self.key(x))
        return out

    def prefill(self, x: torch.Tensor) -> torch.Tensor:
        """The same for the first rows at once."""
        return self(x, torch.arange(x.shape[0]))[-1:]


class PlacingDecoder(Decoder):
    """The same with a dimension for the batch, written by Python's index."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(1, CAPACITY, 4096), persistent=False)

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        self.cache[:, position] = self.key(x).unsqueeze(0)
        out: torch.Tensor = self.out(torch.relu(self.cache[0]).sum(0, keepdim=True) + self.key(x))
        return out


class ViewingDecoder(Decoder):
    """Looks at a view of its cache after it was written, which shows what was there before."""

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        before = self.cache.clone().view(2, -1)
        self.cache.index_copy_(0, position, self.key(x))
        return self.out(torch.relu(self.cache).sum(0, keepdim=True)) + before.sum()


def placing() -> dict[str, Entry]:
    """Methods that write the cache by Python's index."""
    return _with_prefill(PlacingDecoder())


def viewing() -> dict[str, Entry]:
    """Methods that need the cache as it was, too."""
    return _with_prefill(ViewingDecoder())


def _with_prefill(module: Decoder) -> dict[str, Entry]:
    return {
        "prefill": (module, (torch.randn(4, WIDTH),)),
        "decode": (module, (torch.randn(1, WIDTH), torch.tensor([0]))),
    }


def decoder() -> dict[str, Entry]:
    """One module: its own method, and its forward by another name."""
    module = Decoder()
    rows = torch.export.Dim("rows", min=2, max=CAPACITY - 1)
    return {
        "prefill": (module, (torch.randn(4, WIDTH),), {"x": {0: rows}}),
        "decode": (module, (torch.randn(1, WIDTH), torch.tensor([4]))),
    }


def fixed() -> dict[str, Entry]:
    """The same without dimensions that are dynamic."""
    return {name: entry[:2] for name, entry in decoder().items()}


def samples(method: str) -> Iterator[tuple[torch.Tensor, ...]]:
    """Calibration inputs."""
    for rows in (2, 3):
        x = torch.randn(rows if method == "prefill" else 1, WIDTH)
        yield (x,) if method == "prefill" else (x, torch.tensor([rows]))


class Head(nn.Module):  # type: ignore[misc]
    """A part that another module holds, too."""

    def __init__(self, body: nn.Module, scale: float) -> None:
        super().__init__()
        self.body, self.scale = body, scale

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"y": self.body(x) * self.scale}


def heads() -> dict[str, Entry]:
    """Two modules with a common part, of which one is the default method."""
    body = nn.Linear(WIDTH, 2048)
    x = torch.randn(2, WIDTH)
    return {"small": (Head(body, 0.5), {"x": x}), "forward": (Head(body, 2.0), (x,))}


class Count(nn.Module):  # type: ignore[misc]
    """Starts at a value; one method adds to it, the other reads it."""

    count: torch.Tensor

    def __init__(self, start: float = 5.0) -> None:
        super().__init__()
        self.register_buffer("count", torch.full((2, 2), start))

    def add(self, x: torch.Tensor) -> torch.Tensor:
        """Adds."""
        self.count.add_(x)
        return self.count * 1

    def read(self, x: torch.Tensor) -> torch.Tensor:
        """Reads."""
        return self.count + x


def counts() -> dict[str, Entry]:
    """State that does not start at zero, and that one method only reads."""
    module, x = Count(), torch.ones(2, 2)
    return {"add": (module, (x,)), "read": (module, (x,))}


def apart() -> dict[str, Entry]:
    """Two modules with a state each, of the same name: nothing is shared."""
    x = torch.ones(2, 2)
    return {"add": (Count(1.0), {"x": x}), "read": (Count(2.0), (x,))}


class Holder(nn.Module):  # type: ignore[misc]
    """Holds a part under a name of its own."""

    def __init__(self, name: str, part: Count) -> None:
        super().__init__()
        self.name = name
        self.add_module(name, part)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        part: Count = getattr(self, self.name)
        return part.add(x)


def two_names() -> dict[str, Entry]:
    """State in common, under two names."""
    part, x = Count(), torch.ones(2, 2)
    return {"add": (Holder("part", part), (x,)), "more": (Holder("other", part), (x,))}


class Adding(Count):
    """Adds in its forward."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.add(x)


def mixed_states() -> dict[str, Entry]:
    """State in common, and other state of the same name."""
    part, x = Adding(), torch.ones(2, 2)
    return {"add": (part, (x,)), "more": (part, (x,)), "other": (Adding(), (x,))}


def no_methods() -> dict[str, Entry]:
    return {}


def odd_name() -> dict[str, Entry]:
    return {"de-code": (nn.Linear(2, 2), (torch.ones(1, 2),))}


def half_an_entry() -> dict[str, Any]:
    return {"forward": (nn.Linear(2, 2), (torch.ones(1, 2),)), "decode": nn.Linear(2, 2)}


def no_forward() -> dict[str, Entry]:
    return {"write": (Count(), (torch.ones(2, 2),))}


def any_samples() -> Iterator[tuple[torch.Tensor, ...]]:
    yield (torch.randn(2, WIDTH),)


class Raises(Count):
    """One of its methods raises."""

    def wrong(self, x: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        """Raises."""
        raise ValueError("no such thing")


def raises() -> dict[str, Entry]:
    x = torch.ones(2, 2)
    return {"add": (Raises(), (x,)), "wrong": (Raises(), (x,))}
