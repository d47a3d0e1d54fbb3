"""etdeploy generate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from etdeploy.cli.options import (
    device_option,
    json_option,
    model_options,
    quiet_option,
    recipe_options,
    target_option,
)
from etdeploy.cli.text import TextOptions, open_session, text_options
from etdeploy.core import cancel, console
from etdeploy.core.errors import UsageError

if TYPE_CHECKING:
    from etdeploy.program.tokenizer import Speech, Tokenizer

_STDIN = "-"


@click.command()
@recipe_options
@model_options
@device_option
@target_option
@click.option(
    "-p",
    "--prompt",
    required=True,
    metavar="TEXT|-",
    help="What the text begins with; - reads standard input.",
)
@click.option(
    "--max-new-tokens",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    metavar="N",
    help="The most that are generated; a stop token or a full context may end the text before.",
)
@text_options
@json_option
@quiet_option
def command(
    recipe: str,
    overrides: tuple[str, ...],
    device: str,
    target: str | None,
    prompt: str,
    max_new_tokens: int,
    as_json: bool,
    quiet: bool,
    **sampling: float | int | None,
) -> None:
    """Let a language model on the device go on with a text.

    The model is exported, built and pushed as far as that is not done yet. The text is printed as
    it comes, and how fast it came when it has ended. The prompt goes to the model as it is: `chat`
    applies the model's chat template.
    """
    text = _read() if prompt == _STDIN else prompt
    speech: Speech | None = "text" if given_ids(text) is None else None
    wanted = TextOptions(recipe, overrides, device, target, quiet, max_new_tokens, sampling, speech)
    with open_session(wanted) as session:
        ids = prompt_ids(session.tokenizer, text)
        if session.tokenizer is None and not quiet:
            console.message("The model has no tokenizer: the text is the ids of its tokens.")
        if as_json:
            answer = session.answer(ids, show=lambda _: None)
            console.result_json(answer.model_dump(mode="json"))
            return
        answer = session.answer(ids, show=console.write_chunk)
        console.write_chunk("\n")
        if not quiet:
            console.message(f"\n{session.summary(answer)}")


def prompt_ids(tokenizer: Tokenizer | None, text: str) -> tuple[int, ...]:
    """A prompt's token ids; of a model without a tokenizer they are the prompt."""
    if tokenizer:
        return tokenizer.encode(text)
    ids = given_ids(text)
    if ids is None:
        raise UsageError(
            f"the model has no tokenizer, so --prompt expects token IDs, and not {text[:40]!r}",
            remedy="Give it numbers: --prompt '1 15 27'",
        )
    return ids


def given_ids(text: str) -> tuple[int, ...] | None:
    """The numbers of which a text consists; None if it has anything else."""
    try:
        return tuple(int(word) for word in text.replace(",", " ").split())
    except ValueError:
        return None


def _read() -> str:
    with cancel.waiting_for_input():
        return console.read()
