"""What an app carries of a program, and which tokenizers its own can stand for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from etdeploy.apps.android.platform import Android
from etdeploy.apps.model import MODEL_FILE, AppModel, app_id, app_name, recorded_paths
from etdeploy.apps.payload import MOST_BUNDLED_BYTES, _chat, app_tokenizer, make_payload
from etdeploy.core.errors import UsageError
from etdeploy.program.folder import InputSet, OutputQuantization, TensorFile
from etdeploy.program.model import Method, PlainValue, Program
from etdeploy.program.task import ImagePreprocessing, TaskProgram
from etdeploy.recipe.load import LoadedRecipe
from etdeploy.recipe.model import Recipe
from tests.support.bench_values import make_program_folder
from tests.support.golden_apps import app_subject
from tests.support.text_values import make_generation
from tests.support.text_values import make_loaded as make_language_model


def program(size_bytes: int = 5000) -> Program:
    method = Method(
        name="forward", inputs=(), outputs=(), operators=(), delegates=(), instructions=1,
        planned_memory_bytes=0,
    )  # fmt: skip
    return Program(
        sha256="ab" * 32, size_bytes=size_bytes, schema_version=0, constant_bytes=0,
        methods=(method,),
    )  # fmt: skip


def recipe(name: str = "my-net 2", **sections: Any) -> LoadedRecipe:
    made = Recipe.model_validate({"model": {"example": "mlp"}} | sections)
    return LoadedRecipe(name, Path("/recipes/net.yaml"), made, ())


def payload(
    folder: Path, loaded: LoadedRecipe | None = None, size_bytes: int = 5000, **changes: Any
) -> tuple[AppModel, dict[str, bytes | Path], tuple[str, ...]]:
    provenance = make_program_folder(folder, versions={"executorch": "1.5.1"}, **changes)
    model, files, notes = make_payload(loaded or recipe(), program(size_bytes), provenance, folder)
    return model, dict(files), notes


def test_a_small_program_its_inputs_and_its_outputs_go_into_the_app(tmp_path: Path) -> None:
    model, files, notes = payload(tmp_path)
    assert set(files) == {MODEL_FILE, "program.pte", "inputs/0.bin", "expected/0.bin"}
    assert files["program.pte"] == tmp_path / "program.pte"
    assert AppModel.model_validate_json(files[MODEL_FILE]) == model  # type: ignore[arg-type]
    assert (model.workload, model.method, model.executorch_version) == (
        "inference", "forward", "1.5.1",
    )  # fmt: skip
    assert (model.warmup, model.iterations, model.threads) == (-1, 50, 0)
    assert notes == ()


_IMAGE = ImagePreprocessing(input="pixel_values", height=4, width=4)


def _of_task(
    folder: Path, task: TaskProgram, /, **app: Any
) -> tuple[AppModel, Any, tuple[str, ...]]:
    """The app of a program of a task whose logits are of the program folder's last dimension."""
    (folder / "processor").mkdir(parents=True)
    labels = {"0": "cat", "1": "dog"}
    (folder / "processor" / "config.json").write_text(json.dumps({"id2label": labels}))
    return payload(folder, recipe(app=app), task=task)


def test_an_image_classifier_has_a_screen_for_photos_with_labels(tmp_path: Path) -> None:
    task = TaskProgram(task="image-classification", is_real=True, preprocess_ms=1, image=_IMAGE)
    model, files, notes = _of_task(tmp_path, task)
    assert model.task == "image-classification"
    assert model.image is not None
    assert model.image.preprocessing == _IMAGE
    labels = json.loads(files["labels.json"])
    assert labels[:2] == ["cat", "dog"]
    assert all(label == f"LABEL_{i}" for i, label in enumerate(labels[2:], 2))
    assert notes == ()


def test_a_task_without_a_description_of_its_input_is_measured_or_refused(tmp_path: Path) -> None:
    task = TaskProgram(
        task="image-classification", is_real=True, preprocess_ms=1, no_app="it flips channels"
    )
    model, files, notes = _of_task(tmp_path / "auto", task)
    assert (model.task, model.image) == ("tensor", None)
    assert "labels.json" not in files
    assert "it flips channels" in notes[0]
    with pytest.raises(UsageError, match="image-classification: it flips channels"):
        _of_task(tmp_path / "asked", task, task="image-classification")
    assert _of_task(tmp_path / "tensor", task, task="tensor")[2] == ()


def test_a_task_of_another_kind_of_program_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="text-generation: the program is of no task"):
        payload(tmp_path, recipe(app={"task": "text-generation"}))


def test_a_chat_goes_on_where_the_template_has_text_between(tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    found = _chat(folder)
    assert found is not None
    assert (found.before, found.after) == ("<user>", "</><assistant>")
    assert found.between == "</><user>"


def test_a_large_program_goes_beside_the_app(tmp_path: Path) -> None:
    model, files, _ = payload(tmp_path, size_bytes=MOST_BUNDLED_BYTES)
    assert not model.bundled
    assert "program.pte" not in files


@pytest.mark.parametrize("bundled", [True, False])
def test_the_recipe_may_say_where_the_program_goes(tmp_path: Path, bundled: bool) -> None:
    loaded = recipe(app={"bundled": bundled})
    model, files, _ = payload(tmp_path, loaded, 1 if not bundled else MOST_BUNDLED_BYTES)
    assert (model.bundled, "program.pte" in files) == (bundled, bundled)


def test_how_far_outputs_may_be_off_is_what_a_run_allows(tmp_path: Path) -> None:
    model, _, _ = payload(tmp_path)
    [expected] = model.sizes[0].expected
    assert expected.atol > 0
    asked = recipe(benchmark={"tolerance": {"max_abs_error": 0.25}})
    model, _, _ = payload(tmp_path, asked)
    assert model.sizes[0].expected[0].atol == 0.25


def test_outputs_on_a_grid_may_be_two_steps_off(tmp_path: Path) -> None:
    known = OutputQuantization(scale=1e30, zero_point=0, dtype="int8")
    model, _, _ = payload(tmp_path, quantization="int8_static", output_quantization=(known,))
    assert model.sizes[0].expected[0].atol == pytest.approx(2e30)


def test_every_size_and_plain_values_are_there(tmp_path: Path) -> None:
    tensor = TensorFile(path="inputs/0.bin", dtype="float32", shape=(2, 4), name="x")
    sets = (
        InputSet(name="short", inputs=(tensor, PlainValue(kind="Int", value=3))),
        InputSet(name="long", inputs=(tensor, PlainValue(kind="None"))),
    )
    model, files, _ = payload(tmp_path, inputs=(), expected=(), sets=sets)
    assert [size.name for size in model.sizes] == ["short", "long"]
    assert [value.kind for size in model.sizes for value in size.inputs] == [
        "Tensor", "Int", "Tensor", "None",
    ]  # fmt: skip
    assert model.sizes[0].inputs[1].value == 3
    assert set(files) == {MODEL_FILE, "program.pte", "inputs/0.bin"}


def test_a_tensor_outside_of_the_folder_is_refused(tmp_path: Path) -> None:
    outside = TensorFile(path="../secret", dtype="float32", shape=(1,))
    with pytest.raises(ValueError, match="leads out"):
        payload(tmp_path, inputs=(outside,), expected=())


def test_images_by_pixel_are_refused(tmp_path: Path) -> None:
    applied = {"by_pixel": ["x"], "rewrites": {"applied": {"channels_last": 1}}}
    with pytest.raises(UsageError, match="x by pixel") as error:
        payload(tmp_path, details=applied)
    assert "--set export.rewrites=auto" in str(error.value.remedy)
    with pytest.raises(UsageError) as error:
        payload(tmp_path, details={"by_pixel": ["x"]})
    assert "x.contiguous()" in str(error.value.remedy)


def language_model(
    folder: Path, *, tokenizer: bool = True, template: str | None = None
) -> tuple[AppModel, dict[str, bytes | Path], tuple[str, ...]]:
    tokens = folder / "tokenizer"
    tokens.mkdir()
    vocabulary = {"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}}
    vocabulary |= {"pre_tokenizer": {"type": "ByteLevel"}, "decoder": {"type": "ByteLevel"}}
    (tokens / "tokenizer.json").write_text(json.dumps(vocabulary))
    if template:
        (tokens / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    made = make_generation(tokenizer="tokenizer" if tokenizer else None)
    return payload(folder, make_language_model(), generation=made)


def _recorded_call(folder: Path, *, logits: str = "float32", position: int = 0) -> AppModel:
    """The model of an app that tests its text, for a method with these example values."""
    tokens, start = (
        TensorFile(path=f"inputs/{name}.bin", dtype="int64", shape=(1, 4)) for name in ("0", "1")
    )
    expected = TensorFile(path="expected/0.bin", dtype=logits, shape=(2, 4))
    made = make_program_folder(
        folder, generation=make_generation(), inputs=(tokens, start), expected=(expected,)
    )
    (folder / "inputs/1.bin").write_bytes(position.to_bytes(8, "little"))
    return make_payload(make_language_model(), program(), made, folder)[0]


def test_logits_of_a_text_s_first_call_are_recorded_for_the_app_s_golden_test(
    tmp_path: Path,
) -> None:
    model = _recorded_call(tmp_path / "first")
    assert recorded_paths(model) == {"inputs/0.bin", "inputs/1.bin", "expected/0.bin"}
    subject = replace(app_subject(Android(), "language-model"), model=model)
    placed = {path: Android().place(subject, path) for path in ("expected/0.bin", "program.pte")}
    assert placed == {
        "expected/0.bin": "app/src/androidTest/assets/golden/expected/0.bin",
        "program.pte": "app/src/main/assets/model/program.pte",
    }
    inference = app_subject(Android(), "convnet")
    assert Android().place(inference, "inputs/0.bin") == "app/src/main/assets/model/inputs/0.bin"
    assert _recorded_call(tmp_path / "later", position=3).sizes == ()
    assert _recorded_call(tmp_path / "half", logits="float16").sizes == ()


def test_without_a_tokenizer_the_app_takes_ids_and_says_so(tmp_path: Path) -> None:
    model, files, notes = language_model(tmp_path, tokenizer=False)
    assert "tokenizer.json" not in files
    assert model.generation is not None
    assert model.generation.tokenizer is None
    assert "takes and shows the ids" in notes[0]


def test_what_the_chat_template_puts_around_a_prompt_is_known(tmp_path: Path) -> None:
    template = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}<|go|>"
    model, _, _ = language_model(tmp_path, template=template)
    assert model.generation is not None
    assert model.generation.chat is not None
    assert (model.generation.chat.before, model.generation.chat.after) == (
        "<|user|>", "<|end|><|go|>",
    )  # fmt: skip


def test_a_template_that_repeats_the_prompt_or_fails_counts_as_none(tmp_path: Path) -> None:
    for number, template in enumerate(
        ["{{ messages[0].content }}{{ messages[0].content }}", "{{ raise_exception('no') }}", "x"]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        model, _, _ = language_model(folder, template=template)
        assert model.generation is not None
        assert model.generation.chat is None


def test_an_app_is_called_after_its_recipe() -> None:
    assert (app_id(recipe()), app_name(recipe())) == ("org.example.mynet2", "my-net 2")
    named = recipe(app={"id": "com.acme.net", "name": "Acme"})
    assert (app_id(named), app_name(named)) == ("com.acme.net", "Acme")
    assert app_id(recipe(name="new")) == "org.example.appnew"
    assert app_id(recipe(name="3d")) == "org.example.app3d"


MODEL = {"type": "BPE", "vocab": {"a": 0}, "merges": []}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
MARKS = [{"type": "Prepend", "prepend": "▁"},
         {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]  # fmt: skip


def unknown_part(folder: Path, bos_id: int | None = None, **parts: Any) -> str | None:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({"model": MODEL} | parts))
    return app_tokenizer(path, bos_id)


@pytest.mark.parametrize(
    "parts",
    [
        {"pre_tokenizer": BYTES, "decoder": BYTES, "post_processor": BYTES},
        {
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [
                    {"type": "Split", "pattern": {"Regex": "x"}, "behavior": "Isolated"},
                    {"type": "Digits", "individual_digits": True},
                    BYTES,
                ],
            }
        },
        {
            "normalizer": {"type": "Sequence", "normalizers": MARKS},
            "pre_tokenizer": {"type": "Split", "pattern": {"String": " "},
                              "behavior": "MergedWithPrevious"},
            "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"},
                                                         {"type": "Fuse"}]},
        },
        {"added_tokens": [{"content": "<s>", "special": True, "normalized": True}]},
    ],
)  # fmt: skip
def test_those_of_the_usual_families_are_known(tmp_path: Path, parts: dict[str, Any]) -> None:
    assert unknown_part(tmp_path, **parts) is None


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        ({"model": {"type": "Unigram", "vocab": []}}, "the model Unigram"),
        ({"model": {**MODEL, "end_of_word_suffix": "</w>"}}, "end_of_word_suffix"),
        ({"normalizer": {"type": "Lowercase"}}, "the normalizer Lowercase"),
        (
            {"normalizer": {"type": "Replace", "pattern": {"Regex": "a"}, "content": "b"}},
            "Replace with a regular expression",
        ),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "the pre-tokenizer Whitespace"),
        ({"pre_tokenizer": {**BYTES, "add_prefix_space": True}}, "add_prefix_space"),
        (
            {"pre_tokenizer": {"type": "Split", "pattern": {"String": "-"}}},
            "Split at '-'",
        ),
        (
            {
                "pre_tokenizer": {
                    "type": "Split", "pattern": {"Regex": "a"}, "behavior": "Removed",
                    "invert": True,
                }
            },
            "Split that is Removed",
        ),
        ({"decoder": {"type": "WordPiece"}}, "the decoder WordPiece"),
        ({"added_tokens": [{"content": "<m>", "lstrip": True}]}, "lstrip of the token '<m>'"),
        (
            {
                "normalizer": {"type": "NFC"},
                "added_tokens": [{"content": "<m>", "normalized": True}],
            },
            "the normalized token '<m>'",
        ),
        ({"post_processor": {"type": "BertProcessing"}}, "the post-processor BertProcessing"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_named(tmp_path: Path, parts: dict[str, Any], named: str) -> None:
    assert named in str(unknown_part(tmp_path, **parts))


def test_only_the_first_token_may_be_added(tmp_path: Path) -> None:
    text, first = {"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "<s>"}}
    before = {"type": "TemplateProcessing", "single": [first, text]}
    after = {"type": "TemplateProcessing", "single": [first, text, first]}
    assert unknown_part(tmp_path, 1, post_processor=before) is None
    assert "before a text" in str(unknown_part(tmp_path, None, post_processor=before))
    assert "after a text" in str(unknown_part(tmp_path, 1, post_processor=after))


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    assert "tokenizer.json" in str(app_tokenizer(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer.json").write_text("[]")
    assert "tokenizer.json" in str(app_tokenizer(tmp_path / "tokenizer.json"))
