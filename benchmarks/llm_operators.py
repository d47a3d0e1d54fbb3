"""Where the time of decoding goes: etdeploy's path for language models, and transformers' export.

    python benchmarks/llm_operators.py [--shapes smollm2-135m qwen3-0.6b] [--layers 4]
        [--context 256] [--position 100] [--threads 1]

The models have the shapes' layers with random weights, 8da4w in groups of 32. The other side is
that of llm.py: `TorchExportableModuleWithStaticCache`, which takes one token. Prints a table for
each shape with the milliseconds of a traced step and its shares, as `etdeploy profile` gives them,
and the operators outside of delegates. Bound, for 30 layers of SmolLM2-135M at a cache of 256: at
most 5 % outside of delegates.

An export of 4 layers takes 3 minutes of processor time, and memory for the vocabulary: 1 GB for
each 130,000 words of a model with hidden size 2,048.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from llm import SHAPES, recipes, save_model

_MOST = 8


def etdeploy(*words: str) -> Any:
    """The JSON that a verb prints."""
    argv = [sys.executable, "-m", "etdeploy", *words, "--json", "--quiet"]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(argv)} ended with {done.returncode}")
    return json.loads(done.stdout)


def profile(recipe: Path, folder: Path) -> Any:
    """The profile of a step of decoding."""
    run = etdeploy(
        "bench", "--recipe", str(recipe), "--set", "benchmark.profile=true", "-o", str(folder)
    )
    found = etdeploy("profile", run["folder"])
    return found["methods"][found["method"]] if "methods" in found else found


def table(plain: Any, fast: Any) -> Iterator[str]:
    """A line for each kind of work, and one for what is outside of delegates."""
    yield "| time goes to | plain ms | share | fast ms | share |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    for kind in dict.fromkeys((*plain["shares"], *fast["shares"])):
        yield _line(kind, [each["shares"].get(kind, 0.0) for each in (plain, fast)], plain, fast)
    outside = [each["outside_delegates"] for each in (plain, fast)]
    yield _line("**outside of delegates**", outside, plain, fast)
    yield _line("a step", [1.0, 1.0], plain, fast)


def _line(name: str, shares: list[float], plain: Any, fast: Any) -> str:
    cells = [
        f"{share * each['inference_ms']:.3f} | {share:.1%}"
        for share, each in zip(shares, (plain, fast), strict=True)
    ]
    return f"| {name} | {' | '.join(cells)} |"


def kernels(found: Any) -> str:
    """What is outside of delegates, the most expensive first."""
    times: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for each in found["operators"]:
        if not each["delegate"]:
            times[each["name"]] += each["self_ms"]
            calls[each["name"]] += each["calls"]
    most = times.most_common(_MOST)
    return ", ".join(f"{calls[name]} x {name} {ms:.3f} ms" for name, ms in most)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", choices=SHAPES, nargs="+", default=["smollm2-135m"])
    parser.add_argument("--layers", type=int, help="all of the shape's by default")
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--position", type=int, default=100)
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    for shape in chosen.shapes:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            save_model(shape, chosen.layers, folder / "model")
            [sides] = recipes(
                folder, folder / "model", [chosen.context], chosen.position, chosen.threads
            )
            plain, fast = (profile(each, folder / "out") for each in (sides.plain, sides.fast))
            layers = chosen.layers or SHAPES[shape]["num_hidden_layers"]
            print(f"\n{shape}, {layers} layers, cache {chosen.context}\n")
            print("\n".join(table(plain, fast)))
            print(f"\nplain, outside: {kernels(plain)}\nfast, outside: {kernels(fast)}", flush=True)


if __name__ == "__main__":
    main()
