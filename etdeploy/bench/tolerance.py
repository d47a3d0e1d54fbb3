"""How far outputs may be from the expected ones."""

from __future__ import annotations

from dataclasses import dataclass

from etdeploy.recipe.model import Tolerance


@dataclass(frozen=True)
class Limits:
    """When one output counts as equal.

    Attributes:
        max_abs_error: Largest absolute difference of any element.
        cosine_similarity: Least cosine of the angle; None where only the difference counts.
        negligible: A difference that is too small to have a direction: the cosine of vectors that
            differ by no more is not judged.
    """

    max_abs_error: float
    cosine_similarity: float | None
    negligible: float = 0.0


@dataclass(frozen=True)
class _Rule:
    """A limit that grows with the largest expected magnitude, since rounding does."""

    relative: float
    absolute: float
    cosine: float


# Float types: sums of some thousand products in another order than eager PyTorch's, and functions
# like exp with another approximation, differ by some hundred units in the last place.
_FLOATS = {
    "float64": _Rule(1e-4, 1e-6, 0.9999),  # XNNPACK may compute it in 32 bits
    "float32": _Rule(1e-4, 1e-6, 0.9999),  # unit in the last place 1.2e-7
    "float16": _Rule(2e-2, 1e-4, 0.999),  # 9.8e-4, fewer terms can hide in it
    "bfloat16": _Rule(6e-2, 1e-3, 0.995),  # 7.8e-3
}

# Quantised programs are compared with the quantised eager model, which computes in floats between
# its quantisation steps. A value that lies between two steps may go either way on the device, and
# the next layers carry that on, so that single elements stray: the cosine is the sharper judge.
# Measured with the bundled examples under XNNPACK, relative to the largest expected value:
# int8_static up to 6.2 % with a cosine of at least 0.9994 (transformer, convnet), int8_dynamic
# 1.3 % and 0.9999, 8da4w 1.8 % and 0.9999; unquantised 2e-6.
_QUANTIZED = {
    "fp16": _FLOATS["float16"],
    "int8_static": _Rule(15e-2, 1e-6, 0.995),
    "int8_dynamic": _Rule(5e-2, 1e-6, 0.995),
    "8da4w": _Rule(5e-2, 1e-6, 0.995),
    "16a4w": _Rule(15e-2, 1e-6, 0.995),  # static like the first; not measured yet
}


def limits_for(dtype: str, quantization: str | None, largest: float, override: Tolerance) -> Limits:
    """The limits of one output.

    Args:
        dtype: torch's name. Integers and booleans have to be equal, unless the recipe says else.
        quantization: The program's scheme; None or "none" for an unquantised one.
        largest: Largest magnitude of the expected values.
        override: Limits of the recipe; those that it gives replace the ones that follow from the
            rest.
    """
    if dtype not in _FLOATS:
        return Limits(override.max_abs_error or 0.0, override.cosine_similarity)
    rule = _wider(_FLOATS[dtype], _QUANTIZED.get(quantization or "none"))
    chosen = rule.absolute + rule.relative * largest
    return Limits(
        chosen if override.max_abs_error is None else override.max_abs_error,
        rule.cosine if override.cosine_similarity is None else override.cosine_similarity,
        negligible=rule.absolute,
    )


def _wider(first: _Rule, second: _Rule | None) -> _Rule:
    if second is None:
        return first
    return _Rule(
        max(first.relative, second.relative),
        max(first.absolute, second.absolute),
        min(first.cosine, second.cosine),
    )
