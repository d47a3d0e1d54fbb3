"""Findings, and what the rules of several sections use.

The rules read plain data, so that broken rules are reported together with every other problem
of the section. A key that is missing or None has its default; the models check the types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from etdeploy.backends.registry import known_backends
from etdeploy.backends.schemes import AWQ, GPTQ

if TYPE_CHECKING:
    from etdeploy.backends.base import Backend

MODEL_SOURCES = ("example", "python", "exported", "program", "hf", "timm", "gguf", "checkpoint")
# Those of models that transformers loads, of which most generate text.
LANGUAGE_MODELS = ("hf", "gguf", "checkpoint")
DEFAULT_GROUP_SIZE = 32
DEFAULT_EVALUATED = 512
DEFAULT_SINKS = 4
NAMED_ADAPTERS = "lora: {NAME: FOLDER}"
OTHER_LAYOUT = "leave export.generation.layout at auto, or etdeploy"

# What a finding is about (a key, a key of a key after a dot, empty for the whole section), and the
# finding. Only the first dot divides: a pattern of modules has dots of its own.
RecipeFinding = tuple[str, str]

# Methods that read a text, by the key that names them, and what they do to 4-bit weights. A key
# without the name of a method has a number.
_CALIBRATED: Mapping[str, tuple[str | None, str]] = {
    "rounding": (GPTQ, "rounds"),
    "scaling": (AWQ, "scales the inputs of"),
    "target_bits": (None, "chooses more bits for some of"),
}


def backends_where(has: Callable[[Backend], object]) -> str:
    """The names of the backends that a recipe can name and that have something, for a message."""
    return ", ".join(b.name for b in known_backends() if b.lowering and has(b))


def calibrated_methods(export: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """The methods that a section names: the key, the method in messages, and what it does."""
    for key, (method, does) in _CALIBRATED.items():
        value = export.get(key)
        if value is not None and (method is None or value == method):
            yield key, method or key, does


def schemes_in(export: Mapping[str, Any]) -> set[object]:
    """All schemes of a section `export`: those of parts, too."""
    parts = keys_of(export.get("overrides")).values()
    return {export.get("quantization") or "none", *map(scheme_in, parts)}


def scheme_in(chosen: object) -> object:
    """The scheme of an override, which may have a group size beside it."""
    return chosen if isinstance(chosen, str) else keys_of(chosen).get("quantization")


def keys_of(section: Any) -> Mapping[str, Any]:
    """The keys of a section in a section, of a file or of a model; empty for anything else."""
    return section if isinstance(section, Mapping) else getattr(section, "__dict__", {})


def require(findings: Iterator[RecipeFinding]) -> None:
    """Raises unless no rule is broken."""
    messages = [f"{key}: {text}" if key else text for key, text in findings]
    if messages:
        raise ValueError("; ".join(messages))
