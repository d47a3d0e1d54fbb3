"""The methods of a program that generates text, and the cache that they share.

The cache is buffers, with transformers' layers over them.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, Literal, Protocol, TypeAlias

import torch
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    DummyLayer,
    DynamicCache,
    LinearAttentionCacheLayerMixin,
    get_layer_types_and_kwargs,
)
from transformers.modeling_outputs import CausalLMOutputWithPast

from etdeploy.export.hf.config import OWN_STATES
from etdeploy.export.worker.loading.source import MethodSource
from etdeploy.export.worker.tracing.structure import ExampleInputs
from etdeploy.program.folder import FORWARD
from etdeploy.program.generation import Attention, GenerationMethod, Layout


class UnsupportedModelError(Exception):
    """A path cannot compute the model; the text is a clause about it."""


# Later than any position, and exact when one is added: floats hold whole numbers up to 2^24.
NEVER = 2.0**23
# XNNPACK joins no more tensors than this at once.
_MOST = 5
# Backends whose methods have fixed sizes store the weights with each of them.
_MOST_FIXED = 2
_STEP = 4
# With fewer positions, a token takes no less time.
_LEAST = 128
# Elements of a cache of less than 32 bits. With 8, the scale of a row is behind it.
PACKED = {8: torch.int8, 16: torch.float16}
_BITS = {dtype: bits for bits, dtype in PACKED.items()}
SCALE_BYTES = 4
_MOST_BYTE = 127.0


def packed(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Rows of shape (heads, S, d) as a cache of so many bits has them.

    With 16 bits, halves. With 8, whole numbers up to 127 in magnitude, and behind those of a row
    the four bytes of its scale, as a float. `unpacked` is the inverse.
    """
    if bits == 16:
        most = torch.finfo(torch.float16).max
        return x.clamp(-most, most).to(torch.float16)
    most = x.abs().amax(-1, keepdim=True)
    inverse = torch.where(most > 0, _MOST_BYTE / most, 0.0)
    rounded = (x * inverse).round().clamp(-_MOST_BYTE, _MOST_BYTE)
    scale = most / _MOST_BYTE
    return torch.cat([rounded.to(torch.int8), scale.view(torch.int8)], dim=-1)


def unpacked(rows: torch.Tensor) -> torch.Tensor:
    """Rows of a cache as floats."""
    if rows.dtype != torch.int8:
        return rows.to(torch.float32)
    scale = rows[..., -SCALE_BYTES:].contiguous().view(torch.float32)
    return rows[..., :-SCALE_BYTES].to(torch.float32) * scale


def packed_size(size: int, bits: int) -> int:
    """How many elements a row of so many numbers has in a cache."""
    return size + SCALE_BYTES if bits == 8 else size


@dataclass(frozen=True)
class Places:
    """The places of a layer in one call of a method.

    Attributes:
        written: For each buffer, those that the call's tokens get, int64 of shape (S,).
        held: The position that is in each place that the attention looks at, float of shape (N,),
            the buffers one after the other. Where there is none, it is later than any token's.
    """

    written: tuple[torch.Tensor, ...]
    held: torch.Tensor


def bounds_of(context: int, *, fixed: bool) -> tuple[int, ...]:
    """Where the segments of a cache end: each at four times as many positions as the one before.

    The attention's cost follows the number of positions that a method looks at; each more method is
    lowered on its own, with all layers. There are fewer of `fixed` sizes.
    """
    bounds = [context]
    most = _MOST_FIXED if fixed else _MOST
    while bounds[0] // _STEP >= _LEAST and len(bounds) < most:
        bounds.insert(0, bounds[0] // _STEP)
    return tuple(bounds)


class Segments:
    """The segments of a cache.

    Where there are several, each has one place more than positions: calls write all of their tokens
    to every segment, and those of other segments go there. ExecuTorch shares a buffer between
    methods only if all of them write to it.
    """

    def __init__(self, bounds: Sequence[int]) -> None:
        self.bounds = tuple(bounds)
        self.spare = 1 if len(self.bounds) > 1 else 0
        self.ranges = tuple(pairwise((0, *self.bounds)))

    @property
    def places(self) -> tuple[int, ...]:
        """Of each segment, the length of its buffers."""
        return tuple(end - start + self.spare for start, end in self.ranges)

    def held(self) -> torch.Tensor:
        """The position in each place of all segments, float."""
        spare = torch.full((self.spare,), NEVER)
        each = (torch.arange(a, b, dtype=torch.float32) for a, b in self.ranges)
        return torch.cat([torch.cat([positions, spare]) for positions in each])

    def tables(self) -> tuple[torch.Tensor, ...]:
        """For each segment, the place of each position, int64; none where there is one segment.

        ExecuTorch's remainder of a negative number is negative, so a place is looked up.
        """
        positions = torch.arange(self.bounds[-1])
        tables = []
        for start, end in self.ranges if self.spare else ():
            inside = (start <= positions) & (positions < end)
            tables.append(torch.where(inside, positions - start, end - start))
        return tuple(tables)

    def up_to(self, end: int) -> int:
        """How many segments have the positions before `end`."""
        return 1 + sum(bound < end for bound in self.bounds)


@dataclass(frozen=True)
class TokenWindow:
    """What tokens see in layers whose attention the model leaves whole.

    Attributes:
        size: How many positions a token sees, itself the last.
        sinks: The first positions, which every token sees besides (Xiao et al., Efficient streaming
            language models with attention sinks, 2023).
    """

    size: int
    sinks: int


# The attribute of a model's configuration by which its attention finds the window.
_WINDOW = "etdeploy_window"


def set_window(model: Any, window: TokenWindow | None) -> None:
    """Lets the model's replaced attention see a window.

    Raises UnsupportedModelError for a model whose layers are not all of full attention.
    """
    if window is None:
        return
    others = sorted({*_layer_kinds(model)[0]} - {_FULL})
    if others or own_state(model):
        kinds = ", ".join(others) or "a recurrent state"
        raise UnsupportedModelError(f"it has layers of another kind ({kinds})")
    setattr(model.config.get_text_config(decoder=True), _WINDOW, window)


def window_in(config: Any) -> TokenWindow | None:
    """The window that `set_window` set; None for none."""
    found: TokenWindow | None = getattr(config, _WINDOW, None)
    return found


_FULL, _SLIDING = "full_attention", "sliding_attention"
_ATTENTION = (_FULL, _SLIDING)
# transformers' names of layers with a state of all tokens, the second with attention beside it.
_HYBRID = "hybrid"
_RECURRENT = ("linear_attention", _HYBRID)
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
        if bits := _BITS.get(buffers[0].dtype):
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


class OwnState(Protocol):
    """Where a family of models keeps states outside of transformers' cache."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """Of the family's layers, those with keys and values in transformers' cache."""

    def initial(self, model: Any) -> Sequence[torch.Tensor]:
        """The states before the first token."""

    def given(self, model: Any, states: Sequence[torch.Tensor]) -> Any:
        """Hand the model the states, and return its argument for them; None where it has none."""

    def after(self, model: Any, given: Any) -> Sequence[torch.Tensor]:
        """The states after a call, in which the model may have written to those before it."""


class _RwkvState:
    """RWKV's argument `state`: five tensors of all layers, each of shape (layers, 1, d) here."""

    kinds = ()
    # The last is the logarithm by which numerator and denominator are scaled.
    _FIRST = (0.0, 0.0, 0.0, 0.0, -1e30)

    def initial(self, model: Any) -> Sequence[torch.Tensor]:
        shape = (model.config.num_hidden_layers, 1, model.config.hidden_size)
        return [torch.full(shape, value) for value in self._FIRST]

    def given(self, model: Any, states: Sequence[torch.Tensor]) -> Any:
        return [_Columns(list(state)) for state in states]

    def after(self, model: Any, given: Any) -> Sequence[torch.Tensor]:
        return [torch.stack(columns.layers) for columns in given]


@dataclass(frozen=True)
class _Columns:
    """Stands for a tensor that is read and written as `state[:, :, layer]`, without copying it."""

    layers: list[torch.Tensor]

    def __getitem__(self, index: tuple[slice, slice, int]) -> torch.Tensor:
        return self.layers[index[-1]]

    def __setitem__(self, index: tuple[slice, slice, int], value: torch.Tensor) -> None:
        self.layers[index[-1]] = value


class _XlstmState:
    """The tensors of xLSTM's own cache, three for each layer."""

    kinds = ()

    def initial(self, model: Any) -> Sequence[torch.Tensor]:
        from transformers.models.xlstm.modeling_xlstm import xLSTMCache

        return self.after(model, xLSTMCache(model.config, 1, dtype=torch.float32))

    def given(self, model: Any, states: Sequence[torch.Tensor]) -> Any:
        count = len(states) // model.config.num_hidden_layers
        each = {i: tuple(states[count * i : count * (i + 1)]) for i in range(len(states) // count)}
        return SimpleNamespace(rnn_state=each, seqlen_offset=0)

    def after(self, model: Any, given: Any) -> Sequence[torch.Tensor]:
        return [state for layer in given.rnn_state.values() for state in layer]


class _RecurrentGemmaState:
    """Attributes of RecurrentGemma's layers, beside a cache for those with attention."""

    kinds = (_SLIDING,)

    def initial(self, model: Any) -> Sequence[torch.Tensor]:
        model._setup_cache(model.config, 1, None, torch.float32)
        return self.after(model, None)

    def given(self, model: Any, states: Sequence[torch.Tensor]) -> Any:
        for owner, name, state in zip(*self._places(model), states, strict=True):
            setattr(owner, name, state)

    def after(self, model: Any, given: Any) -> Sequence[torch.Tensor]:
        owners, names = self._places(model)
        states = [getattr(owner, name) for owner, name in zip(owners, names, strict=True)]
        for owner, name in zip(owners, names, strict=True):
            setattr(owner, name, None)  # torch.export refuses tensors that are left in attributes
        return states

    @staticmethod
    def _places(model: Any) -> tuple[list[Any], list[str]]:
        blocks = [layer.temporal_block for layer in model.model.layers]
        recurrent = [block for block in blocks if hasattr(block, "rg_lru")]
        owners = [owner for block in recurrent for owner in (block, block.rg_lru)]
        return owners, ["conv1d_state", "recurrent_states"] * len(recurrent)


_FAMILIES: tuple[OwnState, ...] = (_RecurrentGemmaState(), _RwkvState(), _XlstmState())
_OWN_STATES = dict(zip(OWN_STATES, _FAMILIES, strict=True))


def own_state(model: Any) -> OwnState | None:
    """That of a model which has states outside of transformers' cache; None for others."""
    return _OWN_STATES.get(model.config.model_type)


def _layer_kinds(model: Any) -> tuple[list[str], list[dict[str, Any]]]:
    """The names that transformers has for the layers, with options of each."""
    kinds, options = get_layer_types_and_kwargs(model.config.get_text_config(decoder=True))
    if own := own_state(model):
        kinds = [kind if kind in own.kinds else "dummy" for kind in kinds]
    return kinds, options


class Buffers(torch.nn.Module):  # type: ignore[misc]
    """The buffers of all layers. Methods share the object, so that names and tensors agree.

    With `llama`, ExecuTorch's operators of that namespace write those of layers without a window.
    Keys and values have so many `bits`; less than 32 are for etdeploy's kernel.
    """

    def __init__(
        self,
        model: Any,
        examples: Sequence[Any],
        bounds: Sequence[int],
        most_tokens: int,
        *,
        llama: bool = False,
        bits: int = 32,
    ) -> None:
        super().__init__()
        self.llama, self.bits = llama, bits
        self.segments = Segments(bounds)
        self.capacity = capacity = bounds[-1]
        kinds, options = _layer_kinds(model)
        own = own_state(model)
        window = window_in(model.config.get_text_config(decoder=True))
        if window:
            kinds = [_SLIDING for _ in kinds]
        self.kinds, self.own = tuple(kinds), own
        self.has_state = own is not None or any(kind in _RECURRENT for kind in kinds)
        each = zip(kinds, options, strict=True)
        windows = [option.get("sliding_window") for kind, option in each if kind == _SLIDING]
        if window:
            windows = [window.size]
        self.ring = ring_of(windows, capacity, most_tokens, window.sinks if window else 0)
        if self.ring:
            self.register_buffer("slots", torch.arange(capacity, dtype=torch.float32))
        self.register_buffer("held", self.segments.held())
        for number, table in enumerate(self.segments.tables()):
            self.register_buffer(f"places_{number}", table)
        for index, (kind, layer) in enumerate(zip(kinds, examples, strict=True)):
            if kind not in (*_ATTENTION, *_RECURRENT, "conv", "dummy"):
                raise UnsupportedModelError(f"it has layers of the kind {kind}")
            if kind in (*_ATTENTION, _HYBRID):
                self._keep(f"key_{index}", layer.keys, kind)
                self._keep(f"value_{index}", layer.values, kind)
            if kind in (*_RECURRENT, "conv"):
                self._keep_states(index, kind, layer)
        initial = own.initial(model) if own else ()
        self.initial = [float(state.flatten()[0]) for state in initial]
        for number, state in enumerate(initial):
            self.register_buffer(f"own_{number}", state.clone())

    def _keep(self, name: str, example: torch.Tensor, kind: str) -> None:
        _, heads, _, size = example.shape
        for number, places in enumerate(self._places(kind)):
            by_place = self.llama and kind == _FULL
            row = packed_size(size, self.bits)
            shape = (1, places, heads, size) if by_place else (heads, places, row)
            dtype = PACKED.get(self.bits, torch.float32)
            self.register_buffer(f"{name}_{number}", torch.zeros(shape, dtype=dtype))

    def _keep_states(self, index: int, kind: str, example: Any) -> None:
        if example.number_of_states != 1 or example.conv_states[0] is None:
            raise UnsupportedModelError("its layers have several states, or none of a convolution")
        channels, back = example.conv_states[0].shape[1:]
        self.register_buffer(f"inputs_{index}", torch.zeros(self.capacity + back, channels))
        if kind in _RECURRENT:
            state = torch.zeros_like(example.recurrent_states[0], dtype=torch.float32)
            self.register_buffer(f"state_{index}", state)

    def _places(self, kind: str) -> tuple[int, ...]:
        """Of a layer's buffers."""
        return (self.ring.places,) if self.ring and kind == _SLIDING else self.segments.places

    def layers(
        self,
        positions: torch.Tensor,
        prefix: int,
        *,
        batched: bool,
        ends: torch.Tensor | None = None,
        start: Any = None,
    ) -> Cache:
        """What the model is called with."""
        whole = self._in_segments(positions, prefix)
        sliding = self.ring.at(positions, self.slots, prefix) if self.ring else whole
        step = CachePositions(positions, whole, sliding, batched, ends, start)
        return Cache(layers=[self._layer(i, kind, step) for i, kind in enumerate(self.kinds)])

    def given(self, model: Any, positions: torch.Tensor, cache: Cache) -> Any:
        """The cache argument: a cache of transformers, or the states as the model expects them."""
        if self.own is None:
            return cache
        begun = torch.clamp(positions[:1].to(torch.float32), max=1.0)
        states = []
        for number, value in enumerate(self.initial):
            state = getattr(self, f"own_{number}") * begun
            states.append(state + value * (1 - begun) if value else state)
        own = self.own.given(model, states)
        return cache if own is None else own

    def store(self, model: Any, given: Any) -> None:
        """Writes the states after a call to the buffers."""
        for layer in getattr(given, "layers", ()):
            if isinstance(layer, RecurrentLayer):
                layer.store()
        for number, state in enumerate(self.own.after(model, given) if self.own else ()):
            getattr(self, f"own_{number}").copy_(state)

    def _in_segments(self, positions: torch.Tensor, prefix: int) -> Places:
        count = self.segments.up_to(prefix)
        if not self.segments.spare:
            return Places((positions,), _first(self.held, prefix))
        tables = (getattr(self, f"places_{number}") for number in range(count))
        written = tuple(table.index_select(0, positions) for table in tables)
        return Places(written, _first(self.held, sum(self.segments.places[:count])))

    def _layer(self, index: int, kind: str, step: CachePositions) -> Any:
        if kind == "dummy":
            return DummyLayer()
        if kind in _ATTENTION:
            made = LlamaLayer if self.llama and kind == _FULL else AttentionLayer
            return made(*self._keys_and_values(index, kind, step), step, sliding=kind == _SLIDING)
        rows = getattr(self, f"inputs_{index}")
        back = rows.shape[0] - self.capacity
        if kind == "conv":
            return ConvolutionLayer(rows, back, step)
        state = getattr(self, f"state_{index}")
        if kind == _HYBRID:
            return HybridLayer(*self._keys_and_values(index, kind, step), rows, back, state, step)
        return RecurrentLayer(rows, back, state, step)

    def _keys_and_values(self, index: int, kind: str, step: CachePositions) -> tuple[Parts, Parts]:
        """Keys and values of a layer, in segments."""
        count = len((step.sliding if kind == _SLIDING else step.whole).written)
        keys, values = (
            tuple(getattr(self, f"{name}_{index}_{k}") for k in range(count))
            for name in ("key", "value")
        )
        return keys, values


def _first(held: torch.Tensor, places: int) -> torch.Tensor:
    return held if places == held.shape[0] else held[:places]


def probed(model: Any) -> list[Any]:
    """The layers of a cache after one token, whose shapes no configuration tells of every model.

    The model has its own attention for this.
    """
    cache = DynamicCache(config=model.config)
    own = own_state(model)
    if own and not own.kinds:
        return list(cache.layers)
    tokens = torch.zeros(1, 1, dtype=torch.int64)
    with torch.no_grad():
        model(input_ids=tokens, use_cache=True, **{cache_argument(model): cache})
    return list(cache.layers)


def cache_argument(model: Any) -> str:
    """What a model calls its cache, as an argument and in its outputs."""
    takes = inspect.signature(model.forward).parameters
    return next((name for name in ("cache_params", "state") if name in takes), "past_key_values")


def has_attention(model: Any) -> bool:
    """Whether any of its layers looks at earlier tokens, and not at a state of them alone."""
    return any(kind in (*_ATTENTION, _HYBRID) for kind in _layer_kinds(model)[0])


# The columns of XNNPACK's products are packed in blocks of up to 32; any more, and a block is full.
_BLOCK = 64


@dataclass(frozen=True)
class Ring:
    """The places of a sliding layer, of which a token gets the one of its position modulo `places`.

    A call writes all of its tokens before any of them looks back, so there are more than the window
    has. What is beyond that allows to set the position back. Sinks have places before the ring.

    Attributes:
        places: Their number, with those of sinks.
        window: How many positions a token sees, itself the last.
        sinks: The first positions, which are never overwritten.
    """

    places: int
    window: int
    sinks: int = 0

    @property
    def turn(self) -> int:
        """After how many positions a place is used again."""
        return self.places - self.sinks

    @property
    def rewind(self) -> int:
        """How far the position may be set back from the end of what was written.

        From the end e back to b: the token at b sees from b - window + 1 on, and what is left
        begins at e - turn.
        """
        return self.turn - self.window + 1

    def at(self, positions: torch.Tensor, slots: torch.Tensor, end: int) -> Places:
        """Where tokens go, and what is in each place once they are there.

        In floats, so that XNNPACK computes `held`. With half a place added, a quotient's rounding
        cannot move it across a whole number.
        """
        if end <= self.places:
            return Places((positions,), slots[:end])
        ahead = positions[-1:].to(torch.float32) - slots[self.sinks : self.places]
        rounds = torch.floor((ahead + 0.5) / self.turn)
        held = slots[: self.turn] + rounds * self.turn
        empty = torch.clamp(held, -1.0, 0.0)
        held = held - empty * NEVER
        if not self.sinks:
            return Places((positions % self.turn,), held)
        beyond = positions - self.sinks
        written = beyond.clamp(min=0) % self.turn + beyond.clamp(max=0) + self.sinks
        return Places((written,), torch.cat([slots[: self.sinks], held + self.sinks]))


def ring_of(
    windows: Sequence[int | None], capacity: int, most_tokens: int, sinks: int = 0
) -> Ring | None:
    """The ring of a model's sliding layers."""
    window = windows[0] if len(set(windows)) == 1 else None
    if window is None:
        return None
    needed = window + most_tokens - 1
    places = sinks + -(-needed // _BLOCK) * _BLOCK
    return Ring(places, window, sinks) if places < capacity else None


PositionTable = Literal["rope", "ends"]
_ROWS: dict[PositionTable | None, int] = {None: 0, "rope": 3, "ends": 1}


class EmbeddedLanguageModel(torch.nn.Module):  # type: ignore[misc]
    """The language model in a model of several modalities, called as one of transformers.

    Its methods take embeddings in place of tokens, and `embeddings` gives those.

    Attributes:
        table: What the methods take of each token after the position, int64: `rope` three positions
            for the rotary embedding, of shape (3, S); `ends` the last position that it sees, of
            shape (1, S). None for nothing, where both are the token's own position.
    """

    def __init__(self, model: Any, table: PositionTable | None = None) -> None:
        super().__init__()
        self.table = table
        self.decoder, self.head = model.get_decoder(), model.get_output_embeddings()
        self.embeddings = model.get_input_embeddings()
        self.config = self.decoder.config

    def forward(self, *, logits_to_keep: int = 0, **inputs: Any) -> CausalLMOutputWithPast:
        """The logits of the last tokens, or of all."""
        out = self.decoder(**inputs)
        logits = self.head(out.last_hidden_state[:, -logits_to_keep:])
        return CausalLMOutputWithPast(logits=logits, past_key_values=out.past_key_values)

    def get_output_embeddings(self) -> torch.nn.Module:
        """The layer that gives logits."""
        return self.head

    def set_attn_implementation(self, name: str) -> None:
        """Replaces the attention of the language model alone."""
        self.decoder.set_attn_implementation(name)

    def _can_set_attn_implementation(self) -> bool:
        return bool(self.decoder._can_set_attn_implementation())


def takes_last_only(model: Any) -> bool:
    """Whether a model can be asked for the logits after the last token alone."""
    return "logits_to_keep" in inspect.signature(model.forward).parameters


class CachePrefixMethod(torch.nn.Module):  # type: ignore[misc]
    """A method that looks at the first positions of the cache.

    One that `verifies` takes, as its last input, the tokens whose logits it gives.
    """

    def __init__(
        self, model: Any, cache: Buffers, prefix: int, *, batched: bool, verifies: bool = False
    ) -> None:
        super().__init__()
        self.model, self.cache, self.prefix, self.batched = model, cache, prefix, batched
        takes = inspect.signature(model.forward).parameters
        self.keeps, self.verifies = takes_last_only(model), verifies
        embedded = isinstance(model, EmbeddedLanguageModel)
        self.named, self.numbered = cache_argument(model), embedded or "position_ids" in takes
        self.takes = "inputs_embeds" if embedded else "input_ids"
        self.table = model.table if embedded else None

    def forward(
        self, tokens: torch.Tensor, position: torch.Tensor, *further: torch.Tensor
    ) -> torch.Tensor:
        """The logits of the last token, or of those that the last input names.

        `tokens` are ids, or embeddings of shape (1, S, d), and then there may be a table of
        positions.
        """
        table: Sequence[torch.Tensor] = further
        rows: torch.Tensor | int = 1
        if self.verifies:
            *table, rows = further
        length = tokens.shape[1]
        positions = position if length == 1 else position + torch.arange(length)
        turned = table[0].unsqueeze(1) if self.table == "rope" else positions.unsqueeze(0)
        ends = table[0][0] if self.table == "ends" else None
        start = self._start(position, length) if self.cache.llama else None
        cache = self.cache.layers(
            positions, self.prefix, batched=self.batched, ends=ends, start=start
        )
        cache = self.cache.given(self.model, positions, cache)
        given = {self.takes: tokens, self.named: cache}
        if self.keeps:
            given["logits_to_keep"] = rows
        if self.numbered:
            given["position_ids"] = turned
        out = self.model(**given, use_cache=True)
        self.cache.store(self.model, cache)
        if not self.verifies:
            return out.logits[:, -1:, :].squeeze(1)
        return out.logits if self.keeps else out.logits[:, rows, :]

    def _start(self, position: torch.Tensor, length: int) -> Any:
        start = position.item()
        torch._check(start >= 0)
        torch._check(start + length <= self.prefix)
        return start


def inputs_at(model: Any, tokens: torch.Tensor, position: int) -> tuple[torch.Tensor, ...]:
    """What a model's methods take for token ids of shape (1, S), the first at a position."""
    start = torch.tensor([position])
    if not isinstance(model, EmbeddedLanguageModel):
        return tokens, start
    with torch.no_grad():
        embedded = model.embeddings(tokens)
    if model.table is None:
        return embedded, start
    table = torch.arange(position, position + tokens.shape[1]).repeat(_ROWS[model.table], 1)
    return embedded, start, table


def plain_embeddings(model: Any) -> None:
    """Takes the index of padding from embeddings, with which ExecuTorch knows no quantized one.

    It concerns gradients only.
    """
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):
            module.padding_idx = None


def methods_for(
    context: int,
    prefill_tokens: int,
    *,
    attention: Attention = "stock",
    fixed: bool = False,
    layout: Layout = "etdeploy",
    verify_tokens: int = 0,
) -> tuple[GenerationMethod, ...]:
    """The methods of a program with a cache of so many positions.

    With `verify_tokens`, those of prompts can give the logits of so many tokens.

    The stock attention's cost follows a method's capacity, so there are several for each role: of
    2048 positions, those of 128, 512 and 2048, or 512 and 2048 if sizes are `fixed`. The kernel's
    follows the position. ExecuTorch's own runner has one method for all calls.
    """
    if layout == "executorch":
        return (forward_method(context, 1 if fixed else min(prefill_tokens, context)),)
    bounds = (context,) if attention == "kernel" else bounds_of(context, fixed=fixed)
    tokens = min(prefill_tokens, context)
    return tuple(_methods(bounds, tokens, fixed, 0 if fixed else min(verify_tokens, tokens)))


def forward_method(context: int, tokens: int) -> GenerationMethod:
    """The one that ExecuTorch's own runner calls."""
    return GenerationMethod(
        name=FORWARD,
        role="prefill" if tokens > 1 else "decode",
        max_tokens=tokens,
        dynamic=tokens > 1,
        capacity=context,
    )


def _methods(
    bounds: Sequence[int], tokens: int, fixed: bool, verify_tokens: int
) -> Iterator[GenerationMethod]:
    roles: tuple[tuple[Literal["prefill", "decode"], int], ...] = (
        ("prefill", tokens),
        ("decode", 1),
    )
    for role, most in roles:
        for capacity in bounds:
            if capacity < most:
                continue
            yield GenerationMethod(
                name=role if capacity == bounds[-1] else f"{role}_{capacity}",
                role=role,
                max_tokens=most,
                dynamic=role == "prefill" and not fixed,
                capacity=capacity,
                verify_tokens=verify_tokens if role == "prefill" else 0,
            )


def source_of(
    method: GenerationMethod, model: Any, cache: Buffers, *, batched: bool
) -> MethodSource:
    """What the method is traced from."""
    most, length = method.verify_tokens, method.max_tokens
    module = CachePrefixMethod(model, cache, method.capacity, batched=batched, verifies=most > 0)
    # All kinds of tokens: of one alone, attention gives the same at every position.
    tokens = torch.arange(length).unsqueeze(0) % model.config.vocab_size
    # Two rows: torch.export takes a length of one as fixed.
    rows = (torch.arange(length)[-2:],) if most else ()
    inputs = ExampleInputs((*inputs_at(model, tokens, 0), *rows))
    shapes: Any = None
    if method.dynamic:
        # A method for all calls takes single tokens, too; else there is another one for these.
        least = 1 if method.name == FORWARD else 2
        tokens_of = {1: torch.export.Dim("tokens", min=least, max=length)}
        further: tuple[Any, ...] = tuple(tokens_of for _ in inputs.args[2:])
        if most:
            further = (*further[:-1], {0: torch.export.Dim("rows", min=1, max=most)})
        shapes = (tokens_of, None, *([further] if further else ()))
    return MethodSource(module.eval(), inputs, shapes, is_text=True)
