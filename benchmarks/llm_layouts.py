"""Both layouts of a language model's program, in etdeploy's runner and in ExecuTorch's, in turn.

    python benchmarks/llm_layouts.py (--model MODEL | --programs OWN.pte STOCK.pte)
        [--context 2048] [--words 90 700] [--new-tokens 64] [--rounds 5]

MODEL is what `etdeploy generate --model` takes; programs that are exported already have their
tokenizer beside them. Each round generates the same texts three times:
with the layout `etdeploy` and with `executorch` by etdeploy's runner, and with `executorch` by
ExecuTorch's TextLLMRunner, as its Python package has it. Each is a process of its own, without a
warm-up. A line has the least time to the first token and the least time of a further one, for each
number of words of a prompt, and the medians of the rounds' ratios to the layout `etdeploy`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WORDS = (ROOT / "docs" / "design.md").read_text(encoding="utf-8").split()
OWN, STOCK, THEIRS = "etdeploy", "executorch", "TextLLMRunner"
Times = tuple[float, float]


def run(*argv: str) -> str:
    """The JSON that a command prints last."""
    done = subprocess.run([sys.executable, *argv], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(argv)} failed:\n{done.stderr[-3000:]}")
    return done.stdout


def etdeploy(chosen: argparse.Namespace, layout: str, verb: str, *options: str) -> Any:
    argv = ["-m", "etdeploy", verb]
    if chosen.programs:
        argv += ["--model", str(chosen.programs[layout == STOCK].resolve())]
    else:
        argv += ["--recipe", "llm-xnnpack", "--model", chosen.model]
        argv += ["--context", str(chosen.context), "--set", f"export.generation.layout={layout}"]
    return json.loads(run(*argv, *options, "--json"))


def by_etdeploy(chosen: argparse.Namespace, layout: str, prompt: str) -> tuple[Times, str]:
    options = ("--prompt", prompt, "--max-new-tokens", str(chosen.new_tokens), "--device", "host")
    told = etdeploy(chosen, layout, "generate", *options)
    return (told["ttft_ms"], 1000 / told["decode_tokens_per_s"]), told["text"]


def by_executorch(folder: Path, new_tokens: int, prompt: str) -> tuple[Times, str]:
    argv = [str(folder / "program.pte"), str(folder / "tokenizer" / "tokenizer.json")]
    printed = run("-m", "tests.support.stock_runner", *argv, str(new_tokens), prompt)
    [told] = json.loads(printed.splitlines()[-1])
    return (told["first_ms"], told["rest_ms"] / (told["tokens"] - 1)), told["text"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    sources = parser.add_mutually_exclusive_group(required=True)
    sources.add_argument("--model")
    sources.add_argument("--programs", type=Path, nargs=2)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--words", type=int, nargs="+", default=[90, 700])
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    folder = Path(etdeploy(chosen, STOCK, "export")["folder"])
    for words in chosen.words:
        prompt = " ".join(WORDS[:words])
        sides = {
            OWN: partial(by_etdeploy, chosen, OWN, prompt),
            STOCK: partial(by_etdeploy, chosen, STOCK, prompt),
            THEIRS: partial(by_executorch, folder, chosen.new_tokens, prompt),
        }
        rounds = [{name: side() for name, side in sides.items()} for _ in range(chosen.rounds)]
        same = {each[STOCK][1] == each[THEIRS][1] for each in rounds} == {True}
        for name in sides:
            least = [min(each[name][0][i] for each in rounds) for i in (0, 1)]
            ratios = [
                statistics.median(each[name][0][i] / each[OWN][0][i] for each in rounds)
                for i in (0, 1)
            ]
            print(
                f"{words} words, {name}: first token {least[0]:.1f} ms ({ratios[0]:.2f}), a "
                f"further one {least[1]:.2f} ms ({ratios[1]:.2f}), {1000 / least[1]:.1f} tokens/s",
                flush=True,
            )
        print(
            f"{words} words: both runners give {'the same' if same else 'other'} text with {STOCK}"
        )


if __name__ == "__main__":
    main()
