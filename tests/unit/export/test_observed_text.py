"""The call of a language model whose nodes are compared."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.failures import WorkerError
from etdeploy.export.worker.language import model as language
from etdeploy.export.worker.language.model import LanguageModel
from etdeploy.export.worker.loading.source import MethodSource
from etdeploy.export.worker.tracing.structure import ExampleInputs
from etdeploy.program.generation import GenerationMethod

PROMPT = (5, 6, 7)


def made(method: GenerationMethod, **eager: Any) -> LanguageModel:
    shorter = GenerationMethod(
        name="decode", role="decode", max_tokens=1, dynamic=False, capacity=9
    )
    source = MethodSource(torch.nn.Identity(), ExampleInputs(()), is_text=True)
    found: Any = {"encoder": None, "static_calls": None, "prompts": (SimpleNamespace(ids=PROMPT),)}
    parts: Any = {
        "generation": SimpleNamespace(methods=(shorter, method)),
        "loaded": SimpleNamespace(model=torch.nn.Identity()),
        "eager": SimpleNamespace(**{**found, **eager}),
    }
    return LanguageModel(sources={method.name: source, "decode": source}, **parts)


@pytest.mark.parametrize(("dynamic", "tokens"), [(True, 32), (False, 128)])
def test_it_is_the_longest_method_with_a_prompt_again_and_again(dynamic: bool, tokens: int) -> None:
    method = GenerationMethod(
        name="prefill", role="prefill", max_tokens=128, dynamic=dynamic, capacity=512,
        verify_tokens=16,
    )  # fmt: skip
    [(name, source)] = made(method).observed(ExportSpec()).items()
    assert name == "prefill"
    ids, position, rows = source.inputs.args
    assert ids.tolist() == [[PROMPT[i % 3] for i in range(tokens)]]
    assert position.tolist() == [0]
    assert rows.tolist() == list(range(tokens - 16, tokens))


def test_what_quantization_costs_is_measured_with_whole_parts_of_a_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = SimpleNamespace(parts=(tuple(range(70)), tuple(range(20))))
    monkeypatch.setattr(language, "calibration_parts", lambda *_: text)
    method = GenerationMethod(
        name="prefill", role="prefill", max_tokens=32, dynamic=True, capacity=512, verify_tokens=4
    )
    source = made(method).observed(ExportSpec())["prefill"]
    assert source.calibration
    calls: list[Any] = list(source.calibration())
    assert [call[0].tolist() for call in calls] == [[[*range(32)]], [[*range(32, 64)]]]
    assert all(call[2].tolist() == list(range(3, 32, 4)) for call in calls)


def test_a_model_with_an_encoder_is_refused() -> None:
    method = GenerationMethod(
        name="decoder", role="prefill", max_tokens=8, dynamic=True, capacity=64
    )
    with pytest.raises(WorkerError, match="cannot be compared"):
        made(method, encoder=object()).observed(ExportSpec())
