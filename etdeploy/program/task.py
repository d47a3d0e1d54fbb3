"""The results of a task, in a form that people read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

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


class TaskProgram(Value):
    """What is known of a task's program.

    Attributes:
        task: As `model.task` names it.
        is_real: Whether the input is the user's, or a text; else it is random.
        preprocess_ms: Time of the model's processor to make tensors of the input, on the machine
            that exported it.
        expected: What the model gives, run eagerly as it was exported.
    """

    task: str
    is_real: bool
    preprocess_ms: float
    expected: TaskResult | None = None
