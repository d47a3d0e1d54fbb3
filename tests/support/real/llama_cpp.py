"""A trained language model in GGUF by llama.cpp and by what etdeploy loads, on one text.

Prints as JSON, for each type: whether both split the text into the same tokens, the perplexities,
and what etdeploy's program would compute with, in eager mode.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cyllama.llama.llama_cpp as llama
import numpy as np
import torch

from etdeploy.core.values import silent
from etdeploy.export.derive import export_spec
from etdeploy.export.spec import EVALUATION_TEXT
from etdeploy.export.worker.language.load import LoadedModel, load_model
from etdeploy.export.worker.loading.source import MethodSource
from etdeploy.export.worker.lowering.linears import layers_of, quantize_linears
from etdeploy.export.worker.lowering.scales import Activations
from etdeploy.recipe.load import load_recipe

PROMPT, CONTEXT = "The capital of France is", 512
# llama.cpp's numbers of the types of files.
_FILE_TYPES = {"F16": 1, "Q4_0": 2, "Q8_0": 7, "Q4_K_M": 15, "Q6_K": 18}


class LlamaModel(llama.LlamaModel):  # type: ignore[misc]
    """With the attribute that cyllama 0.2 looks for when it reads logits."""

    @property
    def n_vocab(self) -> int:
        return int(self.get_vocab().n_vocab)


class LlamaCpp:
    """A file that llama.cpp has loaded, on one thread."""

    def __init__(self, path: Path) -> None:
        self._model = LlamaModel(path_model=str(path), params=llama.LlamaModelParams())
        params = llama.LlamaContextParams()
        params.n_ctx = params.n_batch = params.n_ubatch = CONTEXT
        params.n_threads = params.n_threads_batch = 1
        self._context = llama.LlamaContext(model=self._model, params=params)

    def tokens(self, text: str) -> list[int]:
        return list(self._model.get_vocab().tokenize(text, True, True))

    def logits(self, ids: Sequence[int]) -> torch.Tensor:
        """After each of the tokens."""
        self._context.kv_cache_clear()
        batch = llama.LlamaBatch(n_tokens=len(ids), embd=0, n_seq_max=1)
        batch.set_batch(list(ids), 0, True)
        self._context.decode(batch)
        rows = [self._context.get_logits_ith(place) for place in range(len(ids))]
        return torch.from_numpy(np.array(rows, np.float32))

    def continued(self, ids: Sequence[int], count: int) -> list[int]:
        """The most probable tokens that follow."""
        found = list(ids)
        for _ in range(count):
            found.append(int(self.logits(found)[-1].argmax()))
        return found[len(ids) :]


def quantized(source: Path, folder: Path, kind: str) -> Path:
    """The model of a file as another type, by llama.cpp's quantizer."""
    params = llama.LlamaModelQuantizeParams()
    params.ftype, params.nthread, params.allow_requantize = _FILE_TYPES[kind], 1, True
    path = folder / f"{kind}.gguf"
    llama.model_quantize(str(source), str(path), params)
    return path


def perplexity(logits: torch.Tensor, ids: Sequence[int]) -> float:
    loss = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:]))
    return float(loss.exp())


def eager(loaded: LoadedModel, ids: Sequence[int]) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = loaded.model(torch.tensor([ids])).logits[0]
    return logits


class _Whole(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model


def compared(path: Path, scheme: str) -> dict[str, Any]:
    """Perplexities of a file: by llama.cpp, of its weights as floats, and as they are quantized."""
    settings = [f"--model={path}", f"--context={CONTEXT}", f"export.quantization={scheme}"]
    spec = export_spec(load_recipe("llm-xnnpack", settings).recipe)
    theirs, loaded = LlamaCpp(path), load_model(spec, silent)
    text = Path(EVALUATION_TEXT).read_text()
    ids = theirs.tokens(text)[:CONTEXT]
    own = loaded.tokenizer.loaded(text)["input_ids"][:CONTEXT]
    wanted, floats = theirs.logits(ids), eager(loaded, ids)
    found = {
        "same_tokens": own == ids,
        "llama_cpp": perplexity(wanted, ids),
        "floats": perplexity(floats, ids),
        "moved": float((wanted - floats).abs().max()),
        "program": perplexity(floats, ids),
        "notes": [],
    }
    if scheme != "none":
        model = loaded.model
        if model.lm_head.weight is model.model.embed_tokens.weight:  # as an export separates them
            weight = model.lm_head.weight.detach().clone()
            model.lm_head.weight = torch.nn.Parameter(weight, requires_grad=False)
        sources = {"all": MethodSource(_Whole(model), inputs=None)}  # type: ignore[arg-type]
        linears = layers_of(spec, sources, torch.nn.Linear)
        notes = quantize_linears(spec, sources, linears, Activations(), loaded.stored_weights())
        found["notes"] = list(notes)
        found["program"] = perplexity(eager(loaded, ids), ids)
    return found


def main(source: Path, folder: Path, *kinds: str) -> None:
    llama.disable_logging()
    floats = quantized(source, folder, "F16")
    schemes = {kind: "none" if kind == "F16" else "8da4w" for kind in kinds}
    found = {}
    for kind, scheme in schemes.items():
        path = {"F16": floats, "source": source}.get(kind) or quantized(floats, folder, kind)
        found[kind] = compared(path, scheme)
    theirs = LlamaCpp(source)
    text = theirs.continued(theirs.tokens(PROMPT), 12)
    sys.stdout.write(json.dumps({"compared": found, "continued": text}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
