"""What becomes of an output layer that a language model ties to its embeddings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from etdeploy.core.console import size

# By the text of torch's type.
_BITS = {"torch.int4": 4, "torch.int8": 8}
_FLOAT_BITS = 32


def tied_notes(model: Any, saved_bytes: int) -> Iterator[str]:
    """Sentences about the two tensors that one tensor of the model has become."""
    if saved_bytes:
        yield (
            "Weights that are equal in a delegate and outside of it are stored once: the program "
            f"is {size(saved_bytes)} smaller."
        )
    elif model is not None and model.config.get_text_config(decoder=True).tie_word_embeddings:
        table, layer = model.get_input_embeddings().weight, model.get_output_embeddings().weight
        yield (
            "The model's embeddings are its output layer's weights, too; the program has both "
            f"({_stored(table)} and {_stored(layer)}), since they are quantised or laid out "
            "differently. With 8 bits in both, they are stored once: "
            "export.embeddings 8w, and 8da8w for lm_head in export.overrides."
        )


def _stored(weight: Any) -> str:
    """`14.2 MB in 4 bits`, without the scales."""
    # torchao keeps one byte for each value until the program is written.
    bits = _BITS.get(str(getattr(weight, "target_dtype", "")), _FLOAT_BITS)
    return f"{size(weight.numel() * bits // 8)} in {bits} bits"
