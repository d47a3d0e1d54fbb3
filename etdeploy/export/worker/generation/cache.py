"""The cache: buffers that all methods share, and transformers' layers over them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    DummyLayer,
    DynamicCache,
    LinearAttentionCacheLayerMixin,
    get_layer_types_and_kwargs,
)

from etdeploy.export.worker.generation.misfit import MisfitError
from etdeploy.export.worker.generation.ring import Places, ring_of

_SLIDING = "sliding_attention"
_ATTENTION = ("full_attention", _SLIDING)


@dataclass(frozen=True)
class Step:
    """One call of a method.

    Attributes:
        positions: Of its tokens, int64 of shape (S,).
        whole: Where the layers without a window keep them.
        sliding: Where those with one do.
        batched: Whether keys and values have a first dimension of 1.
    """

    positions: torch.Tensor
    whole: Places
    sliding: Places
    batched: bool


class AttentionLayer(CacheLayerMixin):  # type: ignore[misc]
    """Keys and values of a layer, in buffers of shape (heads, places, d).

    Without a dimension for the batch: taking it away is a copy outside of a delegate, and inside
    of XNNPACK a copy, too.
    """

    is_compileable = True

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, step: Step, sliding: bool) -> None:
        super().__init__()
        self.keys, self.values, self.step, self.is_sliding = keys, values, step, sliding
        self.places = step.sliding if sliding else step.whole
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes what is new in place; gives what the attention looks at."""
        return self._written(self.keys, key_states), self._written(self.values, value_states)

    def _written(self, buffer: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        # Of the ways to write, the one that ExecuTorch makes an index_put in place of.
        buffer.index_copy_(1, self.places.written, new.squeeze(0))
        prefix = self.places.held.shape[0]
        seen = buffer if prefix == buffer.shape[1] else buffer.narrow(1, 0, prefix)
        return seen.unsqueeze(0) if self.step.batched else seen

    def get_mask_sizes(self, query_length: int) -> tuple[Any, Any]:
        """How many positions the attention looks at, and which."""
        return self.places.held.shape[0], self.places.held

    def get_seq_length(self) -> Any:
        """The positions of the tokens: the mask function takes them as its offset."""
        return self.step.positions

    def get_max_length(self) -> int:
        """The places."""
        return int(self.keys.shape[1])

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing: the buffers are there."""


class ConvolutionLayer(LinearAttentionCacheLayerMixin):  # type: ignore[misc]
    """The inputs of a short causal convolution, at every position, so that one may go back.

    The buffer has as many rows before those of the positions as the convolution looks back: they
    stay zero.
    """

    def __init__(self, rows: torch.Tensor, back: int, step: Step) -> None:
        super().__init__()
        self.rows, self.back, self.step = rows, back, step
        self.record_past = True  # a model's own step for one token would write a state in place

    def update_conv_state(
        self, conv_states: torch.Tensor, state_idx: int = 0, **kwargs: Any
    ) -> torch.Tensor:
        """The inputs before the tokens', and the tokens', of shape (1, channels, back + S)."""
        if state_idx:
            raise MisfitError("its convolutions have several states")
        self.rows.index_copy_(0, self.step.positions + self.back, conv_states[0].transpose(0, 1))
        before = self.step.positions[:1] + torch.arange(self.back)
        earlier = self.rows.index_select(0, before).transpose(0, 1).unsqueeze(0)
        return torch.cat([earlier, conv_states], dim=-1)

    def update_recurrent_state(
        self, recurrent_states: torch.Tensor, state_idx: int = 0, **kwargs: Any
    ) -> torch.Tensor:
        """Refused: such a state knows no positions.

        Raises:
            MisfitError: Always.
        """
        raise MisfitError("its layers keep a state that cannot be set back to a position")

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: the buffer is there."""


class Buffers(torch.nn.Module):  # type: ignore[misc]
    """The buffers of all layers. Methods share the object, so that names and tensors agree."""

    def __init__(self, model: Any, capacity: int, most_tokens: int) -> None:
        """Makes them.

        Args:
            model: transformers'; it is called once, for the shapes.
            capacity: Positions.
            most_tokens: That a call takes.

        Raises:
            MisfitError: The model has layers of another kind.
        """
        super().__init__()
        self.capacity = capacity
        config = model.config.get_text_config(decoder=True)
        kinds, options = get_layer_types_and_kwargs(config)
        self.kinds = tuple(kinds)
        each = zip(kinds, options, strict=True)
        windows = [option.get("sliding_window") for kind, option in each if kind == _SLIDING]
        self.ring = ring_of(windows, capacity, most_tokens)
        self.register_buffer("slots", torch.arange(capacity, dtype=torch.float32))
        for index, (kind, layer) in enumerate(zip(kinds, _probed(model), strict=True)):
            if kind in _ATTENTION:
                places = self.ring.places if self.ring and kind == _SLIDING else capacity
                self._keep(f"key_{index}", layer.keys, places)
                self._keep(f"value_{index}", layer.values, places)
            elif kind == "conv":
                channels, back = layer.conv_states[0].shape[1:]
                rows = torch.zeros(capacity + back, channels)
                self.register_buffer(f"inputs_{index}", rows)
            elif kind != "dummy":
                raise MisfitError(f"it has layers of the kind {kind}")

    def _keep(self, name: str, example: torch.Tensor, places: int) -> None:
        _, heads, _, size = example.shape
        self.register_buffer(name, torch.zeros(heads, places, size))

    def layers(self, positions: torch.Tensor, prefix: int, *, batched: bool) -> Cache:
        """What the model is called with.

        Args:
            positions: Of the tokens, int64 of shape (S,); one follows the other.
            prefix: How many positions the attention looks at, all tokens' included.
            batched: Whether keys and values have a first dimension of 1.
        """
        slots = self.slots if prefix == self.capacity else self.slots[:prefix]
        whole = Places(positions, slots)
        around = self.ring is not None and prefix > self.ring.places
        sliding = self.ring.at(positions, self.slots) if self.ring and around else whole
        step = Step(positions, whole, sliding, batched)
        return Cache(layers=[self._layer(i, kind, step) for i, kind in enumerate(self.kinds)])

    def _layer(self, index: int, kind: str, step: Step) -> Any:
        if kind in _ATTENTION:
            keys, values = getattr(self, f"key_{index}"), getattr(self, f"value_{index}")
            return AttentionLayer(keys, values, step, sliding=kind == _SLIDING)
        if kind == "conv":
            rows = getattr(self, f"inputs_{index}")
            return ConvolutionLayer(rows, rows.shape[0] - self.capacity, step)
        return DummyLayer()


def _probed(model: Any) -> list[Any]:
    """The layers of a cache after one token, whose shapes no configuration tells of every model."""
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(input_ids=torch.zeros(1, 1, dtype=torch.int64), past_key_values=cache, use_cache=True)
    return list(cache.layers)
