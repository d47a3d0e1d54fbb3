"""What an example model provides to the exporter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

CALIBRATION_SAMPLES = 8


@dataclass(frozen=True)
class Example:
    """A bundled model.

    Attributes:
        module: With random weights; the seed was set by the caller.
        inputs: Example inputs, positional.
        sample: Draws one more set of inputs; used for calibration.
    """

    module: torch.nn.Module
    inputs: tuple[torch.Tensor, ...]
    sample: Callable[[], tuple[torch.Tensor, ...]]

    def calibration(self) -> Iterator[tuple[torch.Tensor, ...]]:
        """Inputs to find the ranges of activations with: the example's own and fresh ones."""
        yield self.inputs
        for _ in range(CALIBRATION_SAMPLES - 1):
            yield self.sample()


def make_example(
    module: torch.nn.Module, sample: Callable[[], tuple[torch.Tensor, ...]]
) -> Example:
    """An example whose inputs are one draw of `sample`."""
    return Example(module, sample(), sample)


def check_positive(arguments: Mapping[str, Any]) -> None:
    """Raises ValueError unless every argument is a whole number above zero."""
    for name, value in arguments.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name} must be a whole number above zero, not {value!r}")


def check_divides(small: str, small_value: int, large: str, large_value: int) -> None:
    """Raises ValueError unless `small_value` divides `large_value`."""
    if large_value % small_value:
        raise ValueError(f"{large} ({large_value}) must be a multiple of {small} ({small_value})")


def random_tokens(vocabulary: int, shape: tuple[int, ...]) -> torch.Tensor:
    """Token ids below `vocabulary`, int64."""
    return torch.randint(vocabulary, shape)
