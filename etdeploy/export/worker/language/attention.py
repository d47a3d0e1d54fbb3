"""The attention and its mask, as transformers' interfaces take them.

Written so that XNNPACK's partitioner takes every operator: grouped queries are rows of one product
with their key, which is therefore not repeated; the mask is a sum of floats, made once for all
layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from itertools import accumulate
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import and_masks, causal_mask_function, eager_mask

from etdeploy.export.worker.failures import UnsupportedModelError
from etdeploy.export.worker.language.cache import window_in
from etdeploy.export.worker.language.cache_layers import FilledBuffer, Parts
from etdeploy.export.worker.language.cache_places import (
    PACKED,
    SCALE_BYTES,
    TokenWindow,
    packed,
    packed_size,
    unpacked,
)
from etdeploy.export.worker.operators import register_operator

GROUPED = "etdeploy_grouped"
KERNEL = "etdeploy_kernel"
LLAMA = "etdeploy_llama"
WHOLE = "etdeploy_whole"
WINDOWED = "etdeploy_windowed"
UNBATCHED = "etdeploy_unbatched"
# What exp() makes zero of, and a float's range is far from.
MASKED = 1e9
# Tensors that models pass along, and that their attention has used already.
_USED = frozenset({"position_ids", "position_embeddings", "cache_position"})


def register() -> None:
    """Makes the attentions known to transformers, by their names."""
    AttentionInterface.register(GROUPED, grouped_attention)
    AttentionInterface.register(KERNEL, kernel_attention)
    AttentionInterface.register(LLAMA, llama_attention)
    AttentionInterface.register(WHOLE, whole_attention)
    AttentionInterface.register(WINDOWED, whole_attention)
    AttentionInterface.register(UNBATCHED, unbatched_attention)
    AttentionMaskInterface.register(KERNEL, seen)
    AttentionMaskInterface.register(WINDOWED, windowed_mask)
    AttentionMaskInterface.register(UNBATCHED, lambda *_, **__: None)
    for name in (GROUPED, LLAMA, WHOLE):
        AttentionMaskInterface.register(name, additive_mask)


def grouped_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor | Parts,
    value: torch.Tensor | Parts,
    attention_mask: torch.Tensor,
    scaling: float | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """The attention of a cache whose keys and values have no dimension for a batch."""
    refuse_tensors(module, others)
    length = query.shape[2]
    keys, values = _segments(key, length), _segments(value, length)
    heads, groups = query.shape[1], keys[0].shape[0]
    if keys[0].dim() != 3 or heads % groups:
        raise UnsupportedModelError(
            "its attention changes keys or values after they are in the cache"
        )
    if heads // groups != _groups(module.config) and length != 1:
        raise UnsupportedModelError("its layers differ in the number of queries for each key")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    queries = (query * scale).reshape(groups, heads // groups * length, query.shape[-1])
    out = _attended(queries, keys, values, attention_mask, softcap)
    if length != 1:  # in two steps: of one, torch.export cannot prove the strides
        out = out.reshape(groups, heads // groups, length, out.shape[-1])
    return out.reshape(1, heads, length, out.shape[-1]).transpose(1, 2), None


def _segments(keys: torch.Tensor | Parts, length: int) -> Parts:
    """As the products take them: for several tokens joined, which costs less than their scores."""
    if isinstance(keys, torch.Tensor):
        return (keys,)
    return keys if length == 1 or len(keys) == 1 else (torch.cat(keys, dim=1),)


def _attended(
    queries: torch.Tensor, keys: Parts, values: Parts, mask: torch.Tensor, softcap: float | None
) -> torch.Tensor:
    # XNNPACK packs the second operand in every call, which is most of a long cache's cost. Still,
    # nothing took less for a token at 1,900 of 2,048 than these two products, with AVX-512: keys as
    # the first operand 1.04-1.10 of it, keys kept transposed 1.04, values kept transposed 1.21 and,
    # as the first operand, 1.47; a buffer for each head 1.02.
    scores = [torch.bmm(queries, each.transpose(1, 2)) for each in keys]
    joined = scores[0] if len(scores) == 1 else torch.cat(scores, dim=-1)
    weights = torch.softmax(_capped(joined, softcap) + mask, dim=-1)
    if len(values) == 1:
        return torch.bmm(weights, values[0])
    # XNNPACK takes slices, and no splits.
    ends = accumulate(each.shape[1] for each in values)
    seen = (
        weights[:, :, end - each.shape[1] : end] for each, end in zip(values, ends, strict=True)
    )
    return reduce(torch.add, map(torch.bmm, seen, values))


def kernel_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: AttentionWindow,
    scaling: float | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """The attention by etdeploy's operator, of a cache without a dimension for a batch."""
    refuse_tensors(module, others)
    if key.dim() != 3 or query.shape[1] % key.shape[0]:
        raise UnsupportedModelError(
            "its attention changes keys or values after they are in the cache"
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    return attention(query, key, value, attention_mask, scale, float(softcap or 0)), None


def register_llama() -> None:
    """Makes ExecuTorch's own operators for language models known to PyTorch."""
    import executorch.extension.llm.custom_ops.custom_ops  # noqa: F401


def llama_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor | FilledBuffer,
    value: torch.Tensor | FilledBuffer,
    attention_mask: torch.Tensor,
    scaling: float | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """The attention by ExecuTorch's operator, of layers whose cache it reads.

    It knows no windows that move, so those of sliding layers are products with a mask.
    """
    if not isinstance(key, FilledBuffer) or not isinstance(value, FilledBuffer):
        return grouped_attention(
            module, query, key, value, attention_mask, scaling, softcap, **others
        )
    refuse_tensors(module, others)
    if softcap is not None:
        raise UnsupportedModelError("llama::custom_sdpa has no bound for scores (softcap)")
    if key.buffer.shape != value.buffer.shape or query.shape[-1] != key.buffer.shape[-1]:
        raise UnsupportedModelError("llama::custom_sdpa takes keys and values of one size")
    queries, scale = query.transpose(1, 2), query.shape[-1] ** -0.5
    out = torch.ops.llama.custom_sdpa(
        queries,
        key.buffer,
        value.buffer,
        key.start,
        None,
        0.0,
        True,
        float(scaling) if scaling is not None else scale,
    )
    return out, None


def whole_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    scaling: float | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """The attention as models write it themselves, with keys of shape (1, key heads, N, d)."""
    refuse_tensors(module, others)
    keys = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    values = value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = _capped(torch.matmul(query * scale, keys.transpose(2, 3)), softcap)
    weights = torch.softmax(scores + attention_mask, dim=-1)
    return torch.matmul(weights, values).transpose(1, 2), None


def unbatched_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    position_bias: torch.Tensor | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """The attention of encoder-decoder models; keys may have no dimension for a batch.

    Without a mask, all positions are seen: those of one whole input.
    """
    refuse_tensors(module, others)
    keys, values = (each.squeeze(0) if each.dim() == 4 else each for each in (key, value))
    if keys.shape[0] != query.shape[1]:
        raise UnsupportedModelError("several of its queries share a key")
    queries = query.squeeze(0) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    scores = torch.bmm(queries, keys.transpose(1, 2))
    for added in (position_bias, attention_mask):
        scores = scores if added is None else scores + added.squeeze(0)
    return torch.bmm(torch.softmax(scores, dim=-1), values).unsqueeze(0).transpose(1, 2), None


def _capped(scores: torch.Tensor, bound: float | None) -> torch.Tensor:
    return scores if bound is None else torch.tanh(scores / bound) * bound


def refuse_tensors(module: torch.nn.Module, others: dict[str, Any]) -> None:
    """Flags change nothing at inference; a tensor, such as a bias or sinks, is there to be used."""
    wanted = [k for k, v in others.items() if isinstance(v, torch.Tensor) and k not in _USED]
    if wanted:
        raise UnsupportedModelError(
            f"{type(module).__name__} calls its attention with {', '.join(wanted)}"
        )


def additive_mask(
    q_length: int,
    q_offset: torch.Tensor,
    kv_offset: torch.Tensor,
    mask_function: Any = causal_mask_function,
    attention_mask: torch.Tensor | None = None,
    local_size: int | None = None,
    use_vmap: bool = False,
    config: Any = None,
    **_: Any,
) -> torch.Tensor:
    """What is added to scores: 0 where a token sees a position, -1e9 where it does not.

    `q_offset` has the position of each token, and may have the last that it sees in a second row.
    """
    require_causal(mask_function, attention_mask, local_size, use_vmap)
    own, *ends = (
        _per_query(row.to(torch.float32), q_length, config)
        for row in (q_offset.unbind() if q_offset.dim() == 2 else (q_offset,))
    )
    seen = torch.clamp((ends or [own])[0] - kv_offset, -1.0, 0.0)
    window = _window(local_size, config)
    if window:
        behind = own - kv_offset
        near = torch.clamp((window.size - 1) - behind, -1.0, 0.0)
        if window.sinks:
            near = torch.maximum(near, -torch.clamp(kv_offset - (window.sinks - 1), 0.0, 1.0))
        seen = torch.minimum(seen, near)
    return (seen * MASKED).unsqueeze(0)


def windowed_mask(
    *sizes: Any, mask_function: Any = causal_mask_function, config: Any = None, **options: Any
) -> torch.Tensor:
    """Transformers' mask for its own caches, of a model with a window of `set_window`."""
    window = window_in(config)
    if window is None:
        raise ValueError("the model has no window")

    def is_near(_: Any, __: Any, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (query - key < window.size) | (key < window.sinks)

    options |= {"allow_is_causal_skip": False}
    return eager_mask(*sizes, mask_function=and_masks(mask_function, is_near), **options)


def _window(local_size: int | None, config: Any) -> TokenWindow | None:
    """The window of the model's own layer, or the one that the recipe sets; None for neither."""
    return window_in(config) if local_size is None else TokenWindow(local_size, 0)


def _per_query(row: torch.Tensor, length: int, config: Any) -> torch.Tensor:
    """A number for each token as a column, in the order of the attention's rows."""
    if length != 1 and config._attn_implementation in (GROUPED, LLAMA):
        row = row.unsqueeze(0).expand(_groups(config), -1).reshape(-1)
    return row.unsqueeze(-1)


def seen(
    q_offset: torch.Tensor,
    mask_function: Any = causal_mask_function,
    attention_mask: torch.Tensor | None = None,
    local_size: int | None = None,
    use_vmap: bool = False,
    config: Any = None,
    **_: Any,
) -> AttentionWindow:
    """What `kernel_attention` takes as a mask; see `additive_mask`."""
    require_causal(mask_function, attention_mask, local_size, use_vmap)
    window = _window(local_size, config)
    return (
        AttentionWindow(q_offset, window.size, window.sinks)
        if window
        else AttentionWindow(q_offset)
    )


def require_causal(
    mask_function: Any, attention_mask: torch.Tensor | None, local_size: int | None, use_vmap: bool
) -> None:
    plain = mask_function is causal_mask_function or local_size is not None
    if use_vmap or attention_mask is not None or not plain:
        raise UnsupportedModelError(
            "its attention has a mask that is neither causal nor a sliding window"
        )


def _groups(config: Any) -> int:
    """Query heads for each key head."""
    keys = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return int(config.num_attention_heads) // int(keys)


@dataclass(frozen=True)
class AttentionWindow:
    """What tokens see, in place of a mask.

    Attributes:
        positions: Of the tokens, int64 of shape (S,); one follows the other.
        window: How many positions a token sees, itself the last; 0 for all.
        sinks: The first positions, which every token sees besides.
    """

    positions: torch.Tensor
    window: int = 0
    sinks: int = 0


def attention(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    seen: AttentionWindow,
    scale: float,
    softcap: float,
) -> torch.Tensor:
    """Calls the operator."""
    window = seen.window
    return ATTENTION(
        query, keys, values, seen.positions, window, scale, softcap, seen.sinks
    )  # fmt: skip


def _computed(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    positions: torch.Tensor,
    window: int,
    scale: float,
    softcap: float,
    sinks: int,
) -> torch.Tensor:
    keys, values = unpacked(keys), unpacked(values)
    _, heads, length, size = query.shape
    queries = (query * scale).reshape(keys.shape[0], -1, size)
    scores = torch.bmm(queries, keys.transpose(1, 2)).reshape(heads, length, keys.shape[1])
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    hidden = ~_visible(positions, keys.shape[1], window, sinks)
    weights = torch.softmax(scores.masked_fill(hidden, -torch.inf), dim=-1)
    out = torch.bmm(weights.reshape(keys.shape[0], -1, keys.shape[1]), values)
    return out.reshape(1, heads, length, values.shape[2]).transpose(1, 2).contiguous()


def _visible(positions: torch.Tensor, places: int, window: int, sinks: int) -> torch.Tensor:
    """Which places each token sees, of shape (S, N)."""
    last, place = positions[-1], torch.arange(places)
    in_ring = last - (last - place) % (places - sinks)
    held = torch.where(place < sinks, place, in_ring)
    behind = positions.unsqueeze(1) - held
    visible = (held >= 0) & (behind >= 0) & ((held >= sinks) | (place < sinks))
    return visible & ((behind < window) | (place < sinks)) if window else visible


def _shape(query: torch.Tensor, _: torch.Tensor, values: torch.Tensor, *__: Any) -> torch.Tensor:
    size = values.shape[2] - (SCALE_BYTES if values.dtype == torch.int8 else 0)
    return query.new_empty((1, query.shape[2], query.shape[1], size))


def _packed_shape(x: torch.Tensor, bits: int) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], packed_size(x.shape[-1], bits)), dtype=PACKED[bits])


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """The rotary embedding of x, of shape ([1,] heads, S, d), by angles of shape (1, S, d)."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


ATTENTION = register_operator(
    "etdeploy::attention",
    "Tensor query, Tensor keys, Tensor values, Tensor positions, int window, float scale, "
    "float softcap, int sinks",
    _computed,
    _shape,
)
ROTATE = register_operator(
    "etdeploy::rotate",
    "Tensor x, Tensor cos, Tensor sin",
    _rotated,
    lambda x, *_: x.new_empty(x.shape),
)
PACK = register_operator("etdeploy::pack", "Tensor x, int bits", packed, _packed_shape)
