"""What `config.json` says of a model: whether it generates text, and how long it may be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from etdeploy.export.hf.files import CONFIG, read_object
from etdeploy.export.hf.refusal import Refusal

# How transformers calls models that predict the next token.
_CAUSAL = ("ForCausalLM", "LMHeadModel")
_FACTORY = (
    "Export another model with a factory that returns (module, example_inputs):\n"
    "--set model.python=my_model.py:make   docs/inputs.md says what it can return."
)
# The most positions, by the names that configs have for it.
_LONGEST = ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx")


def read_config(folder: Path) -> dict[str, Any] | Refusal:
    """The content of a folder's `config.json`, or why there is none."""
    path = folder / CONFIG
    try:
        return read_object(path)
    except FileNotFoundError:
        return Refusal(
            f"there is no {CONFIG}, so this is no model as transformers saves it",
            "Name the folder that save_pretrained wrote, or the id of a model on the hub.",
            place=str(folder),
        )
    except (OSError, ValueError) as error:
        return Refusal(f"the file cannot be read: {error}", place=str(path))


def config_refusals(config: Mapping[str, Any], place: str, context: int) -> Iterator[Refusal]:
    """What keeps a model from being exported, as far as its configuration tells.

    Args:
        config: Of `config.json`.
        place: The folder or the id.
        context: Positions that the recipe asks for.
    """
    yield from _of_architecture(config, place)
    method = config.get("quantization_config")
    if isinstance(method, Mapping):
        name = method.get("quant_method", "an unknown scheme")
        yield Refusal(
            f"the checkpoint is quantised already ({name}), and its weights fit no other kernels",
            "Name the model that it was made from; export.quantization quantises it.",
            place=place,
        )
    longest = longest_context(config)
    if longest and context > longest:
        yield Refusal(
            f"the model has {longest} positions, so its context cannot be {context}",
            f"--set export.generation.context={longest}",
            ("export", "generation", "context"),
        )


def longest_context(config: Mapping[str, Any]) -> int | None:
    """The most positions of a model; None where its configuration sets no limit."""
    found = (config.get(name) for name in _LONGEST)
    return next((size for size in found if isinstance(size, int) and size > 0), None)


def foreign_code(config: Mapping[str, Any]) -> str | None:
    """Another repository whose code the configuration names: `ORG/NAME--module.Class`."""
    return next((c.partition("--")[0] for c in _classes(config) if "--" in c), None)


def code_files(config: Mapping[str, Any]) -> set[str]:
    """The files of code that the configuration names: `modeling.py` for `modeling.MyModel`."""
    return {f"{c.partition('.')[0]}.py" for c in _classes(config) if "--" not in c}


def _classes(config: Mapping[str, Any]) -> list[str]:
    named = config.get("auto_map")
    values = named.values() if isinstance(named, Mapping) else ()
    texts = (text for v in values for text in (v if isinstance(v, list) else [v]))
    return [text for text in texts if isinstance(text, str)]


def _of_architecture(config: Mapping[str, Any], place: str) -> Iterator[Refusal]:
    listed = config.get("architectures")
    names = [str(name) for name in listed] if isinstance(listed, list) else []
    name = ", ".join(names) or str(config.get("model_type", "a model of an unknown type"))
    only = "model.hf takes models that predict the next token, named ...ForCausalLM"
    if config.get("is_encoder_decoder"):
        text = f"{name} is an encoder with a decoder; {only}"
    elif not names or any(each.endswith(_CAUSAL) for each in names):
        return
    elif "vision_config" in config or "audio_config" in config:
        text = f"{name} takes more than text; {only}"
    else:
        text = f"{name} generates no text; {only}"
    yield Refusal(text, _FACTORY, place=place)
