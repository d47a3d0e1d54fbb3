"""The methods of a program whose keys and values are inputs and outputs, not buffers.

For backends that keep no state between calls, as the HTP: every tensor has one size, and what a
token sees is said by a mask. `program/generation.py` has the contract (`StaticCache`).
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache, CacheLayerMixin, get_layer_types_and_kwargs
from transformers.masking_utils import causal_mask_function

from etdeploy.export.worker.failures import UnsupportedModelError
from etdeploy.export.worker.language.attention import refuse_tensors, require_causal
from etdeploy.export.worker.loading.source import MethodSource
from etdeploy.export.worker.lowering.scales import MEAN_SQUARES, Activations
from etdeploy.export.worker.tracing.structure import ExampleInputs
from etdeploy.program.generation import GenerationMethod, StaticCache
from etdeploy.recipe.sections.export import GenerationMode

STATIC = "etdeploy_static"
# Small enough that exp() makes it zero beside any score, and no larger than that: in a quantized
# model, a mask's range is part of that of the scores. ExecuTorch's static LLaMA has the same.
MASKED = -255.0
# Steps of a softmax in 8 bits: what is masked comes to less than one, all of it together.
_STEPS = 256
_FULL, _SLIDING = "full_attention", "sliding_attention"


def register() -> None:
    """Makes the attention known to transformers."""
    AttentionInterface.register(STATIC, static_attention)
    AttentionMaskInterface.register(STATIC, given_mask)


def static_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: tuple[torch.Tensor, torch.Tensor],
    value: tuple[torch.Tensor, torch.Tensor],
    attention_mask: torch.Tensor,
    scaling: float | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """The attention over earlier keys and values and those of the call.

    With as many heads of keys as of queries, which is what ExecuTorch's pass `ConvertMhaToSha`
    splits: each head then reads the keys of its group, and nothing is repeated.
    """
    refuse_tensors(module, others)
    if not isinstance(key, tuple):
        raise UnsupportedModelError(
            "its attention changes keys or values after they are in the cache"
        )
    keys, values = torch.cat(key, dim=3), torch.cat(value, dim=2)
    scores = _scores(query, keys, scaling, softcap)
    weights = torch.softmax(scores + attention_mask, dim=-1)
    repeats = query.shape[1] // values.shape[1]
    return torch.matmul(weights, _repeated(values, repeats)).transpose(1, 2), None


def _scores(
    query: torch.Tensor, keys: torch.Tensor, scaling: float | None, softcap: float | None
) -> torch.Tensor:
    """Of shape (1, heads, S, places + S), without the mask."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = torch.matmul(query * scale, _repeated(keys, query.shape[1] // keys.shape[1]))
    return scores if softcap is None else torch.tanh(scores / softcap) * softcap


def _repeated(heads: torch.Tensor, repeats: int) -> torch.Tensor:
    """Each head of (1, heads, a, b) several times, as `ConvertMhaToSha` knows it."""
    if repeats == 1:
        return heads
    _, count, a, b = heads.shape
    return heads.unsqueeze(2).expand(1, count, repeats, a, b).reshape(1, count * repeats, a, b)


def given_mask(
    q_length: int,
    kv_offset: torch.Tensor,
    mask_function: Any = causal_mask_function,
    attention_mask: torch.Tensor | None = None,
    local_size: int | None = None,
    use_vmap: bool = False,
    **_: Any,
) -> torch.Tensor:
    """The mask of the method's inputs, which a layer hands over in place of an offset."""
    require_causal(mask_function, attention_mask, local_size, use_vmap)
    return kv_offset


class StaticLayer(CacheLayerMixin):  # type: ignore[misc]
    """Keys of shape (1, heads, d, places) and values of (1, heads, places, d) of earlier tokens.

    Keys are transposed, as the product of queries and keys takes them: the HTP would transpose the
    whole cache for each token.
    """

    is_compileable = True

    def __init__(
        self, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, sliding: bool
    ) -> None:
        super().__init__()
        self.keys, self.values, self.mask, self.is_sliding = keys, values, mask, sliding
        self.new: tuple[torch.Tensor, ...] = ()
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
        """Gives earlier and new keys and values, not joined."""
        self.new = (key_states.transpose(2, 3), value_states)
        return (self.keys, self.new[0]), (self.values, self.new[1])

    def get_mask_sizes(self, query_length: int) -> tuple[int, torch.Tensor]:
        """How many positions the attention looks at, and the mask."""
        return int(self.mask.shape[3]), self.mask

    def get_seq_length(self) -> int:
        """Nothing that counts: the mask is there, and positions are inputs."""
        return 0

    def get_max_length(self) -> int:
        return int(self.values.shape[2])

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing: the tensors are there."""


class RotaryTable(torch.nn.Module):  # type: ignore[misc]
    """A rotary embedding as tables of all positions.

    Computed from the position, its angles would be products of 16-bit numbers on the HTP.
    """

    def __init__(self, rotary: torch.nn.Module, positions: int) -> None:
        super().__init__()
        self._original = (rotary,)  # in a tuple, so that its buffers are not this module's
        self._positions = positions
        self._kinds: list[Any] = []

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor, *kind: Any) -> Any:
        """Cosines and sines, each of shape (1, S, d)."""
        if kind not in self._kinds:
            self._add(x, kind)
        index = self._kinds.index(kind)
        return tuple(getattr(self, f"{name}_{index}")[position_ids] for name in ("cos", "sin"))

    def _add(self, x: torch.Tensor, kind: tuple[Any, ...]) -> None:
        positions = torch.arange(self._positions).unsqueeze(0)
        with torch.no_grad():
            tables = self._original[0](x, positions, *kind)
        for name, table in zip(("cos", "sin"), tables, strict=True):
            self.register_buffer(f"{name}_{len(self._kinds)}", table[0].clone())
        self._kinds.append(kind)


def _rotary_embeddings(model: Any) -> list[tuple[torch.nn.Module, str, torch.nn.Module]]:
    return [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if hasattr(child, "rope_type")
    ]


# Whose angles do not depend on how long the text is.
_FIXED_ANGLES = frozenset({"default", "linear", "llama3", "yarn"})


def use_rotary_tables(model: Any, context: int) -> None:
    """Looks rotary embeddings up that depend on the position alone."""
    for parent, name, child in _rotary_embeddings(model):
        kinds = child.rope_type
        if _FIXED_ANGLES.issuperset(kinds.values() if isinstance(kinds, dict) else [kinds]):
            setattr(parent, name, RotaryTable(child, context))


@contextmanager
def static_parts(model: Any, context: int) -> Iterator[None]:
    """Replaces the model's attention and rotary embeddings; puts them back if the block raises."""
    own = model.config._attn_implementation
    rotary = _rotary_embeddings(model)
    for parent, name, child in rotary:
        setattr(parent, name, RotaryTable(child, context))
    try:
        model.set_attn_implementation(STATIC)
        yield
    except BaseException:
        for parent, name, child in rotary:
            setattr(parent, name, child)
        model.set_attn_implementation(own)
        raise


class Pointwise(torch.nn.Module):  # type: ignore[misc]
    """A linear layer as a convolution with a kernel of 1 x 1.

    The HTP computes these faster, blocks of weights are right in them alone, and `ConvertMhaToSha`
    knows projections by them. ExecuTorch's pass that converts linear layers runs after values got
    their ranges, and loses those by the names of operators.
    """

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None, squares: torch.Tensor | None
    ) -> None:
        super().__init__()
        out, into = weight.shape
        with torch.device("meta"):
            self.conv = torch.nn.Conv2d(into, out, 1, bias=bias is not None)
        self.conv.weight = torch.nn.Parameter(weight.detach().reshape(out, into, 1, 1))
        setattr(self.conv.weight, MEAN_SQUARES, squares)
        self.conv.bias = None if bias is None else torch.nn.Parameter(bias.detach())

    @property
    def weight(self) -> torch.Tensor:
        """Of shape (outputs, inputs, 1, 1)."""
        return self.conv.weight

    @property
    def in_features(self) -> int:
        return int(self.conv.in_channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """From (1, S, inputs), or without the first dimension, to as many outputs."""
        rows = x if x.dim() == 3 else x.unsqueeze(0)
        found = self.conv(rows.unsqueeze(2).transpose(1, 3)).permute(0, 3, 1, 2).squeeze(3)
        return found if x.dim() == 3 else found.squeeze(0)


class Packed(torch.nn.Module):  # type: ignore[misc]
    """The projections of queries, keys and values that a model has as one layer.

    Apart, since `ConvertMhaToSha` splits no packed ones; `backends/qnn_placement.py` takes away the
    join and the slices.
    """

    def __init__(
        self, linear: torch.nn.Linear, sizes: Sequence[int], squares: torch.Tensor | None
    ) -> None:
        super().__init__()
        biases: Sequence[torch.Tensor | None] = [None] * len(sizes)
        if linear.bias is not None:
            biases = linear.bias.split(list(sizes))
        weights = linear.weight.split(list(sizes))
        self.parts = torch.nn.ModuleList(
            Pointwise(weight, bias, squares) for weight, bias in zip(weights, biases, strict=True)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([part(x) for part in self.parts], dim=-1)


# transformers' name of a layer with all queries, then all keys, then all values: Phi-3.
_PACKED = "qkv_proj"


def use_native_layers(model: Any, facts: StaticCache, activations: Activations) -> None:
    """Replaces layers of a model, in place, by those that the HTP has an operator for."""
    kept = {heads * size for heads, size in facts.layers}
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if norm := _rms_norm(child):
                setattr(parent, name, norm)
            if type(child) is not torch.nn.Linear:
                continue
            squares = activations.mean_squares.get(id(child))
            if name == _PACKED and len(kept) == 1:
                [keys] = kept
                sizes = (child.out_features - 2 * keys, keys, keys)
                setattr(parent, name, Packed(child, sizes, squares))
            else:
                setattr(parent, name, Pointwise(child.weight, child.bias, squares))


class StaticMethod(torch.nn.Module):  # type: ignore[misc]
    """A method of the program: its tensors are all inputs."""

    def __init__(self, model: Any, facts: StaticCache, layers: Sequence[tuple[int, bool]]) -> None:
        super().__init__()
        self.model, self.layers, self.count = model, tuple(layers), len(facts.windows)
        takes = inspect.signature(model.forward).parameters
        self.options = {"logits_to_keep": 1} if "logits_to_keep" in takes else {}

    def forward(
        self, tokens: torch.Tensor, positions: torch.Tensor, *rest: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """The logits of the last token, and the keys and values of all of the call's."""
        masks, caches = rest[: self.count], rest[self.count :]
        layers = [
            StaticLayer(caches[2 * i], caches[2 * i + 1], masks[mask], sliding)
            for i, (mask, sliding) in enumerate(self.layers)
        ]
        out = self.model(
            input_ids=tokens,
            position_ids=positions,
            past_key_values=Cache(layers=layers),
            use_cache=True,
            **self.options,
        )
        return (out.logits[:, -1], *(each for layer in layers for each in layer.new))


def _rms_norm(module: torch.nn.Module) -> torch.nn.RMSNorm | None:
    """A norm of transformers as torch's own; None for what is none.

    ExecuTorch recognizes a norm that is written out by its operators, not that of Gemma, whose
    factors are 1 + weight, and takes a later product for its end. Here, the factors are what the
    module makes of ones.
    """
    weight = getattr(module, "weight", None)
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if not type(module).__name__.endswith("RMSNorm") or not isinstance(eps, float):
        return None
    if not isinstance(weight, torch.Tensor) or weight.dim() != 1:
        return None
    norm = torch.nn.RMSNorm(len(weight), eps)
    values = torch.randn(4, len(weight), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        norm.weight.copy_(module(torch.ones(1, len(weight)))[0] * (1 + eps) ** 0.5)
        same = torch.allclose(norm(values), module(values), rtol=1e-4, atol=1e-5)
    return norm if same else None


def with_all_logits(module: Any) -> Any:
    """A traced method, with the logits of each of its tokens, of shape (1, S, vocabulary)."""
    graph = copy.deepcopy(module.graph)
    for node in list(graph.nodes):
        last = node.target in (torch.ops.aten.slice.Tensor, torch.ops.aten.select.int)
        if last and tuple(node.args[1:3]) == (1, -1):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
    return torch.fx.GraphModule(module, graph)


class StaticCalls:
    """Calls methods as the runner does: what a call's tensors are, and where its results go."""

    def __init__(self, facts: StaticCache) -> None:
        self.facts = facts
        self.caches = [
            torch.zeros(1, heads, *shape)
            for heads, size in facts.layers
            for shape in ((size, facts.places), (facts.places, size))
        ]

    def inputs(self, ids: Sequence[int], position: int, length: int) -> tuple[torch.Tensor, ...]:
        """Those of a method of `length` tokens, for some that begin at a position."""
        padding = length - len(ids)
        tokens = torch.tensor([[ids[0]] * padding + list(ids)])
        positions = torch.arange(position - padding, position + len(ids)).clamp(min=0)
        masks = (self._mask(positions, padding, window) for window in self.facts.windows)
        return tokens, positions.unsqueeze(0), *masks, *self.caches

    def _mask(self, positions: torch.Tensor, padding: int, window: int) -> torch.Tensor:
        """What each token sees: earlier positions, then the call's. Padding sees itself alone."""
        length, start = len(positions), int(positions[padding])
        held = torch.cat([torch.arange(self.facts.places), positions])
        behind = positions.unsqueeze(1) - held.unsqueeze(0)
        seen = behind >= 0
        if window:
            seen &= behind < window
        seen[:, start : self.facts.places] = False
        seen[:, self.facts.places : self.facts.places + padding] = False
        seen[:padding] = False
        seen[:, self.facts.places :] |= torch.eye(length, dtype=torch.bool)
        return torch.where(seen, 0.0, self.facts.masked)[None, None]

    def store(self, position: int, count: int, new: Sequence[torch.Tensor]) -> None:
        """Writes the keys and values of a call's tokens; the last position has no place."""
        stored = min(count, self.facts.places - position)
        for index, (cache, each) in enumerate(zip(self.caches, new, strict=True)):
            axis = 3 - index % 2
            kept = each.narrow(axis, each.shape[axis] - count, stored)
            cache.narrow(axis, position, stored).copy_(kept)


@dataclass(frozen=True)
class StaticModel:
    """A model as such methods.

    Attributes:
        layers: For each layer, which of the masks it takes, and whether it slides.
    """

    facts: StaticCache
    layers: tuple[tuple[int, bool], ...]

    def source(self, method: GenerationMethod, model: Any) -> MethodSource:
        """What a method is traced from."""
        ids = [i % model.config.vocab_size for i in range(method.max_tokens)]
        inputs = StaticCalls(self.facts).inputs(ids, 0, method.max_tokens)
        module = StaticMethod(model, self.facts, self.layers).eval()
        caches = 2 * len(self.layers)
        return MethodSource(module, ExampleInputs(inputs), is_text=True, caches=caches)


def static_model(model: Any, examples: Sequence[Any], context: int) -> StaticModel:
    """The cache of a model; `examples` are its layers after one token.

    Raises:
        UnsupportedModelError: It has other layers than those of attention.
    """
    kinds, options = get_layer_types_and_kwargs(model.config.get_text_config(decoder=True))
    if other := [kind for kind in kinds if kind not in (_FULL, _SLIDING)]:
        raise UnsupportedModelError(f"it has layers of the kind {other[0]}")
    windows = tuple(
        int(option.get("sliding_window") or 0) if kind == _SLIDING else 0
        for kind, option in zip(kinds, options, strict=True)
    )
    windows = tuple(0 if window >= context else window for window in windows)
    masks = tuple(sorted(set(windows)))
    facts = StaticCache(
        places=context - 1,
        windows=masks,
        masked=MASKED,
        layers=tuple((int(each.keys.shape[1]), int(each.keys.shape[3])) for each in examples),
    )
    of_layers = zip(map(masks.index, windows), (kind == _SLIDING for kind in kinds), strict=True)
    return StaticModel(facts, tuple(of_layers))


def static_methods(
    context: int, prefill_tokens: int, mode: GenerationMode
) -> tuple[GenerationMethod, ...]:
    """A method for prompts, which takes fewer tokens as well, and one for single tokens."""
    prefill = GenerationMethod(
        name="prefill", role="prefill", max_tokens=prefill_tokens, dynamic=True, capacity=context
    )
    decode = GenerationMethod(
        name="decode", role="decode", max_tokens=1, dynamic=False, capacity=context
    )
    chosen = {"hybrid": (prefill, decode), "kv": (decode,), "prefill": (prefill,)}
    return chosen[mode]


def static_calibration(
    source: MethodSource, facts: StaticCache, length: int, parts: Sequence[Sequence[int]]
) -> Callable[[], Iterator[tuple[torch.Tensor, ...]]]:
    """The inputs of a method as it reads texts, with what it gave for the tokens before."""

    def inputs() -> Iterator[tuple[torch.Tensor, ...]]:
        for part in parts:
            calls = StaticCalls(facts)
            for position in range(0, len(part), length):
                ids = part[position : position + length]
                given = calls.inputs(ids, position, length)
                yield given
                with torch.no_grad():
                    _, *new = source.module(*given)
                calls.store(position, len(ids), new)

    return inputs


def calibrated_mask(inputs: Iterable[tuple[torch.Tensor, ...]]) -> float:
    """The largest mask value that hides positions where 8 bits hold scores and mask together.

    `inputs` calls the model for each of its items, as those of `static_calibration` do.
    """
    # By how much a hidden score exceeds the largest visible one of its token.
    above = [0.0]

    def observing(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: tuple[torch.Tensor, torch.Tensor],
        value: tuple[torch.Tensor, torch.Tensor],
        attention_mask: torch.Tensor,
        **options: Any,
    ) -> tuple[torch.Tensor, None]:
        scaling, softcap = options.get("scaling"), options.get("softcap")
        scores = _scores(query, torch.cat(key, dim=3), scaling, softcap)
        seen = attention_mask == 0
        hidden, known = (
            scores.masked_fill(each, -torch.inf).amax(-1) for each in (seen, seen.logical_not())
        )
        above.append(float((hidden - known).max()) + math.log(_STEPS * scores.shape[-1]))
        return static_attention(module, query, key, value, attention_mask, **options)

    AttentionInterface.register(STATIC, observing)
    try:
        for _ in inputs:
            pass
    finally:
        register()
    return max(MASKED, -max(above))


def with_mask(source: MethodSource, masked: float) -> MethodSource:
    """A method whose example has another number where its masks hide a position."""
    args = tuple(
        torch.where(each == MASKED, masked, each) if each.is_floating_point() else each
        for each in source.inputs.args
    )
    return replace(source, inputs=ExampleInputs(args))
