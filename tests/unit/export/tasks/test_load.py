"""Models of tasks, made ready to be exported."""

from __future__ import annotations

import torch
from torch.nn.utils.parametrizations import weight_norm

from etdeploy.export.worker.tasks.load import fix_parametrizations


def test_weights_of_a_weight_norm_are_computed_once() -> None:
    layer = weight_norm(torch.nn.Conv1d(4, 4, 3), dim=2)
    model = torch.nn.Sequential(layer, torch.nn.ReLU()).eval()
    samples = torch.randn(1, 4, 9)
    with torch.no_grad():
        wanted = model(samples)
        fix_parametrizations(model)
        assert torch.equal(model(samples), wanted)
    assert set(model.state_dict()) == {"0.weight", "0.bias"}
