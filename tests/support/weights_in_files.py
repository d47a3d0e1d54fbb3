"""Exports a tiny language model with its weights in memory, and with them in files.

`python -m tests.support.weights_in_files FOLDER` writes one line of JSON at the end.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from etdeploy.export.hf import memory
from etdeploy.export.worker.backends.base import patched
from etdeploy.export.worker.failures import WorkerError
from etdeploy.export.worker.loading.recorder import FileRecorder
from etdeploy.export.worker.lowering import rowwise, weight_files
from etdeploy.export.worker.pipeline import run
from etdeploy.program.folder import MEMORY, PROGRAM_FILE, load_provenance
from tests.support.export import spec_of
from tests.support.language_models import save_llama

_FREE = 0


def _checkpoint(folder: Path) -> Path:
    """In bfloat16, in two files."""
    save_llama(folder, hidden_size=128, intermediate_size=160)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="256KB")
    return folder


def _exported(spec: Any, folder: Path) -> dict[str, Any]:
    folder.mkdir()
    run(spec, folder, lambda *_: None, FileRecorder())
    made = load_provenance(folder)
    generation: Any = made.generation
    texts, evaluation = generation.expected, generation.evaluation
    return {
        "digest": hashlib.sha256((folder / PROGRAM_FILE).read_bytes()).hexdigest(),
        "texts": [[token.ids[0] for token in text.quantized.tokens] for text in texts],
        "perplexities": [evaluation.perplexity, evaluation.quantized.perplexity],
        "notes": made.notes,
        "memory": made.details[MEMORY],
        "etrecord": made.etrecord,
        "beside": sorted(path.name for path in folder.parent.iterdir()),
    }


def _refused(spec: Any, folder: Path) -> dict[str, Any]:
    """The failure of an export on a full disk."""
    folder.mkdir()
    with patched(shutil, disk_usage=lambda _: SimpleNamespace(free=5_000)):
        try:
            run(spec, folder, lambda *_: None, FileRecorder())
        except WorkerError as error:
            beside = sorted(path.name for path in folder.parent.iterdir())
            return {**error.failure.model_dump(), "beside": beside}
    return {}


def main() -> None:
    folder = Path(sys.argv[1])
    checkpoint = _checkpoint(folder / "model")
    recipe = {
        "model": {"hf": str(checkpoint)},
        "export": {
            "backend": "xnnpack",
            "quantization": "8da4w",
            # AWQ's scales depend on the last bits of activations.
            "scaling": "none",
            "generation": {"context": 64, "prefill_tokens": 16, "evaluate_tokens": 40},
        },
    }
    spec = spec_of(recipe)
    (folder / "made").mkdir()
    found: dict[str, Any] = {"memory": _exported(spec, folder / "made" / "memory")}
    # As on a machine without free memory; files also for what is small.
    machine = memory.machine_memory()
    memory.machine_memory = lambda: replace(machine, free_bytes=_FREE)
    weight_files._LEAST_BYTES, weight_files._AT_ONCE, rowwise._AT_ONCE = 256, 1000, 1000
    found["files"] = _exported(spec, folder / "made" / "files")
    awq = spec.model_copy(update={"scaling": "awq"})
    found["scaled"] = _exported(awq, folder / "made" / "scaled")
    found["no room"] = _refused(spec, folder / "made" / "no room")
    sys.stdout.write("\n" + json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
