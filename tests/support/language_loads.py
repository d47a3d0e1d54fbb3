"""Loads language models in one process, since to import PyTorch and transformers takes seconds.

    python -m tests.support.language_loads FOLDER

makes the models below the folder, loads each, and prints as JSON what came of it, by name.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from etdeploy.export.spec import ExportSpec, HfModel
from etdeploy.export.worker.failures import WorkerError
from etdeploy.export.worker.language.load import load_model
from etdeploy.export.worker.language.tokenizer import stop_ids
from etdeploy.recipe.sections.export import ExportGeneration
from tests.support.language_models import save_llama

# transformers copies the file before it imports it, so the folder is named.
_CODE = """
from pathlib import Path

from transformers import LlamaConfig, LlamaForCausalLM

Path({!r}).touch()


class OwnConfig(LlamaConfig):
    model_type = "of_its_own"


class OwnModel(LlamaForCausalLM):
    config_class = OwnConfig
"""


def _edit(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def _plain(folder: Path) -> HfModel:
    save_llama(folder)
    return HfModel(folder=str(folder))


def _of_bfloat16(folder: Path) -> HfModel:
    save_llama(folder, dtype="bfloat16")
    return HfModel(folder=str(folder))


def _several_stops(folder: Path) -> HfModel:
    save_llama(folder, eos_token_id=[2, 5, 9999])
    return HfModel(folder=str(folder))


def _without_tokenizer(folder: Path) -> HfModel:
    save_llama(folder, tokenizer=False)
    return HfModel(folder=str(folder))


def _damaged_tokenizer(folder: Path) -> HfModel:
    save_llama(folder)
    (folder / "tokenizer.json").write_text("{}")
    return HfModel(folder=str(folder))


def _of_float16(folder: Path) -> HfModel:
    save_llama(folder, dtype="float16")
    return HfModel(folder=str(folder))


def _in_parts(folder: Path) -> HfModel:
    from transformers import LlamaForCausalLM

    save_llama(folder)
    LlamaForCausalLM.from_pretrained(folder).save_pretrained(folder, max_shard_size="64KB")
    (folder / "model.safetensors").unlink(missing_ok=True)
    return HfModel(folder=str(folder))


def _tied(folder: Path) -> HfModel:
    save_llama(folder, tie_word_embeddings=True)
    return HfModel(folder=str(folder))


def _tied_with_a_head(folder: Path) -> HfModel:
    """The file has the output layer, and the configuration says that it is the embeddings."""
    save_llama(folder)
    _edit(folder, tie_word_embeddings=True)
    return HfModel(folder=str(folder))


def _without_a_head(folder: Path) -> HfModel:
    save_llama(folder, tie_word_embeddings=True)
    _edit(folder, tie_word_embeddings=False)
    return HfModel(folder=str(folder))


def _more_layers(folder: Path) -> HfModel:
    save_llama(folder)
    _edit(folder, num_hidden_layers=1)
    return HfModel(folder=str(folder))


def _token_objects(folder: Path) -> HfModel:
    save_llama(folder)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    for name in ("bos_token", "eos_token"):
        config[name] = {"content": config[name], "lstrip": False, "normalized": True}
    path.write_text(json.dumps(config))
    return HfModel(folder=str(folder))


def _mismatch(folder: Path) -> HfModel:
    save_llama(folder)
    _edit(folder, intermediate_size=80, num_hidden_layers=3)
    return HfModel(folder=str(folder))


def _sizes_as_text(folder: Path) -> HfModel:
    save_llama(folder)
    _edit(folder, intermediate_size="96")
    return HfModel(folder=str(folder))


def _unknown(folder: Path) -> HfModel:
    save_llama(folder)
    _edit(folder, model_type="of_its_own")
    return HfModel(folder=str(folder))


def _own_code(folder: Path, *, allowed: bool) -> HfModel:
    save_llama(folder)
    (folder / "own.py").write_text(_CODE.format(str(folder / "ran")))
    classes = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
    _edit(folder, model_type="of_its_own", auto_map=classes)
    return HfModel(folder=str(folder), remote_code=allowed)


def _code_of_another(folder: Path) -> HfModel:
    model = _own_code(folder, allowed=True)
    tokenizer = {"auto_map": {"AutoTokenizer": ["org/other--own.OwnTokenizer", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    return model


MODELS: dict[str, Callable[[Path], HfModel]] = {
    "plain": _plain,
    "of_bfloat16": _of_bfloat16,
    "of_float16": _of_float16,
    "in_parts": _in_parts,
    "tied": _tied,
    "tied_with_a_head": _tied_with_a_head,
    "without_a_head": _without_a_head,
    "more_layers": _more_layers,
    "token_objects": _token_objects,
    "several_stops": _several_stops,
    "without_tokenizer": _without_tokenizer,
    "damaged_tokenizer": _damaged_tokenizer,
    "mismatch": _mismatch,
    "sizes_as_text": _sizes_as_text,
    "unknown": _unknown,
    "own_code": lambda folder: _own_code(folder, allowed=False),
    "own_code_allowed": lambda folder: _own_code(folder, allowed=True),
    "code_of_another": _code_of_another,
}


def _result(spec: ExportSpec, folder: Path) -> dict[str, Any]:
    try:
        loaded = load_model(spec, lambda *_: None)
    except WorkerError as error:
        return {"failure": error.failure.model_dump()}
    written = folder / "program"
    written.mkdir()
    loaded.tokenizer.write(written)
    return {
        "dtypes": sorted({str(p.dtype) for p in loaded.model.parameters()}),
        "training": loaded.model.training,
        "vocabulary": loaded.vocabulary,
        "bos_id": loaded.tokenizer.bos_id,
        "stop_ids": stop_ids(loaded.model, loaded.tokenizer, loaded.vocabulary),
        "files": sorted(path.name for path in written.glob("tokenizer/*")),
        "notes": loaded.notes,
    }


def _results(root: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, make in MODELS.items():
        model = make(root / name)
        spec = ExportSpec(hf=model, backend="xnnpack", generation=ExportGeneration(context=64))
        yield name, {**_result(spec, root / name), "ran": (root / name / "ran").exists()}


if __name__ == "__main__":
    print(json.dumps(dict(_results(Path(sys.argv[1])))))  # noqa: T201 - its result
