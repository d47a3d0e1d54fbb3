"""The files of a checkpoint as transformers saves it: which there are, and what each is for."""

from __future__ import annotations

from collections.abc import Container
from fnmatch import fnmatch
from pathlib import Path

from etdeploy.export.hf.gguf import read_header
from etdeploy.recipe.hub_cache import CONFIG, read_object
from etdeploy.recipe.tasks import is_timm

# What the library diffusers saves has this in its place.
PIPELINE = "model_index.json"
GENERATION_CONFIG = "generation_config.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
WEIGHTS = "model.safetensors"
WEIGHTS_INDEX = "model.safetensors.index.json"
# Of tokenizers: those of the tokenizers library, of SentencePiece, and of byte pairs.
TOKENIZER_FILES = (
    "tokenizer.json", TOKENIZER_CONFIG, "special_tokens_map.json", "added_tokens.json",
    "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt", "merges.txt",
    "chat_template.json", "chat_template.jinja",
)  # fmt: skip
# One of these makes a tokenizer; the others say more about it.
_VOCABULARIES = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")
# How images and audio become tensors.
PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
# How a sentence-transformers model makes one vector of those of the tokens.
MODULES, POOLING = "modules.json", "1_Pooling/config.json"
# What is loaded; a repository may have the weights in other formats, too.
LOADED = (
    CONFIG,
    GENERATION_CONFIG,
    WEIGHTS,
    WEIGHTS_INDEX,
    "model-*.safetensors",
    *TOKENIZER_FILES,
    *PROCESSOR_FILES,
    MODULES,
    POOLING,
)
# What peft saves of an adapter.
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
ADAPTER_FILES = (ADAPTER_CONFIG, ADAPTER_WEIGHTS)
# What timm saves; a pickle is read only without safetensors, and with weights_only.
TIMM_PICKLE = "pytorch_model.bin"
CODE = "*.py"
# Formats of weights that are not read. Most are pickles, which run code when they are loaded.
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_OTHERS = ("*.gguf", "*.h5", "*.msgpack", "*.onnx", "*.tflite", "*.npz")


def loaded_patterns(*, code: bool) -> list[str]:
    """Patterns of the files that are loaded; with those of code where it may run."""
    return [*LOADED, CODE] if code else [*LOADED]


def loaded_files(folder: Path, *, code: bool) -> dict[str, Path]:
    """The files of a folder that are loaded, by their names; a GGUF file is loaded alone."""
    if folder.is_file():
        return {folder.name: folder}
    patterns = timm_patterns(folder) or loaded_patterns(code=code)
    try:
        paths = sorted(path for path in folder.iterdir() if path.is_file())
    except OSError:
        return {}
    pooling = {POOLING: folder / POOLING} if (folder / POOLING).is_file() else {}
    return pooling | {
        p.name: p for p in paths if any(fnmatch(p.name, pattern) for pattern in patterns)
    }


def timm_patterns(folder: Path) -> list[str]:
    """Names of the files of a model of timm that are loaded; none for another model."""
    try:
        found = is_timm(read_object(folder / CONFIG))
    except (OSError, ValueError):
        return []
    return [CONFIG, WEIGHTS if (folder / WEIGHTS).is_file() else TIMM_PICKLE] if found else []


def adapter_files(folder: Path) -> dict[str, Path]:
    """The files of an adapter that are there, by their names."""
    return {name: folder / name for name in ADAPTER_FILES if (folder / name).is_file()}


def has_tokenizer(folder: Path) -> bool:
    """Whether there is a vocabulary."""
    if folder.is_file():
        return read_header(folder).has_tokenizer
    return any((folder / name).is_file() for name in _VOCABULARIES)


def has_template(path: Path) -> bool | None:
    """Whether a GGUF file has a chat template; None for a folder, whose files are to be read."""
    return read_header(path).has_chat_template if path.is_file() else None


def lists_tokenizer(names: Container[str]) -> bool:
    """The same of the names of a repository's files."""
    return any(name in names for name in _VOCABULARIES)


TOKENIZER_FOLDER = "tokenizer"


def tokenizer_beside(path: Path, vocabulary: str = "tokenizer.json") -> dict[str, Path]:
    """A tokenizer's files beside a file, by the names that they have in a checkpoint.

    Where there is none, a folder `tokenizer` beside it may have them, as etdeploy's own programs
    do. `vocabulary` is the name that its own vocabulary has there; none is there if that is
    missing.
    """
    inside = path.parent / TOKENIZER_FOLDER / path.name
    if not path.with_name(vocabulary).is_file() and inside.with_name(vocabulary).is_file():
        return tokenizer_beside(inside, vocabulary)
    found = {name: path.with_name(name) for name in TOKENIZER_FILES}
    if path.with_name(vocabulary).suffix == ".json":
        found["tokenizer.json"] = path.with_name(vocabulary)
    elif vocabulary.endswith(".model"):
        found["tokenizer.model"] = path.with_name(vocabulary)
    has = path.with_name(vocabulary).is_file()
    return {name: file for name, file in found.items() if file.is_file()} if has else {}


def other_weights(names: list[str]) -> list[str]:
    """Weights among the names that are not safetensors, pickles first."""
    of_kind = ([n for n in names if _is_any(n, kinds)] for kinds in (_PICKLES, _OTHERS))
    return [name for found in of_kind for name in found]


def are_pickles(names: list[str]) -> bool:
    """Whether to load one of them would run the code in it."""
    return any(_is_any(name, _PICKLES) for name in names)


def _is_any(name: str, patterns: tuple[str, ...]) -> bool:
    # Not those of training, such as optimizer.pt.
    return not name.startswith(("optimizer", "scheduler", "rng_state", "training_args")) and any(
        fnmatch(name, pattern) for pattern in patterns
    )
