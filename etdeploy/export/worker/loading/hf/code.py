"""Whether a model needs code of its own repository, and whether that may run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from etdeploy.core.commands import quoted
from etdeploy.export.hf.config import FACTORY, foreign_code
from etdeploy.export.hf.files import CONFIG, TOKENIZER_CONFIG, read_object
from etdeploy.export.spec import ExportSpec, HfModel
from etdeploy.export.worker.failures import WorkerError, fail


def require_code(spec: ExportSpec, folder: Path) -> None:
    """Refuses a model that needs code which may not run, or which is not in its repository."""
    model = spec.hf
    if model is None:
        raise ValueError("the spec names no language model")
    config = read_object(folder / CONFIG)
    if not model.remote_code:
        _require_known(spec, model, config)
        return
    for name in (CONFIG, TOKENIZER_CONFIG):
        other = foreign_code(_content(folder / name))
        if other:
            raise fail(
                "checkpoint",
                f"{name} names code of another repository, {other}, and only code of {model.name} "
                "may run",
                remedy="Download the model with that code beside it, and name the folder.",
                file=spec.place("model", "remote_code"),
            )


def _content(path: Path) -> dict[str, Any]:
    try:
        return read_object(path)
    except (OSError, ValueError):
        return {}  # a tokenizer that cannot be read has a note of its own


def _require_known(spec: ExportSpec, model: HfModel, config: Mapping[str, Any]) -> None:
    import transformers

    kind = config.get("model_type")
    if kind in transformers.CONFIG_MAPPING:
        return
    if "auto_map" in config:
        raise _own_code(spec, model, kind)
    raise fail(
        "checkpoint",
        f"the installed transformers {transformers.__version__} has no model of the type {kind!r}",
        remedy=FACTORY,
        file=spec.place("model", "hf"),
    )


def _own_code(spec: ExportSpec, model: HfModel, kind: object) -> WorkerError:
    named = str(model.folder or model.id)
    return fail(
        "checkpoint",
        f"transformers does not have {kind or 'this type of model'}; {model.name} brings its own "
        "code, which does not run unless the recipe says so",
        remedy=f"Read the .py files of {named}. If you trust them:\n"
        f"--set {quoted(f'model.remote_code={named}')}",
        file=spec.place("model", "hf"),
    )
