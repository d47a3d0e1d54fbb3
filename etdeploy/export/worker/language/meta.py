"""A checkpoint of Meta or torchtune, made into a folder as transformers saves it."""

from __future__ import annotations

import base64
import json
import os
import pickle
import shutil
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any

import torch

from etdeploy.core.console import count, listed
from etdeploy.core.files.basic import require_room
from etdeploy.export.hf.config import ConfigProblem
from etdeploy.export.hf.files import GENERATION_CONFIG, TOKENIZER_CONFIG, WEIGHTS, tokenizer_beside
from etdeploy.export.hf.meta import (
    EMBEDDINGS,
    expected_shapes,
    is_interleaved,
    meta_name,
    name_in_transformers,
    read_params,
)
from etdeploy.export.worker.failures import WorkerError, exception_text, fail, is_memory
from etdeploy.recipe.hub_cache import CONFIG

# Removed when the process ends.
_FOLDERS: list[TemporaryDirectory[str]] = []


@cache
def converted(checkpoint: Path, params: Path) -> Path:
    """The folder of a checkpoint that is converted, once in a process."""
    config = read_params(params)
    if isinstance(config, ConfigProblem):
        raise fail("checkpoint", config.message, remedy=config.remedy, file=config.place)
    read = _read(checkpoint)
    names = _names(read, checkpoint)
    tensors = {name: read[own] for name, own in names.items()}
    _check_shapes(tensors, names, (checkpoint, params), config)
    if is_interleaved(params):
        _separate_halves(tensors, config)
    config["vocab_size"] = int(tensors[EMBEDDINGS].shape[0])
    config["tie_word_embeddings"] = "lm_head.weight" not in tensors
    return _written(tensors, config, checkpoint)


def _read(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint, which stay in the file until they are used."""
    if path.stem.endswith(".00") and path.with_name(path.name.replace(".00.", ".01.")).is_file():
        raise fail(
            "checkpoint",
            "the checkpoint is split for several devices, and this is its first part",
            remedy="Name a checkpoint in one file, or the model in safetensors: model.hf",
            file=str(path),
        )
    try:
        content = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except MemoryError:
        raise
    except pickle.UnpicklingError as error:
        raise fail(
            "checkpoint",
            "the file is damaged, or has Python objects other than tensors, which could run code",
            remedy="Name a file of tensors by name that torch.save wrote.",
            file=str(path),
        ) from error
    except Exception as error:
        if is_memory(error):
            raise
        raise fail(
            "checkpoint",
            f"the checkpoint cannot be read: {exception_text(error)}",
            remedy="Name a file of tensors by name that torch.save wrote.",
            file=str(path),
        ) from error
    inner = content.get("model", content) if isinstance(content, dict) else content
    if isinstance(inner, dict) and all(isinstance(each, torch.Tensor) for each in inner.values()):
        return dict(inner)
    raise fail("checkpoint", "the file has something else than tensors by name", file=str(path))


def _names(tensors: Mapping[str, torch.Tensor], path: Path) -> dict[str, str]:
    """The names of tensors by those in transformers, without what a Llama computes itself."""
    names = {name: name_in_transformers(name) for name in tensors}
    unknown = [name for name, found in names.items() if found is None]
    if unknown:
        raise fail(
            "checkpoint",
            f"{count(len(unknown), 'tensor')} of the checkpoint {_are(unknown)} not in a Llama: "
            f"{listed(unknown)}",
            remedy="For another model, use ExecuTorch's own exporter: export.llm_config with\n"
            "base.checkpoint and base.params   (docs/language-models.md)",
            file=str(path),
        )
    return {found: name for name, found in names.items() if found}


def _are(names: list[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _check_shapes(
    tensors: Mapping[str, torch.Tensor],
    names: Mapping[str, str],
    files: tuple[Path, Path],
    config: Mapping[str, Any],
) -> None:
    """Refuses tensors that are missing, or that have other shapes than the params say.

    `names` are those in the checkpoint, and `files` the checkpoint and the params.
    """
    table = tensors.get(EMBEDDINGS)
    rows = int(table.shape[0]) if table is not None and table.dim() == 2 else 0
    wanted = expected_shapes(config, config.get("vocab_size") or rows)
    missing = [name for name in wanted if name not in tensors and name != "lm_head.weight"]
    if missing:
        raise _misfit(*files, f"{meta_name(missing[0])} is missing", len(missing))
    more = [name for name in tensors if name not in wanted]
    if more:
        raise _misfit(*files, f"{names[more[0]]} is in a layer beyond n_layers", len(more))
    wrong = [name for name, tensor in tensors.items() if tuple(tensor.shape) != wanted[name]]
    if wrong:
        found, shape = list(tensors[wrong[0]].shape), list(wanted[wrong[0]])
        text = f"{names[wrong[0]]} has the shape {found}, and the params give {shape}"
        raise _misfit(*files, text, len(wrong))


def _misfit(path: Path, params: Path, what: str, number: int) -> WorkerError:
    more = f", and {count(number - 1, 'tensor')} more do not fit" if number > 1 else ""
    return fail(
        "checkpoint",
        f"the checkpoint {path.name} does not fit {params.name}: {what}{more}",
        remedy="Name the params of this checkpoint: model.params",
        file=str(params),
    )


def _separate_halves(tensors: dict[str, torch.Tensor], config: Mapping[str, Any]) -> None:
    """Gives queries and keys the order of transformers.

    Meta rotates pairs of neighbours, transformers those of both halves of a head.
    """
    half = config["head_dim"] // 2
    for name, tensor in tensors.items():
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            pairs = tensor.view(-1, half, 2, tensor.shape[1])
            tensors[name] = pairs.transpose(1, 2).reshape(tensor.shape)


def _written(
    tensors: Mapping[str, torch.Tensor], config: Mapping[str, Any], checkpoint: Path
) -> Path:
    from safetensors.torch import save_file

    size_bytes = sum(each.numel() * each.element_size() for each in tensors.values())
    require_room(Path(gettempdir()), size_bytes, least_files=2)
    temporary = TemporaryDirectory(prefix="etdeploy-checkpoint-")
    _FOLDERS.append(temporary)
    folder = Path(temporary.name)
    own = {name: each.contiguous() for name, each in tensors.items()}
    save_file(own, folder / WEIGHTS, metadata={"format": "pt"})
    (folder / CONFIG).write_text(json.dumps(config))
    write_tokenizer(folder, checkpoint)
    return folder


def write_tokenizer(folder: Path, file: Path, vocabulary: str = "tokenizer.model") -> None:
    """Writes the tokenizer beside a file: that of transformers first, then Meta's `vocabulary`."""
    files = tokenizer_beside(file) or tokenizer_beside(file, vocabulary)
    model = files.get("tokenizer.model")
    if model and "tokenizer.json" not in files and _is_tiktoken(model):
        stops = _write_tiktoken(folder, model)
        (folder / GENERATION_CONFIG).write_text(json.dumps({"eos_token_id": stops}))
        files = {name: path for name, path in files.items() if path != model}
    elif model and TOKENIZER_CONFIG not in files:
        (folder / TOKENIZER_CONFIG).write_text(json.dumps(_SENTENCEPIECE))
    for name, path in files.items():
        shutil.copyfile(path, folder / name)


# Llama 1 and 2; without it, transformers takes the file for that of another model.
_SENTENCEPIECE = {
    "tokenizer_class": "LlamaTokenizer",
    "add_bos_token": True,
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
}


def _is_tiktoken(path: Path) -> bool:
    """Whether each line has a token in base64 and its number, as Llama 3 has them."""
    with path.open("rb") as stream:
        words = stream.readline(1000).split()
    try:
        return (
            len(words) == 2
            and words[1].isdigit()
            and bool(base64.b64decode(words[0], validate=True))
        )
    except ValueError:
        return False


# https://github.com/meta-llama/llama-models/blob/main/models/llama3/tokenizer.py
_SPECIAL = (
    "begin_of_text", "end_of_text", "reserved_special_token_0", "reserved_special_token_1",
    "finetune_right_pad_id", "step_id", "start_header_id", "end_header_id", "eom_id", "eot_id",
    "python_tag",
)  # fmt: skip
_SPECIAL_TOKENS = 256
_STOPS = ("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>")


def _special_tokens() -> Iterator[str]:
    yield from (f"<|{name}|>" for name in _SPECIAL)
    left = _SPECIAL_TOKENS - len(_SPECIAL)
    yield from (f"<|reserved_special_token_{i + 2}|>" for i in range(left))


def _write_tiktoken(folder: Path, path: Path) -> list[int]:
    """Writes Llama 3's tokenizer as transformers reads it; gives the tokens that end texts."""
    from tokenizers import AddedToken
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import TikTokenConverter

    special = list(_special_tokens())
    os.environ["TIKTOKEN_CACHE_DIR"] = ""  # else it keeps what was at this path before
    tokenizer = TikTokenConverter(vocab_file=str(path)).converted()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in special])
    begin = special[0]
    tokenizer.post_processor = TemplateProcessing(
        single=f"{begin} $A",
        pair=f"{begin} $A {begin} $B",
        special_tokens=[(begin, tokenizer.token_to_id(begin))],
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=begin, eos_token=special[1]
    )
    fast.save_pretrained(folder)
    return [int(tokenizer.token_to_id(text)) for text in _STOPS]
