"""Operators of etdeploy's own kernels, which tracing leaves whole in the graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def register_operator(
    name: str, arguments: str, computed: Callable[..., torch.Tensor], fake: Callable[..., Any]
) -> Any:
    """Registers an operator that gives a tensor, and its variant with an output argument."""

    def computed_into(*given: Any, out: torch.Tensor) -> torch.Tensor:
        return out.copy_(computed(*given))

    torch.library.define(name, f"({arguments}) -> Tensor")
    torch.library.define(f"{name}.out", f"({arguments}, *, Tensor(a!) out) -> Tensor(a!)")
    torch.library.impl(name, "CompositeExplicitAutograd")(computed)
    torch.library.impl(f"{name}.out", "CompositeExplicitAutograd")(computed_into)
    torch.library.register_fake(name)(fake)
    namespace, _, own = name.partition("::")
    return getattr(getattr(torch.ops, namespace), own).default
