"""A language model of transformers: checked, loaded, and made into methods that generate."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from etdeploy.core.console import count
from etdeploy.export.hf.check import checkpoint_refusals, memory_notes
from etdeploy.export.hf.config import foreign_code, read_config
from etdeploy.export.hf.files import CONFIG
from etdeploy.export.hf.refusal import Refusal
from etdeploy.export.spec import ExportSpec, HfModel
from etdeploy.export.worker.failures import exception_text, fail, is_memory
from etdeploy.export.worker.loading.hf.fetch import Checkpoint, Tell, fetch, refused
from etdeploy.export.worker.loading.hf.tokenizer import Tokenizer, load_tokenizer

_SHOWN = 3


@dataclass(frozen=True)
class LoadedModel:
    """A language model on this machine.

    Attributes:
        model: transformers', in float32 and evaluation mode.
        checkpoint: Where it came from.
        tokenizer: Its tokenizer.
        notes: Sentences for the user.
    """

    model: Any
    checkpoint: Checkpoint
    tokenizer: Tokenizer
    notes: tuple[str, ...]

    @property
    def vocabulary(self) -> int:
        """Number of logits."""
        return int(self.model.get_output_embeddings().weight.shape[0])


def load_model(spec: ExportSpec, tell: Tell) -> LoadedModel:
    """The language model that the spec names.

    Raises:
        WorkerError: It cannot be got or loaded, or is none that can be exported.
        OSError: The model does not fit on the disk.
    """
    if spec.hf is None or spec.generation is None:
        raise ValueError("the spec names no language model")
    checkpoint = fetch(spec, tell)
    folder, context = checkpoint.folder, spec.generation.context
    for refusal in checkpoint_refusals(folder, context):
        raise refused(refusal, spec)
    notes = tuple(memory_notes(folder, context))
    tell(f"loading {spec.source}", 0.1)
    _require_code(spec, spec.hf, folder)
    model = _eager(spec, folder, remote_code=spec.hf.remote_code)
    tokenizer = load_tokenizer(folder, remote_code=spec.hf.remote_code)
    told = (*notes, *([tokenizer.note] if tokenizer.note else []))
    return LoadedModel(model, checkpoint, tokenizer, told)


def _require_code(spec: ExportSpec, model: HfModel, folder: Path) -> None:
    """Refuses a model that needs code which may not run."""
    from transformers import CONFIG_MAPPING

    config = read_config(folder)
    if isinstance(config, Refusal):
        raise refused(config, spec)
    kind, place = config.get("model_type"), spec.place("model", "hf")
    named = model.folder or model.id
    if model.remote_code:
        if other := foreign_code(config):
            raise fail(
                "checkpoint",
                f"{CONFIG} names code of another repository, {other}, and only code of "
                f"{model.name} may run",
                remedy="Download it with that code beside it, and name the folder.",
                file=spec.place("model", "remote_code"),
            )
        return
    if kind in CONFIG_MAPPING:
        return
    if "auto_map" in config:
        raise fail(
            "checkpoint",
            f"transformers does not have {kind or 'this type of model'}; {model.name} brings its "
            "own code, which does not run unless the recipe says so",
            remedy=f"Read the .py files of {named}. If you trust them: "
            f"--set model.remote_code={named}",
            file=place,
        )
    raise fail(
        "checkpoint",
        f"the installed transformers {_version()} has no model of the type {kind!r}",
        remedy="Export it with a factory: --set model.python=my_model.py:make",
        file=place,
    )


def _version() -> str:
    import transformers

    return str(transformers.__version__)


def _eager(spec: ExportSpec, folder: Path, *, remote_code: bool) -> Any:
    """The model in float32: of bfloat16, each value is one of float32 too."""
    from transformers import AutoModelForCausalLM

    place = spec.place("model", "hf")
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=torch.float32,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=remote_code,  # None would ask on the terminal
            ignore_mismatched_sizes=True,  # so that all of them are told
            output_loading_info=True,
        )
    except MemoryError:
        raise
    except Exception as error:
        if is_memory(error):
            raise
        raise fail(
            "checkpoint",
            f"transformers {_version()} cannot load {spec.source}: {exception_text(error)}",
            remedy="The log has the whole traceback. model.hf takes what "
            "AutoModelForCausalLM.from_pretrained loads.",
            file=place,
        ) from error
    if told := _mismatches(info):
        raise fail(
            "checkpoint",
            f"the weights of {spec.source} do not fit its {CONFIG}: {told}",
            remedy="Use the configuration and the weights of one model, as save_pretrained wrote "
            "them.",
            file=place,
        )
    return model.eval()


def _mismatches(info: dict[str, Any]) -> str | None:
    """Which tensors do not fit; None where all do."""
    parts = []
    missing = sorted(info["missing_keys"])
    if missing:
        parts.append(f"{count(len(missing), 'tensor')} missing ({_listed(missing)})")
    other = [f"{name} is {_shape(a)} and not {_shape(b)}" for name, a, b in _sizes(info)]
    return "; ".join([*parts, *other[:_SHOWN], *(["and more"] if other[_SHOWN:] else [])]) or None


def _sizes(info: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    return sorted(info["mismatched_keys"], key=lambda each: str(each[0]))


def _shape(size: Any) -> list[int]:
    return [int(each) for each in size]


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (" and more" if len(names) > _SHOWN else "")
