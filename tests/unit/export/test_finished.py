"""A finished program gets inputs that fit it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from etdeploy.core.errors import ExportError, UsageError
from etdeploy.export.finished import write_finished
from etdeploy.export.hf.files import tokenizer_beside
from etdeploy.export.spec import ExportSpec
from etdeploy.program.folder import Provenance, load_provenance
from etdeploy.program.inspect import inspect_file
from etdeploy.program.model import Method, PlainValue, Program, TensorInfo
from tests.support.facts import lacks
from tests.support.program_files import INT64, Plan, Tensor, pte


def program_of(*inputs: TensorInfo | PlainValue | None) -> Program:
    method = Method(
        name="forward",
        inputs=inputs,
        outputs=(),
        operators=(),
        delegates=(),
        instructions=0,
        planned_memory_bytes=0,
    )
    return Program(sha256="", size_bytes=0, schema_version=0, constant_bytes=0, methods=(method,))


def write(tmp_path: Path, program: Program, seed: int = 0, method: str | None = "forward") -> Path:
    source = tmp_path / "model.pte"
    source.write_bytes(b"program")
    folder = tmp_path / f"folder-{seed}"
    folder.mkdir(exist_ok=True)
    write_finished(ExportSpec(program=str(source), seed=seed, method=method), program, folder)
    return folder


def values(
    folder: Path, index: int, dtype: str
) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    return np.frombuffer((folder / f"inputs/{index}.bin").read_bytes(), dtype=dtype)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16"])
def test_floats_are_normally_distributed(tmp_path: Path, dtype: str) -> None:
    info = TensorInfo(dtype=dtype, shape=(50, 40))
    folder = write(tmp_path, program_of(info))
    found = values(folder, 0, "uint16" if dtype == "bfloat16" else dtype)
    if dtype == "bfloat16":  # the upper half of a 32-bit float
        found = (found.astype(np.uint32) << 16).view(np.float32)
    assert found.size == 2000
    assert abs(found.astype(np.float64).mean()) < 0.1
    assert 0.9 < found.astype(np.float64).std() < 1.1
    other = write(tmp_path, program_of(info), seed=1)
    assert (other / "inputs/0.bin").read_bytes() != (folder / "inputs/0.bin").read_bytes()


@pytest.mark.parametrize(
    ("dtype", "drawn"),
    [("int8", range(10)), ("uint8", range(10)), ("int64", range(10)), ("bool", (0, 1))],
)
def test_integers_are_small(tmp_path: Path, dtype: str, drawn: Sequence[int]) -> None:
    folder = write(tmp_path, program_of(TensorInfo(dtype=dtype, shape=(400,))))
    found = values(folder, 0, "uint8" if dtype == "bool" else dtype)
    assert set(found.tolist()) == set(drawn)


@pytest.mark.parametrize(
    ("info", "facts"),
    [
        (None, ("input 0", "method forward")),
        (TensorInfo(dtype="complex64", shape=(1,)), ("input 0", "complex64")),
    ],
)
def test_an_input_without_random_values(
    tmp_path: Path, info: TensorInfo | None, facts: tuple[str, ...]
) -> None:
    with pytest.raises(ExportError) as caught:
        write(tmp_path, program_of(info))
    assert not lacks(caught.value, *facts)


def test_the_folder_says_what_it_holds(tmp_path: Path) -> None:
    inputs = (TensorInfo(dtype="int64", shape=(1, 4)), TensorInfo(dtype="float32", shape=()))
    folder = write(tmp_path, program_of(*inputs))
    provenance = load_provenance(folder)
    assert isinstance(provenance, Provenance)
    assert [(getattr(t, "path", None), t.dtype, t.shape) for t in provenance.inputs] == [
        ("inputs/0.bin", "int64", (1, 4)),
        ("inputs/1.bin", "float32", ()),
    ]
    assert values(folder, 1, "float32").size == 1
    assert provenance.expected == ()
    assert provenance.backend is None
    [note] = provenance.notes
    assert not lacks(note, "model.pte", "random", "not checked")
    assert (folder / "program.pte").read_bytes() == b"program"


def sized(tmp_path: Path, sizes: dict[str, int], dynamic: bool = True) -> Provenance:
    program = program_of(TensorInfo(dtype="int64", shape=(1, 16), dynamic=dynamic))
    source, folder = tmp_path / "model.pte", tmp_path / "sized"
    source.write_bytes(b"program")
    folder.mkdir()
    spec = ExportSpec(
        program=str(source),
        sizes={"short": sizes},
        places={"benchmark.sizes.short.input_0.1": "recipe.yaml:4:7"},
    )
    write_finished(spec, program, folder)
    return load_provenance(folder)


def test_sizes_of_a_finished_program(tmp_path: Path) -> None:
    made = sized(tmp_path, {"input_0.1": 4}).measured["short"]
    assert [(t.dtype, t.shape) for t in made.inputs] == [("int64", (1, 4))]
    assert (tmp_path / "sized/inputs/short/0.bin").stat().st_size == 4 * 8


@pytest.mark.parametrize(
    ("sizes", "dynamic", "facts"),
    [
        ({"input_0.1": 17}, True, ("17", "dimension 1 of input 0", "up to 16")),
        ({"input_0.1": 4}, False, ("input 0", "[1, 16]")),
        ({"tokens": 4}, True, ("no dimension tokens",)),
        ({"input_0.2": 4}, True, ("no dimension input_0.2",)),
    ],
)
def test_sizes_that_a_finished_program_does_not_take(
    tmp_path: Path, sizes: dict[str, int], dynamic: bool, facts: tuple[str, ...]
) -> None:
    with pytest.raises(ExportError) as caught:
        sized(tmp_path, sizes, dynamic)
    assert not lacks(caught.value, *facts)
    known = "input_0.1" in sizes
    assert caught.value.place == (
        "recipe.yaml:4:7" if known else f"benchmark.sizes.short.{next(iter(sizes))}"
    )


def test_a_plain_input_is_given_as_the_program_has_it(tmp_path: Path) -> None:
    plain = (PlainValue(kind="Int", value=5), PlainValue(kind="None"))
    folder = write(tmp_path, program_of(TensorInfo(dtype="float32", shape=(1,)), *plain))
    assert load_provenance(folder).inputs[1:] == plain


def test_without_forward_the_method_has_to_be_named(tmp_path: Path) -> None:
    (one,) = program_of(TensorInfo(dtype="float32", shape=(2,))).methods
    two = tuple(one.model_copy(update={"name": name}) for name in ("decode", "prefill"))
    program = program_of().model_copy(update={"methods": two})
    with pytest.raises(UsageError, match="it has decode, prefill") as caught:
        write(tmp_path, program, method=None)
    assert str(caught.value.remedy).split()[-1] == "benchmark.method=decode"
    assert load_provenance(write(tmp_path, program, method="prefill")).method == "prefill"


def test_a_method_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        write(tmp_path, program_of(), method="encode")
    assert not lacks(caught.value, "no method 'encode'", "it has forward")
    assert str(caught.value.remedy).split() == ["--set", "benchmark.method=forward"]


LANGUAGE = (
    Plan(
        inputs=(Tensor((1, 15), INT64, dynamism=1), Tensor((1,), INT64)),
        outputs=(Tensor((1, 32)),),
    ),
    Plan(name="get_max_context_len", inputs=(), outputs=(16,)),
)
TOKENIZER = {
    "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1}},
    "added_tokens": [{"content": "<s>", "id": 2}, {"content": "</s>", "id": 3}],
    "post_processor": {"single": [{"SpecialToken": {"id": "<s>"}}]},
}
CONFIG = {"bos_token": "<s>", "eos_token": {"content": "</s>"}}


def finished(folder: Path, tokenizer: object = None, **more: Any) -> Path:
    """The folder of a language model's program."""
    (folder / "model.pte").write_bytes(pte(*LANGUAGE))
    if tokenizer:
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
        (folder / "tokenizer_config.json").write_text(json.dumps(CONFIG))
    made = folder / "made"
    made.mkdir()
    program = inspect_file(folder / "model.pte")
    write_finished(ExportSpec(program=str(folder / "model.pte"), **more), program, made)
    return made


def test_a_language_model_with_its_tokenizer(tmp_path: Path) -> None:
    folder = finished(tmp_path, TOKENIZER)
    generation = load_provenance(folder).generation
    assert generation
    assert (generation.bos_id, generation.stop_ids, generation.tokenizer) == (2, (3,), "tokenizer")
    assert (folder / "tokenizer" / "tokenizer.json").is_file()
    assert (folder / "tokenizer" / "tokenizer_config.json").is_file()


def test_a_tokenizer_that_begins_no_text(tmp_path: Path) -> None:
    folder = finished(tmp_path, {**TOKENIZER, "post_processor": None})
    generation = load_provenance(folder).generation
    assert generation
    assert generation.bos_id is None


def test_a_language_model_without_a_tokenizer(tmp_path: Path) -> None:
    made = load_provenance(finished(tmp_path))
    assert made.generation
    assert made.generation.tokenizer is None
    assert any("no tokenizer" in note for note in made.notes)
    assert any("get_eos_ids" in note for note in made.notes)


def test_a_tokenizer_of_another_model(tmp_path: Path) -> None:
    other = {**TOKENIZER, "model": {"type": "Unigram", "vocab": [["a", 0.0]] * 33}}
    with pytest.raises(ExportError, match="up to 32, and the program takes those below 32"):
        finished(tmp_path, other)


def test_a_method_that_a_recipe_names_is_measured_by_itself(tmp_path: Path) -> None:
    made = load_provenance(finished(tmp_path, TOKENIZER, method="forward"))
    assert made.generation is None
    assert len(made.inputs) == 2


def test_a_tokenizer_is_beside_a_program_or_in_its_folder(tmp_path: Path) -> None:
    program = tmp_path / "program.pte"
    assert tokenizer_beside(program) == {}
    inside = tmp_path / "tokenizer"
    inside.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (inside / name).write_text("{}")
    assert tokenizer_beside(program) == {
        name: inside / name for name in ("tokenizer.json", "tokenizer_config.json")
    }
    # Its own comes first.
    (tmp_path / "tokenizer.json").write_text("{}")
    assert tokenizer_beside(program) == {"tokenizer.json": tmp_path / "tokenizer.json"}
