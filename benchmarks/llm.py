"""Decoding with etdeploy's path for language models against transformers' own export, in turn.

    python benchmarks/llm.py [--shape smollm2-135m] [--layers 4] [--contexts 256 2048]
        [--position 100] [--threads 1] [--pairs 3]

Both sides have the shape's layers with random weights, 8da4w in groups of 32, and the same runner's
libraries. The other side is `TorchExportableModuleWithStaticCache`, which transformers'
`convert_and_export_with_cache` exports, as a model of the user. Bounds, with 30 layers of
SmolLM2-135M: at least 5 times as fast at a cache of 256, and 25 times at 2048 and position 100.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from side_by_side import compare

# Of the models' config.json.
SHAPES: dict[str, dict[str, Any]] = {
    "smollm2-135m": {
        "kind": "Llama",
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "tie_word_embeddings": True,
    },
    "qwen3-0.6b": {
        "kind": "Qwen3",
        "vocab_size": 151936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "tie_word_embeddings": True,
    },
    "llama-3.2-1b": {
        "kind": "Llama",
        "vocab_size": 128256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "tie_word_embeddings": True,
    },
    "gemma3-1b": {
        "kind": "Gemma3Text",
        "vocab_size": 262144,
        "hidden_size": 1152,
        "intermediate_size": 6912,
        "num_hidden_layers": 26,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "sliding_window": 512,
    },
}

PLAIN = """\
model: {{python: "plain.py:make", arguments: {{folder: {model}, context: {context}}}}}
export: {{quantization: 8da4w, group_size: 32, strict: true}}
runtime: {{threads: {threads}}}
benchmark:
  runs: 1
  warmup: 5
  iterations: 32
  memory: false
  profile: false
  # Random weights: one rounding of an activation moves logits by more than in a trained model.
  tolerance: {{max_abs_error: 2, cosine_similarity: 0.9}}
"""
# The position is that of the example inputs, so that every inference is at it.
FACTORY = """\
import torch
from transformers import AutoModelForCausalLM
from transformers.integrations.executorch import TorchExportableModuleWithStaticCache


def make(folder, context):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config.use_cache = True
    model.generation_config.cache_implementation = "static"
    module = TorchExportableModuleWithStaticCache(model, 1, context, "cpu")
    return module, {"input_ids": torch.tensor([[1]]), "cache_position": torch.tensor([%d])}
"""


RECIPE = """\
model: {{hf: {model}}}
export:
  quantization: 8da4w
  group_size: 32
  generation: {{context: {context}}}{output}
runtime: {{threads: {threads}}}
benchmark:
  runs: 1
  memory: false
  profile: false
  generation: {{prompt_tokens: {prompts}, new_tokens: [{new_tokens}], depth: {depths}}}
"""
# Where the other side has it in 8 bits, too: it weighs a third of SmolLM2-135M.
WIDE_OUTPUT = "\n  overrides: {lm_head: 8da8w}"
# As ExecuTorch's exporter has it.
NARROW_OUTPUT = "\n  overrides: {lm_head: 8da4w, '*.v_proj': 8da4w}"
# Of a decoding run.
STEPS = 32


@dataclass(frozen=True)
class Sides:
    """The recipes of one length of the cache."""

    context: int
    fast: Path
    plain: Path


def save_model(shape: str, layers: int | None, folder: Path) -> None:
    """Random weights in the shape, as `save_pretrained` writes them."""
    import torch
    import transformers

    values = dict(SHAPES[shape])
    kind = values.pop("kind")
    values["num_hidden_layers"] = layers or values["num_hidden_layers"]
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**values, max_position_embeddings=8192)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)


def arguments(description: str | None) -> argparse.ArgumentParser:
    """The options of a benchmark against another exporter or runtime."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=SHAPES, default="smollm2-135m")
    parser.add_argument("--layers", type=int, help="all of the shape's by default")
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--positions", type=int, nargs="+", default=[100, 1900])
    parser.add_argument("--prompts", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--kept", type=Path, help="folder that keeps the model and programs")
    return parser


@contextmanager
def kept_folder(chosen: argparse.Namespace) -> Iterator[Path]:
    """The folder of the model and the programs, with the model in it."""
    with tempfile.TemporaryDirectory() as name:
        folder = (chosen.kept or Path(name)).resolve()
        if not (folder / "model").exists():
            save_model(chosen.shape, chosen.layers, folder / "model")
        yield folder


def write_recipe(
    folder: Path,
    chosen: argparse.Namespace,
    threads: int,
    *,
    decode: bool,
    wide_output: bool = False,
) -> Path:
    """A recipe of etdeploy's program, measured at the positions or with the prompts."""
    path = folder / f"{'decode' if decode else 'prefill'}-{threads}.yaml"
    path.write_text(
        RECIPE.format(
            model=json.dumps(str(folder / "model")),
            context=chosen.context,
            output=WIDE_OUTPUT if wide_output else NARROW_OUTPUT,
            threads=threads,
            prompts=[1] if decode else chosen.prompts,
            new_tokens=STEPS + 1 if decode else 1,
            depths=chosen.positions if decode else [0],
        )
    )
    return path


def recipes(folder: Path, model: Path, contexts: list[int], position: int, threads: int) -> Any:
    """Writes the recipes of both sides for each length of the cache."""
    (folder / "plain.py").write_text(FACTORY % position)
    for context in contexts:
        values = {
            "model": json.dumps(str(model)),
            "context": context,
            "position": position,
            "threads": threads,
        }
        sides = Sides(context, folder / f"fast-{context}.yaml", folder / f"plain-{context}.yaml")
        fast = {"output": "", "prompts": [1], "new_tokens": STEPS + 1}
        sides.fast.write_text(RECIPE.format(**values, **fast, depths=[position]))
        sides.plain.write_text(PLAIN.format(**values))
        yield sides


def etdeploy(*words: str) -> Any:
    """The JSON that a verb prints."""
    with tempfile.TemporaryDirectory() as output:
        argv = [sys.executable, "-m", "etdeploy", *words, "--json", "--output", output]
        done = subprocess.run(argv, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(argv)} ended with {done.returncode}")
    return json.loads(done.stdout)


def step_ms(recipe: Path) -> float:
    """The median time of a token, or of an inference that gives one."""
    workload = etdeploy("bench", "--recipe", str(recipe), "--quiet")["workload"]
    if workload["kind"] == "inference":
        return float(workload["latency_ms"]["median"])
    return float(workload["points"][0]["token_ms"]["median"])


def lowering_s(recipe: Path) -> float:
    """Seconds of torch.export and of lowering, when the program was made."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "program")
        argv = [sys.executable, "-m", "etdeploy", "export", "--recipe", str(recipe), "--quiet"]
        subprocess.run([*argv, "--output", str(folder)], check=True, stdout=subprocess.DEVNULL)
        seconds = json.loads((folder / "export.json").read_text())["seconds"]
    return float(seconds["export"] + seconds["lower"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="smollm2-135m")
    parser.add_argument("--layers", type=int, help="all of the shape's by default")
    parser.add_argument("--contexts", type=int, nargs="+", default=[256, 2048])
    parser.add_argument("--position", type=int, default=100)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=3)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_model(chosen.shape, chosen.layers, folder / "model")
        made = recipes(folder, folder / "model", chosen.contexts, chosen.position, chosen.threads)
        for sides in made:
            took = lowering_s(sides.fast), lowering_s(sides.plain)
            print(f"context {sides.context}: export and lowering {took[0]:.1f} s", end=" ")
            print(f"against {took[1]:.1f} s, ratio {took[0] / took[1]:.2f}")
            compare(
                f"context {sides.context}, position {chosen.position}: ms a token, plain by fast",
                lambda path=sides.plain: step_ms(path),
                lambda path=sides.fast: step_ms(path),
                chosen.pairs,
            )


if __name__ == "__main__":
    main()
