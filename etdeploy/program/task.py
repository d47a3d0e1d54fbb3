"""The results of a task, in a form that people read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal

from etdeploy.core.values import Value

# Of boxes, in pixels: what rounding moves them by.
_BOX_TOLERANCE = 2.0
_SHOWN = 5


class TaskLabel(Value):
    """A label, with what it is for.

    Attributes:
        label: As the model's configuration names it; a token that fills a mask.
        score: Its probability; of semantic-segmentation, its share of the pixels.
        part: The words that have it, or the number of the mask that it fills; empty for the whole
            input.
        box: Left, top, right and bottom in pixels of the input image; null without one.
    """

    label: str
    score: float
    part: str = ""
    box: tuple[float, float, float, float] | None = None


class TaskResult(Value):
    """What the outputs of a model mean.

    Attributes:
        labels: The most probable first; of texts, in their order.
        text: What was said, or the text with its masks filled; null for other tasks.
        vector_size: Number of elements of the vector of feature-extraction; null for other tasks.
        file: An image with boxes, masks or depth, or a WAV file; relative to the folder of the
            record. null without one.
        problem: Reason for a missing result; null otherwise.
        took_ms: Of the model's processor, on the machine that runs etdeploy.
    """

    labels: tuple[TaskLabel, ...] = ()
    text: str | None = None
    vector_size: int | None = None
    file: str | None = None
    problem: str | None = None
    took_ms: float = 0.0

    def agrees(self, other: TaskResult) -> bool:
        """Whether both say the same to a reader."""
        if (self.text, self.vector_size) != (other.text, other.vector_size):
            return False
        if self.problem or other.problem or len(self.labels) != len(other.labels):
            return False
        pairs = list(zip(self.labels, other.labels, strict=True))
        # Labels after the first may be equally improbable.
        counted = pairs if any(a.part or a.box for a in self.labels) else pairs[:1]
        return all(
            (a.label, a.part) == (b.label, b.part) and _near(a.box, b.box) for a, b in counted
        )

    def lines(self) -> Iterator[str]:
        """The result in a few lines."""
        if self.problem:
            yield self.problem
        if self.text is not None:
            yield f'"{self.text}"'
        if self.vector_size is not None:
            yield f"a vector of {self.vector_size:,} elements"
        for label in self.labels[:_SHOWN]:
            where = f" for {label.part}" if label.part else ""
            if label.box:
                left, top, right, bottom = (round(side) for side in label.box)
                where = f" at {left}, {top} to {right}, {bottom}"
            yield f"{label.label}{where}: {100 * label.score:.3g} %"
        if len(self.labels) > _SHOWN:
            yield f"and {len(self.labels) - _SHOWN} more"
        if self == TaskResult(file=self.file, took_ms=self.took_ms):
            yield "nothing found"
        if self.file:
            yield f"in {self.file}"


def _near(a: Sequence[float] | None, b: Sequence[float] | None) -> bool:
    if a is None or b is None:
        return a is b
    return all(math.isclose(x, y, abs_tol=_BOX_TOLERANCE) for x, y in zip(a, b, strict=True))


class ImagePreprocessing(Value):
    """How an image becomes the input of a model, as the model's own processor does it.

    The image, in RGB, is resized, cropped around its center to `height` and `width`, and then each
    channel is (value x `scale` - `mean`) / `std`, from values of 0 to 255.

    Attributes:
        input: The name of the input, of shape (1, channels, height, width).
        height, width: Of the input.
        resize_height, resize_width: To resize to; null where the shorter side counts.
        shortest_edge: Of the resized image, whose aspect ratio stays; null for an exact size.
        filter: Antialiased, as Pillow does it.
    """

    input: str
    height: int
    width: int
    resize_height: int | None = None
    resize_width: int | None = None
    shortest_edge: int | None = None
    filter: Literal["bilinear", "bicubic"] = "bilinear"
    scale: float = 1 / 255
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    std: tuple[float, float, float] = (1.0, 1.0, 1.0)


class SpeechPreprocessing(Value):
    """How speech becomes the input of a CTC model: samples from -1 to 1.

    Attributes:
        input: The name of the input, of shape (1, samples).
        samples: As many as the program takes.
        rate: Samples for each second.
        normalize: Whether their mean is made 0 and their variance 1.
        epsilon: Added to the variance.
    """

    input: str
    samples: int
    rate: int
    normalize: bool = False
    epsilon: float = 1e-7


class TaskProgram(Value):
    """What is known of a task's program.

    Attributes:
        task: As `model.task` names it.
        is_real: Whether the input is the user's, or a text; else it is random.
        preprocess_ms: Time of the model's processor to make tensors of the input, on the machine
            that exported it.
        expected: What the model gives, run eagerly as it was exported.
        image, speech: How an app makes the input, compared with what the processor makes.
        no_app: Why neither of them is known, as a clause; null otherwise.
    """

    task: str
    is_real: bool
    preprocess_ms: float
    expected: TaskResult | None = None
    image: ImagePreprocessing | None = None
    speech: SpeechPreprocessing | None = None
    no_app: str | None = None
