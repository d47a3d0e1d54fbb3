"""Libraries with a model for an existing app: one typed class in Kotlin, Swift or C++.

A library has the parts of the sample apps that run a model, and inputs and outputs by their names
and types in the program. Names that the language reserves get an underscore at their end.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from etdeploy.apps.android.platform import Android, android_values, require_readable
from etdeploy.apps.ios.platform import Ios, ios_app, target_name, template_variables
from etdeploy.apps.model import MODEL_FILE, AppGeneration, AppModel, AppSize, AppValue
from etdeploy.apps.platform import AppRuntime, AppSubject
from etdeploy.apps.project import kotlin_text, render_tree
from etdeploy.core.errors import Blocker, BuildError, CheckError, refuse
from etdeploy.core.files.basic import resource_folder
from etdeploy.core.values import Value
from etdeploy.program.folder import PROGRAM_FILE
from etdeploy.program.model import Program, TensorInfo
from etdeploy.program.tokenizer import TOKENIZER_FILE
from etdeploy.recipe.load import LoadedRecipe
from etdeploy.recipe.model import Recipe

_KOTLIN_WORDS = """
as break class continue do else false for fun if in interface is null object package return super
this throw true try typealias typeof val var when while
"""
_SWIFT_WORDS = """
Any Protocol Self Type as associatedtype await break case catch class continue default defer deinit
do else enum extension fallthrough false fileprivate for func guard if import in init inout internal
is let nil operator precedencegroup private protocol public repeat rethrows return self static
struct subscript super switch throw throws true try typealias var where while
"""


@dataclass(frozen=True)
class ArrayType:
    """How a language holds the elements of a dtype.

    `reader` makes an array of it from an output or a file, `converter` numbers of its elements.
    """

    name: str
    reader: str
    golden: str = ""
    converter: str = ""


@dataclass(frozen=True)
class Language:
    """What the names and types of a language are like.

    `taken` are names that the generated code uses where arguments are in scope.
    """

    name: str
    words: frozenset[str]
    tensors: Mapping[str, ArrayType]
    scalars: Mapping[str, str]
    snake: bool = False
    taken: frozenset[str] = frozenset()

    def identifier(self, text: str) -> str:
        """A name like a text: `pixel values` gives pixelValues, or pixel_values; `in` gives in_."""
        words = re.findall(r"[A-Za-z0-9]+", text)
        if self.snake:
            name = "_".join(word.lower() if word.isupper() else word for word in words)
        else:
            first, *rest = words or [""]
            head = first.lower() if first.isupper() else first[:1].lower() + first[1:]
            name = head + "".join(word[:1].upper() + word[1:] for word in rest)
        if not name or name[0].isdigit():
            name = f"value{'_' if self.snake else ''}{name}"
        return f"{name}_" if name in self.words or name in self.taken else name


KOTLIN = Language(
    "Kotlin",
    frozenset(_KOTLIN_WORDS.split()),
    {
        "float32": ArrayType("FloatArray", "dataAsFloatArray", "floats"),
        "float64": ArrayType("DoubleArray", "dataAsDoubleArray", "doubles"),
        "float16": ArrayType("ShortArray", "dataAsShortArray", "shorts", ".map(::half)"),
        "int64": ArrayType("LongArray", "dataAsLongArray", "longs"),
        "int32": ArrayType("IntArray", "dataAsIntArray", "ints"),
        "int8": ArrayType("ByteArray", "dataAsByteArray", "plain"),
        "uint8": ArrayType(
            "ByteArray", "dataAsUnsignedByteArray", "plain", ".map { it.toInt() and 255 }"
        ),
    },
    {"Int": "Long", "Double": "Double", "Bool": "Boolean"},
)


class LibraryValue(Value):
    """An input or output as a language sees it.

    `label` is its name in the program, `index` its place there. A tensor of several sizes has
    another argument, `shape_name`; `shape` is its largest then.
    """

    name: str
    label: str
    index: int
    kind: str
    type: str
    about: str
    dtype: str | None = None
    shape: tuple[int, ...] = ()
    shape_name: str | None = None


@dataclass
class LibraryCase:
    """Inputs of one size with what the model gives for them, for the golden test."""

    name: str
    inputs: list[tuple[LibraryValue, AppValue]] = field(default_factory=list)
    expected: list[tuple[LibraryValue, AppValue]] = field(default_factory=list)


@dataclass(frozen=True)
class Signature:
    """The typed method of a library; `cases` are those of its golden test."""

    inputs: tuple[LibraryValue, ...]
    outputs: tuple[LibraryValue, ...]
    cases: tuple[LibraryCase, ...]
    notes: tuple[str, ...]


def signature(model: AppModel, program: Program, language: Language) -> Signature:
    """The inputs and outputs of a model's method; CheckError for a type that a language lacks."""
    method = next(each for each in program.methods if each.name == model.method)
    size = model.sizes[0]
    names = _Names(language)
    inputs = tuple(
        _value("input", i, size.inputs[i], _info(method.inputs, i), names, language)
        for i in range(len(size.inputs))
        if size.inputs[i].kind != "None"
    )
    names = _Names(language)
    outputs = tuple(
        _value("output", i, size.expected[i], _info(method.outputs, i), names, language)
        for i in range(len(size.expected))
        if size.expected[i].kind != "None"
    )
    cases = tuple(_cases(model.sizes, inputs, outputs, language))
    return Signature(inputs, outputs, cases, tuple(_notes(model, program, inputs, outputs)))


def _info(values: Sequence[object], index: int) -> TensorInfo | None:
    found = values[index] if index < len(values) else None
    return found if isinstance(found, TensorInfo) else None


def comment(text: str) -> str:
    """The text as a part of a comment, which it neither ends nor begins."""
    return " ".join(text.split()).replace("*/", "* /").replace("/*", "/ *")


class _Names:
    """Names in one scope, each of them once."""

    def __init__(self, language: Language) -> None:
        self._language = language
        self._used: set[str] = set()

    def add(self, text: str) -> str:
        name = base = self._language.identifier(text)
        number = 1
        while name in self._used:
            number += 1
            name = f"{base}{number}"
        self._used.add(name)
        return name


def _value(
    noun: str,
    index: int,
    value: AppValue,
    info: TensorInfo | None,
    names: _Names,
    language: Language,
) -> LibraryValue:
    label = value.name or f"{noun} {index}"
    name = names.add(label)
    if value.kind != "Tensor":
        kind = language.scalars.get(value.kind)
        if kind is None:
            raise CheckError(f"the {noun} {label} is of kind {value.kind}, which no library takes")
        return LibraryValue(
            name=name, label=label, index=index, kind=value.kind, type=kind,
            about=f"`{comment(label)}`: a single value.",
        )  # fmt: skip
    dtype = value.dtype or ""
    if dtype not in language.tensors:
        raise CheckError(
            f"the {noun} {label} is a tensor of {dtype}, which a library in {language.name} does "
            f"not have; it has {', '.join(language.tensors)}",
            remedy="Convert it inside the model.",
        )
    dynamic = info is not None and info.dynamic
    shape = info.shape if info and dynamic else value.shape or ()
    sizes = "a single value" if not shape else " x ".join(map(str, shape))
    return LibraryValue(
        name=name,
        label=label,
        index=index,
        kind="Tensor",
        type=language.tensors[dtype].name,
        about=f"`{comment(label)}`: {dtype}, {'at most ' if dynamic else ''}{sizes}.",
        dtype=dtype,
        shape=shape,
        shape_name=names.add(f"{label} shape") if dynamic else None,
    )


def _cases(
    sizes: Iterable[AppSize],
    inputs: Sequence[LibraryValue],
    outputs: Sequence[LibraryValue],
    language: Language,
) -> Iterator[LibraryCase]:
    names = _Names(language)
    for size in sizes:
        yield LibraryCase(
            names.add(f"size {size.name}" if size.name else "example"),
            [(value, size.inputs[value.index]) for value in inputs],
            [(value, size.expected[value.index]) for value in outputs],
        )


def _notes(
    model: AppModel,
    program: Program,
    inputs: Sequence[LibraryValue],
    outputs: Sequence[LibraryValue],
) -> Iterator[str]:
    for noun, values in (("input", inputs), ("output", outputs)):
        for value in values:
            if value.name.endswith("_"):
                yield f"The {noun} {value.label} is called {value.name}: the language has the word."
    others = [each.name for each in program.methods if each.name != model.method]
    if others:
        yield (
            f"The library runs the method {model.method}; the program also has "
            f"{', '.join(others)}. For another one: --set benchmark.method={others[0]}"
        )


def kotlin_values(made: Signature) -> dict[str, Any]:
    """What the template of an Android library gets of a signature."""
    return {
        "inputs": [_kotlin_input(value) for value in made.inputs],
        "outputs": [_kotlin_output(value) for value in made.outputs],
        "sizes": [
            {
                "name": case.name,
                "inputs": [_kotlin_argument(*each) for each in case.inputs],
                "expected": [_kotlin_expected(*each) for each in case.expected],
            }
            for case in made.cases
        ],
        "dtypes": sorted({value.dtype for value in (*made.inputs, *made.outputs) if value.dtype}),
    }


def _kotlin_input(value: LibraryValue) -> dict[str, Any]:
    made = value.model_dump()
    if value.kind != "Tensor":
        return made | {"to_runtime": f"EValue.from({value.name})"}
    sizes = f"longArrayOf({', '.join(map(str, value.shape))})"
    label = f'"{value.name}"'
    shape = f"Tensors.shape({label}, {value.shape_name}, {sizes})" if value.shape_name else sizes
    make = "ofUnsigned" if value.dtype == "uint8" else "of"
    return made | {
        "to_runtime": f"Tensors.{make}({label}, {value.name}, {shape})",
        "largest": " x ".join(map(str, value.shape)),
    }


def _kotlin_output(value: LibraryValue) -> dict[str, Any]:
    scalars = {"Int": "toInt()", "Double": "toDouble()", "Bool": "toBool()"}
    reader = scalars.get(value.kind) or f"toTensor().{KOTLIN.tensors[value.dtype or ''].reader}"
    return value.model_dump() | {"from_runtime": reader}


def _kotlin_literal(value: LibraryValue, given: AppValue) -> str:
    if value.kind == "Tensor":
        return f'{KOTLIN.tensors[value.dtype or ""].golden}("{given.path}")'
    if value.kind == "Bool":
        return str(bool(given.value)).lower()
    if given.value is None:  # JSON has no infinity
        return "Double.NaN"
    return repr(float(given.value)) if value.kind == "Double" else f"{int(given.value)}L"


def _kotlin_argument(value: LibraryValue, given: AppValue) -> dict[str, Any]:
    made = value.model_dump() | {"literal": _kotlin_literal(value, given)}
    return made | {"shape": given.shape or ()}


def _kotlin_expected(value: LibraryValue, given: AppValue) -> dict[str, Any]:
    literal, found = _kotlin_literal(value, given), f"output.{value.name}"
    if value.kind == "Tensor":
        widen = KOTLIN.tensors[value.dtype or ""].converter or ".toList()"
        literal, found = f"{literal}{widen}", f"{found}{widen}"
    elif value.kind == "Bool":
        literal, found = f"listOf(if ({literal}) 1 else 0)", f"listOf(if ({found}) 1 else 0)"
    else:
        literal, found = f"listOf({literal})", f"listOf({found})"
    return value.model_dump() | {"golden": literal, "found": found, "atol": given.atol}


_COROUTINES = "org.jetbrains.kotlinx:kotlinx-coroutines-core:1.10.2"
# Sources of the sample app that a library has, too.
_SHARED_KOTLIN = re.compile(
    r"app/src/main/kotlin/(?P<path>.*/(?:Native|Calls|tokens/\w+)\.kt)|"
    r"(?P<root>\.gitignore|gradle\.properties|gradlew(\.bat)?|gradle/wrapper/.*)|"
    r"app/proguard-rules\.pro"
)
_MODULE = "library/src/main"
_ONLY_RELEASE = (
    "a library has ExecuTorch's release, and the program needs an ExecuTorch that is built for it"
)


class AndroidLibrary(Android):
    """A Gradle module with the model; see `apps/platform.py`."""

    kind = "android library"
    anchor = f"{_MODULE}/kotlin/*/Session.kt"
    output = "library/build/outputs/aar/library-release.aar"

    @property
    def templates(self) -> Path:
        return resource_folder("templates") / "android_library"

    @property
    def parts(self) -> tuple[Path, ...]:
        return (self.templates, super().templates)

    def place(self, subject: AppSubject, path: str) -> str | None:
        if path == MODEL_FILE:
            return None  # the code has what it says
        if _is_golden(path):
            return f"library/src/androidTest/assets/golden/{path}"
        # Apps may have several libraries, whose assets are in one folder.
        return f"{_MODULE}/assets/{subject.model.app_id}/{path}"

    def runtime(
        self, recipe: Recipe, program: Program, version: str, abis: tuple[str, ...]
    ) -> AppRuntime:
        chosen = super().runtime(recipe, program, version, abis)
        if chosen.name.value == "source":
            raise BuildError(
                f"{_ONLY_RELEASE}: {chosen.name.reason}",
                remedy="Write a sample app, which is built with it, and copy its parts: etdeploy "
                "app android --set app.runtime=source",
            )
        return chosen

    def values(self, subject: AppSubject) -> Mapping[str, object]:
        return {"app": SimpleNamespace(**_android_library(subject))}

    def files(self, subject: AppSubject) -> Mapping[str, bytes | Path]:
        files: dict[str, bytes | Path] = {}
        for path, content in render_tree(super().templates, self.values(subject)).items():
            found = _SHARED_KOTLIN.fullmatch(path)
            if found:
                files[_place_shared(found)] = content
        for abi in subject.abis:
            for file in subject.extras.files:
                files[f"{_MODULE}/jniLibs/{abi}/{file.name}"] = Path(file.source)
        return files

    def notes(self, subject: AppSubject) -> tuple[str, ...]:
        return _signature_notes(subject, KOTLIN)


def _signature_notes(subject: AppSubject, language: Language) -> tuple[str, ...]:
    if subject.model.generation:
        return ()
    return signature(subject.model, subject.program, language).notes


def _place_shared(found: re.Match[str]) -> str:
    if found["path"]:
        return f"{_MODULE}/kotlin/{found['path']}"
    return found["root"] or "library/consumer-rules.pro"


def _is_golden(path: str) -> bool:
    return path not in (PROGRAM_FILE, MODEL_FILE, TOKENIZER_FILE)


def class_name(model_name: str) -> str:
    """The name of the class: `my-model.v2` gives MyModelV2."""
    name = target_name(model_name)
    return f"{name}Model" if name in _CLASSES else name


# Classes that the generated code uses by these names.
_CLASS_WORDS = """
Boolean ByteArray Bytes Calls Channel Closeable Context Double Error EValue Exit Failure File Float
Flow Inputs Int List Long Method Mutex Output Problem Processors Sampling Session Shape String
Tensor Tensors Throwable Unit
"""
_CLASSES = frozenset(_CLASS_WORDS.split())


def _android_library(subject: AppSubject) -> dict[str, Any]:
    model = subject.model
    require_readable(model)
    app = android_values(subject).model_copy(update={"library": True})
    group, _, artifact = app.id.rpartition(".")
    values = {
        **app.model_dump(),
        **class_values(subject.loaded, subject.model),
        "group": group,
        "artifact": artifact.replace("_", "-"),
        "coroutines": _COROUTINES,
    }
    if model.generation:
        return values | _text_values(model) | {"encoded": _kotlin_encoded(model.generation)}
    return values | kotlin_values(signature(model, subject.program, KOTLIN))


def class_values(loaded: LoadedRecipe, model: AppModel) -> dict[str, Any]:
    """What the class of each language needs, whatever the model does."""
    about = comment(loaded.recipe.description or f"The model {model.name}")
    return {
        "target": class_name(loaded.name),
        "model_name": model.name,
        "about": about if about.endswith(".") else f"{about}.",
        "bundled": model.bundled,
        "program_sha256": model.program_sha256,
        "program_bytes": model.program_bytes,
        "method": model.method,
        "threads": model.threads,
    }


def _text_values(model: AppModel) -> dict[str, Any]:
    """What the class of a language model needs."""
    made = model.generation
    if made is None:
        raise ValueError("not a language model")
    return {
        **{name: getattr(made, name) for name in AppGeneration.model_fields},
        "golden_text": next(map(_golden_text, model.sizes), None),
    }


def _golden_text(size: AppSize) -> dict[str, Any]:
    tokens, logits = size.inputs[0], size.expected[0]
    return {"tokens": tokens.path, "logits": logits.path, "atol": logits.atol}


def _kotlin_encoded(made: AppGeneration) -> str:
    if made.chat:
        before, after = kotlin_text(made.chat.before), kotlin_text(made.chat.after)
        return f"encoder.encode({before} + prompt + {after})"
    if made.bos_id is None:
        return "encoder.encode(prompt)"
    return f"listOf({made.bos_id}) + encoder.encode(prompt)"


def _array(element: str, dtype: str, converter: str = "") -> ArrayType:
    return ArrayType(f"[{element}]", f".{dtype}", element, converter)


SWIFT = Language(
    "Swift",
    frozenset(_SWIFT_WORDS.split()),
    {
        "float32": _array("Float", "float"),
        "float64": _array("Double", "double"),
        "float16": _array("Float16", "half"),
        "bfloat16": _array("UInt16", "bFloat16", "Float(bitPattern: UInt32($0) << 16)"),
        "bool": _array("Bool", "bool", "($0 ? 1 : 0)"),
        "uint8": _array("UInt8", "byte"),
        "uint16": _array("UInt16", "uInt16"),
        "uint32": _array("UInt32", "uInt32"),
        "uint64": _array("UInt64", "uInt64"),
        "int8": _array("Int8", "char"),
        "int16": _array("Int16", "short"),
        "int32": _array("Int32", "int"),
        "int64": _array("Int64", "long"),
    },
    {"Int": "Int", "Double": "Double", "Bool": "Bool"},
    # Names that are in scope where the method makes its inputs and reads its outputs.
    taken=frozenset({"found", "model", "results"}),
)
_SHARED_SWIFT = re.compile(
    r"(?P<target>\w+)/(?P<path>"
    r"(?:Failure|Calls|Program|ExecuTorchModel|Tokens/\w+)\.swift|(?:Native|Program)\.(?:h|cpp))"
)


class IosLibrary(Ios):
    """A Swift package with the model; see `apps/platform.py`."""

    kind = "ios library"
    anchor = "Sources/*Library/Failure.swift"
    output = ".build"

    @property
    def templates(self) -> Path:
        return resource_folder("templates") / "ios_library"

    @property
    def parts(self) -> tuple[Path, ...]:
        return (self.templates, super().templates)

    def place(self, subject: AppSubject, path: str) -> str | None:
        target = class_name(subject.loaded.name)
        if _is_golden(path):
            return f"Tests/{target}Tests/Golden/{path}"
        return f"Sources/{target}Library/Model/{path}"

    def runtime(
        self, recipe: Recipe, program: Program, version: str, abis: tuple[str, ...]
    ) -> AppRuntime:
        if recipe.runtime.custom_ops:
            refuse(
                [
                    Blocker(
                        what="runtime.custom_ops",
                        why="a Swift package with the model has no place for kernels of your own",
                        remedy="Write an app, which has them, and take its folders Kernels and "
                        "KernelSupport over: etdeploy app ios",
                    )
                ]
            )
        return super().runtime(recipe, program, version, abis)

    def values(self, subject: AppSubject) -> Mapping[str, object]:
        app = SimpleNamespace(**_ios_library(subject))
        return {**template_variables(ios_app(subject)), "app": app}

    def files(self, subject: AppSubject) -> Mapping[str, bytes | Path]:
        files: dict[str, bytes | Path] = {}
        for path, content in render_tree(super().templates, self.values(subject)).items():
            found = _SHARED_SWIFT.fullmatch(path)
            if found:
                kind = "Library" if path.endswith(".swift") else "Native"
                inner = "include/" if path.endswith(".h") else ""
                files[f"Sources/{found['target']}{kind}/{inner}{found['path']}"] = content
        return files

    def notes(self, subject: AppSubject) -> tuple[str, ...]:
        return _signature_notes(subject, SWIFT)


def _ios_library(subject: AppSubject) -> dict[str, Any]:
    model = subject.model
    base = class_values(subject.loaded, model)
    values = {
        **ios_app(subject).model_dump(),
        **base,
        "library": True,
        # An app may link several libraries, whose C functions need names of their own.
        "prefix": f"{base['target']}_",
    }
    if model.generation:
        return values | _text_values(model)
    return values | swift_values(signature(model, subject.program, SWIFT), model)


def swift_values(made: Signature, model: AppModel) -> dict[str, Any]:
    """What the template of a Swift package gets of a signature."""
    by_index = {value.index: value for value in made.inputs}
    return {
        "inputs": [
            value.model_dump() | {"largest": " x ".join(map(str, value.shape))}
            for value in made.inputs
        ],
        "outputs": [
            value.model_dump() | {"from_runtime": _swift_output(value)} for value in made.outputs
        ],
        "fill": [_swift_fill(by_index.get(i)) for i in range(len(model.sizes[0].inputs))],
        "sizes": [
            {
                "name": case.name,
                "arguments": [text for each in case.inputs for text in _swift_argument(*each)],
                "expected": [_swift_expected(*each) for each in case.expected],
            }
            for case in made.cases
        ],
    }


def _swift_fill(value: LibraryValue | None) -> str:
    """An input for the runtime; one without a name is None."""
    if value is None:
        return "Value()"
    if value.kind != "Tensor":
        return f"Value({value.name})"
    sizes, label = str(list(value.shape)), f'"{value.name}"'
    shape = f"Make.shape({label}, {value.shape_name}, {sizes})" if value.shape_name else sizes
    dtype = SWIFT.tensors[value.dtype or ""].reader
    return f"try Make.tensor({label}, {value.name}, {shape}, {dtype})"


def _swift_output(value: LibraryValue) -> str:
    property_ = {"Int": "integer", "Double": "double", "Bool": "boolean"}.get(value.kind)
    if property_:
        return f"Read.value(results, {value.index}).{property_}"
    return f"Read.array(results, {value.index}, model)"


def _swift_literal(value: LibraryValue, given: AppValue) -> str:
    if value.kind == "Tensor":
        return f'try read("{given.path}")'
    if value.kind == "Bool":
        return str(bool(given.value)).lower()
    if given.value is None:  # JSON has no infinity
        return "Double.nan"
    return repr(float(given.value)) if value.kind == "Double" else str(int(given.value))


def _swift_argument(value: LibraryValue, given: AppValue) -> Iterator[str]:
    yield f"{value.name}: {_swift_literal(value, given)}"
    if value.shape_name:
        yield f"{value.shape_name}: {list(given.shape or ())}"


def _swift_expected(value: LibraryValue, given: AppValue) -> dict[str, Any]:
    literal, found = _swift_literal(value, given), f"output.{value.name}"
    if value.kind == "Tensor":
        dtype = SWIFT.tensors[value.dtype or ""]
        number = dtype.converter or "$0"
        widen = f".map {{ Double({number}) }}"
        literal = f"({literal} as {value.type}){widen}"
        found = f"{found}{widen}"
    elif value.kind == "Bool":
        literal, found = f"[{literal} ? 1 : 0]", f"[{found} ? 1 : 0]"
    else:
        literal, found = f"[Double({literal})]", f"[Double({found})]"
    made = {"golden": literal, "found": found, "atol": given.atol, "label_text": value.name}
    return value.model_dump() | made
