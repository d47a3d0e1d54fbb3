"""The buffers of a program that generates text, which its methods share."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache, DummyLayer, DynamicCache, get_layer_types_and_kwargs

from etdeploy.export.worker.failures import UnsupportedModelError
from etdeploy.export.worker.language.cache_layers import (
    ATTENTION,
    FULL,
    HYBRID,
    RECURRENT,
    SLIDING,
    AttentionLayer,
    CachePositions,
    ConvolutionLayer,
    HybridLayer,
    LlamaLayer,
    Parts,
    RecurrentLayer,
)
from etdeploy.export.worker.language.cache_places import (
    PACKED,
    Places,
    Segments,
    TokenWindow,
    packed_size,
    ring_of,
)
from etdeploy.export.worker.language.own_states import own_state

# The attribute of a model's configuration by which its attention finds the window.
_WINDOW = "etdeploy_window"


def set_window(model: Any, window: TokenWindow | None) -> None:
    """Lets the model's replaced attention see a window.

    Raises UnsupportedModelError for a model whose layers are not all of full attention.
    """
    if window is None:
        return
    others = sorted({*_layer_kinds(model)[0]} - {FULL})
    if others or own_state(model):
        kinds = ", ".join(others) or "a recurrent state"
        raise UnsupportedModelError(f"it has layers of another kind ({kinds})")
    setattr(model.config.get_text_config(decoder=True), _WINDOW, window)


def window_in(config: Any) -> TokenWindow | None:
    """The window that `set_window` set; None for none."""
    found: TokenWindow | None = getattr(config, _WINDOW, None)
    return found


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
            kinds = [SLIDING for _ in kinds]
        self.kinds, self.own = tuple(kinds), own
        self.has_state = own is not None or any(kind in RECURRENT for kind in kinds)
        each = zip(kinds, options, strict=True)
        windows = [option.get("sliding_window") for kind, option in each if kind == SLIDING]
        if window:
            windows = [window.size]
        self.ring = ring_of(windows, capacity, most_tokens, window.sinks if window else 0)
        if self.ring:
            self.register_buffer("slots", torch.arange(capacity, dtype=torch.float32))
        self.register_buffer("held", self.segments.held())
        for number, table in enumerate(self.segments.tables()):
            self.register_buffer(f"places_{number}", table)
        for index, (kind, layer) in enumerate(zip(kinds, examples, strict=True)):
            if kind not in (*ATTENTION, *RECURRENT, "conv", "dummy"):
                raise UnsupportedModelError(f"it has layers of the kind {kind}")
            if kind in (*ATTENTION, HYBRID):
                self._keep(f"key_{index}", layer.keys, kind)
                self._keep(f"value_{index}", layer.values, kind)
            if kind in (*RECURRENT, "conv"):
                self._keep_states(index, kind, layer)
        initial = own.initial(model) if own else ()
        self.initial = [float(state.flatten()[0]) for state in initial]
        for number, state in enumerate(initial):
            self.register_buffer(f"own_{number}", state.clone())

    def _keep(self, name: str, example: torch.Tensor, kind: str) -> None:
        _, heads, _, size = example.shape
        for number, places in enumerate(self._places(kind)):
            by_place = self.llama and kind == FULL
            row = packed_size(size, self.bits)
            shape = (1, places, heads, size) if by_place else (heads, places, row)
            dtype = PACKED.get(self.bits, torch.float32)
            self.register_buffer(f"{name}_{number}", torch.zeros(shape, dtype=dtype))

    def _keep_states(self, index: int, kind: str, example: Any) -> None:
        if example.number_of_states != 1 or example.conv_states[0] is None:
            raise UnsupportedModelError("its layers have several states, or none of a convolution")
        channels, back = example.conv_states[0].shape[1:]
        self.register_buffer(f"inputs_{index}", torch.zeros(self.capacity + back, channels))
        if kind in RECURRENT:
            state = torch.zeros_like(example.recurrent_states[0], dtype=torch.float32)
            self.register_buffer(f"state_{index}", state)

    def _places(self, kind: str) -> tuple[int, ...]:
        """Of a layer's buffers."""
        return (self.ring.places,) if self.ring and kind == SLIDING else self.segments.places

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
        if kind in ATTENTION:
            made = LlamaLayer if self.llama and kind == FULL else AttentionLayer
            return made(*self._keys_and_values(index, kind, step), step, sliding=kind == SLIDING)
        rows = getattr(self, f"inputs_{index}")
        back = rows.shape[0] - self.capacity
        if kind == "conv":
            return ConvolutionLayer(rows, back, step)
        state = getattr(self, f"state_{index}")
        if kind == HYBRID:
            return HybridLayer(*self._keys_and_values(index, kind, step), rows, back, state, step)
        return RecurrentLayer(rows, back, state, step)

    def _keys_and_values(self, index: int, kind: str, step: CachePositions) -> tuple[Parts, Parts]:
        """Keys and values of a layer, in segments."""
        count = len((step.sliding if kind == SLIDING else step.whole).written)
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
    return any(kind in (*ATTENTION, HYBRID) for kind in _layer_kinds(model)[0])
