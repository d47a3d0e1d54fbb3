"""The program folder of a program that another exporter made."""

from __future__ import annotations

import json
import platform
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etdeploy.backends.schemes import LANGUAGE_RECIPE
from etdeploy.core.errors import ExportError, UsageError
from etdeploy.core.hashing import sha256_file
from etdeploy.export.cache import installed_version, tool_versions
from etdeploy.export.hf.files import TOKENIZER_CONFIG, TOKENIZER_FOLDER, tokenizer_beside
from etdeploy.export.llm_config import output_notes
from etdeploy.export.methods import only_method, require_method
from etdeploy.export.protocol import ModelSources
from etdeploy.export.spec import ExportSpec
from etdeploy.program.finished import TokenFacts, generation_of
from etdeploy.program.folder import (
    ETRECORD_FILE,
    EXPORT_INFO,
    FORWARD,
    PROGRAM_FILE,
    InputSet,
    Provenance,
    Stored,
    TensorFile,
)
from etdeploy.program.generation import Draft, Generation
from etdeploy.program.inspect import inspect_file
from etdeploy.program.model import Method, PlainValue, Program, TensorInfo
from etdeploy.program.ptd import find_data
from etdeploy.program.tokenizer import TOKENIZER_FILE

if TYPE_CHECKING:
    import numpy as np

# Integer inputs are mostly indices (token ids, classes): small ones stay inside any table.
_LARGEST_INTEGER = 9
# Of the tokenizer, relative to the program folder.


def has_meta_tokenizer(program: Path) -> bool:
    """Whether a program generates text, and the tokenizer beside it has to be converted for it.

    Only transformers can do that, so it stays as it is where that is not installed.
    """
    if tokenizer_beside(program) or not tokenizer_beside(program, "tokenizer.model"):
        return False
    found = generation_of(inspect_file(program), program.name, None, TokenFacts())
    return isinstance(found, Generation) and installed_version("transformers") is not None


def write_finished(
    spec: ExportSpec, program: Program, folder: Path, fetched: ModelSources | None = None
) -> None:
    """Fills a program folder from a finished program.

    A program of a language model generates text, with the tokenizer that is beside it. Inputs of
    any other are random, from the spec's seed: floats are normally distributed, integers from 0 to
    9, booleans either. A dynamic dimension gets its largest size; a plain value is the one that the
    program was made with. There are no expected outputs. `fetched` says where one of the hub is.
    """
    named = fetched.program if fetched else spec.program
    if named is None:
        raise ValueError("the spec names no finished program")
    source, commit = Path(named), fetched.commit if fetched else None
    data = find_data(source, program.external, source.parent)
    for path in (source, *data):
        shutil.copyfile(path, folder / (PROGRAM_FILE if path == source else path.name))
    described = _described(spec, program, folder, source, tokenizer_beside(source))
    described.model_copy(
        update={
            # The commit of a repository says as much.
            "code_files": {} if commit else {str(p): sha256_file(p) for p in (source, *data)},
            "generation": described.generation
            and described.generation.model_copy(update={"revision": commit}),
            "data": tuple(path.name for path in data),
        },
    ).save(folder / EXPORT_INFO)


def describe_exported(spec: ExportSpec, program: Program, folder: Path) -> None:
    """Describes a program that ExecuTorch's own exporter has put into the folder."""
    named = spec.llm_files.get("base.tokenizer_path")
    tokenizer = tokenizer_beside(Path(named), Path(named).name) if named else {}
    described = _described(spec, program, folder, folder / PROGRAM_FILE, tokenizer)
    versions = {name: version for name, version in tool_versions(spec).items() if version}
    data = find_data(folder / PROGRAM_FILE, program.external, folder)
    files = [f for f in (folder / PROGRAM_FILE, folder / ETRECORD_FILE, *data) if f.is_file()]
    described.model_copy(
        update={
            "backend": spec.backend,
            "quantization": spec.quantization,
            "etrecord": (folder / ETRECORD_FILE).is_file(),
            "data": tuple(path.name for path in data),
            "versions": {**versions, "python": platform.python_version()},
            "details": {"bytes": {file.name: file.stat().st_size for file in files}},
            "code_files": {path: sha256_file(Path(path)) for path in spec.llm_files.values()},
            "notes": (*described.notes, *output_notes(spec)),
        },
    ).save(folder / EXPORT_INFO)


def _described(
    spec: ExportSpec, program: Program, folder: Path, source: Path, tokenizer: dict[str, Path]
) -> Provenance:
    """What is known of a program that is in the folder; `source` names it in messages."""
    generation = (
        None if spec.method or spec.sizes else _generation(spec, program, folder, tokenizer)
    )
    if isinstance(generation, Generation):
        return Provenance(
            source=spec.source,
            method=FORWARD,
            generation=generation,
            notes=(*_tokenizer_notes(generation), _NO_TEXTS),
        )
    methods = {m.name: m for m in program.methods}
    wanted = spec.method or only_method(program, str(source))
    require_method(wanted, tuple(methods), str(source))
    method = methods[wanted]
    inputs = _write_inputs(method, spec.seed, folder, "inputs", source)
    sets = tuple(_write_set(spec, name, method, folder, source) for name in spec.sizes)
    return Provenance(
        source=spec.source,
        method=wanted,
        inputs=inputs,
        sets=sets,
        notes=(
            f"The inputs of {spec.source} are random, and its outputs are not checked: a finished "
            "program carries neither.",
            *([f"It generates no text: {generation}."] if generation else []),
        ),
    )


@dataclass(frozen=True)
class DraftProgram:
    """A program that proposes tokens, where it is on this machine.

    Attributes:
        draft: What the runner has to know of it.
        path: The file.
        data: Files with its weights.
        tokenizer: The vocabulary beside it; None where there is none.
        program: What inspection found.
        place: Of the key that names it.
    """

    draft: Draft
    path: Path
    data: tuple[Path, ...]
    tokenizer: Path | None
    program: Program
    place: str

    def refused(self, why: str, remedy: str) -> UsageError:
        """The error for a draft that cannot be used."""
        return _refused(self.path, self.place, why, remedy)


def _refused(path: Path, place: str, why: str, remedy: str) -> UsageError:
    return UsageError(f"{path} cannot be the draft: {why}", place=place, remedy=remedy)


_OTHER_DRAFT = (
    "Name the program of a smaller language model with the same tokenizer:\n"
    f"etdeploy export --recipe {LANGUAGE_RECIPE} --model SMALLER --output draft, and then "
    "model:draft"
)


def read_draft(path: Path, place: str) -> DraftProgram:
    """Read a program that is to propose tokens; `place` is that of the key that names it.

    Raises:
        UsageError: It generates no text, or cannot go back from a token that is rejected.
    """
    program = inspect_file(path)
    found = generation_of(program, path.name, None, TokenFacts())
    if not isinstance(found, Generation):
        why = found or "no method of it says that it is a language model"
        raise _refused(path, place, f"it generates no text: {why}", _OTHER_DRAFT)
    if found.rewind == 0:
        why = "its layers have a recurrent state, which cannot go back from a token that is wrong"
        raise _refused(path, place, why, _OTHER_DRAFT)
    if not any(method.max_tokens == 1 or method.dynamic for method in found.methods):
        raise _refused(path, place, "no method of it takes a single token", _OTHER_DRAFT)
    draft = Draft(
        name=path.parent.name if path.name == PROGRAM_FILE else path.name,
        sha256=program.sha256,
        size_bytes=program.size_bytes,
        vocabulary=found.vocabulary,
        context=found.context,
        methods=found.methods,
        rewind=found.rewind,
        load_mode=found.load_mode,
    )
    tokenizer = tokenizer_beside(path).get(TOKENIZER_FILE)
    data = find_data(path, program.external, path.parent)
    return DraftProgram(draft, path, data, tokenizer, program, place)


def tokens_by_id(tokenizer: Path) -> dict[int, str]:
    """The tokens of a `tokenizer.json`."""
    content = _object(tokenizer)
    known = (content.get("model") or {}).get("vocab") or {}
    if isinstance(known, dict):
        found = {i: token for token, i in known.items()}
    else:  # tokens with their scores
        found = {i: str(pair[0]) for i, pair in enumerate(known)}
    return found | {each["id"]: each["content"] for each in content.get("added_tokens") or ()}


_NO_TEXTS = (
    "Its texts are not checked: the program carries none that it has to give, and the model in "
    "PyTorch was not run."
)


def _tokenizer_notes(generation: Generation) -> Iterator[str]:
    if generation.tokenizer is None:
        yield "There is no tokenizer beside the program, so prompts and texts are token IDs."
    if not generation.stop_ids:
        yield (
            "Neither the program nor its tokenizer says which tokens end a text (get_eos_ids), so "
            "texts are as long as requested."
        )


def _generation(
    spec: ExportSpec, program: Program, folder: Path, tokenizer: dict[str, Path]
) -> Generation | str | None:
    made = (folder / TOKENIZER_FOLDER).is_dir()  # by the worker
    if made:
        tokenizer = tokenizer_beside(folder / TOKENIZER_FOLDER / TOKENIZER_FILE)
    files = tokenizer if TOKENIZER_FILE in tokenizer else {}
    facts = _token_facts(files) if files else TokenFacts()
    found = generation_of(program, spec.source, TOKENIZER_FOLDER if files else None, facts)
    if isinstance(found, Generation) and files:
        named = spec.llm_files.get("base.tokenizer_path", spec.source)
        place = named if made else str(files[TOKENIZER_FILE])
        _require_fitting(_object(files[TOKENIZER_FILE]), found.vocabulary, place)
    if isinstance(found, Generation) and files and not made:
        (folder / TOKENIZER_FOLDER).mkdir()
        for name, path in files.items():
            shutil.copyfile(path, folder / TOKENIZER_FOLDER / name)
    return found


def _require_fitting(content: dict[str, Any], vocabulary: int, place: str) -> None:
    """Refuses a tokenizer that gives ids for which the program has no logits."""
    known = (content.get("model") or {}).get("vocab") or {}
    ids = list(known.values()) if isinstance(known, dict) else [len(known) - 1]
    ids += [each.get("id") for each in content.get("added_tokens") or ()]
    largest = max((each for each in ids if isinstance(each, int)), default=0)
    if largest >= vocabulary:
        raise ExportError(
            f"the tokenizer has ids up to {largest}, and the program takes those below "
            f"{vocabulary}: it is the tokenizer of another model",
            place=place,
            remedy="Put the program's own tokenizer beside it, or none, for ids of tokens.",
        )


def _token_facts(files: dict[str, Path]) -> TokenFacts:
    """What a tokenizer's files say about the tokens that begin and end a text."""
    content = _object(files[TOKENIZER_FILE])
    config = _object(files[TOKENIZER_CONFIG]) if TOKENIZER_CONFIG in files else {}
    ids = {str(each.get("content")): each.get("id") for each in content.get("added_tokens") or ()}
    named = {key: _id_of(config.get(f"{key}_token"), ids) for key in ("bos", "eos")}
    bos, eos = named["bos"], named["eos"]
    template = json.dumps(content.get("post_processor"))
    adds = config.get("add_bos_token")
    if not isinstance(adds, bool):
        text = next((text for text, identity in ids.items() if identity == bos), None)
        adds = None if bos is None else json.dumps(text) in template
    return TokenFacts(bos, () if eos is None else (eos,), adds)


def _id_of(token: Any, ids: dict[str, Any]) -> int | None:
    """The id of a special token: a text, or an object with one."""
    found = ids.get(str(token.get("content") if isinstance(token, dict) else token))
    return found if isinstance(found, int) else None


def _object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ExportError(f"the tokenizer cannot be read: {error}", place=str(path)) from error
    return found if isinstance(found, dict) else {}


def _write_set(spec: ExportSpec, name: str, method: Method, folder: Path, source: Path) -> InputSet:
    """The inputs of a size; a dimension is named by its input's number, `input_0.1`."""
    shapes = {i: list(t.shape) for i, t in enumerate(method.inputs) if isinstance(t, TensorInfo)}
    for key, size in spec.sizes[name].items():
        place = spec.place("benchmark", "sizes", name, key)
        input_name, _, dim = key.rpartition(".")
        spots = [i for i in shapes if input_name == f"input_{i}"]
        if not spots or not dim.isdecimal() or int(dim) >= len(shapes[spots[0]]):
            raise ExportError(
                f"there is no dimension {key} in the method {method.name}", place=place,
                remedy="A finished program does not name its dimensions: input_0.1 is dimension 1 "
                "of the\nfirst input. Show all with: "
                f"etdeploy inspect {shlex.quote(str(source))}",
            )  # fmt: skip
        _set_size(method, shapes[spots[0]], spots[0], int(dim), size, place)
    sized = tuple(
        t.model_copy(update={"shape": tuple(shapes[i])}) if isinstance(t, TensorInfo) else t
        for i, t in enumerate(method.inputs)
    )
    changed = method.model_copy(update={"inputs": sized})
    inputs = _write_inputs(changed, spec.seed, folder, f"inputs/{name}", source)
    return InputSet(name=name, sizes=spec.sizes[name], inputs=inputs)


def _set_size(
    method: Method, shape: list[int], index: int, dim: int, size: int, place: str
) -> None:
    info = method.inputs[index]
    largest = shape[dim]
    if not (isinstance(info, TensorInfo) and info.dynamic) and size != largest:
        raise ExportError(f"input {index} takes the shape {shape} only", place=place)
    if size > largest:
        raise ExportError(
            f"{size} is too large for dimension {dim} of input {index}; the program takes up to "
            f"{largest}",
            place=place,
        )
    shape[dim] = size


def _write_inputs(
    method: Method, seed: int, folder: Path, name: str, source: Path
) -> tuple[Stored, ...]:
    import numpy as np

    random = np.random.default_rng(seed)
    (folder / name).mkdir(exist_ok=True)
    files: list[Stored] = []
    for index, info in enumerate(method.inputs):
        if isinstance(info, PlainValue):
            files.append(info)
            continue
        if info is None:
            raise ExportError(
                f"input {index} of the method {method.name} is neither a tensor nor a number, "
                "a boolean or None; nothing else can be given",
                place=str(source),
                remedy="Export the model with that value fixed in the module.",
            )
        path = f"{name}/{index}.bin"
        (folder / path).write_bytes(_random_bytes(info, random, index, source))
        files.append(TensorFile(path=path, dtype=info.dtype, shape=info.shape))
    return tuple(files)


def _random_bytes(info: TensorInfo, random: np.random.Generator, index: int, source: Path) -> bytes:
    """Little-endian bytes of a random tensor."""
    import numpy as np

    if info.dtype == "bool":
        return random.integers(0, 2, info.shape, dtype=np.uint8).tobytes()
    if info.dtype == "bfloat16":
        # The upper half of a 32-bit float, rounded towards zero.
        words = random.standard_normal(info.shape, dtype=np.float32).view(np.uint32)
        return (words >> 16).astype("<u2").tobytes()
    if info.dtype in ("float16", "float32", "float64"):
        values = random.standard_normal(info.shape)
        return values.astype(np.dtype(info.dtype).newbyteorder("<")).tobytes()
    if info.dtype in ("uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"):
        integers = random.integers(0, _LARGEST_INTEGER + 1, info.shape)
        return integers.astype(np.dtype(info.dtype).newbyteorder("<")).tobytes()
    raise ExportError(
        f"input {index} has the data type {info.dtype}, for which no random values are made",
        place=str(source),
    )
