"""Memory that the export of a language model will need, estimated before it starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from etdeploy.core.console import size
from etdeploy.export.hf.refusal import Refusal

# The exporter computes in 32-bit floats, whatever the checkpoint has.
_FLOAT_BYTES = 4
# Copies of the weights at the peak, while they are lowered and written.
_COPIES = 3


def least_memory_bytes(parameters: int, config: Mapping[str, Any], context: int) -> int:
    """What the weights and the cache of keys and values take as 32-bit floats."""
    return _FLOAT_BYTES * parameters + cache_bytes(config, context)


def cache_bytes(config: Mapping[str, Any], context: int) -> int:
    """The least that the cache of a model takes, by the names of Llama's configuration.

    2 x heads of keys x size of a head x positions, for each layer; a layer with a sliding window
    has at least its positions. 0 where the configuration has other names.
    """
    layers, heads = (config.get(name) for name in ("num_hidden_layers", "num_attention_heads"))
    hidden, shared = config.get("hidden_size"), config.get("num_key_value_heads")
    if not (isinstance(layers, int) and isinstance(heads, int) and isinstance(hidden, int)):
        return 0
    head = config.get("head_dim")
    head_size = head if isinstance(head, int) else hidden // max(heads, 1)
    kv_heads = shared if isinstance(shared, int) else heads
    return 2 * kv_heads * head_size * _positions(config, layers, context) * _FLOAT_BYTES


def _positions(config: Mapping[str, Any], layers: int, context: int) -> int:
    """The sum of all layers' positions, of which those with a window may need fewer."""
    window, kinds = config.get("sliding_window"), config.get("layer_types")
    if not isinstance(window, int) or config.get("use_sliding_window") is False:
        return layers * context
    # Without a list, it may be any of the layers: older files do not say.
    whole = kinds.count("full_attention") if isinstance(kinds, list) else 0
    return whole * context + (layers - whole) * min(window, context)


def memory_refusal(least_bytes: int, total_bytes: int, place: str) -> Refusal | None:
    """The refusal of a model whose weights and cache alone are more than the machine's memory."""
    if least_bytes <= total_bytes:
        return None
    return Refusal(
        f"the export needs more than {size(least_bytes)} of memory, for the weights and the cache "
        f"as 32-bit floats, and this machine has {size(total_bytes)}",
        "Export it on a larger machine, or name a smaller model or context.",
        place=place,
    )


def memory_note(least_bytes: int, available_bytes: int) -> str | None:
    """A sentence where the memory may not be enough."""
    expected = least_bytes * _COPIES
    if expected <= available_bytes:
        return None
    return (
        f"The export may need {size(expected)} of memory, and {size(available_bytes)} were free "
        "when it began."
    )
