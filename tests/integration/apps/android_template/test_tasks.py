"""The first screens of apps: photos are labelled, a chat goes on, speech is written down."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from etdeploy.export.worker.tasks.inputs import apply_to_image
from etdeploy.program.task import ImagePreprocessing
from tests.integration.apps.android_template.conftest import with_values
from tests.support.android_app import App, Screen, Tools, describe, ktlint
from tests.support.app_tokenizers import words
from tests.support.generation_values import CAPACITY, METHODS, VOCABULARY

pytestmark = [pytest.mark.integration, pytest.mark.nightly]

_HOW = ImagePreprocessing(
    input="pixel_values", height=48, width=64, shortest_edge=50, filter="bicubic",
    mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4),
)  # fmt: skip
_DONE = "to the first token"
_WORDS = ("sky", "air", "sky")
_RATE, _SAMPLES = 16_000, 1600
_MICROPHONE = "android.permission.RECORD_AUDIO"


def _photo(path: Path, size: tuple[int, int], turned: bool = False) -> Path:
    """A photo that is not the same upside down; `turned` says so in its EXIF data alone."""
    width, height = size
    x, y = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
    pixels = np.stack([x, y, x * y], axis=-1) * 255
    exif = Image.Exif()
    if turned:
        exif[0x0112] = 6
    Image.fromarray(pixels.astype(np.uint8)).save(path, quality=98, exif=exif)
    return path


def _probabilities(path: Path) -> list[float]:
    """Of the program `classes`, preprocessed as the export does it."""
    from PIL import ImageOps

    with Image.open(path) as opened:
        image = ImageOps.exif_transpose(opened).convert("RGB")
        logits = 4 * apply_to_image(_HOW, image).mean((0, 1))
    powers = np.exp(logits - logits.max())
    return list(powers / powers.sum())


def _shown(screen: Screen) -> dict[str, float]:
    """Labels with their percentages, as the screen shows them."""
    views = screen.shown["views"]
    labels = [view["text"] for view in views if view.get("id") == "label"]
    values = [view["text"] for view in views if view.get("id") == "value"]
    assert len(labels) == len(values)
    return {label: float(value.rstrip(" %")) for label, value in zip(labels, values, strict=True)}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("photos")
    broken = folder / "broken.jpg"
    broken.write_bytes(b"no photo")
    return {
        "small": _photo(folder / "small.png", (90, 70)),
        "upright": _photo(folder / "upright.jpg", (320, 240)),
        "turned": _photo(folder / "turned.jpg", (320, 240), turned=True),
        # 50 megapixels, as phones take them.
        "large": _photo(folder / "large.jpg", (8160, 6120)),
        "broken": broken,
    }


@pytest.fixture(scope="module")
def labelled(
    tools: Tools, photo_app: App, programs: Path, photos: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Screen]:  # fmt: skip
    payload = photo_app.payload
    payload.mkdir(parents=True, exist_ok=True)
    shutil.copy(programs / "classes" / "program.pte", payload)
    (payload / "labels.json").write_text('["red", "green", "blue"]')
    image = {"preprocessing": _HOW.model_dump(), "labels": "labels.json", "several": False}
    sizes = [with_values(programs / "classes", payload, "classes", 1e-5)]
    describe(payload, task="image-classification", image=image, sizes=sizes)

    def chosen(
        name: str, button: str = "choose", shows: str = "What it may show"
    ) -> dict[str, Any]:
        return {"steps": [{"click": [button], "photo": str(photos[name]), "shows": shows}]}

    scenarios: dict[str, dict[str, Any]] = {
        **{name: chosen(name) for name in ("small", "upright", "turned", "large")},
        "taken": chosen("turned", "camera"),
        "broken": chosen("broken", shows="not a photo"),
        "no_camera": {"steps": [{"refuse": "apps", "click": ["camera"], "shows": "no app for"}]},
        "untouched": {"idle": True, "click": ["measure"]},
        "golden": {"tests": ["GoldenTest"]},
        "measured": {"steps": [*chosen("small")["steps"], {"measure": {}}]},
        "again": {"steps": [*chosen("small")["steps"], {"measure": {}},
                            *chosen("turned")["steps"]]},
    }  # fmt: skip
    return photo_app.start(tools, tmp_path_factory.mktemp("screens") / "all", scenarios)


@pytest.mark.parametrize(
    ("name", "tolerance"), [("small", 0.2), ("upright", 1), ("turned", 1), ("large", 1)]
)
def test_a_photo_gets_the_labels_that_the_export_s_preprocessing_gives(
    labelled: dict[str, Screen], photos: dict[str, Path], name: str, tolerance: float
) -> None:
    wanted = dict(zip(("red", "green", "blue"), _probabilities(photos[name]), strict=True))
    found = _shown(labelled[name])
    assert list(found) == sorted(wanted, key=lambda label: -wanted[label])
    for label, percent in found.items():
        assert percent == pytest.approx(100 * wanted[label], abs=tolerance)


def test_the_camera_s_photo_is_labelled_as_a_chosen_one(labelled: dict[str, Screen]) -> None:
    assert _shown(labelled["taken"]) == _shown(labelled["turned"])


def test_what_is_no_photo_and_a_device_without_a_camera_are_told(
    labelled: dict[str, Screen],
) -> None:
    assert labelled["broken"].text("status") == "The file is not a photo that Android can read."
    assert labelled["no_camera"].text("status") == "This device has no app for that."


def test_the_measurement_is_the_second_screen(labelled: dict[str, Screen]) -> None:
    assert "MainActivity" in labelled["untouched"].shown["shared"]


def test_a_measurement_frees_the_screens_copy_of_the_model(labelled: dict[str, Screen]) -> None:
    """Which is loaded again when the next photo needs it."""
    assert labelled["measured"].results["samples_ms"]
    counts = {
        name: (labelled[name].shown["loaded"], labelled[name].shown["most_loaded"])
        for name in ("small", "measured", "again")
    }
    assert counts == {"small": (1, 1), "measured": (0, 1), "again": (1, 1)}
    assert _shown(labelled["again"]) == _shown(labelled["turned"])


def test_the_projects_own_tests_ran(labelled: dict[str, Screen]) -> None:
    """The local ones, of the benchmark, outside of Android; the golden one fails its scenario."""
    said = (labelled["golden"].folder.parent / "junit.txt").read_text()
    assert f"OK ({len(labelled) + 4} tests)" in said


def _describe_chat(chat_app: App, text_programs: Path, between: str | None) -> None:
    payload = chat_app.payload
    payload.mkdir(parents=True, exist_ok=True)
    shutil.copy(text_programs / "dynamic.pte", payload / "program.pte")
    words().save(str(payload / "tokenizer.json"))
    describe(
        payload,
        task="text-generation",
        workload="generation",
        generation={
            "methods": [method.model_dump() for method in METHODS["dynamic"]],
            "vocabulary": VOCABULARY,
            "context": CAPACITY,
            "stop_ids": [],
            "bos_id": None,
            "rewind": None,
            "sampling": {
                "temperature": 0.0, "top_k": 0, "top_p": 1.0, "seed": 1, "min_p": 0.0,
                "repetition_penalty": 1.0,
            },
            "new_tokens": 4,
            "tokenizer": "tokenizer.json",
            "chat": {"before": "T", "after": "?", "between": between},
        },
    )  # fmt: skip


def _says(words: str, shows: str) -> dict[str, Any]:
    return {"type": {"message": words}, "click": ["send"], "shows": shows}


@pytest.fixture(scope="module")
def chats(
    tools: Tools, chat_app: App, text_programs: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Screen]:
    _describe_chat(chat_app, text_programs, ".")
    says, ready = _says, {"shows": f"0 of {CAPACITY} tokens"}
    longer = {"dialog": {"longest": "1000"}, "press": True}
    scenarios: dict[str, dict[str, Any]] = {
        # T, the words and ? are read; of 4 new tokens, the last is not yet in the cache.
        "once": {"steps": [ready, says("sky", "8 of 32 tokens"), {"shows": _DONE}]},
        "twice": {"steps": [ready, says("sky", _DONE), says("air", "17 of 32 tokens"),
                            {"shows": _DONE}]},
        "renewed": {"steps": [ready, says("sky", _DONE), {"click": ["renew"], **ready},
                              says("sky", "8 of 32 tokens"), {"shows": _DONE},
                              {"click": ["copy"]}]},
        "full": {"steps": [ready, says("sky", _DONE), says("a" * 30, "Begin a new")]},
        "stopped": {"steps": [ready, {"click": ["settings"]}, longer,
                              {"type": {"message": "sky"}, "click": ["send", "send"],
                               "shows": '"Send"'}]},
        "gone_on": {"steps": [ready, {"click": ["settings"]},
                              {"dialog": {"longest": "1"}, "press": True},
                              {"type": {"message": "a" * 20}, "click": ["send", "send"],
                               "shows": '"Send"'},
                              {"type": {"message": "air"}, "click": ["send"],
                               "shows": "Send"}, {"enabled": "renew"}]},
        "set": {"steps": [ready, {"click": ["settings"]},
                          {"dialog": {"longest": "2", "temperature": "101"}, "press": False},
                          {"dialog": {"temperature": "0"}, "press": True}, says("sky", _DONE)]},
        "discarded": {"steps": [ready, {"click": ["settings"]},
                                {"dialog": {"longest": "2", "temperature": "101"}, "press": False},
                                says("sky", _DONE)]},
        "measured": {"steps": [ready, says("sky", _DONE), {"measure": {"prompt": "sky"}},
                               {"enabled": "send"}, says("air", "17 of 32 tokens"),
                               {"shows": _DONE}]},
    }  # fmt: skip
    return chat_app.start(tools, tmp_path_factory.mktemp("screens") / "all", scenarios)


def _answers(screen: Screen) -> list[str]:
    return [view["text"] for view in screen.shown["views"] if view.get("id") == "words"][1::2]


def test_a_conversation_stays_in_the_cache(chats: dict[str, Screen]) -> None:
    """Of the second message, its own tokens alone are read, with the last of the first answer."""
    once, twice = _answers(chats["once"]), _answers(chats["twice"])
    assert len(once) == 1
    assert twice[:1] == once
    assert len(twice) == 2
    assert chats["twice"].text("context_of") == "17 of 32 tokens"


def test_a_new_conversation_begins_with_nothing(chats: dict[str, Screen]) -> None:
    assert _answers(chats["renewed"]) == _answers(chats["once"])


def test_the_last_answer_is_copied(chats: dict[str, Screen]) -> None:
    assert chats["renewed"].shown["copied"] == _answers(chats["renewed"])[-1]
    assert chats["once"].shown["copied"] is None


def test_a_stopped_answer_leaves_room_and_the_conversation_goes_on(
    chats: dict[str, Screen],
) -> None:
    """Without the stop, the answer would fill the context.

    A message of 22 tokens whose reading was stopped is read to its end with the next one, of 5; if
    it was read before, a token of its answer is.
    """
    used, _, of = chats["stopped"].text("context_of").partition(" of ")
    assert of == f"{CAPACITY} tokens"
    assert 0 < int(used) < CAPACITY
    assert chats["stopped"].text("send") == "Send"
    assert len(_answers(chats["gone_on"])) == 2
    assert chats["gone_on"].text("context_of") in ("27 of 32 tokens", "28 of 32 tokens")


def test_settings_hold_from_the_next_answer_on_if_all_are_valid(chats: dict[str, Screen]) -> None:
    """Five tokens are read; of two new ones, the last is not yet in the cache."""
    assert chats["set"].text("context_of") == "6 of 32 tokens"
    assert chats["discarded"].text("context_of") == "8 of 32 tokens"
    assert _answers(chats["once"])[0].startswith(_answers(chats["set"])[0])


def test_a_conversation_goes_on_after_a_measurement(chats: dict[str, Screen]) -> None:
    """It frees the model, which is loaded again with all that was said."""
    assert _answers(chats["measured"]) == _answers(chats["twice"])
    assert chats["measured"].results["generation"]["runs"]
    assert chats["measured"].shown["most_loaded"] == 1


def test_a_template_that_cannot_go_on_begins_anew_and_says_so(
    tools: Tools, chat_app: App, text_programs: Path, chats: dict[str, Screen],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    _describe_chat(chat_app, text_programs, None)
    steps = [{"shows": f"0 of {CAPACITY} tokens"}, *(_says(word, _DONE) for word in _WORDS)]
    folder = tmp_path_factory.mktemp("screens") / "anew"
    [screen] = chat_app.start(tools, folder, {"anew": {"steps": steps}}).values()
    assert screen.text("context_of") == "8 of 32 tokens"
    answers = _answers(screen)
    assert answers[0] == answers[2] == _answers(chats["once"])[0]
    assert "knows only your last message" in screen.text("each_anew")
    assert not [view for view in chats["twice"].shown["views"] if view.get("id") == "each_anew"]


def test_a_message_that_does_not_fit_can_be_sent_again(chats: dict[str, Screen]) -> None:
    screen = chats["full"]
    assert "33 tokens" in screen.text("status")
    assert screen.text("message") == "a" * 30
    assert _answers(screen) == _answers(chats["once"])


@pytest.fixture(scope="module")
def heard(
    tools: Tools, speech_app: App, programs: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Screen]:
    payload = speech_app.payload
    payload.mkdir(parents=True, exist_ok=True)
    shutil.copy(programs / "letters" / "program.pte", payload)
    (payload / "vocabulary.json").write_text('["<pad>", "A", "|", "B"]')
    speech = {
        "preprocessing": {"input": "input_values", "samples": _SAMPLES, "rate": _RATE,
                          "normalize": False, "epsilon": 1e-7},
        "vocabulary": "vocabulary.json", "blank": 0, "space": 2, "silent": [],
    }  # fmt: skip
    describe(payload, task="automatic-speech-recognition", speech=speech)
    folder = tmp_path_factory.mktemp("sounds")
    loud = np.repeat([0.2, 0.2, 0.0, 0.2, 0.4, 0.8, 0.8], 100)
    files = {"words": loud, "zeros": np.zeros(_SAMPLES)}
    for name, samples in files.items():
        (folder / name).write_bytes((samples * 32768).astype("<i2").tobytes())

    def recorded(file: str, shows: str) -> dict[str, Any]:
        microphone = str(folder / file) if file else ""
        step = {"grant": _MICROPHONE, "microphone": microphone, "click": ["record"]}
        return {"steps": [step | {"shows": shows}]}

    scenarios: dict[str, dict[str, Any]] = {
        "words": recorded("words", "What was said"),
        "nothing": recorded("", "gave no sound"),
        "zeros": recorded("zeros", "gave no sound"),
        "refused": {"steps": [{"click": ["record"], "refuse": _MICROPHONE, "shows": "may not"}]},
    }
    return speech_app.start(tools, tmp_path_factory.mktemp("screens") / "all", scenarios)


def test_speech_is_written_down(heard: dict[str, Screen]) -> None:
    assert heard["words"].text("text") == "AA B"
    assert heard["words"].text("record") == "Record"


@pytest.mark.parametrize("name", ["nothing", "zeros"])
def test_a_microphone_without_data_is_told(heard: dict[str, Screen], name: str) -> None:
    assert "switched off" in heard[name].text("status")


def test_a_refused_microphone_is_told_with_the_way_to_allow_it(heard: dict[str, Screen]) -> None:
    assert "Settings" in heard["refused"].text("status")


@pytest.mark.parametrize("name", ["photo", "chat", "speech"])
def test_ktlint_finds_nothing(request: pytest.FixtureRequest, tools: Tools, name: str) -> None:
    ktlint(tools, request.getfixturevalue(f"{name}_app").project)


@pytest.mark.parametrize("name", ["small", "once", "words"])
def test_the_screens_are_for_everybody(request: pytest.FixtureRequest, name: str) -> None:
    fixture = {"small": "labelled", "once": "chats", "words": "heard"}[name]
    shown = request.getfixturevalue(fixture)[name].shown
    buttons = [view for view in shown["views"] if view["kind"].endswith("Button")]
    assert "measure" in {view["id"] for view in buttons}
    for view in buttons:
        assert view["height"] >= 48 * shown["density"]
        assert view["width"] >= 48 * shown["density"]
    assert not [view["text"] for view in shown["views"] if view.get("ellipsized")]
