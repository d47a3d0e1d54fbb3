"""Models of tasks, made ready to be exported."""

from __future__ import annotations

import pytest
import torch
from torch.nn.utils.parametrizations import weight_norm

from etdeploy.export.worker.tasks.load import SpeechLength, fix_parametrizations


def test_weights_of_a_weight_norm_are_computed_once() -> None:
    layer = weight_norm(torch.nn.Conv1d(4, 4, 3), dim=2)
    model = torch.nn.Sequential(layer, torch.nn.ReLU()).eval()
    samples = torch.randn(1, 4, 9)
    with torch.no_grad():
        wanted = model(samples)
        fix_parametrizations(model)
        assert torch.equal(model(samples), wanted)
    assert set(model.state_dict()) == {"0.weight", "0.bias"}


@pytest.mark.parametrize(
    ("durations", "speed", "frames"),
    [([2, 0, 3, 1], 1.0, 6), ([2, 0, 3, 1], 1.5, 10), ([0, 0, 0, 0], 1.0, 4), ([1, 1, 1, 1], 1, 6)],
)
def test_speech_of_a_fixed_length_repeats_tokens_as_the_model_does(
    durations: list[int], speed: float, frames: int
) -> None:
    module = "transformers.models.fastspeech2_conformer.modeling_fastspeech2_conformer"
    regulated = pytest.importorskip(module).length_regulator
    embeddings, given = torch.randn(1, 4, 3), torch.tensor([durations])
    wanted = regulated(embeddings, given.clone(), speed)
    found = SpeechLength(frames).regulated(embeddings, given, speed)
    assert found.shape == (1, frames, 3)
    assert torch.equal(found[:, : wanted.shape[1]], wanted)
    assert not found[:, wanted.shape[1] :].any()
