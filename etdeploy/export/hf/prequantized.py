"""Weights that a checkpoint has quantized: which layers, how, and what becomes of them.

`config.json` names the method in `quantization_config`; the headers of the weights tell the rest,
without PyTorch. `etdeploy.export.worker.language.prequantized` unpacks the values.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from etdeploy.backends.schemes import EIGHT_BITS, GROUPED_SCHEMES, LINEAR_SCHEMES
from etdeploy.core.console import count
from etdeploy.export.hf.gguf import EMBEDDINGS, GgufHeader
from etdeploy.export.hf.quantized_layers import (
    METHODS,
    QuantizedLayer,
    Settings,
    UnreadableError,
    trained_layers,
)
from etdeploy.export.hf.tensors import SavedTensor, Tensors

ORIGINAL = "Name the model that it was made from; export.quantization quantizes it."
# What tensors of packed weights are called.
_PACKED = (".qweight", ".weight_packed")
# XNNPACK takes no group that is not a multiple of this.
_GROUP_STEP = 32


@dataclass(frozen=True)
class Prequantized:
    """The quantized layers of a checkpoint; `tensors` are the names of all that belong to them."""

    layers: tuple[QuantizedLayer, ...]
    tensors: frozenset[str]

    def parameter_count(self, infos: Mapping[str, SavedTensor]) -> int:
        """Number of weights of the model."""
        others = (info for name, info in infos.items() if name not in self.tensors)
        return sum(math.prod(layer.shape) for layer in self.layers) + sum(
            math.prod(info.shape) for info in others
        )


def read_prequantized(config: Mapping[str, Any], tensors: Tensors) -> Prequantized | None:
    """What of a checkpoint is quantized; None where nothing is.

    Raises:
        UnreadableError: If it cannot be read.
    """
    settings = _settings(config)
    check_settings(config)
    if settings is not None:
        layers = tuple(METHODS[_method(settings)].find(settings, tensors))
        if not layers:
            raise UnreadableError(
                f"its config.json says that it is quantized ({_method(settings)}), and none of its "
                "tensors is"
            )
    else:
        layers = tuple(trained_layers(tensors.infos))
        packed = next((n for n in tensors.infos if n.endswith(_PACKED)), None)
        if packed:
            raise UnreadableError(
                f"its weights are packed ({packed}), and its config.json does not say how: it has "
                "no quantization_config"
            )
    if not layers:
        return None
    paths = {layer.path for layer in layers}
    own = (n for n in tensors.infos if n.rpartition(".")[0] in paths and not n.endswith(".bias"))
    return Prequantized(layers, frozenset(own))


# Formats of GGUF whose values stand for entries of a table.
_TABLES = "IQ"
# Values that share a scale, by their bits, where that is not XNNPACK's step.
_GGUF_GROUP = {2: 16, 3: 16, 6: 16}
_OUTPUT = "output.weight"


def gguf_layers(header: GgufHeader) -> Prequantized | None:
    """The quantized layers of a GGUF file; None where all are floats.

    The output layer may share the table of embeddings, which is not a layer by itself.
    """
    found = {
        name: tensor
        for name, tensor in header.tensors.items()
        if len(tensor.shape) == 2
        and not tensor.type.is_float
        and (name != EMBEDDINGS or _OUTPUT not in header.tensors)
    }
    layers = tuple(
        QuantizedLayer(
            path=name.removesuffix(".weight"),
            layout="table" if tensor.type.name.startswith(_TABLES) else "gguf",
            kind=tensor.type.name,
            bits=tensor.type.bits,
            shape=(tensor.shape[0], tensor.shape[1]),
            groups=tensor.shape[1] // _GGUF_GROUP.get(tensor.type.bits, _GROUP_STEP),
            parts={"values": name},
        )
        for name, tensor in found.items()
    )
    return Prequantized(layers, frozenset(found)) if layers else None


def check_settings(config: Mapping[str, Any]) -> None:
    """Raises UnreadableError for a method that cannot be read, as far as `config.json` tells."""
    settings = _settings(config)
    if settings is None:
        return
    name = _method(settings)
    if name not in METHODS:
        others = ", ".join(METHODS)
        raise UnreadableError(
            f"the checkpoint is quantized by {name or 'an unknown method'}, whose weights cannot "
            f"be read; those of {others} can"
        )
    METHODS[name].check(settings)


def _settings(config: Mapping[str, Any]) -> Settings | None:
    found = config.get("quantization_config")
    return found if isinstance(found, Mapping) else None


def _method(settings: Settings) -> str:
    name = settings.get("quant_method")
    if name == "auto-round":
        name = _AUTO_ROUND.get(str(settings.get("packing_format")), name)
    return str(name or "")


# It writes the layouts of others, too.
_AUTO_ROUND = {"auto_round:auto_gptq": "gptq", "auto_round:auto_awq": "awq"}


def _listed_groups(layers: tuple[QuantizedLayer, ...]) -> str:
    kinds = Counter(
        (layer.kind, layer.bits, layer.groups > 1, layer.group_size) for layer in layers
    )
    whole = Counter[str]()
    for (kind, bits, grouped, size), number in kinds.items():
        whole[f"{kind}, {bits} bits" + (f" in groups of {size}" if grouped else "")] += number
    return "; ".join(f"{count(number, 'layer')} in {text}" for text, number in whole.items())


def outlook_notes(found: Prequantized, scheme: str | None) -> Iterator[str]:
    """What an export with a scheme will do with the quantized layers, a sentence each.

    Only the values show whether a layer has zero points where no setting says so.
    """
    yield f"The checkpoint is quantized already: {_listed_groups(found.layers)}."
    if scheme not in LINEAR_SCHEMES:
        then = f" and quantized again with {scheme}" if scheme not in (None, "none") else ""
        yield (
            f"Its weights are unpacked to floats{then}; export.quantization "
            f"{' or '.join(LINEAR_SCHEMES)} carries over those that the kernels compute with."
        )
        return
    outcomes = Counter(_outcome(layer, scheme) for layer in found.layers)
    for (kept_as, reason), number in outcomes.items():
        if reason:
            yield f"{count(number, 'layer')} will be quantized again, with {kept_as}: {reason}."
        else:
            yield f"{count(number, 'layer')} will be carried over without another quantization."


def _outcome(layer: QuantizedLayer, scheme: str) -> tuple[str, str]:
    """The scheme that a layer gets unless an override names one, and why its values change."""
    reason = obstacle(layer, scheme)
    if not reason or scheme not in GROUPED_SCHEMES:
        return scheme, reason
    return EIGHT_BITS, reason if obstacle(layer, EIGHT_BITS) else ""


def obstacle(layer: QuantizedLayer, scheme: str) -> str:
    """Why the kernels of a scheme do not compute with a layer's values; empty where they do."""
    if layer.layout == "float":
        return "no kernel computes with 8-bit floats"
    if layer.layout == "table":
        return "no kernel computes with values from a table"
    if layer.in_order is False:
        return "the inputs of its groups are not neighbours (desc_act)"
    if scheme in GROUPED_SCHEMES:
        if layer.bits > 4:
            return f"{scheme} has weights of 4 bits, and these have {layer.bits}"
        if layer.group_size % _GROUP_STEP:
            return f"groups of {layer.group_size} are not a multiple of {_GROUP_STEP}"
    elif layer.groups > 1:
        return f"{scheme} has a scale for each output, and these have groups"
    elif layer.symmetric is False:
        return f"{scheme} has no zero points for weights"
    return ""
