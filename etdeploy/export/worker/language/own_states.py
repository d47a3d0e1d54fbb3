"""States of all tokens that families of models have outside of transformers' cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Protocol

import torch

from etdeploy.export.hf.config import OWN_STATES
from etdeploy.export.worker.language.cache_layers import SLIDING


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

    kinds = (SLIDING,)

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
