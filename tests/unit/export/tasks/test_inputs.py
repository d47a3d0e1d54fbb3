"""The user's input: texts, images of any mode, audio files of any rate."""

from __future__ import annotations

import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from etdeploy.export.spec import TaskInput
from etdeploy.export.worker.failures import WorkerError
from etdeploy.export.worker.tasks.inputs import Processor, TaskTensors, load_processor, task_tensors
from etdeploy.recipe.tasks import Modality
from tests.support.facts import lacks

RATE = 16_000
_TASKS: dict[Modality, str] = {
    "text": "text-classification",
    "image": "image-classification",
    "audio": "audio-classification",
}


class Reads:
    """Keeps what it is given, and makes a tensor of it."""

    sampling_rate = RATE
    mask_token = "<mask>"  # noqa: S105

    def __call__(self, content: Any = None, images: Any = None, **_: Any) -> dict[str, Any]:
        self.content = images if content is None else content
        ids = torch.zeros(1, len(content.split()) if isinstance(content, str) else 1)
        return {"values": ids, "attention_mask": torch.ones(1, 1), "texts": ["x"]}


def tensors(
    modality: Modality, task: str = "", longest: int | None = None, **given: str
) -> tuple[TaskTensors, Any]:
    reads = Reads()
    processor = Processor(Path("model"), task or _TASKS[modality], modality, reads, reads)
    return task_tensors(processor, TaskInput(**given), longest), reads.content


def wav(path: Path, data: bytes, width: int, channels: int = 1, rate: int = RATE) -> str:
    with wave.open(str(path), "wb") as stream:
        stream.setnchannels(channels)
        stream.setsampwidth(width)
        stream.setframerate(rate)
        stream.writeframes(data)
    return str(path)


@pytest.mark.parametrize(
    ("width", "dtype", "half"),
    [(1, np.uint8, 192), (2, "<i2", 2**14), (4, "<i4", 2**30)],
)
def test_samples_of_each_width(tmp_path: Path, width: int, dtype: Any, half: int) -> None:
    data = np.full(8, half).astype(dtype).tobytes()
    found, content = tensors("audio", audio=wav(tmp_path / "a.wav", data, width))
    assert found.is_real
    np.testing.assert_allclose(content, 0.5)


def test_samples_of_24_bits_have_a_sign(tmp_path: Path) -> None:
    data = b"\x00\x00\x40" + b"\x00\x00\xc0"
    _, content = tensors("audio", audio=wav(tmp_path / "a.wav", data, 3))
    np.testing.assert_allclose(content, [0.5, -0.5])


def test_channels_are_mixed_and_the_rate_is_the_models(tmp_path: Path) -> None:
    left, right = np.full(8000, 2**14), np.zeros(8000)
    data = np.stack([left, right], axis=1).astype("<i2").tobytes()
    path = wav(tmp_path / "a.wav", data, 2, channels=2, rate=8000)
    _, content = tensors("audio", audio=path)
    assert content.shape == (RATE,)
    assert content.dtype == np.float32
    np.testing.assert_allclose(content[4000:12000], 0.25, atol=1e-3)


@pytest.mark.parametrize("content", [b"", b"RIFF", b"\x00" * 100])
def test_an_audio_file_that_cannot_be_read(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.wav").write_bytes(content)
    with pytest.raises(WorkerError) as raised:
        tensors("audio", audio=str(tmp_path / "a.wav"))
    failure = raised.value.failure
    assert failure.file == str(tmp_path / "a.wav")
    assert not lacks(str(failure.remedy), "ffmpeg", "16000")


def test_an_empty_audio_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WorkerError) as raised:
        tensors("audio", audio=wav(tmp_path / "a.wav", b"", 2))
    assert "empty" in raised.value.failure.message


@pytest.mark.parametrize(
    ("mode", "color", "wanted"),
    [
        ("L", 100, (100, 100, 100)),
        ("RGBA", (10, 20, 30, 0), (255, 255, 255)),
        ("LA", (50, 255), (50, 50, 50)),
        ("I;16", 25700, (100, 100, 100)),
        ("1", 1, (255, 255, 255)),
    ],
)
def test_an_image_of_any_mode_is_in_colors(
    tmp_path: Path, mode: str, color: Any, wanted: tuple[int, int, int]
) -> None:
    Image.new(mode, (4, 3), color).save(tmp_path / "p.png")
    found, content = tensors("image", image=str(tmp_path / "p.png"))
    assert (content.mode, content.size) == ("RGB", (4, 3))
    assert content.getpixel((0, 0)) == wanted
    assert [*found.values] == ["values"]  # no mask, and no texts


def test_an_image_is_rotated_as_exif_says(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (4, 3)).save(tmp_path / "p.jpg", exif=exif)
    _, content = tensors("image", image=str(tmp_path / "p.jpg"))
    assert content.size == (3, 4)


def test_an_image_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "p.png").write_text("no image")
    with pytest.raises(WorkerError) as raised:
        tensors("image", image=str(tmp_path / "p.png"))
    assert raised.value.failure.file == str(tmp_path / "p.png")
    assert "not an image" in raised.value.failure.message


@pytest.mark.parametrize("modality", ["image", "audio"])
def test_without_an_input_it_is_random_and_always_the_same(modality: Modality) -> None:
    found, content = tensors(modality)
    assert not found.is_real
    np.testing.assert_array_equal(np.asarray(content), np.asarray(tensors(modality)[1]))


def test_a_text_for_filling_masks() -> None:
    assert "<mask>" in tensors("text", "fill-mask")[1]
    found, content = tensors("text", "fill-mask", text="a [MASK] b")
    assert (found.is_real, content) == (True, "a <mask> b")
    with pytest.raises(WorkerError) as raised:
        tensors("text", "fill-mask", text="a b")
    assert "<mask>" in str(raised.value.failure.remedy)
    with pytest.raises(WorkerError) as raised:
        tensors("text", "fill-mask", text="  ")
    assert raised.value.failure.message == "the text is empty"


@pytest.mark.parametrize(("text", "facts"), [(" ", ["empty"]), ("a b c d", ["4 tokens", "3"])])
def test_texts_that_no_model_takes(text: str, facts: list[str]) -> None:
    with pytest.raises(WorkerError) as raised:
        tensors("text", longest=3, text=text)
    assert not lacks(raised.value.failure.message, *facts)
    assert raised.value.failure.file == "benchmark.input.text"


@pytest.mark.parametrize(
    ("task", "fact"),
    [
        ("text-classification", "tokenizer"),
        ("image-classification", "image processor"),
        ("audio-classification", "feature extractor"),
    ],
)
def test_a_model_without_its_processor(tmp_path: Path, task: str, fact: str) -> None:
    with pytest.raises(WorkerError) as raised:
        load_processor(tmp_path, task)
    assert fact in raised.value.failure.message
    assert "save_pretrained" in str(raised.value.failure.remedy)


def test_a_processor_that_fails_is_named() -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ValueError("too small")

    processor = Processor(Path("model"), "image-classification", "image", broken)
    with pytest.raises(WorkerError) as raised:
        task_tensors(processor, TaskInput(), None)
    assert not lacks(raised.value.failure.message, "ValueError", "too small")
