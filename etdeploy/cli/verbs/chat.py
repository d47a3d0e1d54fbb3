"""etdeploy chat."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from etdeploy.cli.options import (
    device_option,
    model_options,
    quiet_option,
    recipe_options,
    target_option,
)
from etdeploy.cli.text import (
    GenerationSession,
    TextOptions,
    keep_loaded,
    open_session,
    text_options,
)
from etdeploy.core import cancel, console
from etdeploy.core.errors import Interrupted, UsageError

if TYPE_CHECKING:
    from etdeploy.bench.chat_process import Conversation

_RESET, _EXIT, _HELP = "/reset", "/exit", "/help"
_HOW = (
    f"{_RESET} forgets the conversation; {_EXIT} or Ctrl-D ends the chat.\n"
    "Ctrl-C ends an answer, and the chat where nothing is being answered."
)


@click.command()
@recipe_options
@model_options
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
@click.option(
    "--json", "as_json", is_flag=True, help="Print each answer as a line of JSON, when it is whole."
)
@quiet_option
def command(
    recipe: str,
    overrides: tuple[str, ...],
    device: str,
    target: str | None,
    system: str | None,
    max_new_tokens: int,
    as_json: bool,
    quiet: bool,
    **sampling: float | int | None,
) -> None:
    """Talk with a language model on the device, line by line.

    The program is loaded once, and computes what is new of the conversation, in the form of the
    model's own chat template. Without a terminal, lines are read to the end of standard input.
    """
    wanted = TextOptions(recipe, overrides, device, target, quiet, max_new_tokens, sampling, "chat")
    with open_session(wanted) as opened:
        conversation = conversation_with(opened, system)
        with keep_loaded(opened, quiet=quiet) as session:
            chat = Chat(session, conversation, quiet, as_json)
            if console.stdin_isatty() and not quiet:
                console.message(f"\n{_HOW}")
            while (line := _next_line()) is not None and line != _EXIT:
                chat.hear(line)


def conversation_with(session: GenerationSession, system: str | None = None) -> Conversation:
    """A conversation that has not begun."""
    from etdeploy.bench.chat_process import Conversation
    from etdeploy.program.tokenizer import no_tokenizer, required_template

    if session.tokenizer is None:
        raise no_tokenizer("chat")
    template = required_template(session.tokenizer.folder)
    return Conversation(session.tokenizer, template, session.generator.generation, system)


@dataclass(frozen=True)
class Chat:
    """A conversation that is shown.

    Attributes:
        session: Gives the answers.
        conversation: What was said.
        quiet: Whether only answers are shown.
        as_json: Whether each is a line of JSON.
    """

    session: GenerationSession
    conversation: Conversation
    quiet: bool
    as_json: bool = False

    def hear(self, line: str) -> None:
        """Does what a line says, or answers it."""
        if line == _RESET:
            self.conversation.clear()
        elif line.startswith("/"):
            known = "" if line == _HELP else f"There is no command {line.split()[0]}. "
            console.message(f"{known}{_HOW}")
        elif line.strip():
            self._answer(line)

    def _answer(self, line: str) -> None:
        from etdeploy.bench.text_generator import RepetitionError

        said: list[str] = []
        stop = cancel.Flag(cancel.current())

        def show(text: str) -> None:
            said.append(text)
            if not self.as_json:
                console.write_chunk(text)

        try:
            # Without somebody at a keyboard, there is no next line that Ctrl-C could be for.
            with cancel.first_interrupt(stop) if console.stdin_isatty() else nullcontext():
                prompt = self._asked(line)
                if prompt is None:
                    return
                answer = self.session.answer(prompt, show, stop)
        except RepetitionError as error:
            self._end(f"stopped: {error}; --repetition-penalty 1.1 makes that less probable", True)
            self._tell_json(line, text="".join(said), stopped="repetition")
        except Interrupted:
            cancel.checkpoint()  # not only the answer was to stop
            self._end("stopped", not self.quiet)
            self._tell_json(line, text="".join(said), stopped="interrupt")
        else:
            worth = not self.quiet or answer.stopped == "context_full"
            self._end(self.session.summary(answer), worth and not self.as_json)
            self._tell_json(line, **answer.model_dump(mode="json"))
        self.conversation.answer("".join(said))

    def _asked(self, line: str) -> tuple[int, ...] | None:
        """The conversation with the line as a prompt; None, which is told, if it cannot be one."""
        try:
            prompt, forgotten = self.conversation.ask(line, self.session.max_new_tokens)
        except UsageError as error:  # the line is too long, or not for this model
            console.message(f"{error}\nYour line was not answered. {_RESET} begins anew.")
            self._tell_json(line, error=str(error))
            return None
        if forgotten:
            console.message(f"[{forgotten}]")
        return prompt

    def _end(self, told: str, worth: bool) -> None:
        if not self.as_json:
            console.write_chunk("\n")
        if worth:
            console.message(f"[{told}]")

    def _tell_json(self, line: str, **told: Any) -> None:
        if self.as_json:
            text = json.dumps({"prompt": line, **told}, ensure_ascii=False)
            console.result(text.encode(errors="replace").decode())


def _next_line() -> str | None:
    """The next line, without spaces around; None at the end."""
    try:
        with cancel.waiting_for_input():
            line = console.ask("> ")
    except KeyboardInterrupt:
        if not console.stdin_isatty():
            raise
        console.message("")
        return None
    return None if line is None else line.strip()
