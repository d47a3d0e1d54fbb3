"""What the first screens of iPhone apps do: labels, conversations and texts are those of Python."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy.signal import resample_poly

from etdeploy.export.worker.tasks.inputs import apply_to_image, apply_to_speech
from etdeploy.program.task import ImagePreprocessing, SpeechPreprocessing
from tests.support.app_tokenizers import words
from tests.support.generation_values import CAPACITY, METHODS, VOCABULARY
from tests.support.ios_template import Compiled, compile_program, make_app, write_payload
from tests.support.swift import Swift

pytestmark = pytest.mark.integration

_HOW = ImagePreprocessing(
    input="pixel_values", height=48, width=64, shortest_edge=50, filter="bicubic",
    mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4),
)  # fmt: skip
# Descriptions of inputs, and sizes of images.
_IMAGES = {
    "bicubic": (_HOW, (90, 70)),
    "tall": (_HOW, (61, 240)),
    "large": (_HOW, (801, 333)),
    "enlarged": (_HOW, (31, 17)),
    "exact": (_HOW.model_copy(update={"shortest_edge": None, "resize_height": 48,
                                      "resize_width": 64, "filter": "bilinear"}), (123, 77)),
    "cropped": (_HOW.model_copy(update={"shortest_edge": None}), (99, 81)),
    "padded": (_HOW.model_copy(update={"shortest_edge": None, "scale": 1.0}), (33, 21)),
}  # fmt: skip
_LETTERS = ["<pad>", "A", "|", "B", "<unk>"]


@pytest.fixture(scope="module")
def photos(swift: Swift, tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    app = make_app(task="image-classification", threadpool=False)
    return compile_program(swift, app, tmp_path_factory.mktemp("photos"))


@pytest.fixture(scope="module")
def speech(swift: Swift, tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    app = make_app(task="automatic-speech-recognition", threadpool=False)
    return compile_program(swift, app, tmp_path_factory.mktemp("speech"))


class Photos:
    """Labels images, and keeps the model's last input."""

    def __init__(self, compiled: Compiled, folder: Path, how: ImagePreprocessing, **facts: Any):
        self.compiled, self.folder = compiled, folder
        image = {"preprocessing": how.model_dump(), "labels": "labels.json", "several": False}
        write_payload(folder / "Model", image={**image, **facts})
        (folder / "Model/labels.json").write_text('["red", "green", "blue"]')

    def label(self, image: Image.Image) -> str:
        path = self.folder / "image"
        path.write_bytes(image.convert("RGBA").tobytes())
        return self.compiled.run(
            "/given/Model", stdin=f"{image.width} {image.height} /given/image\n",
            folders={"given": self.folder},
        )  # fmt: skip

    def input(self, how: ImagePreprocessing) -> np.ndarray[Any, Any]:
        values = np.frombuffer((self.folder / "image.input").read_bytes(), "<f4")
        shape = (3, how.height, how.width)
        pixels: np.ndarray[Any, Any] = values.reshape(shape).transpose(1, 2, 0)
        return pixels


def _image(width: int, height: int) -> Image.Image:
    """Noise on a slope: both edges and flat parts."""
    chance = np.random.default_rng(width)
    x, y = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
    slope = np.stack([x, y, x * y], axis=-1) * 200
    return Image.fromarray((slope + chance.integers(0, 55, slope.shape)).astype(np.uint8))


@pytest.mark.parametrize("name", _IMAGES)
def test_an_image_is_resized_cropped_and_normalized_as_pillow_does_it(
    photos: Compiled, tmp_path: Path, name: str
) -> None:
    how, size = _IMAGES[name]
    app = Photos(photos, tmp_path, how)
    said = app.label(_image(*size))
    wanted = apply_to_image(how, _image(*size))
    assert f"shape [1, 3, {how.height}, {how.width}]" in said
    # Pillow rounds after each direction; which comes first depends on its version and the image.
    levels = np.abs(app.input(how) - wanted) * np.array(how.std) / how.scale
    assert levels.max() < 2.01
    assert levels.mean() < 0.3


@pytest.mark.nightly
def test_an_image_is_what_the_processor_of_transformers_gives(
    photos: Compiled, tmp_path: Path
) -> None:
    from transformers import ViTImageProcessor

    processor = ViTImageProcessor(size={"height": 48, "width": 64}, resample=2)
    mean, std = tuple(processor.image_mean), tuple(processor.image_std)
    how = ImagePreprocessing(
        input="pixel_values", height=48, width=64, resize_height=48, resize_width=64,
        filter="bilinear", mean=mean, std=std,
    )  # fmt: skip
    app = Photos(photos, tmp_path, how)
    app.label(_image(250, 190))
    made = processor(_image(250, 190), return_tensors="np")["pixel_values"][0].transpose(1, 2, 0)
    levels = np.abs(app.input(how) - made) * np.array(std) / how.scale
    assert levels.max() < 2.01
    assert levels.mean() < 0.3


def _labels(said: str) -> dict[str, float]:
    line = next(line for line in said.splitlines() if line.startswith("labels"))
    pairs = (pair.split("=") for pair in line.split()[1:])
    return {name: float(score) for name, score in pairs}


@pytest.mark.parametrize("several", [False, True])
def test_the_most_probable_labels_come_first(
    photos: Compiled, tmp_path: Path, several: bool
) -> None:
    app = Photos(photos, tmp_path, _HOW, several=several)
    found = _labels(app.label(_image(90, 70)))
    logits = 4 * apply_to_image(_HOW, _image(90, 70)).mean((0, 1))
    scores = 1 / (1 + np.exp(-logits)) if several else np.exp(logits) / np.exp(logits).sum()
    best = np.argsort(-scores)[:2]
    assert list(found) == [("red", "green", "blue")[i] for i in best]
    assert list(found.values()) == pytest.approx(scores[best], abs=2e-3)


def test_labels_that_do_not_fit_the_model_are_told(photos: Compiled, tmp_path: Path) -> None:
    app = Photos(photos, tmp_path, _HOW)
    (tmp_path / "Model/labels.json").write_text('["red"]')
    assert "program The model's output is not a number for each of its labels." in app.label(
        _image(9, 9)
    )


def test_a_photo_of_50_megapixels_is_decoded_small(photos: Compiled, tmp_path: Path) -> None:
    """Its shorter side keeps twice the pixels that the model gets; a small photo stays."""
    said = Photos(photos, tmp_path, _HOW).label(_image(9, 9))
    assert re.findall(r"decoded (\d+)", said) == ["171", "171", "120"]


def _speech_facts(**changes: Any) -> dict[str, Any]:
    how = SpeechPreprocessing(
        input="input_values", samples=60, rate=16_000, normalize=True, epsilon=1e-5
    ).model_dump()
    return {
        "preprocessing": how | changes, "vocabulary": "vocabulary.json", "blank": 0, "space": 2,
        "silent": [4],
    }  # fmt: skip


def _transcribe(
    speech: Compiled, folder: Path, ids: list[int], samples: np.ndarray[Any, Any],
    rate: int = 16_000, **changes: Any,
) -> tuple[list[float], str]:  # fmt: skip
    """The model's input, and the text of an output in which these ids are the most probable."""
    if not (folder / "Model").exists():
        write_payload(folder / "Model", speech=_speech_facts(**changes))
    (folder / "Model/vocabulary.json").write_text(json.dumps(_LETTERS))
    logits = np.full((len(ids), len(_LETTERS)), -1, "<f4")
    logits[range(len(ids)), ids] = 1
    (folder / "logits").write_bytes(logits.tobytes())
    (folder / "sound").write_bytes(samples.astype("<f4").tobytes())
    said = speech.run(
        "/given/Model", str(rate), "/given/sound", "/given/logits", str(len(_LETTERS)),
        folders={"given": folder},
    )  # fmt: skip
    given, text = said.splitlines()
    assert given.startswith("input [1, 60] ")
    return [float(word) for word in given.split()[3:]], text


@pytest.mark.nightly
def test_speech_is_decoded_with_blanks_spaces_and_silent_ids(
    speech: Compiled, tmp_path: Path
) -> None:
    ids = [2, 0, 1, 1, 0, 1, 4, 1, 2, 2, 3, 3, 0, 2]
    _, text = _transcribe(speech, tmp_path, ids, np.ones(60))
    # As CTC has it: equal neighbours are one, blanks and silent ids separate them.
    assert text == "text 'AAA B'"
    _, text = _transcribe(speech, tmp_path, [0, 0], np.ones(60))
    assert text == "text ''"


@pytest.mark.nightly
def test_samples_are_normalized_as_python_does_it_and_silence_follows(
    speech: Compiled, tmp_path: Path
) -> None:
    samples = np.random.default_rng(3).normal(0.2, 0.1, 41).astype(np.float32)
    given, _ = _transcribe(speech, tmp_path, [0], samples)
    how = SpeechPreprocessing.model_validate(_speech_facts()["preprocessing"])
    wanted = apply_to_speech(how, samples.astype(np.float64))
    assert given[:41] == pytest.approx(wanted, abs=1e-5)
    assert given[41:] == [0.0] * 19


@pytest.mark.nightly
def test_what_is_longer_than_the_model_takes_is_left_out(speech: Compiled, tmp_path: Path) -> None:
    samples = np.arange(100) / 100
    given, _ = _transcribe(speech, tmp_path, [0], samples, normalize=False)
    assert given == pytest.approx(samples[:60], abs=1e-6)


@pytest.mark.nightly
@pytest.mark.parametrize(("old", "new"), [(48_000, 16_000), (44_100, 16_000), (8_000, 16_000)])
def test_sound_is_resampled_without_what_the_new_rate_cannot_have(
    speech: Compiled, old: int, new: int
) -> None:
    time = np.arange(old // 20) / old
    low = np.sin(2 * np.pi * 440 * time) + 0.5 * np.cos(2 * np.pi * 1900 * time + 1)
    high = np.sin(2 * np.pi * 11_000 * time) if old > 2 * 11_000 else 0 * time
    said = speech.run("resample", str(old), str(new), stdin=" ".join(map(str, low + high)))
    found = np.array([float(word) for word in said.split()])
    assert len(found) == -(-len(low) * new // old)
    at = np.arange(len(found)) / new
    wanted = np.sin(2 * np.pi * 440 * at) + 0.5 * np.cos(2 * np.pi * 1900 * at + 1)
    middle = slice(60, -60)
    assert np.abs(found - wanted)[middle].max() < 0.01
    # Another implementation, with a filter of its own.
    scale = np.gcd(old, new)
    other = resample_poly(low + high, new // scale, old // scale)[: len(found)]
    assert np.abs(found - other)[middle].max() < 0.02


@pytest.mark.nightly
def test_a_microphone_fills_what_the_model_takes_and_zeros_are_told(speech: Compiled) -> None:
    half, whole, silent = speech.run("sound").splitlines()
    assert half == "0.5 false true [0.5, 0.0, 0.25, 0.0, 0.0, 0.0]"
    assert whole == "1.0 true 12"
    assert silent == "run The microphone gave no sound. Is it switched off, or used by another app?"


Talk = Callable[..., list[str]]


@pytest.fixture
def talk(generation: Compiled, tmp_path: Path) -> Talk:
    def say(
        *messages: str, manner: str = "fine", programs: Path | None = None, **facts: Any
    ) -> list[str]:
        language = {
            "methods": [method.model_dump() for method in METHODS["dynamic"]],
            "vocabulary": VOCABULARY, "context": CAPACITY, "stop_ids": [], "bos_id": None,
            "rewind": None, "new_tokens": 4, "tokenizer": "tokenizer.json",
            "sampling": {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "seed": 1, "min_p": 0.0,
                         "repetition_penalty": 1.0},
            "chat": {"before": "T", "after": "?", "between": "."},
        }  # fmt: skip
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        write_payload(folder, workload="generation", sizes=[], generation={**language, **facts})
        words().save(str(folder / "tokenizer.json"))
        if programs:
            (folder / "program.pte").write_bytes((programs / "dynamic.pte").read_bytes())
        said = generation.run("talk", "/model", manner, stdin="\n".join(messages) + "\n",
                        folders={"model": folder})  # fmt: skip
        return said.splitlines()

    return say


def _calls(said: list[str]) -> list[tuple[int, int]]:
    """How many tokens each call took, and at which position."""
    calls = (line.split() for line in said if line.startswith("call"))
    return [(int(count), int(position)) for _, _, count, position in calls]


def _answers(said: list[str]) -> list[str]:
    return [line for line in said if line.startswith("answer")]


def test_a_conversation_stays_in_the_cache(talk: Talk) -> None:
    said = talk("sky", "air")
    # Methods are loaded once.
    assert [line for line in said if line.startswith("load")] == ["load decode", "load prefill"]
    # T, the words and ?; of 4 new tokens, the last is not yet in the cache. Then it, ., words, ?.
    assert _calls(said) == [
        (5, 0), (1, 5), (1, 6), (1, 7), (6, 8), (1, 14), (1, 15), (1, 16),
    ]  # fmt: skip
    assert [line.split("'")[2] for line in _answers(said)] == [" 4 8 of 32", " 4 17 of 32"]
    assert "times true true true" in said


def test_a_new_conversation_begins_with_nothing(talk: Talk) -> None:
    said = talk("sky", "/new", "sky")
    once, again = _answers(said)
    assert once == again
    assert [at for _, at in _calls(said)].count(0) == 2


def test_without_a_way_to_go_on_each_message_is_a_conversation(talk: Talk) -> None:
    said = talk("sky", "sky", chat={"before": "T", "after": "?", "between": None})
    assert [at for _, at in _calls(said)].count(0) == 2
    once, again = _answers(said)
    assert once == again


def test_a_model_without_a_template_goes_on_with_the_words(talk: Talk) -> None:
    said = talk("sky", "air", chat=None, bos_id=7)
    assert _calls(said)[0] == (4, 0)
    assert _calls(said)[4] == (4, 7)


def test_a_message_that_does_not_fit_can_be_sent_again(talk: Talk) -> None:
    said = talk("sky", "a" * 30, "air")
    [problem] = (line for line in said if line.startswith("usage"))
    assert problem == (
        "usage The message needs 33 tokens, and the model has room for 24 of 32. "
        "Begin a new conversation, or write less."
    )
    assert _answers(said) == _answers(talk("sky", "air"))


def test_an_answer_that_is_stopped_stays_and_a_question_that_is_stopped_does_not(
    talk: Talk,
) -> None:
    # The first part is that of the prompt.
    stopped = talk("sky", "air", manner="stop 3")
    assert _answers(stopped)[0].endswith(" 2 6 of 32")
    assert _calls(stopped)[2] == (6, 6)
    unread = talk("sky" * 4, "sky", manner="stop 1")
    assert unread.count("nothing") == 1
    assert _calls(unread)[0] == (8, 0)
    assert _calls(unread)[1] == (5, 0)


def test_a_stop_token_ends_the_answer(talk: Talk) -> None:
    last = words().encode("Tsky?").ids[-1]
    # As the model of swift_programs does it.
    logits = (last * 31 + 5 * 7 + 13 * np.arange(VOCABULARY)) % 97
    said = talk("sky", "air", stop_ids=[int(logits.argmax())])
    assert _answers(said)[0] == "answer '' 1 5 of 32"
    # A stop token is not fed back: the template has the end of an answer.
    assert _calls(said)[1] == (5, 5)


def test_the_settings_of_a_person_have_ranges(talk: Talk) -> None:
    said = talk("/temperature 0.5", "/temperature 101", "/temperature -1")
    assert [line for line in said if line.startswith("valid")] == [
        "valid true", "valid false", "valid false",
    ]  # fmt: skip


@pytest.mark.nightly
def test_a_conversation_with_executorchs_runtime(talk: Talk, text_programs: Path) -> None:
    once = _answers(talk("sky", manner="real", programs=text_programs))
    twice = _answers(talk("sky", "air", "/new", "sky", manner="real", programs=text_programs))
    assert [once[0], once[0]] == [twice[0], twice[2]]
    assert twice[1].endswith(" 4 17 of 32")
