"""XNNPACK's names for its nodes in a trace, as its `xnn_operator_type_to_string` gives them.

ExecuTorch's profiler reports every node of XNNPACK's runtime in the order of execution, with its
microseconds and a running number, but no debug handle: backends/xnnpack/runtime/profiling/.
"""

from __future__ import annotations

# A pointwise convolution is run as a fully connected layer, so both are one family.
_PRODUCTS = ("aten::convolution", "aten::linear", "aten::addmm", "aten::mm")

TRACED: dict[str, tuple[str, ...]] = {
    "Convolution": _PRODUCTS,
    "Deconvolution": _PRODUCTS,
    "Fully Connected": _PRODUCTS,
    "Dynamic Fully Connected": _PRODUCTS,
    "Batch Matrix Multiply": ("aten::bmm",),
    "Softmax": ("aten::_softmax",),
    "Mean": ("aten::mean",),
    "Sum": ("aten::sum",),
    "Max Pooling": ("aten::max_pool2d", "aten::max_pool2d_with_indices"),
    "ArgMax Pooling": ("aten::max_pool2d", "aten::max_pool2d_with_indices"),
    "Average Pooling": ("aten::avg_pool2d",),
    "Add": ("aten::add",),
    "Subtract": ("aten::sub",),
    # The product of a tensor with itself becomes a square.
    "Multiply": ("aten::mul",),
    "Square (": ("aten::mul",),
    "Divide": ("aten::div",),
    "Maximum": ("aten::maximum",),
    "Minimum": ("aten::minimum",),
    "Sigmoid": ("aten::sigmoid",),
    "HardSwish": ("aten::hardswish",),
    "TanH": ("aten::tanh",),
    "ApproxGELU": ("aten::gelu",),
    "GELU": ("aten::gelu",),
    "ELU": ("aten::elu",),
    "LeakyReLU": ("aten::leaky_relu",),
    "PReLU": ("aten::prelu", "aten::_prelu_kernel"),
    "Exp": ("aten::exp",),
    "Log": ("aten::log",),
    "Negate": ("aten::neg",),
    "Abs": ("aten::abs",),
    "Reciprocal Square Root": ("aten::rsqrt",),
}
