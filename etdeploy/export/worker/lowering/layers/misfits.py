"""Linear layers that cannot be quantised, and models that have no other."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import torch

from etdeploy.backends.names import DEFAULT
from etdeploy.backends.registry import backend_named
from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.backends.base import lowering_of
from etdeploy.export.worker.failures import WorkerError, fail

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
    """The failure of a model without a linear layer that can be quantised.

    Args:
        spec: Names the scheme.
        linears: Those that it has, without those of attention.
        group_sizes: That were wanted for them.
        exported: Whether it comes as an exported program.
        attention: Whether it has linear layers in nn.MultiheadAttention.
    """
    scheme = spec.quantization
    if exported:
        return fail(
            "quantization",
            f"{scheme} quantises nn.Linear layers, and an exported program has none, only "
            "operators",
            remedy="Name the model's factory with model.python, or quantise before torch.export.",
        )
    if not linears:
        others = " but those in nn.MultiheadAttention, which calls none" if attention else ""
        return fail(
            "quantization",
            f"{scheme} quantises nn.Linear layers, and the model has none{others}",
            remedy=_other_scheme(spec, "int8_static", "quantises convolutions and attention, too."),
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
    """A sentence about the output layers of nn.MultiheadAttention.

    Args:
        spec: Names the scheme.
        names: Theirs.
    """
    if names:
        modules = [name.rpartition(".")[0] or name for name in names]
        yield (
            f"{spec.quantization} leaves nn.MultiheadAttention in floats, which calls no linear "
            f"layers: {_listed(modules)}."
        )


def left_notes(group_sizes: Mapping[str, int | None], outputs: int) -> Iterator[str]:
    """A sentence for each group size about the layers that it does not fit.

    Args:
        group_sizes: Of these layers, by their names.
        outputs: What their output size has to be a multiple of.
    """
    size = f", or their output size not of {outputs}" if outputs > 1 else ""
    for group_size in dict.fromkeys(group_sizes.values()):
        names = [name for name, wanted in group_sizes.items() if wanted == group_size]
        yield (
            "Linear layers that stay in floats, since their input size is not a multiple of the "
            f"group size {group_size}{size}: {_listed(names)}."
        )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (" and others" if len(names) > _NAMED else "")
