"""GGUF, llama.cpp's format: what a file says of its model, read without its weights.

After magic, version and two counts come the metadata (key, type, value), then name, shape, type and
offset of each tensor, then their data. https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from etdeploy.core.console import listed
from etdeploy.core.hashing import stat_signature

SUFFIX = ".gguf"
_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_ALIGNMENT = 32
# Types of metadata, by their numbers.
_SCALARS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_STRING, _ARRAY = 8, 9
_DIMENSIONS = 4


class TensorType(NamedTuple):
    """How values are stored: in blocks of so many values and bytes; `bits` of a value alone."""

    name: str
    block: int
    block_bytes: int
    bits: int

    @property
    def is_float(self) -> bool:
        return self.block == 1


# By their numbers in a file: those that the package gguf can turn into floats.
TENSOR_TYPES: Mapping[int, TensorType] = {
    0: TensorType("F32", 1, 4, 32),
    1: TensorType("F16", 1, 2, 16),
    2: TensorType("Q4_0", 32, 18, 4),
    3: TensorType("Q4_1", 32, 20, 4),
    6: TensorType("Q5_0", 32, 22, 5),
    7: TensorType("Q5_1", 32, 24, 5),
    8: TensorType("Q8_0", 32, 34, 8),
    10: TensorType("Q2_K", 256, 84, 2),
    11: TensorType("Q3_K", 256, 110, 3),
    12: TensorType("Q4_K", 256, 144, 4),
    13: TensorType("Q5_K", 256, 176, 5),
    14: TensorType("Q6_K", 256, 210, 6),
    16: TensorType("IQ2_XXS", 256, 66, 2),
    17: TensorType("IQ2_XS", 256, 74, 2),
    18: TensorType("IQ3_XXS", 256, 98, 3),
    19: TensorType("IQ1_S", 256, 50, 1),
    20: TensorType("IQ4_NL", 32, 18, 4),
    21: TensorType("IQ3_S", 256, 110, 3),
    22: TensorType("IQ2_S", 256, 82, 2),
    23: TensorType("IQ4_XS", 256, 136, 4),
    29: TensorType("IQ1_M", 256, 56, 1),
    30: TensorType("BF16", 1, 2, 16),
    34: TensorType("TQ1_0", 256, 54, 2),
    35: TensorType("TQ2_0", 256, 66, 2),
}
# Those that a message names, but nothing here reads.
_OTHER_TYPES = {
    4: "Q4_2", 5: "Q4_3", 9: "Q8_1", 15: "Q8_K", 24: "I8", 25: "I16", 26: "I32", 27: "I64",
    28: "F64", 31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8", 36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip
# The class of transformers for each architecture whose weights transformers can name.
ARCHITECTURES: Mapping[str, str] = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "stablelm": "StableLmForCausalLM",
    "starcoder2": "Starcoder2ForCausalLM",
    "nemotron": "NemotronForCausalLM",
    "lfm2": "Lfm2ForCausalLM",
}
# What `general.type` says of a file that is not a model.
_NO_MODELS = {
    "mmproj": "the part of a model that sees or hears (mmproj)",
    "adapter": "an adapter (LoRA), without the model that it changes",
    "imatrix": "an importance matrix, which llama.cpp's quantizer reads",
    "vocab": "a vocabulary alone",
}
# The keys of a configuration of transformers that are checked, by those of the file.
_CONFIG_KEYS = {
    "context_length": "max_position_embeddings",
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window",
}
_TOKENS, _TEMPLATE = "tokenizer.ggml.tokens", "tokenizer.chat_template"
EMBEDDINGS = "token_embd.weight"
_PART = re.compile(r"(?P<name>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


class GgufError(ValueError):
    """Why a file cannot be used, and what to do."""

    def __init__(self, message: str, remedy: str | None = None) -> None:
        super().__init__(message)
        self.message, self.remedy = message, remedy


@dataclass(frozen=True)
class Texts:
    """An array of texts, of which only the number is read."""

    count: int


@dataclass(frozen=True)
class GgufTensor:
    """Where a tensor is in its file; `shape` begins with the outputs of a layer."""

    name: str
    shape: tuple[int, ...]
    type: TensorType
    offset: int

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) // self.type.block * self.type.block_bytes


@dataclass(frozen=True)
class GgufHeader:
    """All of a file but the data of its tensors, which begins at `data_start`."""

    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]
    data_start: int

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", ""))

    @property
    def has_tokenizer(self) -> bool:
        return _TOKENS in self.metadata

    @property
    def has_chat_template(self) -> bool:
        return isinstance(self.metadata.get(_TEMPLATE), str)

    @property
    def vocabulary(self) -> int:
        """Rows of the table of embeddings; 0 without one."""
        table = self.tensors.get(EMBEDDINGS)
        return table.shape[0] if table else 0

    @property
    def parameters(self) -> int:
        return sum(math.prod(tensor.shape) for tensor in self.tensors.values())

    def of_architecture(self, key: str) -> Any:
        """A value of the section that is named after the architecture; None where it is missing."""
        return self.metadata.get(f"{self.architecture}.{key}")


def read_header(path: Path) -> GgufHeader:
    """The header of a file with a model that can be loaded.

    Raises:
        OSError: It cannot be read.
        GgufError: It is damaged, no model, or of a kind that is not supported.
    """
    return _read_header(path, stat_signature(path))


@lru_cache(maxsize=4)
def _read_header(path: Path, _: tuple[int, int, int, int]) -> GgufHeader:
    with path.open("rb") as stream:
        start = stream.read(8)
        _require_version(start)
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            header = _HeaderReader(data).header()
            size = len(data)
    if problem := split_problem(path.name, path.parent):
        raise problem
    _require_model(header)
    _require_types(header)
    end = max((t.offset + t.size_bytes for t in header.tensors.values()), default=0)
    if size < header.data_start + end:
        raise _damaged(
            f"it ends too early: {size:,} of {header.data_start + end:,} bytes are there"
        )
    tokens = header.metadata.get(_TOKENS)
    if isinstance(tokens, Texts) and tokens.count > header.vocabulary:
        raise GgufError(
            f"the tokenizer has {tokens.count:,} tokens, and the table of embeddings has "
            f"{header.vocabulary:,} rows",
            "Tokenizer and weights are of two models: get the file again, or convert the model "
            "again.",
        )
    return header


class _HeaderReader:
    """Reads values one after the other; a length beyond the end is an error, not a large buffer."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data, self._place = data, 8

    def header(self) -> GgufHeader:
        try:
            tensor_count, key_count = self._values("QQ")
            metadata = dict(self._entry() for _ in range(key_count))
            tensors = [self._tensor() for _ in range(tensor_count)]
        except (struct.error, UnicodeDecodeError, RecursionError) as error:
            raise _damaged("it ends in its header, or the header is overwritten") from error
        names = {tensor.name: tensor for tensor in tensors}
        if len(names) < len(tensors):
            raise _damaged("two of its tensors have one name")
        alignment = metadata.get("general.alignment", _ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise _damaged(f"its alignment is {alignment!r}")
        return GgufHeader(metadata, names, -(-self._place // alignment) * alignment)

    def _values(self, form: str) -> tuple[Any, ...]:
        values = struct.unpack_from(f"<{form}", self._data, self._place)
        self._place += struct.calcsize(f"<{form}")
        return values

    def _text(self) -> str:
        (length,) = self._values("Q")
        if length > len(self._data) - self._place:
            raise struct.error("longer than the file")
        self._place += length
        return self._data[self._place - length : self._place].decode("utf-8")

    def _entry(self) -> tuple[str, Any]:
        key = self._text()
        (kind,) = self._values("I")
        return key, self._value(kind)

    def _value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self._values(_SCALARS[kind])[0]
        if kind == _STRING:
            return self._text()
        if kind != _ARRAY:
            raise _damaged(f"a value of its metadata has the unknown type {kind}")
        of, count = self._values("IQ")
        if of in _SCALARS:
            if count > len(self._data):
                raise struct.error("longer than the file")
            return self._values(f"{count}{_SCALARS[of]}")
        for _ in range(count):
            self._value(of)
        return Texts(count)

    def _tensor(self) -> GgufTensor:
        name = self._text()
        (dimensions,) = self._values("I")
        if not 1 <= dimensions <= _DIMENSIONS:
            raise _damaged(f"its tensor {name} has {dimensions} dimensions")
        *shape, number, offset = self._values(f"{dimensions}QIQ")
        kind = TENSOR_TYPES.get(number)
        if kind is None:
            named = _OTHER_TYPES.get(number, f"number {number}")
            kind = TensorType(named, 0, 0, 0)
        elif shape[0] % kind.block:
            raise _damaged(f"rows of its tensor {name} are not whole blocks of {kind.name}")
        return GgufTensor(name, tuple(reversed(shape)), kind, offset)


def _damaged(what: str) -> GgufError:
    return GgufError(f"the file is damaged: {what}", "Get the file again.")


def _require_version(start: bytes) -> None:
    if start[:4] != _MAGIC:
        raise GgufError(
            "it is not a GGUF file: it does not begin with GGUF",
            "Get the file again; a page of a hub is not the file itself, nor is git-lfs's pointer.",
        )
    if len(start) < 8:
        raise _damaged("it ends in its header")
    (version,) = struct.unpack("<I", start[4:])
    if version in _VERSIONS:
        return
    if struct.unpack(">I", start[4:])[0] in _VERSIONS:
        raise GgufError(
            "it was made for machines with big-endian numbers",
            "Convert it with gguf-convert-endian, of the package gguf: "
            "gguf-convert-endian FILE little",
        )
    raise GgufError(
        f"it has version {version} of GGUF, and versions {' and '.join(map(str, _VERSIONS))} are "
        "supported",
        "Convert the model again with a present llama.cpp."
        if version < min(_VERSIONS)
        else "Install a newer etdeploy, or convert the model with an older llama.cpp.",
    )


def split_problem(name: str, folder: Path | None = None) -> GgufError | None:
    """Why a file that is one of several cannot be loaded; None for a name that says no such thing.

    Args:
        name: Its name, perhaps in a repository.
        folder: Where it is; None for a file that is not on this machine.
    """
    found = _PART.fullmatch(PurePosixPath(name).name)
    if found is None:
        return None
    parts = range(1, int(found["count"]) + 1)
    every = [f"{found['name']}-{n:05}-of-{found['count']}{SUFFIX}" for n in parts]
    missing = [part for part in every if folder and not (folder / part).is_file()]
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    what = f"of which {missing[0]}{more} is missing" if missing else "and one file is read"
    get = "Get all of them, and join" if missing or folder is None else "Join"
    return GgufError(
        f"{name} is a part of a model in {len(every)} files, {what}",
        f"{get} them with llama.cpp's tool:\n"
        f"llama-gguf-split --merge {every[0]} {found['name']}{SUFFIX}\n"
        f"Then: --model {found['name']}{SUFFIX}",
    )


def _require_model(header: GgufHeader) -> None:
    parts = header.metadata.get("split.count", 1)
    if isinstance(parts, int) and parts > 1:
        raise GgufError(
            f"it is a part of a model in {parts} files, and one file is read",
            "Join them with llama.cpp's tool: llama-gguf-split --merge FIRST-FILE model.gguf",
        )
    kind = header.metadata.get("general.type")
    other = _NO_MODELS.get(str(kind)) or (header.architecture == "clip" and _NO_MODELS["mmproj"])
    if other:
        raise GgufError(f"it has {other}", "Name the file with the language model.")
    if not header.architecture:
        raise _damaged("it does not name the architecture of its model")
    if header.architecture not in ARCHITECTURES:
        raise GgufError(
            f"models of the architecture {header.architecture!r} are not read from GGUF; those of "
            f"{', '.join(ARCHITECTURES)} are",
            "Name the model that it was made from, in safetensors: --model ID_OR_FOLDER",
        )
    if EMBEDDINGS not in header.tensors:
        raise GgufError(
            f"it has no weights: the tensor {EMBEDDINGS} is missing",
            "Name the file with the language model.",
        )


def _require_types(header: GgufHeader) -> None:
    other = [tensor for tensor in header.tensors.values() if not tensor.type.block]
    if not other:
        return
    shown = listed([f"{t.name} ({t.type.name})" for t in other], counts=True)
    names = ", ".join(kind.name for kind in TENSOR_TYPES.values())
    raise GgufError(
        f"tensors are of types that are not read: {shown}; those that are: {names}",
        "Name a file of another type, or the model that it was made from.",
    )


def config_of(header: GgufHeader) -> dict[str, Any]:
    """What is checked of a model's configuration, by transformers' names."""
    return {
        "model_type": header.architecture,
        "architectures": [ARCHITECTURES[header.architecture]],
        "vocab_size": header.vocabulary,
        **dict(_config_values(header)),
    }


def _config_values(header: GgufHeader) -> Iterator[tuple[str, int]]:
    for key, name in _CONFIG_KEYS.items():
        value = header.of_architecture(key)
        if isinstance(value, tuple):  # for each layer
            value = max(value, default=None)
        if isinstance(value, int):
            yield name, value
