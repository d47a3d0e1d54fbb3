"""What a tiny language model gives eagerly, found in two ways each.

`python -m tests.support.expected_run` writes one line of JSON at the end.
"""

from __future__ import annotations

import json
import math
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch

from etdeploy.export.worker.language.eager import perplexity_notes, run_original
from etdeploy.export.worker.language.fetch import Checkpoint
from etdeploy.export.worker.language.forward import (
    MethodsForward,
    OwnForward,
    caches_restored,
    compare,
    evaluate,
    own_attention,
    windows,
)
from etdeploy.export.worker.language.greedy import UndefinedLogitsError, greedy_text, logit_noise
from etdeploy.export.worker.language.load import LoadedModel
from etdeploy.export.worker.language.methods import methods_for
from etdeploy.export.worker.language.prompts import Prompt, long_prompt_length
from etdeploy.export.worker.language.sources import generation_sources
from etdeploy.export.worker.language.tokenizer import HfTokenizer
from etdeploy.export.worker.tracing.tensors import NamedValue, Values, losses
from etdeploy.program.generation import GreedyText
from tests.support.export import spec_of
from tests.support.generation_run import tiny
from tests.support.text_values import make_cost, make_evaluation

PROMPT = Prompt(tuple(5 * i % 120 + 3 for i in range(21)), 12)
_TEXT = tuple(7 * i % 120 + 3 for i in range(150))


def texts(model: Any) -> dict[str, Any]:
    """The same text by transformers, by the model's own forward and by the program's methods."""
    tokens = torch.tensor([PROMPT.ids])
    own = model.generate(
        tokens, do_sample=False, max_new_tokens=PROMPT.new_tokens, eos_token_id=None
    )
    before = greedy_text(partial(OwnForward, model), PROMPT)
    attention = model.config._attn_implementation
    made = generation_sources(model, context=64, prefill_tokens=8, path="auto")
    modules = {name: source.module for name, source in made.sources.items()}
    with caches_restored(modules):
        by_methods = greedy_text(lambda: MethodsForward(made.methods, modules), PROMPT)
    with own_attention(model, attention):
        after = greedy_text(partial(OwnForward, model), PROMPT)
    return {
        "generate": own[0, len(PROMPT.ids) :].tolist(),
        "before": before.token_ids,
        "by_methods": by_methods.token_ids,
        "after": after.token_ids,
        "gaps": [token.behind[:2] for token in before.tokens],
        "left": max(float(buffer.abs().max()) for buffer in _caches(modules)),
        "attention": [attention, model.config._attn_implementation],
    }


def _caches(modules: dict[str, torch.nn.Module]) -> list[torch.Tensor]:
    """The keys and values of all layers."""
    return [
        buffer
        for module in modules.values()
        for name, buffer in module.named_buffers()
        if name.startswith(("cache.key_", "cache.value_"))
    ]


def quality(model: Any, other: Any) -> dict[str, Any]:
    """Perplexity and divergence in windows of 100 tokens, and from all logits of one at once."""
    parts = windows(_TEXT, 100, None)
    original = evaluate(lambda: OwnForward(model), parts, keep=True)
    cost, loss = compare(lambda: OwnForward(other), parts, original)
    logits = [_logits(each, parts) for each in (model, other)]
    targets = torch.cat([torch.tensor(part[1:]) for part in parts])
    p, q = (torch.log_softmax(each, -1) for each in logits)
    wanted = {
        "perplexity": math.exp(float(torch.nn.functional.nll_loss(q, targets))),
        "mean_kl_divergence": float(
            torch.nn.functional.kl_div(q, p, log_target=True, reduction="batchmean")
        ),
        "same_top_percent": 100 * float((p.argmax(-1) == q.argmax(-1)).float().mean()),
        "logit_max_abs_error": float((logits[0] - logits[1]).abs().max()),
        "logit_rms_error": float((logits[0] - logits[1]).square().mean().sqrt()),
    }
    own = math.exp(float(torch.nn.functional.nll_loss(p, targets)))
    same, _ = compare(lambda: OwnForward(model), parts, original)
    return {
        "perplexity": [original.perplexity, own],
        "cost": cost.model_dump(),
        "loss": [each.model_dump() for each in (loss, *losses(*map(_named, logits)))],
        "wanted": wanted,
        "same": same.model_dump(),
    }


def _named(logits: torch.Tensor) -> Values:
    return [NamedValue("logits", logits)]


def _logits(model: Any, parts: Any) -> torch.Tensor:
    with torch.no_grad():
        whole = [model(torch.tensor([part]), use_cache=False).logits[0, :-1] for part in parts]
    return torch.cat(whole)


def undefined(model: Any) -> dict[str, Any]:
    """A model whose logits are NaN."""
    with torch.no_grad():
        model.get_output_embeddings().weight[3] = float("nan")
    try:
        greedy_text(partial(OwnForward, model), PROMPT)
    except UndefinedLogitsError:
        text = "undefined"
    else:
        text = "a text"
    parts = windows(_TEXT, 100, None)
    original = evaluate(lambda: OwnForward(model), parts, keep=True)
    cost, loss = compare(lambda: OwnForward(model), parts, original)
    told = {"text": text, "perplexity": original.perplexity, "undefined": loss.undefined}
    return {**told, "cost": cost.model_dump()}


def rounding(model: Any) -> dict[str, Any]:
    """How far rounding moves a model in floats, and whether its weights are as before."""
    vectors = [weight for weight in model.parameters() if weight.dim() == 1]
    before = [weight.detach().clone() for weight in vectors]
    text = greedy_text(partial(OwnForward, model), PROMPT)
    noise = logit_noise(lambda: OwnForward(model), [PROMPT], [text], vectors)
    none = logit_noise(lambda: OwnForward(model), [PROMPT], [text], [])
    return {
        "noise": None if noise is None else noise.model_dump(),
        "without_weights": none,
        **_with_drafts(model, text),
        "restored": all(map(torch.equal, before, vectors)),
    }


def _with_drafts(model: Any, text: GreedyText) -> dict[str, Any]:
    """The same text from drafts that are right, wrong in their fifth token, and short."""
    calls: list[int] = []

    class Counted(OwnForward):
        def _logits(self, ids: Any, **options: Any) -> torch.Tensor:
            calls[-1] += 1
            return super()._logits(ids, **options)

    other = text.tokens[4].model_copy(update={"ids": text.tokens[4].ids[::-1]})
    drafts = {
        "right": text.tokens,
        "wrong": (*text.tokens[:4], other, *text.tokens[5:]),
        "short": text.tokens[:3],
    }
    found = {}
    for name, tokens in drafts.items():
        calls.append(0)
        made = greedy_text(partial(Counted, model), PROMPT, GreedyText(tokens=tokens))
        found[name] = made.token_ids == text.token_ids
    return {"equal": found, "calls": calls}


def warnings() -> dict[str, list[str]]:
    """What an export says of perplexities, and of a model that has no tokenizer."""
    specs = {
        scheme: spec_of({"model": {"hf": "org/model"}, "export": {"quantization": scheme}})
        for scheme in ("8da4w", "8da8w")
    }
    losses = {"small": (18.0, "8da4w"), "large": (30.0, "8da4w"), "finest": (30.0, "8da8w")}
    undefined = make_evaluation().model_copy(update={"quantized": make_cost(perplexity=None)})
    loaded = LoadedModel(tiny("Llama"), Checkpoint(Path()), HfTokenizer(), ())
    return {
        "undefined": list(perplexity_notes(specs["8da4w"], undefined)),
        "no tokenizer": list(run_original(specs["8da4w"], loaded, methods_for(64, 8)).gave().notes),
        **{
            name: list(perplexity_notes(specs[scheme], make_evaluation(after)))
            for name, (after, scheme) in losses.items()
        },
    }


def main() -> None:
    other = tiny("Llama")
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(1.01)
    found = {
        "quality": quality(tiny("Llama"), other),
        "texts": {name: texts(tiny(name)) for name in ("Llama", "Gemma3Text")},
        "rounding": rounding(tiny("Llama")),
        "undefined": undefined(tiny("Llama")),
        "warnings": warnings(),
        "long": [
            long_prompt_length(methods_for(context, part), context)
            for context, part in ((2048, 128), (2048, 512), (256, 128), (64, 32), (64, 64))
        ],
        "windows": windows((1, 5, 6, 7, 8, 9), 4, 1),
    }
    sys.stdout.write("\n" + json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
