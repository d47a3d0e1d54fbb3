"""Ways to quantize, by the names that a recipe uses."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

QUANTIZATIONS: dict[str, str] = {
    "none": "no quantization; usually 32-bit floats",
    "fp16": "weights and activations in 16-bit floats",
    "int8_static": "8-bit weights and activations, ranges from calibration inputs (PT2E)",
    "int8_dynamic": "8-bit weights, activations quantized on the fly (PT2E)",
    "8da4w": "4-bit grouped weights, 8-bit dynamic activations in linear layers (torchao)",
    "8da8w": "8-bit weights, 8-bit dynamic activations in linear layers (torchao)",
    "8a4w": "4-bit weights, 8-bit activations, ranges from calibration inputs (PT2E)",
    "16a8w": "8-bit weights, 16-bit activations, ranges from calibration inputs (PT2E)",
    "16a4w": "4-bit weights, 16-bit activations, ranges from calibration inputs (PT2E)",
    "16a4w_block": "as 16a4w, with blocks of weights that have a scale each (PT2E)",
}

# Those that leave a model in floats.
FLOAT_SCHEMES = ("none", "fp16")
# Those that find the ranges of activations from calibration inputs.
STATIC_SCHEMES = ("int8_static", "8a4w", "16a8w", "16a4w", "16a4w_block")
# Of these, those whose activations have 8 bits.
EIGHT_BIT_SCHEMES = ("int8_static", "8a4w")
# Those with weights in groups, of `export.group_size`.
GROUPED_SCHEMES = ("8da4w", "16a4w_block")
# Those whose activations are quantized while the program runs.
DYNAMIC_SCHEMES = ("int8_dynamic", "8da4w", "8da8w")
# Those that quantize the linear layers of a model, before it is traced.
LINEAR_SCHEMES = ("8da4w", "8da8w")
# That of the layers which lose too much in the groups of `GROUPED_SCHEMES`.
EIGHT_BITS = "8da8w"
# Those whose scales are searched, for a language model weighted by activations.
SEARCHED_SCHEMES = ("8da4w",)
# How the weights of these are rounded; `nearest` also where a recipe says nothing.
NEAREST, GPTQ = "nearest", "gptq"
AUTO_SCALED, UNSCALED, AWQ = "auto", "none", "awq"
# XNNPACK's kernels take the scale of a group in bfloat16.
_BITS_OF_SCALE = 16

# Those of tables of embeddings with weights in groups.
GROUPED_EMBEDDINGS = ("4w",)
# The schemes that tables of embeddings can be quantized beside: the others quantize a traced graph.
EMBEDDINGS_BESIDE = ("none", *LINEAR_SCHEMES)


# Also that of a recipe that names none.
DEFAULT = "xnnpack"
# Bundled recipes are named like their backend.
DEFAULT_RECIPE = DEFAULT
# Of verbs that generate text.
LANGUAGE_RECIPE = "llm-xnnpack"
OTHER_BACKEND = f"Lower to another backend: --set export.backend={DEFAULT}"
OTHER_PROGRAM = "Export the model for another backend: the program is finished, and keeps its own."


def bits_in_groups(group_size: int) -> float:
    """Bits per weight of a layer in 4 bits, with its scales."""
    return 4 + _BITS_OF_SCALE / group_size


def first_override(
    overrides: Iterable[tuple[str, str]], paths: Iterable[str]
) -> tuple[str, str] | None:
    """The first pattern, with its scheme, that matches a module or one around it."""
    around = [each for path in paths for each in modules_around(path)]
    for pattern, scheme in overrides:
        if any(is_match(module, pattern) for module in around):
            return pattern, scheme
    return None


def is_match(module: str, pattern: str) -> bool:
    """Whether a pattern of overrides matches; only `""` matches the model's own forward."""
    return fnmatchcase(module, pattern) if module else not pattern


def module_label(path: str) -> str:
    """Name of a module, or of a pattern for modules, in a sentence."""
    return path or "the model's own forward"


def modules_around(path: str) -> list[str]:
    """`a`, `a.b` and `a.b.c` of `a.b.c`: a list of modules calls nothing, and is named, too.

    The empty path, of the model's own `forward`, gives itself alone, and no other path gives it.
    """
    names = path.split(".")
    return [".".join(names[:end]) for end in range(1, len(names) + 1)]
