"""Names and types of a library's class, and what is refused."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from etdeploy.apps.cpp import CPP, cpp_values, require_library, require_no_own_c_library
from etdeploy.apps.library import (
    KOTLIN,
    SWIFT,
    AndroidLibrary,
    IosLibrary,
    Language,
    class_name,
    comment,
    kotlin_values,
    signature,
    swift_values,
)
from etdeploy.apps.model import AppModel, AppSize, AppValue
from etdeploy.apps.platform import Platform
from etdeploy.apps.project import project_files
from etdeploy.core.errors import BuildError, CheckError
from etdeploy.graph.app_plan import platform_for
from etdeploy.program.model import Program, TensorInfo
from etdeploy.targets.platforms import find_target
from tests.support.golden_apps import app_subject
from tests.support.runtime_values import make_method, make_program

LANGUAGES = (KOTLIN, SWIFT, CPP)


def _tensor(name: str, dtype: str = "float32", shape: tuple[int, ...] = (2, 3)) -> AppValue:
    return AppValue(name=name, kind="Tensor", dtype=dtype, shape=shape, path=f"inputs/{name}.bin")


def _model(inputs: tuple[AppValue, ...], expected: tuple[AppValue, ...]) -> AppModel:
    subject = app_subject(platform_for("android"), "convnet")
    return subject.model.model_copy(
        update={"sizes": (AppSize(inputs=inputs, expected=expected),), "method": "forward"}
    )


def _program(inputs: tuple[TensorInfo, ...] = ()) -> Program:
    return make_program(make_method().model_copy(update={"inputs": inputs}))


@pytest.mark.parametrize(
    ("text", "camel", "snake"),
    [
        ("pixel_values", "pixelValues", "pixel_values"),
        ("hidden.0", "hidden0", "hidden_0"),
        ("X", "x", "x"),
        ("attention mask", "attentionMask", "attention_mask"),
        ("0", "value0", "value_0"),
        ("ü", "value", "value_"),
        ("*/ evil", "evil", "evil"),
    ],
)
def test_any_name_becomes_an_identifier(text: str, camel: str, snake: str) -> None:
    assert KOTLIN.identifier(text) == SWIFT.identifier(text) == camel
    assert CPP.identifier(text) == snake


@pytest.mark.parametrize("language", LANGUAGES, ids=lambda language: language.name)
def test_a_word_of_the_language_gets_an_underscore(language: Language) -> None:
    for word in ("in", "class", "object", "func", "template", "operator", "default"):
        name = language.identifier(word)
        assert name == (f"{word}_" if word in language.words else word)
        assert re.fullmatch(r"[a-z_]\w*", name)
    assert language.identifier("class") == "class_"


@pytest.mark.parametrize("language", LANGUAGES, ids=lambda language: language.name)
def test_equal_names_are_told_apart(language: Language) -> None:
    inputs = (_tensor("a b"), _tensor("a-b"), _tensor("", "int64"))
    made = signature(_model(inputs, (_tensor("a b"),)), _program(), language)
    names = [value.name for value in made.inputs]
    assert len({*names}) == 3
    assert names[2].startswith("input")
    assert made.inputs[0].name == made.outputs[0].name


def test_a_renamed_value_and_another_method_are_noted() -> None:
    methods = (make_method(), make_method().model_copy(update={"name": "decode"}))
    made = signature(_model((_tensor("class"),), ()), make_program(*methods), KOTLIN)
    renamed, other = made.notes
    assert "class_" in renamed
    assert "--set benchmark.method=decode" in other


@pytest.mark.parametrize("platform", [AndroidLibrary(), IosLibrary()], ids=lambda p: p.kind)
def test_the_command_gets_the_notes(platform: Platform) -> None:
    subject = app_subject(platform, "convnet")
    assert platform.notes(subject) == ()
    changed = replace(subject, model=_model((_tensor("class"),), ()))
    assert platform.notes(changed) == (
        "The input class is called class_: the language has the word.",
    )
    assert platform.notes(app_subject(platform, "language-model")) == ()


def test_a_tensor_of_several_sizes_has_its_shape_as_an_argument() -> None:
    info = TensorInfo(dtype="float32", shape=(8, 3), dynamic=True)
    model = _model((_tensor("image"), _tensor("image shape", "int64")), ())
    made = signature(model, _program((info,)), KOTLIN)
    assert [value.shape_name for value in made.inputs] == ["imageShape", None]
    assert [value.name for value in made.inputs] == ["image", "imageShape2"]
    values = kotlin_values(made)
    assert values["inputs"][0]["to_runtime"] == (
        'Tensors.of("image", image, Tensors.shape("image", imageShape, longArrayOf(8, 3)))'
    )
    assert swift_values(made, model)["sizes"][0]["arguments"][1] == "imageShape: [2, 3]"


@pytest.mark.parametrize(
    ("language", "dtype"),
    [(KOTLIN, "bool"), (KOTLIN, "bfloat16"), (SWIFT, "complex64"), (CPP, "float8_e5m2")],
)
def test_a_dtype_that_the_language_lacks_is_refused(language: Language, dtype: str) -> None:
    with pytest.raises(CheckError, match=f"image.*{dtype}.*{re.escape(language.name)}"):
        signature(_model((_tensor("image", dtype),), ()), _program(), language)


def test_scalars_and_absent_inputs_keep_their_places() -> None:
    inputs = (
        AppValue(kind="None"),
        AppValue(name="scale", kind="Double", value=0.5),
        AppValue(name="flag", kind="Bool", value=True),
        AppValue(name="count", kind="Int", value=2**62 + 1),
    )
    model = _model(inputs, (AppValue(name="whole", kind="Int", value=3),))
    swift = swift_values(signature(model, _program(), SWIFT), model)
    assert swift["fill"] == ["Value()", "Value(scale)", "Value(flag)", "Value(count)"]
    assert swift["sizes"][0]["arguments"] == ["scale: 0.5", "flag: true", f"count: {2**62 + 1}"]
    cpp = cpp_values(signature(model, _program(), CPP), model)
    assert cpp["fill"][0] == "inputs_.values.emplace_back();"
    assert cpp["sizes"][0]["arguments"] == ["0.5", "true", f"int64_t{{{2**62 + 1}}}"]


def test_a_comment_is_not_ended_by_what_a_user_wrote() -> None:
    assert comment("a */ b\n/* c") == "a * / b / * c"


def test_a_class_is_not_called_like_what_it_uses() -> None:
    assert class_name("my-model.v2") == "MyModelV2"
    for name in ("session", "output", "tensor", "Module"):
        assert class_name(name) not in (name.capitalize(), "Module")


@pytest.mark.parametrize(
    "platform", [AndroidLibrary(), IosLibrary()], ids=lambda platform: platform.kind
)
@pytest.mark.parametrize("recipe", ["convnet", "language-model"])
def test_a_library_has_no_screen_and_no_file_twice(platform: Platform, recipe: str) -> None:
    subject = app_subject(platform, recipe)
    payload = {"program.pte": b"program", "model.json": b"{}", "inputs/0.bin": b"0"}
    files = project_files(platform, subject, payload)
    assert files == project_files(platform, subject, payload)
    assert not [path for path in files if "Screen" in path or "ContentView" in path]
    golden = [path for path in files if path.endswith("inputs/0.bin")]
    assert len(golden) == 1
    assert "est" in golden[0].partition("olden")[0]  # of the tests alone
    texts = [content.decode() for content in files.values() if isinstance(content, bytes)]
    assert not [text for text in texts if "{{" in text or "/work/" in text]


def test_a_large_model_is_passed_as_a_file() -> None:
    platform = AndroidLibrary()
    subject = app_subject(platform, "convnet")
    subject = type(subject)(
        **{**vars(subject), "model": subject.model.model_copy(update={"bundled": False})}
    )
    files: dict[str, Any] = dict(project_files(platform, subject, {}))
    source = files["library/src/main/kotlin/org/example/convnet/Convnet.kt"].decode()
    assert "program: File?,\n" in source


def test_an_executorch_of_its_own_is_refused_with_what_to_do() -> None:
    with pytest.raises(BuildError, match="has ExecuTorch's release") as caught:
        app_subject(AndroidLibrary(), "convnet", None, runtime="source")
    assert "etdeploy app android" in str(caught.value.remedy)


@pytest.mark.parametrize("target", ["linux-aarch64-musl", "ios-arm64"])
def test_a_target_without_shared_libraries_is_refused(target: str) -> None:
    with pytest.raises(CheckError, match="loads no shared library") as caught:
        require_library(find_target(target), generates=False)
    assert "--target linux-x86_64" in str(caught.value.remedy)


def test_a_c_library_of_its_own_is_refused() -> None:
    plan = app_subject(platform_for("android"), "convnet").plan
    require_no_own_c_library(plan)
    with pytest.raises(CheckError, match="brings its own C library"):
        require_no_own_c_library(plan.model_copy(update={"portable_runner": True}))


def test_a_language_model_is_refused_in_cpp() -> None:
    with pytest.raises(CheckError, match="neither a tokenizer") as caught:
        require_library(find_target("linux-x86_64"), generates=True)
    assert "etdeploy app library android" in str(caught.value.remedy)


def test_template_folders_of_libraries_exist() -> None:
    for platform in (AndroidLibrary(), IosLibrary()):
        assert all(folder.is_dir() for folder in platform.parts)
        assert isinstance(platform.templates, Path)
