"""What PyTorch has to know of the operator `fused::rms_norm`: export.custom_ops names this file.

The device runs the kernel of kernels/rms_norm.cpp. What is here computes the expected outputs and
lets torch.export and ExecuTorch put the operator into a program.
"""

import torch

# The operator as the model calls it, and its form with an output argument (.out), which is the one
# that ExecuTorch calls: the memory of the result is planned when the program is made.
torch.library.define("fused::rms_norm", "(Tensor x, Tensor weight, float eps) -> Tensor")
torch.library.define(
    "fused::rms_norm.out",
    "(Tensor x, Tensor weight, float eps, *, Tensor(a!) out) -> Tensor(a!)",
)


@torch.library.impl("fused::rms_norm", "CompositeExplicitAutograd")
def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Scales each row of the last dimension to a mean square of 1, then by the weight."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


@torch.library.impl("fused::rms_norm.out", "CompositeExplicitAutograd")
def rms_norm_out(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    *,
    out: torch.Tensor,
) -> torch.Tensor:
    return out.copy_(rms_norm(x, weight, eps))


@torch.library.register_fake("fused::rms_norm")
def rms_norm_shape(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """The shape and the data type of the result, for tracing; nothing is computed."""
    torch._check(weight.dim() == 1 and weight.shape[0] == x.shape[-1])
    torch._check(eps >= 0)
    return torch.empty_like(x)
