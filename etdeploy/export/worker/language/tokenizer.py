"""The tokenizer of a language model, as transformers loads it."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from etdeploy.export.hf.files import TOKENIZER_CONFIG, TOKENIZER_FILES, has_tokenizer
from etdeploy.export.worker.failures import exception_text
from etdeploy.export.worker.language import gguf
from etdeploy.recipe.hub_cache import read_object

TOKENIZER_FOLDER = "tokenizer"
_TEMPORARY = "etdeploy-gguf-"
_TOKEN_KEYS = ("content", "lstrip", "rstrip", "single_word", "normalized", "special")


@dataclass(frozen=True)
class HfTokenizer:
    """A tokenizer in a folder, or `why` the files that are there cannot be loaded.

    Both are empty for a model without one.

    Attributes:
        warning: A sentence about how it may differ from the model's own.
        temporary: Holds a folder that is removed after the export.
    """

    folder: Path | None = None
    loaded: Any = None
    why: str = ""
    warning: str | None = None
    temporary: Any = None

    @property
    def note(self) -> str | None:
        """A sentence where there is none."""
        if self.folder:
            return self.warning
        what = "the model comes without a tokenizer"
        if self.why:
            what = f"the model's tokenizer cannot be loaded ({self.why})"
        return f"The program takes and gives the ids of tokens only: {what}."

    @property
    def bos_id(self) -> int | None:
        """The token that it puts before every text; None where it puts none."""
        if self.loaded is None:
            return None
        with_it = list(self.loaded("a", add_special_tokens=True)["input_ids"])
        without = list(self.loaded("a", add_special_tokens=False)["input_ids"])
        begins = len(with_it) > len(without) and with_it[:1] != without[:1]
        return int(with_it[0]) if begins else None

    def write(self, folder: Path) -> None:
        """Copies the files into a program folder; `tokenizer.json` is made where it is missing."""
        if self.folder is None:
            return
        target = folder / TOKENIZER_FOLDER
        target.mkdir()
        for name in TOKENIZER_FILES:
            if (self.folder / name).is_file():
                shutil.copyfile(self.folder / name, target / name)
        backend = getattr(self.loaded, "backend_tokenizer", None)
        if backend is not None and not (target / "tokenizer.json").is_file():
            backend.save(str(target / "tokenizer.json"))


def load_tokenizer(folder: Path, *, remote_code: bool) -> HfTokenizer:
    """The tokenizer of a checkpoint."""
    from transformers import AutoTokenizer

    if not has_tokenizer(folder):
        return HfTokenizer()
    try:
        loaded = AutoTokenizer.from_pretrained(
            folder,
            local_files_only=True,
            trust_remote_code=remote_code,
            **_token_objects(folder),
        )
    except Exception as error:  # of the tokenizer's code, or of a library that is not installed
        return HfTokenizer(why=exception_text(error))
    return HfTokenizer(folder, loaded)


def load_gguf_tokenizer(path: Path) -> HfTokenizer:
    """The tokenizer in a GGUF file."""
    if not has_tokenizer(path):
        return HfTokenizer()
    temporary = TemporaryDirectory(prefix=_TEMPORARY)
    folder = Path(temporary.name)
    try:
        warning = gguf.write_tokenizer(path, folder)
    except Exception as error:
        return HfTokenizer(why=exception_text(error))
    tokenizer = load_tokenizer(folder, remote_code=False)
    return replace(tokenizer, warning=warning, temporary=temporary)


def _token_objects(folder: Path) -> dict[str, Any]:
    """Special tokens that are objects without the type that transformers looks for.

    So older releases wrote them: {"content": "<s>", "lstrip": false, ...}.
    """
    from transformers import AddedToken

    try:
        config = read_object(folder / TOKENIZER_CONFIG)
    except (OSError, ValueError):
        return {}  # from_pretrained tells what is wrong
    return {
        name: AddedToken(**{key: value for key, value in token.items() if key in _TOKEN_KEYS})
        for name, token in config.items()
        if name.endswith("_token") and _is_untyped(token)
    }


def _is_untyped(token: Any) -> bool:
    return isinstance(token, dict) and "content" in token and "__type" not in token


def stop_ids(model: Any, tokenizer: HfTokenizer, vocabulary: int) -> tuple[int, ...]:
    """The tokens at which transformers' `generate` stops, or else the tokenizer's end of text."""
    chosen = (model.generation_config, model.config, tokenizer.loaded)
    each = (getattr(one, "eos_token_id", None) for one in chosen)
    found: Any = next((ids for ids in each if ids is not None), ())
    ids: Iterable[int] = found if isinstance(found, list | tuple) else (found,)
    return tuple(dict.fromkeys(int(i) for i in ids if 0 <= int(i) < vocabulary))
