"""The model's own tokenizer and chat template, on this machine: text to token ids, and back.

The tokenizers library alone reads a tokenizer in some ms; transformers would import torch, which
takes seconds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from etdeploy.core.commands import pip_command
from etdeploy.core.console import count
from etdeploy.core.errors import UsageError
from etdeploy.core.files.basic import inside
from etdeploy.program.generation import Generation

if TYPE_CHECKING:
    from jinja2 import Template
    from tokenizers import Tokenizer as Inner


TOKENIZER_FILE = "tokenizer.json"
"""The format of the tokenizers library, with everything that is needed to use one."""
_EXTRA = "etdeploy[llm]"


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer that was read.

    Attributes:
        folder: With its files.
        inner: The library's.
        bos_id: What a text begins with; None where nothing is added.
    """

    folder: Path
    inner: Inner
    bos_id: int | None = None

    def encode(self, text: str) -> tuple[int, ...]:
        """The ids of a text as the model was trained with it: with the tokens that it adds.

        Raises:
            UsageError: It was made of bytes that are not text.
        """
        ids = tuple(self.inner.encode(_sound(text)).ids)
        # Some models say in another file only that it is added.
        missing = self.bos_id is not None and ids[:1] != (self.bos_id,)
        return (self.bos_id, *ids) if missing and self.bos_id is not None else ids

    def encode_rendered(self, text: str) -> tuple[int, ...]:
        """The ids of what a chat template gave, which has all special tokens already.

        Raises:
            UsageError: It was made of bytes that are not text.
        """
        return tuple(self.inner.encode(_sound(text), add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, without special tokens."""
        return str(self.inner.decode(list(ids)))


def _sound(text: str) -> str:
    """The text itself, if it has no byte of a command line or a terminal that is not UTF-8."""
    strange = [c for c in text if "\ud800" <= c <= "\udfff"]
    if not strange:
        return text
    raise UsageError(
        f"the text is not UTF-8, in {count(len(strange), 'byte')}: "
        + ", ".join(f"0x{ord(c) & 0xFF:02X}" for c in strange[:4]),
        remedy="Give it in UTF-8; iconv converts other encodings.",
    )


def tokenizer_folder(generation: Generation, program_folder: Path) -> Path | None:
    """Where the files of a program's tokenizer are; None for a model that has none."""
    return inside(program_folder, generation.tokenizer) if generation.tokenizer else None


def load_tokenizer(generation: Generation, program_folder: Path) -> Tokenizer | None:
    """The tokenizer of a program; None for a model that has none.

    Raises:
        UsageError: The library that reads it is not installed, or it cannot be read.
    """
    folder = tokenizer_folder(generation, program_folder)
    if folder is None:
        return None
    try:
        from tokenizers import Tokenizer as Library
    except ImportError as error:
        raise UsageError(
            "the package tokenizers, which reads the model's tokenizer, is not installed",
            remedy=pip_command(_EXTRA),
        ) from error
    path = folder / TOKENIZER_FILE
    try:
        inner = Library.from_file(str(path))
    except Exception as error:  # the library raises nothing more special
        raise UsageError(
            f"the model's tokenizer cannot be read: {error}",
            place=str(path),
            remedy="Export the model again, after: etdeploy clean programs\n"
            f"or install the release of the library that wrote it: {pip_command(_EXTRA)}",
        ) from error
    return Tokenizer(folder, inner, generation.bos_id)


# What decoders give for bytes that are not a whole character.
_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
# More than a character has bytes, with a token before it.
_CONTEXT = 6


class TextStream:
    """Gives text as soon as it can no longer change.

    A token may be a part of a character, and decoders of SentencePiece drop the space with which a
    text begins. So each token is decoded together with those before it that gave the last piece of
    text, or end the prompt, and what these give alone is taken away. They begin with a whole
    character: some decoders give nothing for all bytes in a row of which one is amiss.

    Args:
        decode: The text of ids.
        prompt: The ids before the first.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], prompt: Sequence[int] = ()) -> None:
        self._decode = decode
        ends = (list(prompt[-size:]) for size in range(_CONTEXT, 0, -1))
        self._before = next((ids for ids in ends if _INCOMPLETE not in decode(ids)), [])
        self._new: list[int] = []

    def add(self, token: int) -> str:
        """The text that is certain with one more id; often empty."""
        self._new.append(token)
        before, now = self._decoded()
        if not now.startswith(before) or now.endswith(_INCOMPLETE):
            return ""
        return self._emit(now[len(before) :])

    def end(self) -> str:
        """What is left, however incomplete: no id follows."""
        before, now = self._decoded()
        return self._emit(now[len(before) :])

    def _decoded(self) -> tuple[str, str]:
        return self._decode(self._before), self._decode([*self._before, *self._new])

    def _emit(self, text: str) -> str:
        if text:
            self._before, self._new = self._new, []
        return text


_CONFIG = "tokenizer_config.json"
_FILES = ("chat_template.jinja", "chat_template.json")
TEMPLATE_FILES = (_CONFIG, *_FILES)
"""Files of which any may have the template."""
_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")


@dataclass(frozen=True)
class ChatTemplate:
    """A template.

    Attributes:
        source: In jinja2's language.
        tokens: Texts of special tokens by their names: `bos_token`.
        place: Its file, for messages.
    """

    source: str
    tokens: Mapping[str, str]
    place: str

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The text with which the model is to go on.

        Args:
            messages: Each with `role` (system, user, assistant) and `content`, in their order.

        Raises:
            UsageError: The template has a mistake, or refuses these messages.
        """
        from jinja2 import TemplateError

        try:
            return _compiled(self.source).render(
                messages=[dict(message) for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **self.tokens,
            )
        except (TemplateError, TypeError, ValueError, LookupError, ArithmeticError) as error:
            raise UsageError(
                f"the model's chat template does not take this conversation: {error}",
                place=self.place,
                remedy="Use etdeploy generate, which gives the model a text as it is.",
            ) from error


def load_template(folder: Path) -> ChatTemplate | None:
    """The template in a folder with a tokenizer's files; None for a model that has none.

    Raises:
        UsageError: A file cannot be read.
    """
    config = _json(folder / _CONFIG)
    for name in _FILES:
        path = folder / name
        if path.is_file():
            found = _text(path) if path.suffix == ".jinja" else _json(path).get("chat_template")
            return ChatTemplate(str(found), _tokens(config), str(path))
    source = _default(config.get("chat_template"))
    return ChatTemplate(source, _tokens(config), str(folder / _CONFIG)) if source else None


def _default(found: Any) -> str | None:
    """Of several templates by name, the one for chats without tools."""
    if isinstance(found, list):
        found = {str(each.get("name")): each.get("template") for each in found}.get("default")
    return found if isinstance(found, str) else None


def _tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Special tokens: texts, or objects with one."""
    found = {name: config.get(name) for name in _TOKENS}
    contents = {n: v.get("content") if isinstance(v, dict) else v for n, v in found.items()}
    return {name: text for name, text in contents.items() if isinstance(text, str)}


def _json(path: Path) -> dict[str, Any]:
    text = _text(path) if path.is_file() else "{}"
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UsageError(f"it is not JSON: {error}", place=str(path), remedy=_AGAIN) from error
    return found if isinstance(found, dict) else {}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"it cannot be read: {error}", place=str(path), remedy=_AGAIN) from error


_AGAIN = "Export the model again, after: etdeploy clean programs"


def _compiled(source: str) -> Template:
    from jinja2.ext import Extension, loopcontrols
    from jinja2.nodes import Node
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class GenerationTag(Extension):
        """`{% generation %}` marks what an assistant said, for training; it changes no text."""

        tags = {"generation"}

        def parse(self, parser: Parser) -> list[Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals = {
        "range": environment.globals["range"],  # the sandbox's own, which is bounded
        "dict": lambda *given, **named: dict(*given, **named),
        "namespace": _namespace(),
        "raise_exception": _refuse,
        "strftime_now": lambda form: datetime.now().strftime(form),
    }
    return environment.from_string(source)


def _namespace() -> type:
    from jinja2.exceptions import SecurityError
    from jinja2.utils import Namespace

    class Plain(Namespace):
        """Of values by name, but none that Python itself looks up."""

        def __setitem__(self, name: str, value: Any) -> None:
            if str(name).startswith("_"):
                raise SecurityError(f"a template cannot set {name}")
            super().__setitem__(name, value)

    return Plain


def _refuse(message: str) -> None:
    from jinja2 import TemplateError

    raise TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Without the escapes that jinja2's own filter makes for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


Speech = Literal["text", "chat"]
"""What a model is to understand: a text as it is, or the lines of a chat."""
_PUT = "Put the model's tokenizer (tokenizer.json) into its folder"
_FOR_CHATS = "name a model that is made for chats: --model ID_OR_PATH"


def require_speech(
    tokenizer: Path | None,
    wanted: Speech | None,
    *,
    place: str | None = None,
    why: str = "",
    has_template: bool | None = None,
) -> None:
    """Refuses a model that cannot be talked with.

    Args:
        tokenizer: The folder with the tokenizer's files; None for a model that has none.
        wanted: What it is to understand; None for nothing.
        place: The model, for messages.
        why: Why the tokenizer that is there cannot be loaded.
        has_template: Whether the model has a chat template; None if its files are to be read.

    Raises:
        UsageError: There is no tokenizer, or no chat template that can be read.
    """
    if wanted and tokenizer is None:
        raise no_tokenizer(wanted, place, why)
    if wanted != "chat" or tokenizer is None or has_template:
        return
    if has_template is None:
        required_template(tokenizer, place)
    else:
        raise _no_template(place)


def required_template(tokenizer: Path, place: str | None = None) -> ChatTemplate:
    """The chat template among a tokenizer's files.

    Raises:
        UsageError: There is none, or it cannot be read.
    """
    template = load_template(tokenizer)
    if template is None:
        raise _no_template(place)
    return template


def _no_template(place: str | None) -> UsageError:
    return UsageError(
        "the model has no chat template, so it cannot chat",
        place=place,
        remedy=f"Use etdeploy generate, or {_FOR_CHATS}",
    )


def no_tokenizer(wanted: Speech, place: str | None = None, why: str = "") -> UsageError:
    """The refusal of a model without a tokenizer; see `require_speech`."""
    what = (
        f"the model's tokenizer cannot be loaded ({why})" if why else "the model has no tokenizer"
    )
    if wanted == "chat":
        return UsageError(
            f"{what}, so it cannot chat", place=place, remedy=f"{_PUT}, or {_FOR_CHATS}"
        )
    return UsageError(
        f"{what}, so it takes no text",
        place=place,
        remedy=f"{_PUT}, or give it the ids of tokens: --prompt '1 15 27'",
    )
