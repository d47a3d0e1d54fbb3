"""etdeploy chat."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from etdeploy.backends.schemes import LANGUAGE_RECIPE
from etdeploy.cli.options import options
from etdeploy.cli.verbs.generate import (
    cache_options,
    open_language_model,
    sampling_options,
    take_sampling,
)
from etdeploy.core import cancel, console
from etdeploy.core.errors import Interrupted, UsageError
from etdeploy.graph.options import job_options

if TYPE_CHECKING:
    from collections.abc import Callable

    from etdeploy.bench.conversation import Conversation
    from etdeploy.runner.generation import Sampling
    from etdeploy.session.session import Session
    from etdeploy.session.state import SavedState

_RESET, _EXIT, _HELP = "/reset", "/exit", "/help"
_COMMANDS = (
    f"{_RESET} starts a new conversation; {_EXIT} or Ctrl-D ends the chat.\n"
    "Ctrl-C stops an answer; between answers it ends the chat."
)


@click.command()
@options("language-recipe", "set", "model", "lora", "speculate", "context", "device", "target")
@click.option("--system", metavar="TEXT", help="The system prompt, before the conversation.")
@click.option(
    "--max-new-tokens",
    type=click.IntRange(min=1),
    default=1024,
    show_default=True,
    metavar="N",
    help="The most tokens of an answer.",
)
@cache_options
@sampling_options
@click.option(
    "--json", "as_json", is_flag=True, help="Print each answer as one line of JSON when it ends."
)
@options("quiet")
def chat(
    system: str | None,
    max_new_tokens: int,
    load_cache: Path | None,
    save_cache: Path | None,
    as_json: bool,
    **values: Any,
) -> None:
    """Talk with a language model on the device, line by line.

    The program is loaded once and processes only what is new in the conversation, formatted by the
    model's own chat template. Without a terminal, it answers each line of standard input.
    """
    sampling = take_sampling(values)
    named = replace(job_options(otherwise=LANGUAGE_RECIPE, **values), speech="chat")
    with open_language_model(named, sampling, load=load_cache, save=save_cache) as opened:
        session = opened.session
        conversation = start_conversation(session, system, opened.state)
        if opened.state:
            session.restore(opened.state)
            if not named.quiet:
                console.message(_resumed(conversation, opened.state.snapshot.path))
        if not session.converses and not named.quiet:
            console.message(
                f"{session.device} cannot stream stdin to a running process; the model is reloaded "
                "for each answer."
            )
        talk = Chat(
            session, conversation, opened.fresh_sampling, max_new_tokens, named.quiet, as_json
        )
        if console.stdin_isatty() and not named.quiet:
            console.message(f"\n{_COMMANDS}")
        while (line := _next_line()) is not None and line != _EXIT:
            talk.process(line)
        if save_cache:
            session.save(save_cache, system=conversation.system, messages=conversation.messages)


def _resumed(conversation: Conversation, file: Path) -> str:
    lines = len(conversation.messages) // 2
    if not lines:
        return f"{file} has no conversation: a new one begins."
    return f"The conversation of {file} goes on after {console.count(lines, 'answer')}."


def start_conversation(
    session: Session, system: str | None = None, state: SavedState | None = None
) -> Conversation:
    """Return the conversation of a saved state, or a new one.

    Raises UsageError for a model that cannot chat.
    """
    from etdeploy.bench.conversation import Conversation
    from etdeploy.program.tokenizer import no_tokenizer

    if session.tokenizer is None:
        raise no_tokenizer("chat")
    template = session.chat_template
    system = state.system if state and system is None else system
    messages = list(state.messages) if state else []
    return Conversation(session.tokenizer, template, session.generation, system, messages)


@dataclass(frozen=True)
class Chat:
    """Answers lines, and shows the answers.

    Attributes:
        sampling: Gives how the tokens of the next answer are chosen.
        max_new_tokens: The most tokens of an answer.
    """

    session: Session
    conversation: Conversation
    sampling: Callable[[], Sampling]
    max_new_tokens: int
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
        from etdeploy.bench.text_generator import RepetitionError, find_repetition

        shown: list[str] = []
        stop = cancel.Flag(cancel.current())
        try:
            # Without a keyboard there is no next line to keep the chat for.
            with cancel.first_interrupt(stop) if console.stdin_isatty() else nullcontext():
                prompt = self._prompt(line)
                if prompt is None:
                    return
                sampling = self.sampling()
                with self.session.generate_ids(
                    prompt, self.max_new_tokens, sampling, stop
                ) as pieces:
                    for piece in pieces:
                        shown.append(piece)
                        if not self.as_json:
                            console.write_chunk(piece)
                        if period := find_repetition(pieces.token_ids):
                            raise RepetitionError(period)
                answer = pieces.answer
                if answer.stopped == "interrupted":
                    raise Interrupted
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
            prompt, forgotten = self.conversation.ask(line, self.max_new_tokens)
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
