"""MTCNN: boxes and landmarks of faces, by three networks one after the other.

Zhang et al., Joint Face Detection and Alignment using Multi-task Cascaded Convolutional Networks,
2016; weights of facenet-pytorch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import nn

from tests.support.real.files import Floats, Runner, package_file

# What P-Net sees at once; a face of 12 pixels fills one cell of its output.
CANVAS, CELL, STRIDE = 160, 12, 2
# Pictures are made this large, and searched at these scales.
SIDE = 320
_SCALES = (0.085, 0.12, 0.17, 0.24, 0.34, 0.48)
_THRESHOLDS = {"pnet": 0.6, "rnet": 0.7, "onet": 0.7}
_INPUTS = {"rnet": 24, "onet": 48}
# Where the face of astronaut.png is, of 512 pixels: left, top, right, bottom.
_FACE = (180, 60, 270, 175)
_WITHOUT = ("coffee.png", "chelsea.png", "rocket.jpg", "brick.png")

Boxes = npt.NDArray[np.float64]


class Layers(nn.Module):  # type: ignore[misc]
    """Convolutions with PReLU and pooling; attributes as in the weights' files."""

    def __init__(self, convolutions: tuple[tuple[int, int], ...], pools: tuple[int, ...]) -> None:
        super().__init__()
        width = 3
        for i, (channels, kernel) in enumerate(convolutions, 1):
            self.add_module(f"conv{i}", nn.Conv2d(width, channels, kernel))
            self.add_module(f"prelu{i}", nn.PReLU(channels))
            width = channels
        self.pools = pools
        self.count = len(convolutions)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        for i in range(1, self.count + 1):
            x = self.get_submodule(f"prelu{i}")(self.get_submodule(f"conv{i}")(x))
            if i <= len(self.pools):
                x = nn.functional.max_pool2d(x, self.pools[i - 1], 2, ceil_mode=True)
        return x


class PNet(Layers):
    """Probabilities and corrections of boxes in every cell of a picture."""

    def __init__(self) -> None:
        super().__init__(((10, 3), (16, 3), (32, 3)), (2,))
        self.conv4_1, self.conv4_2 = nn.Conv2d(32, 2, 1), nn.Conv2d(32, 4, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.features(x)
        return self.conv4_2(x), self.conv4_1(x).softmax(1)


class RNet(Layers):
    """The same of one box."""

    def __init__(self) -> None:
        super().__init__(((28, 3), (48, 3), (64, 2)), (3, 3))
        self.dense4, self.prelu4 = nn.Linear(576, 128), nn.PReLU(128)
        self.dense5_1, self.dense5_2 = nn.Linear(128, 2), nn.Linear(128, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.features(x).permute(0, 3, 2, 1).flatten(1)
        x = self.prelu4(self.dense4(x))
        return self.dense5_2(x), self.dense5_1(x).softmax(1)


class ONet(Layers):
    """The same with more detail, and five landmarks."""

    def __init__(self) -> None:
        super().__init__(((32, 3), (64, 3), (64, 3), (128, 2)), (3, 3, 2))
        self.dense5, self.prelu5 = nn.Linear(1152, 256), nn.PReLU(256)
        self.dense6_1, self.dense6_2 = nn.Linear(256, 2), nn.Linear(256, 4)
        self.dense6_3 = nn.Linear(256, 10)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        x = self.features(x).permute(0, 3, 2, 1).flatten(1)
        x = self.prelu5(self.dense5(x))
        return self.dense6_2(x), self.dense6_3(x), self.dense6_1(x).softmax(1)


def make_pnet() -> tuple[nn.Module, tuple[torch.Tensor]]:
    return PNet().eval(), (_as_input(picture("astronaut.png"), CANVAS),)


def make_rnet() -> tuple[nn.Module, tuple[torch.Tensor]]:
    return RNet().eval(), (_as_input(picture("astronaut.png").crop(_face_box()), 24),)


def make_onet() -> tuple[nn.Module, tuple[torch.Tensor]]:
    return ONet().eval(), (_as_input(picture("astronaut.png").crop(_face_box()), 48),)


def calibrate_pnet() -> Iterator[tuple[torch.Tensor]]:
    for image in _calibration_pictures():
        for scale in _SCALES:
            yield (_level(image, scale),)


def calibrate_rnet() -> Iterator[tuple[torch.Tensor]]:
    yield from ((_as_input(part, 24),) for part in _calibration_parts())


def calibrate_onet() -> Iterator[tuple[torch.Tensor]]:
    yield from ((_as_input(part, 48),) for part in _calibration_parts())


@dataclass(frozen=True)
class Faces:
    """Boxes (left, top, right, bottom), their probabilities and landmarks (five of x, y)."""

    boxes: Boxes
    scores: Boxes
    landmarks: Boxes


def detect(runners: Mapping[str, Runner], image: Image.Image) -> Faces:
    """The faces of a picture of `SIDE` pixels."""
    boxes = _candidates(runners["pnet"], image)
    boxes, scores, _ = _refine("rnet", runners["rnet"], image, boxes)
    kept = _without_overlaps(boxes, scores, 0.7)
    boxes, scores, landmarks = _refine("onet", runners["onet"], image, boxes[kept])
    kept = _without_overlaps(boxes, scores, 0.5)
    return Faces(boxes[kept], scores[kept], landmarks[kept])


def evaluate(runners: Mapping[str, Runner]) -> dict[str, float]:
    """Variants of a picture with one face, and pictures without any."""
    overlaps = []
    for image, truth in variants():
        faces = detect(runners, image)
        overlaps.append(max((overlap(truth, box) for box in faces.boxes), default=0.0))
    false = sum(len(detect(runners, picture(name)).boxes) for name in _WITHOUT)
    return {
        "found_percent": 100 * float(np.mean(np.array(overlaps) > 0.4)),
        "mean_iou": float(np.mean(overlaps)),
        "false_detections": float(false),
    }


def variants() -> Iterator[tuple[Image.Image, Boxes]]:
    """The picture of a face in parts, mirrored, darker and brighter, with the box of the face."""
    whole = Image.open(package_file("scikit-image", "skimage/data/astronaut.png")).convert("RGB")
    parts = ((0, 0, 512, 512), (60, 0, 380, 320), (0, 20, 420, 440), (120, 20, 320, 220))
    for i, (left, top, right, bottom) in enumerate(parts):
        zoom = SIDE / (right - left)
        box = (np.array(_FACE, float) - (left, top, left, top)) * zoom
        part = whole.crop((left, top, right, bottom)).resize((SIDE, SIDE))
        part = part.point(lambda value, factor=(1.0, 0.6, 1.3, 0.8)[i]: int(value * factor))
        yield part, box
        mirrored = part.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        yield mirrored, np.array([SIDE - box[2], box[1], SIDE - box[0], box[3]])


def overlap(a: Boxes, b: Boxes) -> float:
    """Intersection over union."""
    size = np.maximum(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0)
    both = float(size.prod())
    return both / (float((a[2:] - a[:2]).prod() + (b[2:] - b[:2]).prod()) - both)


def picture(name: str) -> Image.Image:
    image = Image.open(package_file("scikit-image", f"skimage/data/{name}")).convert("RGB")
    side = min(image.size)
    return image.crop((0, 0, side, side)).resize((SIDE, SIDE))


def _candidates(run: Runner, image: Image.Image) -> Boxes:
    """Boxes that P-Net proposes, of all scales."""
    boxes, scores = [np.empty((0, 4))], [np.empty(0)]
    for scale in _SCALES:
        corrections, probabilities = (np.asarray(o)[0] for o in run(_level(image, scale)))
        rows, columns = np.nonzero(probabilities[1] >= _THRESHOLDS["pnet"])
        corners = STRIDE * np.stack((columns, rows, columns, rows), 1) + (1, 1, CELL, CELL)
        # What lies outside of the picture, where the canvas is empty.
        inside = corners[:, 2:].max(1, initial=0) <= scale * SIDE + CELL / 2
        found = _corrected(corners / scale, corrections[:, rows, columns].T)[inside]
        values = probabilities[1, rows, columns][inside]
        kept = _without_overlaps(found, values, 0.5)
        boxes.append(found[kept])
        scores.append(values[kept])
    every = np.concatenate(boxes)
    return _square(every[_without_overlaps(every, np.concatenate(scores), 0.7)])


def _refine(name: str, run: Runner, image: Image.Image, boxes: Boxes) -> tuple[Boxes, Boxes, Boxes]:
    """Corrected boxes that are faces by this network, with probabilities and landmarks."""
    found = []
    for box in boxes:
        left, top, right, bottom = (int(value) for value in box.round())
        part = image.crop((left, top, right, bottom))
        corrections, *landmarks, probabilities = run(_as_input(part, _INPUTS[name]))
        score = float(np.asarray(probabilities)[0, 1])
        if score > _THRESHOLDS[name]:
            corrected = _corrected(box[None], np.asarray(corrections))
            corrected = corrected[0] if name == "onet" else _square(corrected)[0]
            points = np.asarray(landmarks[0])[0] if landmarks else np.zeros(10)
            spread = np.stack((points[:5], points[5:]), 1) * (box[2:] - box[:2]) + box[:2]
            found.append(
                (corrected if name == "onet" else _square(corrected[None])[0], score, spread)
            )
    if not found:
        return np.empty((0, 4)), np.empty(0), np.empty((0, 5, 2))
    corrected_boxes, scores, points = zip(*found, strict=True)
    return np.stack(corrected_boxes), np.array(scores), np.stack(points)


def _corrected(boxes: Boxes, corrections: Any) -> Boxes:
    """Corrections are shares of the box's width and height."""
    size = (boxes[:, 2:] - boxes[:, :2])[:, [0, 1, 0, 1]]
    return boxes + np.asarray(corrections, float) * size


def _square(boxes: Boxes) -> Boxes:
    middle, half = (boxes[:, :2] + boxes[:, 2:]) / 2, (boxes[:, 2:] - boxes[:, :2]).max(1) / 2
    return np.concatenate((middle - half[:, None], middle + half[:, None]), 1)


def _without_overlaps(boxes: Boxes, scores: Boxes, limit: float) -> list[int]:
    """Indices of boxes, the most probable first, without those that overlap one of these."""
    kept: list[int] = []
    for i in np.argsort(-scores, kind="stable"):
        if all(overlap(boxes[i], boxes[k]) <= limit for k in kept):
            kept.append(int(i))
    return kept


def _level(image: Image.Image, scale: float) -> torch.Tensor:
    """The picture at a scale, in the corner of a grey canvas."""
    side = round(SIDE * scale)
    canvas = Image.new("RGB", (CANVAS, CANVAS), (127, 127, 127))
    canvas.paste(image.resize((side, side)), (0, 0))
    return _as_input(canvas, CANVAS)


def _as_input(image: Image.Image, side: int) -> torch.Tensor:
    pixels: Floats = np.array(image.resize((side, side)), np.float32)
    return torch.from_numpy((pixels - 127.5) * 0.0078125).permute(2, 0, 1)[None].contiguous()


def _face_box() -> tuple[int, int, int, int]:
    left, top, right, bottom = (value * SIDE // 512 for value in _FACE)
    return left, top, right, bottom


def _calibration_pictures() -> list[Image.Image]:
    """A face in another part and brightness than in the evaluation, and other pictures."""
    whole = Image.open(package_file("scikit-image", "skimage/data/astronaut.png")).convert("RGB")
    faces = whole.crop((100, 0, 400, 300)).resize((SIDE, SIDE)).point(lambda v: int(v * 0.9))
    return [faces, picture("motorcycle_left.png"), picture("page.png")]


def _calibration_parts() -> Iterator[Image.Image]:
    """Squares of several sizes from these pictures, with faces and without."""
    for image in _calibration_pictures():
        for side in (60, 110, 160):
            for x, y in ((10, 20), (70, 60), (100, 90), (150, 150)):
                yield image.crop((x, y, x + side, y + side))
