"""A convolutional classifier of MobileNet's shape."""

from __future__ import annotations

import torch
from torch import nn

from etdeploy.export.worker.examples.base import Example, check_positive, make_example

# Output channels in units of `width`, and stride, of each depthwise-separable block: the table of
# MobileNet v1 (Howard et al., arXiv 1704.04861) with its run of equal blocks shortened.
_BLOCKS = ((2, 1), (4, 2), (4, 1), (8, 2), (8, 1), (16, 2), (16, 1), (16, 1), (32, 2), (32, 1))


def convnet(*, width: int = 32, image: int = 128, classes: int = 100, batch: int = 1) -> Example:
    """`[batch, 3, image, image]` floats to `[batch, classes]` scores."""
    check_positive({"width": width, "image": image, "classes": classes, "batch": batch})
    layers: list[nn.Module] = [_conv_unit(3, width, kernel=3, stride=2)]
    channels = width
    for factor, stride in _BLOCKS:
        layers.append(_separable(channels, factor * width, stride))
        channels = factor * width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]
    module = nn.Sequential(*layers)
    _spread_statistics(module)
    return make_example(module, lambda: (torch.randn(batch, 3, image, image),))


def _conv_unit(
    channels: int, out: int, *, kernel: int, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    conv = nn.Conv2d(channels, out, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_in", nonlinearity="relu")
    return nn.Sequential(conv, nn.BatchNorm2d(out), nn.ReLU6())


def _separable(channels: int, out: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        _conv_unit(channels, channels, kernel=3, stride=stride, groups=channels),
        _conv_unit(channels, out, kernel=1),
    )


def _spread_statistics(module: nn.Module) -> None:
    """Gives batch norms the statistics of a trained net: near the identity, but not equal to it."""
    for norm in module.modules():
        if isinstance(norm, nn.BatchNorm2d) and norm.running_mean is not None:
            nn.init.normal_(norm.running_mean, 0.0, 0.1)
            nn.init.uniform_(norm.running_var, 0.8, 1.2)
            nn.init.uniform_(norm.weight, 0.8, 1.2)
            nn.init.normal_(norm.bias, 0.0, 0.1)
