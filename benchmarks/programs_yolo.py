"""A small detector in the spirit of YOLOv5 and YOLOv8, in plain PyTorch and with random weights.

What such detectors are made of: convolutions with batch norm and SiLU, CSP blocks that split and
concatenate channels, a pyramid of poolings (SPPF), nearest upsampling, three heads whose boxes are
decoded from distributions.
"""

from __future__ import annotations

import torch
from torch import nn


class Conv(nn.Sequential):
    """Convolution, batch norm, SiLU; (N, C_in, H, W) -> (N, C_out, H / stride, W / stride)."""

    def __init__(self, c_in: int, c_out: int, kernel: int = 1, stride: int = 1) -> None:
        conv = nn.Conv2d(c_in, c_out, kernel, stride, kernel // 2, bias=False)
        super().__init__(conv, nn.BatchNorm2d(c_out), nn.SiLU())


class Bottleneck(nn.Module):
    def __init__(self, channels: int, shortcut: bool) -> None:
        super().__init__()
        self.first = Conv(channels, channels, 3)
        self.second = Conv(channels, channels, 3)
        self.shortcut = shortcut

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.second(self.first(x))
        return x + y if self.shortcut else y


class Csp(nn.Module):
    """Half of the channels go through bottlenecks, whose results are all concatenated (C2f)."""

    def __init__(self, c_in: int, c_out: int, count: int, shortcut: bool = False) -> None:
        super().__init__()
        half = c_out // 2
        self.before = Conv(c_in, c_out)
        self.blocks = nn.ModuleList(Bottleneck(half, shortcut) for _ in range(count))
        self.after = Conv((2 + count) * half, c_out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = list(self.before(x).chunk(2, 1))
        for block in self.blocks:
            parts.append(block(parts[-1]))
        return self.after(torch.cat(parts, 1))


class Sppf(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.before = Conv(channels, channels // 2)
        self.pool = nn.MaxPool2d(5, 1, 2)
        self.after = Conv(channels * 2, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [self.before(x)]
        for _ in range(3):
            parts.append(self.pool(parts[-1]))
        return self.after(torch.cat(parts, 1))


class Head(nn.Module):
    """Distributions over distances to four sides, and classes; (N, 4 * bins + classes, H * W)."""

    def __init__(self, channels: int, classes: int, bins: int) -> None:
        super().__init__()
        self.boxes = nn.Sequential(
            Conv(channels, 64, 3), Conv(64, 64, 3), nn.Conv2d(64, 4 * bins, 1)
        )
        self.classes = nn.Sequential(
            Conv(channels, 80, 3), Conv(80, 80, 3), nn.Conv2d(80, classes, 1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.boxes(x), self.classes(x)], 1).flatten(2)


class Yolo(nn.Module):
    """(1, 3, 320, 320) -> (1, 4 + classes, 2100): boxes in pixels, and classes' scores."""

    bins, classes, strides = 16, 80, (8, 16, 32)

    def __init__(self, pixels: int = 320) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            Conv(3, 16, 3, 2), Conv(16, 32, 3, 2), Csp(32, 32, 1, True), Conv(32, 64, 3, 2)
        )
        self.level3 = Csp(64, 64, 2, True)
        self.level4 = nn.Sequential(Conv(64, 128, 3, 2), Csp(128, 128, 2, True))
        self.level5 = nn.Sequential(Conv(128, 256, 3, 2), Csp(256, 256, 1, True), Sppf(256))
        self.up = nn.Upsample(scale_factor=2, mode="nearest")
        self.top4, self.top3 = Csp(384, 128, 1), Csp(192, 64, 1)
        self.down4, self.bottom4 = Conv(64, 64, 3, 2), Csp(192, 128, 1)
        self.down5, self.bottom5 = Conv(128, 128, 3, 2), Csp(384, 256, 1)
        self.heads = nn.ModuleList(Head(c, self.classes, self.bins) for c in (64, 128, 256))
        self.register_buffer("anchors", self._anchors(pixels), persistent=False)
        self.register_buffer("scale", self._scale(pixels), persistent=False)
        self.register_buffer("steps", torch.arange(self.bins).float().view(1, -1, 1, 1))

    def _anchors(self, pixels: int) -> torch.Tensor:
        """Centres of all cells, in cells: (1, 2, cells)."""
        grids = []
        for stride in self.strides:
            axis = torch.arange(pixels // stride) + 0.5
            y, x = torch.meshgrid(axis, axis, indexing="ij")
            grids.append(torch.stack([x.flatten(), y.flatten()]))
        return torch.cat(grids, 1).unsqueeze(0)

    def _scale(self, pixels: int) -> torch.Tensor:
        return torch.cat(
            [torch.full((1, 1, (pixels // s) ** 2), float(s)) for s in self.strides], 2
        )

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x3 = self.level3(self.stem(image))
        x4 = self.level4(x3)
        x5 = self.level5(x4)
        y4 = self.top4(torch.cat([self.up(x5), x4], 1))
        y3 = self.top3(torch.cat([self.up(y4), x3], 1))
        z4 = self.bottom4(torch.cat([self.down4(y3), y4], 1))
        z5 = self.bottom5(torch.cat([self.down5(z4), x5], 1))
        found = torch.cat([head(x) for head, x in zip(self.heads, (y3, z4, z5), strict=True)], 2)
        boxes, scores = found.split([4 * self.bins, self.classes], 1)
        return torch.cat([self._decoded(boxes), scores.sigmoid()], 1)

    def _decoded(self, boxes: torch.Tensor) -> torch.Tensor:
        """Centres and sizes in pixels, from distributions over distances: (N, 4, cells)."""
        sides = boxes.view(boxes.shape[0], 4, self.bins, -1).transpose(1, 2).softmax(1)
        left_top, right_bottom = (sides * self.steps).sum(1).chunk(2, 1)
        first, last = self.anchors - left_top, self.anchors + right_bottom
        return torch.cat([(first + last) / 2, last - first], 1) * self.scale
