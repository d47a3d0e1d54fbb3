"""Results of a task, read from outputs by the model's own processor."""

from __future__ import annotations

import time
import traceback
import wave
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from etdeploy.export.protocol import TaskAnswer, TaskRequest
from etdeploy.export.worker.failures import failure_of
from etdeploy.export.worker.tasks.inputs import (
    INPUT_IMAGE,
    LABELS,
    PROCESSOR_FOLDER,
    Processor,
    load_processor,
)
from etdeploy.program.folder import TensorFile, load_provenance
from etdeploy.program.task import TaskLabel, TaskResult
from etdeploy.recipe.hub_cache import read_object

Tensors = Mapping[str, torch.Tensor]
_TOP = 5
_LEAST_SCORE = 0.5
_OUTSIDE = "O"
_UNDEFINED = "no result: output {name} contains NaN or infinite values"


@dataclass(frozen=True)
class ModelAnswer:
    """The outputs of a model, with all that is known of its input.

    Attributes:
        config: Of the model, as transformers reads it.
        inputs, outputs: By name.
        image: The input image; None for other modalities.
    """

    processor: Processor
    config: Any
    inputs: Tensors
    outputs: Tensors
    image: Any = None

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the input image."""
        return int(self.image.height), int(self.image.width)

    @property
    def speech_rate(self) -> int:
        """Samples for each second of a waveform.

        FastSpeech2Conformer's configuration does not say it; those of ESPnet have 22,050.
        """
        unsaid = 22_050 if hasattr(self.config, "vocoder_config") else 16_000
        return int(getattr(self.config, "sampling_rate", unsaid))

    def label(self, index: int) -> str:
        """As the configuration names it, or `LABEL_3`."""
        return str((self.config.id2label or {}).get(index, f"LABEL_{index}"))


def task_result(answer: ModelAnswer, file: Path | None = None) -> TaskResult:
    """The result of a model.

    Args:
        answer: What it gave.
        file: Path, without a suffix, for an image or a WAV file; None to write none.
    """
    started = time.perf_counter()
    for name, tensor in answer.outputs.items():
        if not torch.isfinite(tensor).all():
            return TaskResult(problem=_UNDEFINED.format(name=name))
    result, made = _READERS.get(answer.processor.task, _classes)(answer)
    took_ms = 1000 * (time.perf_counter() - started)
    if file and made is not None:
        result = result.model_copy(update={"file": _write(made, file, answer)})
    return result.model_copy(update={"took_ms": round(took_ms, 3)})


def _write(made: Any, file: Path, answer: ModelAnswer) -> str:
    if isinstance(made, torch.Tensor):
        path = file.with_suffix(".wav")
        rate = answer.speech_rate
        samples = (made.reshape(-1).clamp(-1, 1) * 32767).to(torch.int16).numpy()
        with wave.open(str(path), "wb") as stream:
            stream.setnchannels(1)
            stream.setsampwidth(2)
            stream.setframerate(rate)
            stream.writeframes(samples.astype("<i2").tobytes())
        return path.name
    path = file.with_suffix(".png")
    made.save(path)
    return path.name


# A result, and an image or samples that belong to it.
Read = tuple[TaskResult, Any]


def _classes(answer: ModelAnswer) -> Read:
    logits = answer.outputs["logits"][0]
    several = getattr(answer.config, "problem_type", None) == "multi_label_classification"
    scores = logits.sigmoid() if several else logits.softmax(-1)
    return TaskResult(labels=tuple(_top(scores, answer.label))), None


def _top(scores: torch.Tensor, label: Callable[[int], str], part: str = "") -> Iterator[TaskLabel]:
    values, indices = scores.topk(min(_TOP, scores.numel()))
    for value, index in zip(values.tolist(), indices.tolist(), strict=True):
        yield TaskLabel(label=label(index), score=value, part=part)


def _masks(answer: ModelAnswer) -> Read:
    tokenizer, ids = answer.processor.tokenizer, answer.inputs["input_ids"][0].clone()
    places = (ids == tokenizer.mask_token_id).nonzero().flatten().tolist()
    labels: list[TaskLabel] = []
    for number, place in enumerate(places, 1):
        scores = answer.outputs["logits"][0, place].softmax(-1)
        part = f"mask {number}" if len(places) > 1 else ""
        labels += _top(scores, partial(_token, tokenizer), part)
        ids[place] = scores.argmax()
    filled = tokenizer.decode(ids, skip_special_tokens=True)
    return TaskResult(labels=tuple(labels), text=filled), None


def _token(tokenizer: Any, token: int) -> str:
    """Its text; its number if it has none, as those beyond the vocabulary."""
    return str(tokenizer.decode([token])).strip() or f"token {token}"


def _words(answer: ModelAnswer) -> Read:
    """The words that have a label, those of one name together."""
    tokenizer, ids = answer.processor.tokenizer, answer.inputs["input_ids"][0].tolist()
    scores, found = answer.outputs["logits"][0].softmax(-1).max(-1)
    special = set(tokenizer.all_special_ids)
    named = [
        (answer.label(int(index)).removeprefix("B-").removeprefix("I-"), float(score), token)
        for score, index, token in zip(scores, found, ids, strict=True)
        if token not in special
    ]
    labels = []
    for label, group in groupby(named, key=lambda each: each[0]):
        members = list(group)
        if label != _OUTSIDE:
            part = str(tokenizer.decode([token for _, _, token in members])).strip()
            score = min(score for _, score, _ in members)
            labels.append(TaskLabel(label=label, score=score, part=part))
    return TaskResult(labels=tuple(labels)), None


def _boxes(answer: ModelAnswer) -> Read:
    found = answer.processor.reads.post_process_object_detection(
        _model_output(answer), threshold=_LEAST_SCORE, target_sizes=[answer.size]
    )[0]
    height, width = answer.size
    edge = torch.tensor([width, height, width, height])
    # A box may extend beyond the image.
    boxes = found["boxes"].clamp(min=torch.zeros(4)).minimum(edge)
    labels = tuple(
        TaskLabel(label=answer.label(int(label)), score=float(score), box=tuple(box.tolist()))
        for score, label, box in zip(found["scores"], found["labels"], boxes, strict=True)
    )
    return TaskResult(labels=labels), _drawn(answer.image, labels)


def _drawn(image: Any, labels: tuple[TaskLabel, ...]) -> Any:
    from PIL import ImageDraw

    drawn = image.copy()
    draw = ImageDraw.Draw(drawn)
    for label in labels:
        if label.box:
            left, top, right, bottom = label.box
            draw.rectangle((left, top, max(left, right), max(top, bottom)), outline="red", width=2)
            draw.text((left + 3, top + 2), f"{label.label} {label.score:.0%}", fill="red")
    return drawn


def _model_output(answer: ModelAnswer) -> Any:
    from transformers.utils import ModelOutput

    return ModelOutput(**answer.outputs)


def _regions(answer: ModelAnswer) -> Read:
    from PIL import Image

    classes = answer.processor.reads.post_process_semantic_segmentation(
        _model_output(answer), target_sizes=[answer.size]
    )[0]
    indices, counts = classes.unique(return_counts=True)
    shares = sorted(zip(counts.tolist(), indices.tolist(), strict=True), reverse=True)
    labels = tuple(
        TaskLabel(label=answer.label(index), score=number / classes.numel())
        for number, index in shares[:_TOP]
    )
    colors = np.random.default_rng(1).integers(64, 256, (int(classes.max()) + 1, 3), np.uint8)
    mask = Image.fromarray(colors[classes.numpy()])
    return TaskResult(labels=labels), Image.blend(answer.image, mask, 0.6)


def _depth(answer: ModelAnswer) -> Read:
    from PIL import Image

    found = answer.processor.reads.post_process_depth_estimation(
        _model_output(answer), target_sizes=[answer.size]
    )[0]["predicted_depth"]
    low, high = float(found.min()), float(found.max())
    grey = ((found - low) * (255 / (high - low or 1))).to(torch.uint8).numpy()
    return TaskResult(text=f"depth from {low:.4g} to {high:.4g}"), Image.fromarray(grey)


def _speech(answer: ModelAnswer) -> Read:
    ids = answer.outputs["logits"].argmax(-1)[0]
    return TaskResult(
        text=str(answer.processor.tokenizer.decode(ids, skip_special_tokens=True))
    ), None


def _sound(answer: ModelAnswer) -> Read:
    waveform = answer.outputs.get("waveform")
    if waveform is None:
        frames = answer.outputs["spectrogram"].shape[-2]
        return TaskResult(text=f"a spectrogram of {frames} frames"), None
    return TaskResult(text=f"{waveform.shape[-1] / answer.speech_rate:.3g} s of speech"), waveform


def _vector(answer: ModelAnswer) -> Read:
    names = ("sentence_embedding", "pooler_output", "features", "last_hidden_state")
    found = next(answer.outputs[name] for name in names if name in answer.outputs)
    return TaskResult(vector_size=int(found.shape[-1])), None


_READERS: Mapping[str, Callable[[ModelAnswer], Read]] = {
    "fill-mask": _masks,
    "token-classification": _words,
    "object-detection": _boxes,
    "semantic-segmentation": _regions,
    "depth-estimation": _depth,
    "automatic-speech-recognition": _speech,
    "text-to-speech": _sound,
    "feature-extraction": _vector,
}


def answer(request_file: str, answer_file: str) -> int:
    """Writes the answer to a request; a failure is described in it."""
    try:
        result = read_result(TaskRequest.load(Path(request_file)))
        TaskAnswer(result=result).save(Path(answer_file))
    except Exception as error:
        traceback.print_exc()
        TaskAnswer(failure=failure_of(error)).save(Path(answer_file))
        return 1
    return 0


def read_result(request: TaskRequest) -> TaskResult:
    """What the outputs of a program mean."""
    program = Path(request.program)
    made, folder = load_provenance(program), program / PROCESSOR_FOLDER
    if made.task is None:
        raise ValueError(f"{program} is not of a task")
    processor, config = _reader(folder, made.task.task)
    given = (each for each in made.inputs if isinstance(each, TensorFile))
    inputs = _tensors(each.model_copy(update={"path": str(program / each.path)}) for each in given)
    image = _image(folder / INPUT_IMAGE)
    found = ModelAnswer(processor, config, inputs, _tensors(request.outputs), image)
    return task_result(found, Path(request.file))


def _reader(folder: Path, task: str) -> tuple[Processor, Any]:
    """What reads the outputs, with the configuration that names the labels."""
    if (folder / LABELS).is_file():
        names = {int(index): name for index, name in read_object(folder / LABELS).items()}
        return Processor(folder, task, "image", None), SimpleNamespace(id2label=names)
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    return load_processor(folder, task), config


def _tensors(files: Iterable[TensorFile]) -> Tensors:
    return {each.name: torch.from_numpy(_array(each)) for each in files}


def _array(file: TensorFile) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    values = np.fromfile(file.path, dtype=np.dtype(file.dtype))
    return values.reshape(file.shape)


def _image(path: Path) -> object:
    from PIL import Image

    if not path.is_file():
        return None
    with Image.open(path) as opened:
        return opened.convert("RGB")
