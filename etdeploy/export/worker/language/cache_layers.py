"""The layers of a cache of transformers, over buffers that methods write in place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from transformers.cache_utils import CacheLayerMixin, LinearAttentionCacheLayerMixin

from etdeploy.export.worker.failures import UnsupportedModelError
from etdeploy.export.worker.language.cache_places import PACKED_BITS, Places

FULL, SLIDING = "full_attention", "sliding_attention"
ATTENTION = (FULL, SLIDING)
# transformers' names of layers with a state of all tokens, the second with attention beside it.
HYBRID = "hybrid"
RECURRENT = ("linear_attention", HYBRID)
Parts: TypeAlias = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class CachePositions:
    """One call of a method.

    Attributes:
        positions: Of its tokens, int64 of shape (S,).
        whole, sliding: Where the layers without and with a window keep them.
        batched: Whether keys and values have a first dimension of 1.
        ends: The last position that each token sees, of shape (S,); None for its own.
        start: The first of the positions as a number, where ExecuTorch's operators take it.
    """

    positions: torch.Tensor
    whole: Places
    sliding: Places
    batched: bool
    ends: torch.Tensor | None = None
    start: Any = None


@dataclass(frozen=True)
class FilledBuffer:
    """Keys or values of shape (1, places, heads, d), as `llama::custom_sdpa` reads them.

    Attributes:
        start: The position of the first token of the call, which is in the buffer already.
    """

    buffer: torch.Tensor
    start: Any


class AttentionLayer(CacheLayerMixin):  # type: ignore[misc]
    """Keys and values of a layer, in buffers of shape (heads, places, d), one for each segment.

    Without a dimension for the batch: taking it away is a copy outside of a delegate, and inside
    of XNNPACK a copy, too.
    """

    is_compileable = True

    def __init__(self, keys: Parts, values: Parts, step: CachePositions, sliding: bool) -> None:
        super().__init__()
        self.keys, self.values, self.step, self.is_sliding = keys, values, step, sliding
        self.places = step.sliding if sliding else step.whole
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Parts | torch.Tensor, Parts | torch.Tensor]:
        """Writes what is new in place; gives what the attention looks at, a tuple of segments."""
        return self._written(self.keys, key_states), self._written(self.values, value_states)

    def _written(self, buffers: Parts, new: torch.Tensor) -> Parts | torch.Tensor:
        rows = new.squeeze(0)
        if bits := PACKED_BITS.get(buffers[0].dtype):
            rows = torch.ops.etdeploy.pack(rows, bits)
        # Of the ways to write, the one that ExecuTorch makes an index_put in place of.
        for buffer, places in zip(buffers, self.places.written, strict=True):
            buffer.index_copy_(1, places, rows)
        if len(buffers) > 1:
            return buffers
        (buffer,), prefix = buffers, self.places.held.shape[0]
        seen = buffer if prefix == buffer.shape[1] else buffer.narrow(1, 0, prefix)
        return seen.unsqueeze(0) if self.step.batched else seen

    def get_mask_sizes(self, query_length: int) -> tuple[Any, Any]:
        """How many positions the attention looks at, and which."""
        return self.places.held.shape[0], self.places.held

    def get_seq_length(self) -> Any:
        """The positions of the tokens, with their ends: the mask function takes both as offset."""
        step = self.step
        return step.positions if step.ends is None else torch.stack([step.positions, step.ends])

    def get_max_length(self) -> int:
        return sum(int(buffer.shape[1]) for buffer in self.keys)

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing: the buffers are there."""


class LlamaLayer(AttentionLayer):
    """Keys and values of a layer without a window, written by ExecuTorch's own operator."""

    def _written(self, buffers: Parts, new: torch.Tensor) -> Any:
        (buffer,) = buffers
        torch.ops.llama.update_cache(new.transpose(1, 2), buffer, self.step.start)
        return FilledBuffer(buffer, self.step.start)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> Any:
        """Writes what is new in place; gives the buffers."""
        return self._written(self.keys, key_states), self._written(self.values, value_states)


class ConvolutionLayer(LinearAttentionCacheLayerMixin):  # type: ignore[misc]
    """The inputs of a short causal convolution, at every position, so that one may go back.

    The buffer has as many rows before those of the positions as the convolution looks back: they
    stay zero.
    """

    def __init__(self, rows: torch.Tensor, back: int, step: CachePositions) -> None:
        super().__init__()
        self.rows, self.back, self.step = rows, back, step
        self.record_past = True  # a model's own step for one token would write a state in place

    def update_conv_state(
        self, conv_states: torch.Tensor, state_idx: int = 0, **kwargs: Any
    ) -> torch.Tensor:
        """The inputs before the tokens', and the tokens', of shape (1, channels, back + S)."""
        if state_idx:
            raise UnsupportedModelError("its convolutions have several states")
        self.rows.index_copy_(0, self.step.positions + self.back, conv_states[0].transpose(0, 1))
        before = self.step.positions[:1] + torch.arange(self.back)
        earlier = self.rows.index_select(0, before).transpose(0, 1).unsqueeze(0)
        return torch.cat([earlier, conv_states], dim=-1)

    def update_recurrent_state(
        self, recurrent_states: torch.Tensor, state_idx: int = 0, **kwargs: Any
    ) -> torch.Tensor:
        """Refused, for what `probed` found no state of."""
        raise UnsupportedModelError("its layers have a recurrent state after several tokens only")

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: the buffer is there."""


class RecurrentLayer(ConvolutionLayer):
    """A convolution's inputs, and a state that has all tokens before the call's one.

    Models write the state in place, or hand over the next one. Here that is another tensor than the
    buffer, which is zero at position 0, whatever was computed before; `store` writes it.
    """

    def __init__(
        self, rows: torch.Tensor, back: int, state: torch.Tensor, step: CachePositions
    ) -> None:
        super().__init__(rows, back, step)
        self.state = state
        begun = torch.clamp(step.positions[:1].to(torch.float32), max=1.0)
        self.conv_states = {0: rows}  # models ask whether there is one
        self.recurrent_states = {0: state * begun}
        self.has_previous_state = {0: True}

    def update_recurrent_state(
        self, recurrent_states: torch.Tensor, state_idx: int = 0, **kwargs: Any
    ) -> torch.Tensor:
        """Takes the next state."""
        self.recurrent_states[0] = recurrent_states
        return recurrent_states

    def store(self) -> None:
        """Writes the state to the buffer."""
        self.state.copy_(self.recurrent_states[0])


class HybridLayer(AttentionLayer, RecurrentLayer):
    """Attention beside a recurrent state."""

    def __init__(
        self, keys: Parts, values: Parts, rows: torch.Tensor, back: int, state: torch.Tensor,
        step: CachePositions,
    ) -> None:  # fmt: skip
        RecurrentLayer.__init__(self, rows, back, state, step)
        AttentionLayer.__init__(self, keys, values, step, sliding=False)

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: the buffers are there."""
