"""An operator with two results and arguments of several types, for PyTorch."""

import torch

torch.library.define(
    "bounds::of", "(Tensor x, int[] dims, float? margin, bool wide, str unit) -> (Tensor, Tensor)"
)
torch.library.define(
    "bounds::of.out",
    "(Tensor x, int[] dims, float? margin, bool wide, str unit, *, Tensor(a!) low, Tensor(b!) high)"
    " -> (Tensor(a!), Tensor(b!))",
)


@torch.library.impl("bounds::of", "CompositeExplicitAutograd")  # type: ignore[untyped-decorator]
def of(
    x: torch.Tensor, dims: list[int], margin: float | None, wide: bool, unit: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """The least and the largest value, each with room of `margin` times a factor."""
    assert dims == list(range(x.dim()))
    room = (margin or 0.0) * (2 if wide else 1) * len(unit)
    return x.amin(dims).reshape(1) - room, x.amax(dims).reshape(1) + room


@torch.library.impl("bounds::of.out", "CompositeExplicitAutograd")  # type: ignore[untyped-decorator]
def of_out(
    x: torch.Tensor,
    dims: list[int],
    margin: float | None,
    wide: bool,
    unit: str,
    *,
    low: torch.Tensor,
    high: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    least, largest = of(x, dims, margin, wide, unit)
    return low.copy_(least), high.copy_(largest)


@torch.library.register_fake("bounds::of")  # type: ignore[untyped-decorator]
def of_shape(
    x: torch.Tensor, dims: list[int], margin: float | None, wide: bool, unit: str
) -> tuple[torch.Tensor, torch.Tensor]:
    return x.new_empty(1), x.new_empty(1)
