"""etdeploy chat."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from etdeploy.cli.options import (
    device_option,
    model_option,
    quiet_option,
    recipe_options,
    target_option,
)
from etdeploy.cli.text import Voice, Wanted, opened_voice, text_options
from etdeploy.core import cancel, console
from etdeploy.core.errors import Interrupted, UsageError

if TYPE_CHECKING:
    from etdeploy.program.text.template import ChatTemplate
    from etdeploy.program.text.tokenizer import Tokenizer

_RESET, _EXIT = "/reset", "/exit"
_HOW = f"{_RESET} forgets the conversation; {_EXIT} or Ctrl-D ends the chat; Ctrl-C ends an answer."


@click.command()
@recipe_options
@model_option
@device_option
@target_option
@click.option("--system", metavar="TEXT", help="What the model is told before the conversation.")
@click.option(
    "--max-new-tokens",
    type=click.IntRange(min=1),
    default=1024,
    show_default=True,
    metavar="N",
    help="The most that an answer has.",
)
@text_options
@quiet_option
def command(
    recipe: str,
    overrides: tuple[str, ...],
    device: str,
    target: str | None,
    system: str | None,
    max_new_tokens: int,
    quiet: bool,
    **sampling: float | int | None,
) -> None:
    """Talk with a language model on the device, line by line.

    The whole conversation goes to the model each time, in the form of its own chat template.
    Without a terminal, lines are read to the end of standard input.
    """
    wanted = Wanted(recipe, overrides, device, target, quiet, max_new_tokens, sampling)
    with opened_voice(wanted) as voice:
        chat = Chat(voice, *chat_needs(voice), system, quiet)
        if console.is_typed() and not quiet:
            console.message(f"\n{_HOW}")
        while (line := _next_line()) is not None and line != _EXIT:
            chat.hear(line)


def chat_needs(voice: Voice) -> tuple[Tokenizer, ChatTemplate]:
    """The tokenizer and the chat template of a model.

    Raises:
        UsageError: It has none.
    """
    from etdeploy.program.text.template import load_template

    remedy = "Use etdeploy generate, or a model that is made for chats."
    if voice.tokenizer is None:
        raise UsageError("the model has no tokenizer, so it cannot chat", remedy=remedy)
    template = load_template(voice.tokenizer.folder)
    if template is None:
        raise UsageError("the model has no chat template, so it cannot chat", remedy=remedy)
    return voice.tokenizer, template


@dataclass
class Chat:
    """A conversation.

    Attributes:
        voice: What answers.
        tokenizer: The model's own.
        template: Gives the conversation the model's form.
        system: What the model is told before it.
        quiet: Whether only answers are shown.
        messages: What was said so far, without `system`.
    """

    voice: Voice
    tokenizer: Tokenizer
    template: ChatTemplate
    system: str | None
    quiet: bool
    messages: list[dict[str, str]] = field(default_factory=list)

    def hear(self, line: str) -> None:
        """Does what a line says, or answers it.

        Raises:
            EtdeployError: The program or the device failed.
            Interrupted: The chat was stopped.
        """
        if line == _RESET:
            self.messages.clear()
        elif line.startswith("/"):
            console.message(f"There is no command {line.split()[0]}. {_HOW}")
        elif line.strip():
            self.messages.append({"role": "user", "content": line})
            try:
                self._answer()
            except UsageError as error:  # the conversation is too long, or not for this model
                self.messages.pop()
                console.message(f"{error}\nYour line was not answered. {_RESET} begins anew.")

    def _answer(self) -> None:
        said: list[str] = []
        stop = cancel.Flag(cancel.current())

        def show(text: str) -> None:
            said.append(text)
            console.part(text)

        before = [{"role": "system", "content": self.system}] if self.system else []
        text = self.template.render([*before, *self.messages])
        prompt = self.tokenizer.encode_rendered(text)
        try:
            with cancel.first_interrupt(stop):
                answer = self.voice.answer(prompt, show, stop)
            told = self.voice.summary(answer)
            worth = not self.quiet or answer.stopped == "context_full"
        except Interrupted:
            cancel.checkpoint()  # not only the answer was to stop
            told, worth = "stopped", not self.quiet
        console.part("\n")
        if worth:
            console.message(f"[{told}]")
        self.messages.append({"role": "assistant", "content": "".join(said)})


def _next_line() -> str | None:
    """The next line, without spaces around; None at the end."""
    try:
        with cancel.waiting_for_input():
            line = console.ask("> ")
    except KeyboardInterrupt:
        if not console.is_typed():
            raise
        console.message(f"\n{_EXIT} or Ctrl-D ends the chat.")
        return ""
    return None if line is None else line.strip()
