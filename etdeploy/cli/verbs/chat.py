"""etdeploy chat."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from etdeploy.backends.schemes import LANGUAGE_RECIPE
from etdeploy.cli.options import job_options, options
from etdeploy.cli.verbs.generate import (
    GenerationSession,
    keep_loaded,
    open_session,
    sampling_options,
    take_sampling,
)
from etdeploy.core import cancel, console
from etdeploy.core.errors import Interrupted, UsageError

if TYPE_CHECKING:
    from etdeploy.bench.chat_process import Conversation

_RESET, _EXIT, _HELP = "/reset", "/exit", "/help"
_COMMANDS = (
    f"{_RESET} starts a new conversation; {_EXIT} or Ctrl-D ends the chat.\n"
    "Ctrl-C stops an answer; between answers it ends the chat."
)


@click.command()
@options("language-recipe", "set", "model", "lora", "context", "device", "target")
@click.option("--system", metavar="TEXT", help="The system prompt, before the conversation.")
@click.option(
    "--max-new-tokens",
    type=click.IntRange(min=1),
    default=1024,
    show_default=True,
    metavar="N",
    help="The most tokens of an answer.",
)
@sampling_options
@click.option(
    "--json", "as_json", is_flag=True, help="Print each answer as one line of JSON when it ends."
)
@options("quiet")
def chat(system: str | None, max_new_tokens: int, as_json: bool, **values: Any) -> None:
    """Talk with a language model on the device, line by line.

    The program is loaded once and processes only what is new in the conversation, formatted by the
    model's own chat template. Without a terminal, it answers each line of standard input.
    """
    sampling = take_sampling(values)
    named = replace(job_options(otherwise=LANGUAGE_RECIPE, **values), speech="chat")
    with open_session(named, sampling, max_new_tokens) as opened:
        conversation = start_conversation(opened, system)
        with keep_loaded(opened, quiet=named.quiet) as session:
            talk = Chat(session, conversation, named.quiet, as_json)
            if console.stdin_isatty() and not named.quiet:
                console.message(f"\n{_COMMANDS}")
            while (line := _next_line()) is not None and line != _EXIT:
                talk.process(line)


def start_conversation(session: GenerationSession, system: str | None = None) -> Conversation:
    """Return a new conversation; raise UsageError for a model that cannot chat."""
    from etdeploy.bench.chat_process import Conversation
    from etdeploy.program.tokenizer import no_tokenizer, required_template

    if session.tokenizer is None:
        raise no_tokenizer("chat")
    template = required_template(session.tokenizer.folder)
    return Conversation(session.tokenizer, template, session.generator.generation, system)


@dataclass(frozen=True)
class Chat:
    """Answers lines, and shows the answers."""

    session: GenerationSession
    conversation: Conversation
    quiet: bool
    as_json: bool = False

    def process(self, line: str) -> None:
        """Run a command, or answer the line."""
        if line == _RESET:
            self.conversation.clear()
        elif line.startswith("/"):
            unknown = "" if line == _HELP else f"There is no command {line.split()[0]}. "
            console.message(f"{unknown}{_COMMANDS}")
        elif line.strip():
            self._answer(line)

    def _answer(self, line: str) -> None:
        from etdeploy.bench.text_generator import RepetitionError

        shown: list[str] = []
        stop = cancel.Flag(cancel.current())

        def show(text: str) -> None:
            shown.append(text)
            if not self.as_json:
                console.write_chunk(text)

        try:
            # Without a keyboard there is no next line to keep the chat for.
            with cancel.first_interrupt(stop) if console.stdin_isatty() else nullcontext():
                prompt = self._prompt(line)
                if prompt is None:
                    return
                answer = self.session.answer(prompt, show, stop)
        except RepetitionError as error:
            self._end(f"stopped: {error}; --repetition-penalty 1.1 makes this less likely", True)
            self._print_json(line, text="".join(shown), stopped="repetition")
        except Interrupted:
            cancel.checkpoint()  # SIGTERM ends the chat, too
            self._end("stopped", not self.quiet)
            self._print_json(line, text="".join(shown), stopped="interrupt")
        else:
            is_shown = not self.quiet or answer.stopped == "context_full"
            self._end(self.session.summary(answer), is_shown and not self.as_json)
            self._print_json(line, **answer.model_dump(mode="json"))
        self.conversation.answer("".join(shown))

    def _prompt(self, line: str) -> tuple[int, ...] | None:
        """Return the conversation with the line as a prompt; if that fails, say why."""
        try:
            prompt, forgotten = self.conversation.ask(line, self.session.max_new_tokens)
        except UsageError as error:  # the line is too long, or not for this model
            console.message(
                f"{error}\nYour line was not answered. {_RESET} starts a new conversation."
            )
            self._print_json(line, error=str(error))
            return None
        if forgotten:
            console.message(f"[{forgotten}]")
        return prompt

    def _end(self, text: str, is_shown: bool) -> None:
        if not self.as_json:
            console.write_chunk("\n")
        if is_shown:
            console.message(f"[{text}]")

    def _print_json(self, line: str, **fields: Any) -> None:
        if self.as_json:
            text = json.dumps({"prompt": line, **fields}, ensure_ascii=False)
            console.result(text.encode(errors="replace").decode())


def _next_line() -> str | None:
    """Return the next line, stripped; None at the end."""
    try:
        with cancel.waiting_for_input():
            line = console.ask("> ")
    except KeyboardInterrupt:
        if not console.stdin_isatty():
            raise
        console.message("")
        return None
    return None if line is None else line.strip()
