"""Exports of large language models with random weights, in a control group that limits the memory.

`limited_memory` needs the right to make a group below that of this process, as root has it.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etdeploy.core.processes import process
from etdeploy.export.preload import WORKER
from etdeploy.program.folder import EXPORT_INFO, MEMORY
from tests.support.export import ROOT, spec_of

_GROUPS = Path("/sys/fs/cgroup")
# By version: where the groups are, and the file with the limit.
_VERSIONS = {"memory": ("memory", "memory.limit_in_bytes"), "": ("", "memory.max")}
_SCRIPT = f"""
import sys, torch
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from transformers import LlamaConfig, LlamaForCausalLM
from tests.support.language_models import save_tokenizer
layers, hidden, inner, vocabulary = map(int, sys.argv[2:])
torch.manual_seed(0)
config = LlamaConfig(
    num_hidden_layers=layers, hidden_size=hidden, intermediate_size=inner, vocab_size=vocabulary,
    num_attention_heads=16, num_key_value_heads=8, tie_word_embeddings=True,
    bos_token_id=1, eos_token_id=2,
)
torch.set_default_dtype(torch.bfloat16)
LlamaForCausalLM(config).save_pretrained(sys.argv[1])
save_tokenizer(Path(sys.argv[1]))
"""


@dataclass(frozen=True)
class Shape:
    """The size of a Llama."""

    layers: int = 4
    hidden: int = 2048
    inner: int = 8192
    vocabulary: int = 8000


@dataclass(frozen=True)
class LimitedExport:
    """What an export took.

    Attributes:
        memory: As `export.json` has it.
    """

    weight_bytes: int
    memory: dict[str, Any]
    notes: list[str]
    seconds: float


def save_large(folder: Path, shape: Shape, python: str) -> Path:
    """Writes a checkpoint in bfloat16."""
    sizes = (shape.layers, shape.hidden, shape.inner, shape.vocabulary)
    _run((python, "-c", _SCRIPT, str(folder), *map(str, sizes)), folder.with_suffix(".log"))
    return folder


def export_limited(checkpoint: Path, folder: Path, python: str, group: Path) -> LimitedExport:
    """Exports with 8da4w in a control group.

    Raises:
        RuntimeError: If the export fails; the message has the end of its log.
    """
    generation = {"context": 128, "prefill_tokens": 32}
    export = {"backend": "xnnpack", "quantization": "8da4w", "generation": generation}
    spec = spec_of({"model": {"hf": str(checkpoint)}, "export": export})
    program = folder / "program"
    program.mkdir(parents=True)
    spec.save(folder / "spec.json")
    worker = (python, *WORKER[1:], str(folder / "spec.json"), str(program))
    enter = f"echo $$ > {shlex.quote(str(group / 'cgroup.procs'))} && exec {shlex.join(worker)}"
    started = time.monotonic()
    _run(("sh", "-c", enter), folder / "export.log")
    made = json.loads((program / EXPORT_INFO).read_text())
    return LimitedExport(
        sum(path.stat().st_size for path in checkpoint.glob("*.safetensors")),
        made["details"][MEMORY],
        made["notes"],
        time.monotonic() - started,
    )


def _run(argv: tuple[str, ...], log: Path) -> None:
    outcome = process.run(process.Request(argv=argv, log=log))
    if not outcome.ok:
        raise RuntimeError(f"{outcome.signal_name or outcome.exit_code}: {log.read_text()[-2000:]}")


@contextmanager
def limited_memory(limit_bytes: int) -> Iterator[Path | None]:
    """A control group with a limit; None where this process may make none."""
    group = _made(limit_bytes)
    try:
        yield group
    finally:
        if group:
            _remove(group)


def _made(limit_bytes: int) -> Path | None:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        if controllers not in _VERSIONS:
            continue
        base, limit = _VERSIONS[controllers]
        own = _GROUPS / base / path.strip("/")
        for parent in (own, own.parent):  # of version 2, a group has processes or groups
            group = parent / "etdeploy-limited-memory"
            with suppress(OSError):
                group.mkdir()
                if (group / limit).is_file():
                    (group / limit).write_text(str(limit_bytes))
                    return group
                group.rmdir()
    return None


def _remove(group: Path) -> None:
    """Removes a group, which the kernel allows some time after its last process has ended."""
    for _ in range(50):
        with suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.1)
