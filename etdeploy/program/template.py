"""The model's own chat template: a conversation as the text that the model was trained with.

A template is a program of the model's author, so it runs in jinja2's sandbox, sees plain values
only, and gets no more than what transformers gives it
(https://huggingface.co/docs/transformers/chat_templating_writing).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from etdeploy.core.errors import UsageError

if TYPE_CHECKING:
    from jinja2 import Template


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
_FOR_CHATS = "name a model that is made for chats: --model ID_OR_FOLDER"


def require_speech(
    tokenizer: Path | None, wanted: Speech | None, *, place: str | None = None, why: str = ""
) -> None:
    """Refuses a model that cannot be talked with.

    Args:
        tokenizer: The folder with the tokenizer's files; None for a model that has none.
        wanted: What it is to understand; None for nothing.
        place: The model, for messages.
        why: Why the tokenizer that is there cannot be loaded.

    Raises:
        UsageError: There is no tokenizer, or no chat template that can be read.
    """
    if wanted and tokenizer is None:
        raise no_tokenizer(wanted, place, why)
    if wanted == "chat" and tokenizer:
        required_template(tokenizer, place)


def required_template(tokenizer: Path, place: str | None = None) -> ChatTemplate:
    """The chat template among a tokenizer's files.

    Raises:
        UsageError: There is none, or it cannot be read.
    """
    template = load_template(tokenizer)
    if template is None:
        raise UsageError(
            "the model has no chat template, so it cannot chat",
            place=place,
            remedy=f"Use etdeploy generate, or {_FOR_CHATS}",
        )
    return template


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
