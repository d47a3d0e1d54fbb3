"""What outputs mean: labels, words, boxes, images and speech."""

from __future__ import annotations

import wave
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image

from etdeploy.export.worker.tasks.inputs import Processor
from etdeploy.export.worker.tasks.results import ModelAnswer, task_result
from etdeploy.program.task import TaskLabel, TaskResult
from etdeploy.recipe.tasks import TASKS

NAMES = {0: "O", 1: "B-PER", 2: "I-PER", 3: "LOC"}


class Words:
    """A tokenizer whose tokens are letters."""

    mask_token_id = 9
    all_special_ids = (0, 9)

    def decode(self, ids: Any, *, skip_special_tokens: bool = False) -> str:
        letters = " abcdefgh[]"
        return "".join(letters[int(i)] for i in ids if not (skip_special_tokens and int(i) == 0))


class Detector:
    """Post-processing as image processors of transformers have it."""

    def post_process_object_detection(
        self, outputs: Any, threshold: float, target_sizes: list[tuple[int, int]]
    ) -> list[dict[str, torch.Tensor]]:
        scores, (height, width) = outputs.logits[0], target_sizes[0]
        found = scores.max(-1).values > threshold
        scale = torch.tensor([width, height, width, height])
        boxes = outputs.pred_boxes[0][found] * scale
        best = scores[found].max(-1)
        return [{"scores": best.values, "labels": best.indices, "boxes": boxes}]

    def post_process_semantic_segmentation(
        self, outputs: Any, target_sizes: list[tuple[int, int]]
    ) -> list[torch.Tensor]:
        assert target_sizes == [(20, 40)]
        return [outputs.logits[0].argmax(0)]

    def post_process_depth_estimation(
        self, outputs: Any, target_sizes: list[tuple[int, int]]
    ) -> list[dict[str, torch.Tensor]]:
        assert target_sizes == [(20, 40)]
        return [{"predicted_depth": outputs.predicted_depth[0]}]


def result(
    task: str,
    outputs: dict[str, Any],
    file: Path | None = None,
    ids: list[int] | None = None,
    **config: Any,
) -> TaskResult:
    modality = TASKS[task].modalities[0]
    reads: Any = Detector() if modality == "image" else SimpleNamespace(sampling_rate=8000)
    processor = Processor(Path(), task, modality, reads, Words())
    image = Image.new("RGB", (40, 20)) if modality == "image" else None
    settings = SimpleNamespace(id2label=NAMES, **config)
    inputs = {"input_ids": torch.tensor([ids])} if ids else {}
    tensors = {name: torch.tensor(values) for name, values in outputs.items()}
    return task_result(ModelAnswer(processor, settings, inputs, tensors, image), file)


def test_classes_are_ordered_by_probability() -> None:
    found = result("text-classification", {"logits": [[0.0, 0.0, 2.0, 1.0]]}).labels
    assert [label.label for label in found[:2]] == ["I-PER", "LOC"]
    assert sum(label.score for label in found) == pytest.approx(1)


def test_several_classes_have_probabilities_of_their_own() -> None:
    logits = {"logits": [[9.0, 9.0, -9.0, -9.0]]}
    found = result("image-classification", logits, problem_type="multi_label_classification")
    assert [round(label.score, 2) for label in found.labels] == [1, 1, 0, 0]


def test_a_class_without_a_name_has_its_number() -> None:
    found = result("audio-classification", {"logits": [[0.0] * 4 + [5.0]]})
    assert found.labels[0].label == "LABEL_4"


def test_masks_are_filled_with_the_most_probable_token() -> None:
    logits = torch.zeros(1, 3, 11)
    logits[0, 1, 3], logits[0, 1, 0] = 5, 4
    found = result("fill-mask", {"logits": logits.tolist()}, ids=[1, 9, 2])
    assert (found.text, found.labels[0].label, found.labels[1].label) == ("acb", "c", "token 0")


def test_words_of_one_name_are_together() -> None:
    logits = torch.zeros(1, 5, 4)
    for place, label in enumerate([0, 1, 2, 0, 3]):
        logits[0, place, label] = 8
    found = result("token-classification", {"logits": logits.tolist()}, ids=[1, 2, 3, 4, 5])
    assert [(label.label, label.part) for label in found.labels] == [("PER", "bc"), ("LOC", "e")]


def test_boxes_stay_in_the_image_and_are_drawn(tmp_path: Path) -> None:
    outputs = {
        "logits": [[[0.9, 0.0], [0.1, 0.2]]],
        "pred_boxes": [[[-0.5, 0.25, 0.5, 2.0], [0.0, 0.0, 1.0, 1.0]]],
    }
    found = result("object-detection", outputs, tmp_path / "result")
    [label] = found.labels
    assert label == TaskLabel(label="O", score=label.score, box=(0.0, 5.0, 20.0, 20.0))
    assert label.score == pytest.approx(0.9)
    assert found.file == "result.png"
    with Image.open(tmp_path / "result.png") as drawn:
        assert drawn.size == (40, 20)
        assert drawn.getpixel((10, 5)) == (255, 0, 0)


def test_regions_have_shares_of_the_image(tmp_path: Path) -> None:
    logits = torch.zeros(1, 4, 20, 40)
    logits[0, 2, :, :10] = 1
    logits[0, 3, :, 10:] = 1
    outputs = {"logits": logits.tolist()}
    found = result("semantic-segmentation", outputs, tmp_path / "result")
    assert [(label.label, label.score) for label in found.labels] == [
        ("LOC", 0.75),
        ("I-PER", 0.25),
    ]
    with Image.open(tmp_path / "result.png") as drawn:
        assert drawn.getpixel((5, 5)) != drawn.getpixel((20, 5))


def test_depth_is_an_image_of_its_range(tmp_path: Path) -> None:
    depth = torch.linspace(1, 3, 800).reshape(1, 20, 40).tolist()
    found = result("depth-estimation", {"predicted_depth": depth}, tmp_path / "result")
    assert found.text == "depth from 1 to 3"
    with Image.open(tmp_path / "result.png") as drawn:
        assert (drawn.getpixel((0, 0)), drawn.getpixel((39, 19))) == (0, 255)


def test_speech_is_written_as_a_wav_file(tmp_path: Path) -> None:
    outputs = {"waveform": [[0.0, 0.5, -0.5, 2.0]]}
    found = result("text-to-speech", outputs, tmp_path / "result", sampling_rate=4)
    assert found.text == "1 s of speech"
    with wave.open(str(tmp_path / "result.wav")) as stream:
        assert stream.getframerate() == 4
        samples = torch.frombuffer(bytearray(stream.readframes(9)), dtype=torch.int16)
    assert samples.tolist() == [0, 16383, -16383, 32767]


def test_a_vocoder_that_does_not_say_its_rate_has_that_of_espnet(tmp_path: Path) -> None:
    outputs = {"waveform": [[0.0] * 11_025]}
    found = result("text-to-speech", outputs, tmp_path / "result", vocoder_config={})
    assert found.text == "0.5 s of speech"


def test_speech_is_recognized_token_by_token() -> None:
    logits = torch.zeros(1, 3, 8)
    for place, token in enumerate([1, 2, 3]):
        logits[0, place, token] = 1
    found = result("automatic-speech-recognition", {"logits": logits.tolist()})
    assert found.text == "abc"


def test_the_vector_of_a_sentence_comes_first() -> None:
    outputs = {"last_hidden_state": [[[0.0] * 8]], "sentence_embedding": [[0.0] * 4]}
    assert result("feature-extraction", outputs).vector_size == 4


def test_undefined_outputs_have_no_result() -> None:
    found = result("text-classification", {"logits": [[float("nan"), 0.0]]})
    assert found.labels == ()
    assert "logits" in str(found.problem)
