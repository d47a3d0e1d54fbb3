"""Text generation by etdeploy's programs against those of ExecuTorch's own exporter, in turn.

    python benchmarks/llm_etllm.py [--shape smollm2-135m] [--layers N] [--context 2048]
        [--positions 100 1900] [--prompts 128 512] [--threads 1 2] [--kept FOLDER]

The other side is the exporter in the ExecuTorch package (`examples/models/llama`), with its
attention in C++ (`custom`, an operator that the package's runtime has to be built with) and without
(`stock`). Both sides have random weights in the shape, 8da4w in groups of 32 and embeddings in 8
bits, and run in one process through the package's Python API, in alternating blocks. Bounds: at
least 3 times as fast as `stock` and as fast as `custom` in decoding, as fast as both in prefill.
For weights in huge pages on both sides, as etdeploy's runner has them, set
GLIBC_TUNABLES=glibc.malloc.hugetlb=1.
`--kept` names a folder for model and programs, which later runs take from there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from llm import (
    BLOCK,
    SHAPES,
    OwnProgram,
    arguments,
    in_blocks,
    kept_folder,
    points_of,
    runtime_here,
    take,
    write_recipe,
)


def etllm_program(chosen: argparse.Namespace, folder: Path, attention: str) -> Path:
    """A program of ExecuTorch's exporter, in a process of its own: it changes what it imports."""
    made = (
        folder / f"etllm-{chosen.shape}-{chosen.layers or 'all'}-{chosen.context}-{attention}.pte"
    )
    if not made.exists():
        argv = [sys.executable, __file__, "--do", "export", "--shape", chosen.shape]
        argv += ["--layers", str(chosen.layers or 0), "--context", str(chosen.context)]
        argv += ["--attention", attention, "--kept", str(made)]
        subprocess.run(argv, check=True, capture_output=True)
    return made


def export_etllm(chosen: argparse.Namespace) -> None:
    """Writes the program of ExecuTorch's exporter to `kept`."""
    import torch
    from executorch.examples.models.llama.export_llama_lib import export_llama
    from executorch.examples.models.llama.llama_transformer import construct_transformer
    from executorch.examples.models.llama.model_args import ModelArgs
    from executorch.extension.llm.export.config.llm_config import LlmConfig, ModelType

    shape = SHAPES[chosen.shape]
    params = {
        "dim": shape["hidden_size"],
        "hidden_dim": shape["intermediate_size"],
        "n_layers": chosen.layers or shape["num_hidden_layers"],
        "n_heads": shape["num_attention_heads"],
        "n_kv_heads": shape["num_key_value_heads"],
        "vocab_size": shape["vocab_size"],
        "norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "use_hf_rope": True,
    }
    if "head_dim" in shape:
        params["head_dim"] = shape["head_dim"]
    if shape["kind"] == "Qwen3":
        params |= {"use_qk_norm": True, "qk_norm_before_rope": True}
    with tempfile.TemporaryDirectory() as name:
        described, weights = Path(name, "params.json"), Path(name, "weights.pth")
        described.write_text(json.dumps(params))
        # Without a checkpoint, its norms would have whatever is in memory.
        torch.manual_seed(0)
        model = construct_transformer(ModelArgs(**params, max_seq_len=chosen.context))
        state = model.state_dict()
        for tensor in state.values():
            tensor.normal_(std=0.02) if tensor.dim() == 2 else tensor.fill_(1.0)
        torch.save(state, weights)
        config = LlmConfig()
        config.base.model_class = ModelType.llama3
        config.base.params, config.base.checkpoint = str(described), str(weights)
        config.base.metadata = json.dumps({"get_bos_id": 0, "get_eos_ids": [0]})
        config.model.use_kv_cache = True
        config.model.use_sdpa_with_kv_cache = chosen.attention == "custom"
        config.export.max_seq_length = config.export.max_context_length = chosen.context
        config.export.output_name = str(chosen.kept)
        config.quantization.qmode, config.quantization.group_size = "8da4w", 32
        config.quantization.embedding_quantize = "8,0"
        config.backend.xnnpack.enabled = config.backend.xnnpack.extended_ops = True
        export_llama(config)


def against_etllm(chosen: argparse.Namespace, folder: Path) -> None:
    """Prints a line for each point and attention."""
    programs = {a: etllm_program(chosen, folder, a) for a in ("stock", "custom")}
    recipe = write_recipe(folder, chosen, 1, decode=True)
    ours = folder / "program"
    if not ours.exists():
        argv = [sys.executable, "-m", "etdeploy", "export", "--recipe", str(recipe)]
        subprocess.run([*argv, "--output", str(ours), "--quiet"], check=True)
    for threads in chosen.threads:
        argv = [sys.executable, __file__, "--do", "time", "--threads", str(threads)]
        argv += ["--positions", *map(str, chosen.positions)]
        argv += ["--prompts", *map(str, chosen.prompts), "--kept", str(ours)]
        argv += ["--programs", *(f"{name}={path}" for name, path in programs.items())]
        subprocess.run(argv, check=True)


def time_etllm(chosen: argparse.Namespace) -> None:
    """All programs in one process, with this number of threads, in alternating blocks."""
    from executorch.extension.llm.custom_ops import custom_ops  # noqa: F401

    (threads,) = chosen.threads
    runtime = runtime_here(threads)
    own = OwnProgram(runtime, chosen.kept)
    others = {}
    for named in chosen.programs:
        name, _, path = named.partition("=")
        others[name] = runtime.load_program(path).load_method("forward")

    for tokens, position, what in points_of(chosen):
        steps = {"etdeploy": lambda t=tokens, p=position: own.call(t, p)}
        for name, method in others.items():
            steps[name] = lambda m=method, t=tokens, p=position: take(m, t, p)
        times = in_blocks(steps, BLOCK if tokens == 1 else 1)
        for name in others:
            ratio = statistics.median(
                a / b for a, b in zip(times[name], times["etdeploy"], strict=True)
            )
            mine, theirs = (statistics.median(times[n]) for n in ("etdeploy", name))
            print(
                f"{what}, threads {threads}: {mine:.2f} ms against {theirs:.2f} of etLLM with "
                f"{name} attention, ratio {ratio:.2f}",
                flush=True,
            )


def main() -> None:
    parser = arguments(__doc__)
    # This script, in processes of their own.
    parser.add_argument("--do", choices=("all", "export", "time"), help=argparse.SUPPRESS)
    parser.add_argument("--attention", help=argparse.SUPPRESS)
    parser.add_argument("--programs", nargs="+", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.do == "export":
        export_etllm(chosen)
    elif chosen.do == "time":
        time_etllm(chosen)
    else:
        with kept_folder(chosen) as folder:
            against_etllm(chosen, folder)


if __name__ == "__main__":
    main()
