"""Runs a language model with another engine, in the environment that has its package.

    python -I benchmarks/llm_peers_worker.py '{"engine": "llama.cpp", "model": FILE, ...}'

Reads the order of `llm_peers.py` and prints what that measures, as JSON. Nothing but the engine's
package and numpy is imported (`-I`, since files beside this one have names of packages). Every
engine generates greedily and goes on after its stop token.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

# Generates so many tokens after a prompt, and calls back for each of them.
Generate = Callable[[Sequence[int], int, Callable[[], None]], None]


class LlamaCpp:
    """llama.cpp, and ik_llama.cpp, by the functions of `llama.h` that their packages bind."""

    def __init__(self, api: Any, model: Any, context: Any) -> None:
        self._api, self._model, self._context = api, model, context
        self._vocabulary = api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))

    def generate(self, ids: Sequence[int], tokens: int, told: Callable[[], None]) -> None:
        """As `Generate` says."""
        self._clear()
        logits = self._read(ids, 0, [len(ids) - 1])
        for position in range(len(ids), len(ids) + tokens):
            best = int(logits[0].argmax())
            told()
            if position < len(ids) + tokens - 1:
                logits = self._read([best], position, [0])

    def logits(self, ids: Sequence[int]) -> np.ndarray:
        """Those of every position, `[tokens, vocabulary]`."""
        self._clear()
        return np.stack(self._read(ids, 0, range(len(ids))))

    def _read(self, ids: Sequence[int], start: int, wanted: Sequence[int]) -> list[np.ndarray]:
        api, batch = self._api, self._api.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, start + i, 1
            batch.seq_id[i][0], batch.logits[i] = 0, i in wanted
        if api.llama_decode(self._context, batch):
            sys.exit("llama_decode failed")
        rows = [api.llama_get_logits_ith(self._context, i) for i in wanted]
        found = [np.ctypeslib.as_array(_floats(row), (self._vocabulary,)).copy() for row in rows]
        api.llama_batch_free(batch)
        return found

    def _clear(self) -> None:
        if hasattr(self._api, "llama_kv_cache_clear"):
            self._api.llama_kv_cache_clear(self._context)
        else:
            self._api.llama_memory_clear(self._api.llama_get_memory(self._context), True)


def _floats(row: Any) -> Any:
    return ctypes.cast(row, ctypes.POINTER(ctypes.c_float))


def llama_cpp(order: dict[str, Any]) -> LlamaCpp:
    """The engine by llama-cpp-python."""
    import llama_cpp as api  # type: ignore[import-not-found]

    return _llama(api, order, threads=("n_threads", "n_threads_batch"))


def ik_llama_cpp(order: dict[str, Any]) -> LlamaCpp:
    """The engine by ik-llama-cpp-python, which decides about flash attention by the processor."""
    import ik_llama_cpp._ctypes_api as api  # type: ignore[import-not-found]
    from ik_llama_cpp.llama import _cpu_has_avx_vnni  # type: ignore[import-not-found]

    return _llama(api, order, threads=("n_threads", "n_threads_batch"), flash=_cpu_has_avx_vnni())


def _llama(
    api: Any, order: dict[str, Any], *, threads: Sequence[str], flash: bool | None = None
) -> LlamaCpp:
    api.llama_backend_init()
    load = api.llama_model_load_from_file
    model = load(str(order["model"]).encode(), api.llama_model_default_params())
    given = api.llama_context_default_params()
    given.n_ctx = given.n_batch = order["context"]
    for name in threads:
        setattr(given, name, order["threads"])
    if flash is not None:
        given.flash_attn = flash
    return LlamaCpp(api, model, api.llama_init_from_model(model, given))


class OnnxRuntime:
    """onnxruntime-genai."""

    def __init__(self, order: dict[str, Any]) -> None:
        import onnxruntime_genai  # type: ignore[import-not-found]

        self._api, self._context = onnxruntime_genai, order["context"]
        config = onnxruntime_genai.Config(str(order["model"]))
        options = {"intra_op_num_threads": order["threads"]}
        config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
        self._model = onnxruntime_genai.Model(config)

    def generate(self, ids: Sequence[int], tokens: int, told: Callable[[], None]) -> None:
        """As `Generate` says."""
        given = self._api.GeneratorParams(self._model)
        length = {"max_length": self._context, "min_length": self._context}  # no stop token
        given.set_search_options(do_sample=False, **length)
        generator = self._api.Generator(self._model, given)
        generator.append_tokens(np.array([ids], dtype=np.int32))
        for _ in range(tokens):
            generator.generate_next_token()
            told()


class OpenVino:
    """openvino-genai, which reads GGUF."""

    def __init__(self, order: dict[str, Any]) -> None:
        import openvino
        import openvino_genai  # type: ignore[import-not-found]

        self._api, self._tensor = openvino_genai, openvino.Tensor
        options = {"INFERENCE_NUM_THREADS": order["threads"], **order["options"]}
        self._pipe = openvino_genai.LLMPipeline(str(order["model"]), "CPU", **options)

    def generate(self, ids: Sequence[int], tokens: int, told: Callable[[], None]) -> None:
        """As `Generate` says."""
        api = self._api

        class Listening(api.StreamerBase):  # type: ignore[name-defined,misc]
            def write(self, token: Any) -> Any:
                for _ in token if isinstance(token, list) else [token]:
                    told()
                return api.StreamingStatus.RUNNING

            def end(self) -> None: ...

        given = api.GenerationConfig(max_new_tokens=tokens, ignore_eos=True, do_sample=False)
        row = np.array([ids], dtype=np.int64)
        inputs = api.TokenizedInputs(self._tensor(row), self._tensor(np.ones_like(row)))
        self._pipe.generate(inputs, given, Listening())


class LiteRtLm:
    """litert-lm, which takes no tokens: by its own benchmark, which fills prompts up itself."""

    def __init__(self, order: dict[str, Any]) -> None:
        import litert_lm  # type: ignore[import-not-found]

        self._order, self._api = order, litert_lm

    def measured(self) -> dict[str, Any]:
        """As `measured` gives it; the first token is that of a second process's prompt."""
        order = self._order
        first = self._run(order["first"], 1)
        prefill = {n: self._run(n, 1).last_prefill_tokens_per_second for n in order["prompts"]}
        runs = {n: self._run(n, order["steps"] + 1) for n in order["positions"]}
        return {
            "first_token_s": first.init_time_in_second + first.time_to_first_token_in_second,
            "prefill": prefill,
            "decode": {n: each.last_decode_tokens_per_second for n, each in runs.items()},
        }

    def _run(self, prompt: int, tokens: int) -> Any:
        return self._api.Benchmark(
            str(self._order["model"]),
            self._api.Backend.CPU(thread_count=self._order["threads"]),
            prefill_tokens=prompt,
            decode_tokens=tokens,
            max_num_tokens=self._order["context"],
        ).run()


ENGINES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "llama.cpp": llama_cpp,
    "ik_llama.cpp": ik_llama_cpp,
    "onnxruntime-genai": OnnxRuntime,
    "openvino-genai": OpenVino,
    "litert-lm": LiteRtLm,
}


def times_s(generate: Generate, ids: Sequence[int], tokens: int) -> list[float]:
    """From the start to each token."""
    found: list[float] = []
    started = time.perf_counter()
    generate(ids, tokens, lambda: found.append(time.perf_counter() - started))
    return found


def perplexity(engine: Any, ids: Sequence[int]) -> float:
    """Of the tokens behind the first."""
    logits = engine.logits(ids)[:-1].astype(np.float64)
    logits -= logits.max(-1, keepdims=True)
    chosen = logits[np.arange(len(ids) - 1), ids[1:]] - np.log(np.exp(logits).sum(-1))
    return math.exp(-chosen.mean())


def measured(engine: Any, order: dict[str, Any], loaded_s: float) -> dict[str, Any]:
    """Tokens a second by size and position, and seconds to the first token with loading."""
    ids, start = order["ids"], 0

    def times(size: int, tokens: int) -> list[float]:
        nonlocal start
        start += 7  # another prompt each time: engines keep what prompts have in common
        return times_s(engine.generate, [*ids[start:], *ids][:size], tokens)

    first_s = loaded_s + times(order["first"], 1)[0]
    prefill = {n: n / min(times(n, 1)[0] for _ in range(2)) for n in order["prompts"]}
    decode = {}
    for position in order["positions"]:
        found = times(position, order["steps"] + 1)
        decode[position] = order["steps"] / (found[-1] - found[0])
    return {"first_token_s": first_s, "prefill": prefill, "decode": decode}


def peak_bytes() -> int:
    """Of this process; `getrusage` also counts what its parent had when it started it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))


def main() -> None:
    order = json.loads(sys.argv[1])
    os.environ["OMP_NUM_THREADS"] = str(order["threads"])
    order["ids"] = json.loads(Path(order["ids"]).read_text())
    started = time.perf_counter()
    engine = ENGINES[order["engine"]](order)
    loaded_s = time.perf_counter() - started
    own = getattr(engine, "measured", None)
    found = own() if own else measured(engine, order, loaded_s)
    found["peak_bytes"] = peak_bytes()
    if (evaluated := order.get("evaluated")) and hasattr(engine, "logits"):
        # Last: all logits take memory.
        found["perplexity"] = perplexity(engine, order["ids"][:evaluated])
    print(json.dumps(found))


if __name__ == "__main__":
    main()
