"""etdeploy generate, and what it shares with chat: sampling options, opening a session."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from etdeploy.backends.schemes import LANGUAGE_RECIPE
from etdeploy.cli.options import options
from etdeploy.core import cancel, console
from etdeploy.core.errors import UsageError
from etdeploy.graph.options import JobOptions, job_options

if TYPE_CHECKING:
    from etdeploy.recipe.model import Recipe
    from etdeploy.runner.generation import Sampling
    from etdeploy.session.session import Session
    from etdeploy.session.state import SavedState
    from etdeploy.session.text import GeneratedText


F = TypeVar("F", bound=Callable[..., Any])
_STDIN = "-"
# Names, types and help of the options of Sampling; by default benchmark.generation applies.
_SAMPLING: tuple[tuple[str, Any, str], ...] = (
    ("temperature", click.FloatRange(0), "Randomness; 0 always takes the most probable token."),
    ("top_k", click.IntRange(0, 2**63 - 1), "Choose among the N most probable tokens; 0 for all."),
    ("top_p", click.FloatRange(0, 1, min_open=True), "Choose among the fewest of the most probable "
     "tokens whose probabilities add up to N."),
    ("min_p", click.FloatRange(0, 1), "Choose among tokens with at least N times the probability "
     "of the most probable one."),
    ("repetition_penalty", click.FloatRange(0, min_open=True), "Divide the logits of tokens that "
     "are already in the text by N, e.g. 1.1; 1 for no penalty."),
    ("seed", click.IntRange(0, 2**63 - 1), "Random seed; the same seed gives the same text. By "
     "default a new one for each text, which is shown after it."),
)  # fmt: skip


def sampling_options(function: F) -> F:
    """Give a command an option for each field of Sampling."""
    for name, kind, text in reversed(_SAMPLING):
        option = f"--{name.replace('_', '-')}"
        function = click.option(option, type=kind, metavar="N", help=text)(function)
    return function


_SAVED = click.Path(path_type=Path)


def cache_options(function: F) -> F:
    """Give a command the options for a cache in a file."""
    save = click.option(
        "--save-cache", metavar="FILE", type=_SAVED,
        help="Save the keys and values of the text at its end, for --load-cache.",
    )  # fmt: skip
    load = click.option(
        "--load-cache", metavar="FILE", type=_SAVED,
        help="Begin with the keys and values of a text that --save-cache saved: a common prefix is "
        "not computed again. A chat continues the conversation.",
    )  # fmt: skip
    return load(save(function))


@click.command()
@options(
    "language-recipe",
    "set",
    "model",
    "text",
    "image",
    "audio",
    "lora",
    "speculate",
    "context",
    "device",
    "target",
)
@click.option(
    "-p",
    "--prompt",
    metavar="TEXT|-",
    help="The text to continue; - reads it from standard input.",
)
@click.option(
    "--max-new-tokens",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    metavar="N",
    help="The most tokens to generate; a stop token or a full context may end the text earlier.",
)
@cache_options
@sampling_options
@options("json", "quiet")
def generate(
    prompt: str | None,
    max_new_tokens: int,
    load_cache: Path | None,
    save_cache: Path | None,
    as_json: bool,
    **values: Any,
) -> None:
    """Let a model on the device continue a prompt, or recognize or translate an input.

    The model is exported, built and pushed unless that is done already. The text appears as it is
    generated, and its speed at the end. The model gets the prompt unchanged: `chat` applies the
    model's chat template. A model with an encoder gets --text, --image or --audio instead, and a
    vision-language model both an image and its question; each other input is another export.
    """
    text = _read() if prompt == _STDIN else prompt
    is_given = any(values.get(name) is not None for name in ("text", "image", "audio"))
    if (text is None) != is_given:
        raise UsageError(
            "there is nothing to generate from"
            if text is None
            else "--prompt is continued, and --text, --image and --audio are inputs of an encoder: "
            "both at once have no meaning",
            remedy="For a language model: --prompt TEXT\n"
            "For a vision-language model: --image FILE --text QUESTION\n"
            "For another model with an encoder: --text TEXT, or --audio FILE.wav",
        )
    if is_given and (load_cache or save_cache):
        raise UsageError(
            "what an encoder gave is in no cache: --load-cache and --save-cache are for --prompt",
            remedy="Leave --load-cache and --save-cache out",
        )
    from etdeploy.session.text import parse_ids, prompt_ids

    sampling = take_sampling(values)
    named = replace(
        job_options(otherwise=LANGUAGE_RECIPE, **values),
        speech="text" if text is not None and parse_ids(text) is None else None,
    )
    with open_language_model(
        named, sampling, from_input=text is None, load=load_cache, save=save_cache
    ) as opened:
        session = opened.session
        encoder = session.generation.encoder
        if text is None and encoder is None:
            raise _wrong_source(has_encoder=False)
        ids = encoder.prompt_ids if encoder else prompt_ids(session.tokenizer, text or "")
        if why := opened.begin(ids):
            console.message(why)
        if session.tokenizer is None and not named.quiet:
            console.message("The model has no tokenizer: the text consists of token IDs.")
        pieces = session.generate_ids(ids, max_new_tokens, opened.sampling)
        _show(pieces, as_json=as_json)
        if save_cache:
            session.save(save_cache)
        if not as_json and not named.quiet:
            console.message(f"\n{session.summary(pieces.answer)}")


def _show(pieces: GeneratedText, *, as_json: bool) -> None:
    for piece in pieces:
        if not as_json:
            console.write_chunk(piece)
    if as_json:
        console.result_json(pieces.answer.model_dump(mode="json"))
    else:
        console.write_chunk("\n")


def _wrong_source(*, has_encoder: bool) -> UsageError:
    if has_encoder:
        return UsageError(
            "the model continues no prompt: it generates its text from an input",
            remedy="etdeploy generate, with --text TEXT, --audio FILE.wav, or --image FILE and "
            "--text QUESTION",
        )
    return UsageError("the model has no encoder: it continues a prompt", remedy="--prompt TEXT")


def _read() -> str:
    with cancel.waiting_for_input():
        return console.read()


def take_sampling(values: dict[str, Any]) -> dict[str, float | int | None]:
    """Remove the values of the sampling options from those of a command."""
    return {name: values.pop(name) for name, _, _ in _SAMPLING}


@dataclass(frozen=True)
class OpenedModel:
    """A session of a language model, with what the options say.

    Attributes:
        sampling: How tokens are chosen.
        state: What --load-cache names; None without it.
        named: The recipe has the values that it was opened with.
    """

    session: Session
    sampling: Sampling
    named: JobOptions
    values: dict[str, float | int | None]
    state: SavedState | None = None

    def fresh_sampling(self) -> Sampling:
        """The same, with a new seed unless one is named."""
        return _sampling(self.session.recipe, self.values)

    def begin(self, prompt: tuple[int, ...]) -> str | None:
        """Restore the loaded cache; return why nothing of it applies to a prompt.

        None without a cache, and where some of it applies.
        """
        if self.state is None:
            return None
        snapshot, rewind = self.state.snapshot, self.session.generation.rewind
        snapshot.require(*self.session.identity)
        if snapshot.reused(prompt, rewind):
            self.session.restore(self.state)
            return None
        why = "the prompt begins with other tokens"
        if same := snapshot.reused(prompt, None):
            why = (
                f"the prompt has its first {same:,} tokens, and the program cannot go back so far "
                f"from {snapshot.header.furthest:,}: it keeps {rewind or 0:,} for that"
            )
        return f"Nothing of {snapshot.path} can be reused: {why}."


@contextmanager
def open_language_model(
    named: JobOptions,
    values: dict[str, float | int | None],
    *,
    from_input: bool = False,
    load: Path | None = None,
    save: Path | None = None,
) -> Iterator[OpenedModel]:
    """Export, build and push if needed, and open the program on the device.

    `from_input` says that the text is generated from an encoder's input instead of a prompt. A
    cache comes from the file `load` and goes to `save`.
    """
    from etdeploy.bench.snapshot import require_replaceable
    from etdeploy.session.api import start_session
    from etdeploy.session.opening import Owner
    from etdeploy.session.state import SavedState

    state = SavedState.read(load) if load else None
    if save:
        require_replaceable(save)
    recipe = require_language_recipe(named, from_input=from_input)
    sampling = _sampling(recipe, values)
    with start_session(named, Owner.current_thread(), cancel.current(), apart=False) as session:
        if not session.generates:
            raise _not_a_language_model(named.recipes[0], recipe.model.task)
        if (load or save) and not session.converses:
            raise UsageError(
                f"{session.device} cannot stream stdin to a running process, so there is no cache "
                "to load or save there",
                remedy="Leave --load-cache and --save-cache out",
            )
        yield OpenedModel(session, sampling, named, values, state)


def require_language_recipe(named: JobOptions, *, from_input: bool = False) -> Recipe:
    """Return the recipe; raises UsageError, before an export, for a model that generates no text.

    `from_input` is as in `open_language_model`.
    """
    from etdeploy.recipe.load import load_recipe
    from etdeploy.recipe.tasks import has_encoder

    [name] = named.recipes
    recipe = load_recipe(name, named.overrides).recipe
    if not recipe.is_language_model and not recipe.has_other_exporter:
        raise _not_a_language_model(name, recipe.model.task)
    if has_encoder(recipe.model.task) != from_input and not recipe.has_other_exporter:
        raise _wrong_source(has_encoder=not from_input)
    if recipe.model.program:
        _require_contract(recipe.model.program)
    return recipe


def _require_contract(program: str) -> None:
    """Refuse a finished program that generates no text, before a runner is built for it."""
    from etdeploy.program.finished import contract_of
    from etdeploy.program.inspect import inspect_file

    if not Path(program).is_file():  # one of the hub is inspected when it is downloaded
        return
    contract = contract_of(inspect_file(Path(program)))
    if contract and contract.name:
        return
    why = contract.text() if contract else "it has no method forward of tokens and their position"
    raise UsageError(
        f"the program generates no text: {why}",
        place=program,
        remedy="Programs that do are those of etdeploy, of ExecuTorch's export_llm and of "
        "optimum-executorch.\nOthers are measured with: etdeploy run --model "
        f"{shlex.quote(program)}",
    )


def _not_a_language_model(recipe: str, task: str | None) -> UsageError:
    return UsageError(
        f"models of the task {task} generate no text"
        if task
        else "the recipe's model is not a language model, so it cannot generate text",
        place=recipe,
        remedy="Name a language model: --model ID_OR_PATH\n"
        "A model with another task shows its result in `etdeploy run`, with --text, --image or "
        "--audio.",
    )


def _sampling(recipe: Any, values: dict[str, float | int | None]) -> Sampling:
    from etdeploy.session.sampling import resolve_sampling

    def option(name: str) -> str:
        return f"--{name.replace('_', '-')}"

    return resolve_sampling(recipe, values, option, "--temperature 0.8")
