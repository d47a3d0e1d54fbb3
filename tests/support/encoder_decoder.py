"""Small encoder-decoder models: how their texts begin, and what their methods give, as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import transformers

from etdeploy.export.spec import TaskInput
from etdeploy.export.worker.failures import WorkerError
from etdeploy.export.worker.language.encoder_decoder import (
    EncoderInput,
    SuppressedTokens,
    encoder_decoder_sources,
    encoder_input,
)
from etdeploy.export.worker.tasks.inputs import Processor, TaskTensors
from etdeploy.program.generation import ENCODER

_SIZES: dict[str, Any] = {
    "vocab_size": 40, "d_model": 16, "encoder_layers": 1, "decoder_layers": 2,
    "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16, "max_position_embeddings": 32,
}  # fmt: skip
_LANGUAGES = {"<|en|>": 21, "<|de|>": 22, "deu_Latn": 23}
_SPEECH: dict[str, Any] = {"lang_to_id": {"<|en|>": 21, "<|de|>": 22}}
_TOKENS = [2, 7, 8]


class Words:
    """A tokenizer that knows three languages."""

    unk_token_id, mask_token, model_max_length = 0, None, 30

    def convert_tokens_to_ids(self, token: str) -> int:
        return _LANGUAGES.get(token, 0)

    def __call__(self, text: str, **_: Any) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.tensor([[int(word) for word in text.split()]])}


def model(**settings: Any) -> Any:
    torch.manual_seed(0)
    made = transformers.BartForConditionalGeneration(transformers.BartConfig(**_SIZES)).eval()
    made.generation_config = transformers.GenerationConfig(decoder_start_token_id=2, **settings)
    return made


def given(made: Any, language: str | None = None) -> EncoderInput:
    spec: Any = SimpleNamespace(input=TaskInput(text="5 6 7", language=language))
    words = Words()
    processor = Processor(Path(), "text2text-generation", "text", words, words)
    return encoder_input(spec, made, processor)


def prompts() -> dict[str, Any]:
    """By their cases; `heard` is the language that has the larger logit."""
    tasks = {"task_to_id": {"transcribe": 30}, "no_timestamps_token_id": 31}
    heard = model(**_SPEECH)
    with torch.no_grad():
        tokens = torch.tensor([[5, 6, 7]])
        logits = heard(input_ids=tokens, decoder_input_ids=torch.tensor([[2]])).logits[0, -1]
    return {
        "start": given(model()).prompt,
        "forced": given(model(forced_bos_token_id=9)).prompt,
        "translation": given(model(forced_bos_token_id=9), "deu_Latn").prompt,
        "speech": given(model(**_SPEECH, **tasks), "de").prompt,
        "untimed": given(model(no_timestamps_token_id=31)).prompt,
        "detected": given(heard).prompt,
        "heard": 21 if logits[21] > logits[22] else 22,
    }


def suppressed() -> dict[str, Any]:
    """Logits 0 to 39 and 40 to 79, after the last token of the prompt and after the next."""
    logits, positions = torch.arange(80.0).reshape(2, 40), torch.tensor([1, 2])
    rule = SuppressedTokens(model(suppress_tokens=[4, 400], begin_suppress_tokens=[5]), 2)
    found = rule(logits, positions)
    return {
        "never": found[:, 4].tolist(),
        "first": found[:, 5].tolist(),
        "rest": torch.equal(found[:, 6:], logits[:, 6:]),
        "without": torch.equal(SuppressedTokens(model(), 1)(logits, positions), logits),
    }


def methods() -> dict[str, Any]:
    """How far their logits are from those of the model's own forward."""
    made = model()
    used = given(made)
    with torch.no_grad():
        decoded = torch.tensor([_TOKENS])
        wanted = made(**used.tensors.values, decoder_input_ids=decoded).logits[0]
    sources, generating = encoder_decoder_sources(made, used, context=16, fixed=False)
    with torch.no_grad():
        cross = sources[ENCODER].module(*used.tensors.values.values())
        decode = sources["decode"].module
        steps = ((torch.tensor([[t]]), torch.tensor([i])) for i, t in enumerate(_TOKENS))
        found = torch.cat([decode(*step, *cross) for step in steps])
    return {
        "generating": [(m.name, m.capacity, m.max_tokens) for m in generating],
        "cross": [list(each.shape) for each in cross],
        "contiguous": all(each.is_contiguous() for each in cross),
        "error": float((found - wanted).abs().max()),
    }


def refused() -> dict[str, Any]:
    """Message, remedy and place of each refusal."""
    hard = model()
    hard._can_set_attn_implementation = lambda *_: False
    silent = model()
    silent.generation_config = transformers.GenerationConfig()
    silent.config.decoder_start_token_id = silent.config.bos_token_id = None
    cases: dict[str, Callable[[], Any]] = {
        "language": lambda: given(model(), "xx"),
        "start": lambda: given(silent),
        "attention": lambda: encoder_decoder_sources(hard, given(hard), context=16, fixed=False),
    }
    found = {}
    for name, case in cases.items():
        try:
            case()
        except WorkerError as error:
            told = error.failure
            found[name] = [told.message, told.remedy, told.file]
    return found


def speech() -> list[Any]:
    """What is told of 12,000 samples of which a second has 8,000."""
    found: list[Any] = []
    for settings, is_real in (({}, False), ({"n_samples": 8_000}, True)):
        reads = SimpleNamespace(sampling_rate=8000, **settings)
        processor = Processor(Path(), "automatic-speech-recognition", "audio", reads)
        tensors = TaskTensors({}, is_real=is_real, took_ms=1.5, content=[0.0] * 12_000)
        used = EncoderInput(processor, tensors, (1,))
        found.append([used.facts.audio_s, used.facts.is_real, used.note])
    return found


if __name__ == "__main__":
    parts = (prompts, suppressed, methods, refused, speech)
    sys.stdout.write("\n" + json.dumps({part.__name__: part() for part in parts}) + "\n")
