"""What a model gave before it was quantized, kept for its other exports."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from etdeploy.core.files.basic import write_atomic
from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.language.load import LoadedModel


@dataclass(frozen=True)
class References:
    """What a model gave before it was quantized, kept in files for its other exports.

    Attributes:
        folder: None where nothing is kept.
    """

    folder: Path | None = None

    def of(self, name: str, depends: object, compute: Callable[[], Any]) -> Any:
        """What `compute` gave before, of the same `depends`, or gives now.

        Numbers, strings and tensors in tuples, lists and dicts, or None, which is not kept.
        """
        if self.folder is None:
            return compute()
        # Sums of floats are in another order with another number of threads.
        content = repr((depends, torch.get_num_threads()))
        path = self.folder / f"{name}-{hashlib.sha256(content.encode()).hexdigest()[:32]}.pt"
        # Damaged, or of another release: computed again.
        with suppress(OSError, RuntimeError, EOFError, UnpicklingError):
            return torch.load(path, weights_only=True, mmap=True)
        found = compute()
        if found is not None:
            stream = io.BytesIO()
            torch.save(found, stream)
            with suppress(OSError):  # an export does not need them
                write_atomic(path, stream.getvalue())
        return found


def references(spec: ExportSpec, loaded: LoadedModel) -> References:
    """Where what the model gives is kept; a model that does not fit in memory has no room there."""
    if spec.references is None or loaded.files or loaded.processor:
        return References()
    return References(Path(spec.references, loaded.commit or "files"))
