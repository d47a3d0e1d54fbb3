"""What is said about quantized linear layers: notes of an export, and failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

import torch

from etdeploy.backends.registry import backend_named
from etdeploy.backends.schemes import DEFAULT, module_label
from etdeploy.core.console import count
from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.backends.base import lowering_of
from etdeploy.export.worker.failures import WorkerError, fail
from etdeploy.export.worker.lowering.scales import Activations


def coverage_note(spec: ExportSpec, quantized: int, convolutions: int) -> str:
    """How many layers are quantized, and what stays in floats beside them."""
    note = f"{spec.quantization} quantized {count(quantized, 'linear layer')}"
    if not convolutions:
        return f"{note}."
    stay = "1 convolution stays" if convolutions == 1 else f"{convolutions} convolutions stay"
    return f"{note}; {stay} in floats."


def override_notes(spec: ExportSpec, chosen: Counter[str | None]) -> Iterator[str]:
    """A sentence about overrides, with the number of layers for which each is chosen."""
    parts = [
        f"{module_label(pattern)} with {scheme}{_groups(spec, pattern)} "
        f"({count(chosen[pattern], 'linear layer')})"
        for pattern, scheme in spec.overrides
    ]
    if parts:
        yield f"Quantized with {spec.quantization}, except: {', '.join(parts)}."


def finer_notes(parts: Counter[str]) -> Iterator[str]:
    """A sentence about the layers that have 8 bits by default, by what they are."""
    if parts:
        listed = " and ".join(f"{part} ({count(n, 'layer')})" for part, n in parts.items())
        yield (
            f"In 8 bits, since they lose the most in 4: {listed}. A pattern of export.overrides "
            "decides otherwise."
        )


def scales_note(activations: Activations) -> str:
    """How the scales of 4-bit weights were chosen."""
    if activations.mean_squares:
        return (
            f"The scales of 4-bit weights have the least error with the activations on "
            f"{activations.origin}; export.calibration names another text."
        )
    why = f": {activations.origin}" if activations.origin else ""
    return f"The scales of 4-bit weights are chosen by the weights alone{why}."


_SAME_TEXT = (
    "GPTQ fits the text that the model is evaluated on, so its figures are too good: name another "
    "for export.calibration, or for export.generation.evaluate."
)


def rounding_notes(
    spec: ExportSpec, activations: Activations, asked: int, nearest: Sequence[str]
) -> Iterator[str]:
    """What GPTQ rounded of the layers that it was asked for."""
    if asked > len(nearest):
        layers = count(asked - len(nearest), "linear layer")
        yield (
            f"GPTQ rounded the 4-bit weights of {layers} for the least error on "
            f"{activations.origin}; export.calibration names another text."
        )
    elif not asked:
        yield "GPTQ rounded nothing: no layer gets 4 bits that the checkpoint does not have."
    if nearest:
        yield (
            f"Rounded to the nearest, since {activations.origin} say too little about their "
            f"inputs: {_listed(nearest)}."
        )
    evaluated = spec.generation.evaluate if spec.generation else None
    if evaluated and evaluated == spec.calibration_text:
        yield _SAME_TEXT


def _groups(spec: ExportSpec, pattern: str) -> str:
    size = spec.override_groups.get(pattern)
    return f" in groups of {size}" if size else ""


_NAMED = 6
# The smallest that XNNPACK takes, and a divisor of all others.
_SMALLEST_GROUP = 32


def nothing_wanted(spec: ExportSpec) -> WorkerError:
    """The failure of a model that overrides leave in floats."""
    return fail(
        "quantization",
        "export.overrides leaves every linear layer in floats",
        file=spec.place("export", "overrides"),
        remedy="Leave a pattern out, or set export.quantization: none without export.overrides.",
    )


def nothing_fits(
    spec: ExportSpec,
    linears: Sequence[torch.nn.Linear],
    group_sizes: Collection[int | None],
    *,
    exported: bool,
    attention: bool,
) -> WorkerError:
    """The failure of a model without a linear layer that can be quantized."""
    scheme = spec.quantization
    if exported:
        return fail(
            "quantization",
            f"{scheme} quantizes nn.Linear layers, and an exported program has none, only "
            "operators",
            remedy="Name the model's factory with model.python, or quantize before torch.export.",
        )
    if not linears:
        others = " but those in nn.MultiheadAttention, which calls none" if attention else ""
        return fail(
            "quantization",
            f"{scheme} quantizes nn.Linear layers, and the model has none{others}",
            remedy=_other_scheme(spec, "int8_static", "quantizes convolutions and attention, too."),
        )
    return _wrong_sizes(spec, linears, sorted({size for size in group_sizes if size}))


def _wrong_sizes(
    spec: ExportSpec, linears: Sequence[torch.nn.Linear], group_sizes: list[int]
) -> WorkerError:
    asked = " or ".join(map(str, group_sizes))
    if any(layer.in_features % size == 0 for layer in linears for size in group_sizes):
        multiple = lowering_of(spec).grouped_outputs
        return fail(
            "quantization",
            f"no linear layer with an input size for groups of {asked} has an output size "
            f"that is a multiple of {multiple}, as {spec.backend} needs it",
            remedy=_other_scheme(spec, "int8_dynamic", "takes layers of any size."),
        )
    sizes = ", ".join(str(s) for s in sorted({layer.in_features for layer in linears}))
    fits = any(layer.in_features % _SMALLEST_GROUP == 0 for layer in linears)
    return fail(
        "quantization",
        f"no linear layer's input size ({sizes}) is a multiple of the group size {asked}",
        remedy=f"--set export.group_size={_SMALLEST_GROUP}"
        if fits
        else _other_scheme(spec, "8da8w", "has no groups."),
    )


def _other_scheme(spec: ExportSpec, scheme: str, what: str) -> str:
    """The remedy that names another scheme, with a backend that has it."""
    offered = scheme in backend_named(str(spec.backend)).quantizations
    other = "" if offered else f"--set export.backend={DEFAULT} "
    return f"{other}--set export.quantization={scheme} {what}"


def attention_notes(spec: ExportSpec, names: Sequence[str]) -> Iterator[str]:
    """A sentence about the output layers of nn.MultiheadAttention."""
    if names:
        modules = [name.rpartition(".")[0] or name for name in names]
        yield (
            f"{spec.quantization} leaves nn.MultiheadAttention in floats, which calls no linear "
            f"layers: {_listed(modules)}."
        )


def left_notes(group_sizes: Mapping[str, int | None], outputs: int) -> Iterator[str]:
    """A sentence for each group size about the layers that it does not fit."""
    size = f", or their output size not of {outputs}" if outputs > 1 else ""
    for group_size in dict.fromkeys(group_sizes.values()):
        names = [name for name, wanted in group_sizes.items() if wanted == group_size]
        yield (
            "Linear layers that stay in floats, since their input size is not a multiple of the "
            f"group size {group_size}{size}: {_listed(names)}."
        )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (" and others" if len(names) > _NAMED else "")
