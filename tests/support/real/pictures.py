"""EfficientNet-lite0: which of ImageNet's 1,000 classes a picture shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from tests.support.real.files import Runner, package_file

SIDE = 224
# Expansion, channels, kernel, stride and how many, of each group of blocks.
_BLOCKS = (
    (1, 16, 3, 1, 1), (6, 24, 3, 2, 2), (6, 40, 5, 2, 2), (6, 80, 3, 2, 3),
    (6, 112, 5, 1, 3), (6, 192, 5, 2, 4), (6, 320, 3, 1, 1),
)  # fmt: skip
# Pictures with classes of ImageNet that are right for them.
_CLASSES = {
    "chelsea.png": (281, 282, 285),  # tabby, tiger cat, Egyptian cat
    "coffee.png": (504, 967, 968),  # coffee mug, espresso, cup
    "rocket.jpg": (657, 744, 812),  # missile, projectile, space shuttle
    "motorcycle_left.png": (665, 670),  # moped, motor scooter
}
_OTHERS = ("brick.png", "coins.png", "grass.png", "hubble_deep_field.jpg")
_CALIBRATION = ("astronaut.png", "gravel.png", "ihc.png", "page.png", "retina.jpg")


class Convolution(nn.Conv2d):  # type: ignore[misc]
    """Padded as TensorFlow does, with which the weights were trained."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kernel, stride = self.kernel_size[0], self.stride[0]
        total = max((-(-x.shape[-1] // stride) - 1) * stride + kernel - x.shape[-1], 0)
        before, after = total // 2, total - total // 2
        return super().forward(nn.functional.pad(x, (before, after, before, after)))


class Block(nn.Module):  # type: ignore[misc]
    """Expansion, a depthwise convolution and a projection; attributes as in the weights' file."""

    def __init__(self, before: int, after: int, expansion: int, kernel: int, stride: int) -> None:
        super().__init__()
        inner = before * expansion
        if expansion > 1:
            self._expand_conv = Convolution(before, inner, 1, bias=False)
            self._bn0 = _norm(inner)
        self._depthwise_conv = Convolution(inner, inner, kernel, stride, groups=inner, bias=False)
        self._bn1 = _norm(inner)
        self._project_conv = Convolution(inner, after, 1, bias=False)
        self._bn2 = _norm(after)
        self.expands, self.adds = expansion > 1, stride == 1 and before == after

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self._bn0(self._expand_conv(x)).clamp(0, 6) if self.expands else x
        inner = self._bn1(self._depthwise_conv(inner)).clamp(0, 6)
        inner = self._bn2(self._project_conv(inner))
        return x + inner if self.adds else inner


class EfficientNetLite(nn.Module):  # type: ignore[misc]
    """Tan and Le, EfficientNet, 2019, without squeeze and excitation and with ReLU6."""

    def __init__(self) -> None:
        super().__init__()
        self._conv_stem, self._bn0 = Convolution(3, 32, 3, 2, bias=False), _norm(32)
        blocks, width = [], 32
        for expansion, channels, kernel, stride, count in _BLOCKS:
            for i in range(count):
                first = stride if i == 0 else 1
                blocks.append(Block(width, channels, expansion, kernel, first))
                width = channels
        self._blocks = nn.ModuleList(blocks)
        self._conv_head, self._bn1 = Convolution(320, 1280, 1, bias=False), _norm(1280)
        self._fc = nn.Linear(1280, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self._bn0(self._conv_stem(x)).clamp(0, 6)
        for block in self._blocks:
            x = block(x)
        x = self._bn1(self._conv_head(x)).clamp(0, 6)
        return self._fc(x.mean((2, 3)))


def make() -> tuple[nn.Module, tuple[torch.Tensor]]:
    return EfficientNetLite().eval(), (crops("astronaut.png")[0],)


def calibrate() -> Iterator[tuple[torch.Tensor]]:
    """Crops of other pictures than those of the evaluation."""
    for name in _CALIBRATION:
        for picture in crops(name)[:4]:
            yield (picture,)


def crops(name: str) -> list[torch.Tensor]:
    """The middle of a picture and its corners, each also mirrored."""
    picture = Image.open(package_file("scikit-image", f"skimage/data/{name}")).convert("RGB")
    side = min(picture.size)
    part = side * 7 // 8
    right, bottom = picture.width - part, picture.height - part
    corners = [(right // 2, bottom // 2), (0, 0), (right, 0), (0, bottom), (right, bottom)]
    found = []
    for x, y in corners:
        crop = picture.resize((SIDE, SIDE), Image.Resampling.BICUBIC, (x, y, x + part, y + part))
        pixels = torch.from_numpy((np.array(crop, np.float32) - 127) / 128).permute(2, 0, 1)[None]
        found += [pixels.contiguous(), pixels.flip(3).contiguous()]
    return found


def evaluate(runners: Mapping[str, Runner]) -> dict[str, float]:
    """How many crops get a class that is right for their picture.

    Further pictures are run for `compare`.
    """
    run = runners["efficientnet-lite0"]
    right = [
        best_classes(run(crop)[0])[0] in classes
        for name, classes in _CLASSES.items()
        for crop in crops(name)
    ]
    for name in _OTHERS:
        for crop in crops(name):
            run(crop)
    return {"right_percent": 100 * float(np.mean(right))}


def compare(expected: Sequence[Sequence[Any]], actual: Sequence[Sequence[Any]]) -> dict[str, float]:
    """How many crops get the class that the float model gives, and how many of its best five."""
    pairs = list(zip(expected, actual, strict=True))
    same = [best_classes(a[0]) == best_classes(b[0]) for a, b in pairs]
    shared = [len({*best_classes(a[0], 5)} & {*best_classes(b[0], 5)}) / 5 for a, b in pairs]
    return {
        "same_class_percent": 100 * float(np.mean(same)),
        "same_five_percent": 100 * float(np.mean(shared)),
    }


def best_classes(scores: Any, count: int = 1) -> list[int]:
    return [int(i) for i in np.asarray(scores).ravel().argsort()[::-1][:count]]


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3)
