"""Programs that etdeploy does not export itself, and their tokenizers.

ExecuTorch's own exporter of language models runs as `export_llm` runs it; finished programs come
from a file or from the hub.
"""

from __future__ import annotations

import importlib
import json
import logging
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from etdeploy.export.finished import has_meta_tokenizer
from etdeploy.export.hf.files import tokenizer_beside
from etdeploy.export.llm_config import EXPORTER, content_of
from etdeploy.export.protocol import ModelSources
from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.failures import describe_errors, fail
from etdeploy.export.worker.language.fetch import fetch_program
from etdeploy.program.folder import PROGRAM_FILE
from etdeploy.recipe.hub_cache import CONFIG

Tell = Callable[[str, float], None]
# What the exporter writes to its log when a step begins, and how much is done then.
_STEPS = {
    "Checkpoint dtype": ("quantizing", 0.3),
    "Exporting with": ("tracing with torch.export", 0.4),
    "Lowering model": ("lowering", 0.6),
    "Required memory": ("writing the program", 0.95),
}


def run_own_exporter(spec: ExportSpec, folder: Path, tell: Tell) -> ModelSources:
    """Fills the program folder with what ExecuTorch's exporter writes.

    It gets the user's LlmConfig, except for where it writes.
    """
    tell("importing ExecuTorch's exporter", 0.05)
    with describe_errors("lowering", "ExecuTorch's exporter cannot be imported:"):
        exporter = importlib.import_module(EXPORTER)
    config = _typed(content_of(spec))
    config.export.output_dir = str(folder)
    config.export.output_name = str(folder / PROGRAM_FILE)
    root = logging.getLogger()
    root.setLevel(logging.INFO)  # as Hydra sets it for `export_llm`
    steps = _Steps(tell)
    root.addHandler(steps)
    tell(f"loading {spec.source}", 0.1)
    try:
        with describe_errors("lowering", "ExecuTorch's exporter failed:"):
            exporter.export_llama(config)
    finally:
        root.removeHandler(steps)
    if not (folder / PROGRAM_FILE).is_file():  # it only writes to its log what prevents that
        raise fail("write", "ExecuTorch's exporter wrote no program; its log says why")
    if named := spec.llm_files.get("base.tokenizer_path"):
        _save_tokenizer(folder, Path(named), Path(named).name)
    return ModelSources()


def run_finished(spec: ExportSpec, folder: Path, tell: Tell) -> ModelSources:
    """Gets a finished program, and puts its tokenizer into the program folder if it is Meta's."""
    sources = ModelSources(program=spec.program)
    if spec.hub_program:
        sources = fetch_program(spec, spec.hub_program, tell)
    source = Path(str(sources.program))
    if has_meta_tokenizer(source):
        tell("converting the tokenizer", 0.8)
        _save_tokenizer(folder, source)
    return sources


def _save_tokenizer(folder: Path, file: Path, vocabulary: str = "tokenizer.model") -> None:
    """Converts a tokenizer of Meta beside a file into that of a program folder."""
    if not vocabulary.endswith(".model") or tokenizer_beside(file):
        return
    from etdeploy.export.worker.language.meta import write_tokenizer
    from etdeploy.export.worker.language.tokenizer import load_tokenizer

    with TemporaryDirectory(prefix="etdeploy-tokenizer-") as temporary:
        there = Path(temporary)
        (there / CONFIG).write_text(json.dumps({"model_type": "llama"}))
        write_tokenizer(there, file, vocabulary)
        load_tokenizer(there, remote_code=False).write(folder)


def _typed(content: dict[str, Any]) -> Any:
    """The LlmConfig as `export_llm` makes it of its file."""
    from executorch.extension.llm.export.config.llm_config import LlmConfig
    from omegaconf import OmegaConf

    return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(LlmConfig), content))


class _Steps(logging.Handler):
    """Reports the steps that the exporter's log shows."""

    def __init__(self, tell: Tell) -> None:
        super().__init__(logging.INFO)
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        step = next((step for begin, step in _STEPS.items() if text.startswith(begin)), None)
        if step:
            self._tell(*step)
