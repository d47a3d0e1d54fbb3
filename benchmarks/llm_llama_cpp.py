"""Text generation by etdeploy's programs against llama.cpp, in turn.

    python benchmarks/llm_llama_cpp.py --binaries FOLDER [--shape smollm2-135m] [--layers N]
        [--context 2048] [--positions 100 1900] [--prompts 128 512] [--threads 1 2] [--pairs 5]
        [--kept FOLDER]

`--binaries` is a folder with `llama-bench` and `llama-quantize`; the package `gguf` has to be
installed. Both sides have random weights in the shape: 8da4w in groups of 32 here, Q4_0 there, and
the output layer in 8 bits on both. Processes alternate: etdeploy's runner, whose steps include the
choice of a token, and llama-bench, whose steps do not. Bound: at least 1.3 times as many tokens a
second. `--kept` names a folder for model and programs, which later runs take from there.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
from pathlib import Path
from typing import Any

from llm import SHAPES, STEPS, arguments, etdeploy, kept_folder, write_recipe


def ours_by_runner(recipe: Path) -> list[float]:
    """Tokens a second of each point, as etdeploy's runner measures them."""
    points = etdeploy("bench", "--recipe", str(recipe), "--quiet")["workload"]["points"]
    return [p["decode_tokens_per_s"] or p["prefill_tokens_per_s"] for p in points]


def by_llama_bench(chosen: argparse.Namespace, model: Path, threads: int, *, decode: bool) -> Any:
    """The same by llama-bench; its context is as long as each test needs."""
    sizes = ["-p", ",".join(map(str, chosen.prompts)), "-n", "0"]
    if decode:
        sizes = ["-p", "0", "-n", str(STEPS), "-d", ",".join(map(str, chosen.positions))]
    argv = [chosen.binaries / "llama-bench", "-m", model, "-t", threads, "-r", 2, "-o", "json"]
    done = subprocess.run([*map(str, argv), *sizes], capture_output=True, text=True, check=True)
    return [test["avg_ts"] for test in json.loads(done.stdout)]


def against_llama_cpp(chosen: argparse.Namespace, folder: Path) -> None:
    """Prints a line for each point."""
    model = quantized_gguf(chosen, folder)
    for threads, decode in itertools.product(chosen.threads, (True, False)):
        recipe = write_recipe(folder, chosen, threads, decode=decode, wide_output=True)
        ours_by_runner(recipe)  # exports, and warms up
        pairs = [
            (by_llama_bench(chosen, model, threads, decode=decode), ours_by_runner(recipe))
            for _ in range(chosen.pairs)
        ]
        points = chosen.positions if decode else chosen.prompts
        for index, point in enumerate(points):
            theirs = statistics.median(other[index] for other, _ in pairs)
            ours = statistics.median(own[index] for _, own in pairs)
            ratio = statistics.median(own[index] / other[index] for other, own in pairs)
            what = f"decode at {point}" if decode else f"prefill of {point}"
            print(
                f"{what}, threads {threads}: {ours:.1f} tokens/s against {theirs:.1f} of "
                f"llama.cpp, ratio {ratio:.2f} ({chosen.pairs} pairs)",
                flush=True,
            )


def quantized_gguf(chosen: argparse.Namespace, folder: Path) -> Path:
    """The shape as llama.cpp's own file: Q4_0, embeddings and output in Q8_0."""
    made = folder / f"{chosen.shape}-{chosen.layers or 'all'}.gguf"
    if made.exists():
        return made
    plain = made.with_suffix(".f16")
    write_gguf(plain, SHAPES[chosen.shape], chosen.layers)
    argv = [str(chosen.binaries / "llama-quantize"), "--token-embedding-type", "q8_0"]
    argv += ["--output-tensor-type", "q8_0", str(plain), str(made), "Q4_0"]
    subprocess.run(argv, check=True, capture_output=True)
    plain.unlink()
    return made


def write_gguf(path: Path, shape: dict[str, Any], layers: int | None) -> None:
    """Random weights under the names that llama.cpp gives to the tensors of such a model."""
    import gguf
    import numpy as np

    random = np.random.default_rng(0)
    hidden, heads, pairs = (
        shape["hidden_size"], shape["num_attention_heads"], shape["num_key_value_heads"]
    )  # fmt: skip
    width, inner = shape.get("head_dim", hidden // heads), shape["intermediate_size"]
    kind = shape["kind"]
    arch = {"Llama": "llama", "Qwen3": "qwen3", "Gemma3Text": "gemma3"}[kind]
    count = layers or shape["num_hidden_layers"]
    file = gguf.GGUFWriter(path, arch)
    file.add_context_length(8192)
    file.add_embedding_length(hidden)
    file.add_block_count(count)
    file.add_feed_forward_length(inner)
    file.add_head_count(heads)
    file.add_head_count_kv(pairs)
    file.add_key_length(width)
    file.add_value_length(width)
    file.add_rope_dimension_count(width)
    file.add_layer_norm_rms_eps(1e-5)
    file.add_vocab_size(shape["vocab_size"])
    file.add_tokenizer_model("no_vocab")
    if "sliding_window" in shape:
        file.add_sliding_window(shape["sliding_window"])

    def weight(name: str, *sizes: int) -> None:
        values = random.standard_normal(sizes, dtype=np.float32) * 0.02
        file.add_tensor(f"{name}.weight", values.astype(np.float16))

    def norm(name: str, size: int) -> None:
        file.add_tensor(f"{name}.weight", np.ones(size, dtype=np.float32))

    weight("token_embd", shape["vocab_size"], hidden)
    norm("output_norm", hidden)
    for block in (f"blk.{index}" for index in range(count)):
        norm(f"{block}.attn_norm", hidden)
        weight(f"{block}.attn_q", heads * width, hidden)
        weight(f"{block}.attn_k", pairs * width, hidden)
        weight(f"{block}.attn_v", pairs * width, hidden)
        weight(f"{block}.attn_output", hidden, heads * width)
        norm(f"{block}.ffn_norm", hidden)
        weight(f"{block}.ffn_gate", inner, hidden)
        weight(f"{block}.ffn_up", inner, hidden)
        weight(f"{block}.ffn_down", hidden, inner)
        if kind != "Llama":
            norm(f"{block}.attn_q_norm", width)
            norm(f"{block}.attn_k_norm", width)
        if kind == "Gemma3Text":
            norm(f"{block}.post_attention_norm", hidden)
            norm(f"{block}.post_ffw_norm", hidden)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--binaries", type=Path, required=True)
    chosen = parser.parse_args()
    with kept_folder(chosen) as folder:
        against_llama_cpp(chosen, folder)


if __name__ == "__main__":
    main()
