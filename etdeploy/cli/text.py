"""What `generate` and `chat` have in common: their options, and the program on the device."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from etdeploy.cache.workspace import Workspace
from etdeploy.cli.invocation import keep_small
from etdeploy.cli.options import JobOptions
from etdeploy.core import console
from etdeploy.core.cancel import Flag, checkpoint, current
from etdeploy.core.console import lazy_task
from etdeploy.core.errors import Interrupted, UsageError
from etdeploy.core.values import Progress
from etdeploy.graph.job import StepName

if TYPE_CHECKING:
    from etdeploy.bench.text_generator import Answer, GenerationProtocol, TextGenerator
    from etdeploy.program.tokenizer import Speech, Tokenizer
    from etdeploy.recipe.model import Recipe
    from etdeploy.runner.generation import Sampling


F = TypeVar("F", bound=Callable[..., Any])
_OTHER_MODEL = "Name one: --model ID_OR_FOLDER"


def text_options(function: F) -> F:
    """How tokens are chosen; by default as the recipe's benchmark.generation says."""
    for option, kind, text in (
        ("--seed", click.IntRange(0, 2**63 - 1), "Of the random choice; equal seeds, equal text. "
         "By default each text has another one, which is shown after it."),
        ("--repetition-penalty", click.FloatRange(0, min_open=True), "Divide the logits of tokens "
         "that are in the text already by this (1.1); 1 for no penalty."),
        ("--min-p", click.FloatRange(0, 1), "Choose among tokens with at least this share of the "
         "most probable one's probability."),
        ("--top-p", click.FloatRange(0, 1, min_open=True), "Choose among the fewest of the most "
         "probable tokens whose probabilities add up to this."),
        ("--top-k", click.IntRange(0, 2**63 - 1), "Choose among so many of the most probable "
         "tokens; 0 for all."),
        ("--temperature", click.FloatRange(0), "Of the random choice; 0 takes the most probable "
         "token."),
    ):  # fmt: skip
        function = click.option(option, type=kind, metavar="N", help=text)(function)
    return function


@dataclass(frozen=True)
class TextOptions:
    """What a command line of `generate` or `chat` says.

    Attributes:
        recipe, overrides, device, target, quiet: As the options have them.
        max_new_tokens: The most that are generated at once.
        sampling: The options that were given, by their names in Sampling.
        speech: What the model is to understand; None where it is given the ids of tokens.
    """

    recipe: str
    overrides: tuple[str, ...]
    device: str
    target: str | None
    quiet: bool
    max_new_tokens: int
    sampling: dict[str, float | int | None]
    speech: Speech | None = None


@dataclass(frozen=True)
class GenerationSession:
    """A program on a device, with its tokenizer and the options of the command line.

    Attributes:
        tokenizer: None for a model that has none.
        seeded: Whether every text uses the seed of `sampling`; otherwise each has a new one.
        ends_repetition: Whether a text ends when it only repeats itself.
        persistent: The program that stays loaded; None to load it for each prompt.
    """

    generator: TextGenerator
    tokenizer: Tokenizer | None
    sampling: Sampling
    max_new_tokens: int
    seeded: bool = True
    ends_repetition: bool = False
    persistent: GenerationProtocol | None = None

    def answer(
        self, prompt: Sequence[int], show: Callable[[str], None], stop: Flag | None = None
    ) -> Answer:
        """Generates once, and shows the text as it comes."""
        from etdeploy.bench.text_generator import (
            RepetitionError,
            StreamedText,
            find_repetition,
            make_answer,
            remaining_context,
        )

        generation = self.generator.generation
        remaining = remaining_context(generation, len(prompt))
        streamed = StreamedText(self.tokenizer, prompt, generation.stop_ids, show)
        most = min(remaining, self.max_new_tokens)
        program = self.persistent or self.generator
        stop = stop or Flag(current())
        sampling = self.sampling if self.seeded else _with_another_seed(self.sampling)

        def take(token: int) -> None:
            streamed.take(token)
            if self.ends_repetition and find_repetition(streamed.tokens):
                stop.set()

        try:
            output = program.generate(prompt, most, sampling, take, stop)
        except Interrupted:
            checkpoint()
            if self.ends_repetition and (repeated := find_repetition(streamed.tokens)):
                raise RepetitionError(repeated) from None
            raise
        streamed.end()
        return make_answer(output, prompt, streamed.text, remaining, self.max_new_tokens, sampling)

    def summary(self, answer: Answer) -> str:
        """One line about an answer."""
        from etdeploy.bench.text_generator import summary

        return summary(answer, self.generator.generation)


@contextmanager
def open_session(wanted: TextOptions) -> Iterator[GenerationSession]:
    """Exports, builds and pushes as far as is needed, and opens the program on the device."""
    from etdeploy.cli.invocation import run_recipe
    from etdeploy.core.console import lazy_task
    from etdeploy.program.tokenizer import load_tokenizer
    from etdeploy.recipe.load import load_recipe

    loaded = load_recipe(wanted.recipe, wanted.overrides)
    recipe = loaded.recipe
    _require_language_model(recipe, wanted.recipe)
    sampling, seeded = _sampling(recipe, wanted.sampling)
    named = JobOptions(
        (wanted.recipe,), wanted.overrides, (wanted.device,), wanted.target, quiet=wanted.quiet,
        speech=wanted.speech, measures=False,
    )  # fmt: skip
    with run_recipe(named, StepName.PUSH) as job:
        from etdeploy.bench.series import emulated_defaults
        from etdeploy.bench.text_generator import open_generator
        from etdeploy.graph.job import load_bundle, load_program
        from etdeploy.graph.on_device import device_lock
        from etdeploy.program.folder import load_provenance

        folder = Path(load_program(job)[0].folder)
        generation = load_provenance(folder).generation
        if generation is None or job.device is None:
            raise _generates_nothing(wanted.recipe)
        tokenizer = load_tokenizer(generation, folder)
        # Before the wait, in which another run may make another one.
        bundle = load_bundle(job)
        log = job.state / "text.stderr.txt"
        if job.device.capabilities.emulated:
            recipe = emulated_defaults(loaded).recipe
        with ExitStack() as stack:
            with (
                console.TaskDisplay(quiet=wanted.quiet) as display,
                lazy_task(display, "wait", "the device is free") as tell,
            ):
                stack.enter_context(device_lock(job, tell))
            generator = stack.enter_context(
                open_generator(job.device, bundle, generation, recipe, log)
            )
            yield GenerationSession(generator, tokenizer, sampling, wanted.max_new_tokens, seeded)


@contextmanager
def keep_loaded(session: GenerationSession, *, quiet: bool) -> Iterator[GenerationSession]:
    """Loads the program once for all prompts, if the device supports that."""
    from etdeploy.bench.chat_process import ChatProcess

    device = session.generator.device
    if not device.capabilities.converses:
        if not quiet:
            console.message(
                f"{device.name} cannot stream stdin to a running process: the model is reloaded "
                "for each answer."
            )
        yield replace(session, ends_repetition=True)
        return
    with ExitStack() as stack:
        with console.TaskDisplay(quiet=quiet) as display:
            display.start("load")
            began = time.monotonic()
            chat = stack.enter_context(ChatProcess(session.generator))
            display.end("load", "ready", time.monotonic() - began)
        yield replace(session, persistent=chat, ends_repetition=True)


def _require_language_model(recipe: Recipe, name: str) -> None:
    if recipe.model.hf is None:
        raise _generates_nothing(name)


def _generates_nothing(recipe: str) -> UsageError:
    return UsageError(
        "the recipe's model is no language model, so there is no text to generate",
        place=recipe,
        remedy=_OTHER_MODEL,
    )


def _with_another_seed(sampling: Sampling) -> Sampling:
    """The same with a random seed that is short enough to be typed again."""
    return sampling.model_copy(update={"seed": secrets.randbelow(2**32)})


def _sampling(recipe: Recipe, given: dict[str, float | int | None]) -> tuple[Sampling, bool]:
    """How tokens are chosen, and whether somebody has named the seed."""
    from pydantic import ValidationError

    from etdeploy.runner.generation import Sampling

    own = recipe.benchmark.generation
    values: dict[str, Any] = {name: getattr(own, name) for name in Sampling.model_fields if own}
    values |= {name: value for name, value in given.items() if value is not None}
    seeded = given.get("seed") is not None or bool(own and "seed" in own.model_fields_set)
    try:
        sampling = Sampling(**values)
    except ValidationError as error:
        problem = error.errors()[0]
        option = str(problem["loc"][0]).replace("_", "-")
        raise UsageError(f"--{option}: {problem['msg']}") from error
    ignored = [f"--{n.replace('_', '-')}" for n in _OF_CHANCE if given.get(n) is not None]
    if ignored and not sampling.temperature:
        raise UsageError(
            f"the temperature is 0, so the most probable token is taken whatever {ignored[0]} is",
            remedy="--temperature 0.8",
        )
    return sampling, seeded


# What the random choice is limited to.
_OF_CHANCE = ("top_k", "top_p", "min_p")


@contextmanager
def reading_traces(quiet: bool) -> Iterator[tuple[Workspace, Progress]]:
    """Gives the cache that keeps what traces say, and the progress of reading those not in it."""
    workspace = Workspace.opened()
    with (
        workspace.in_use(),
        console.TaskDisplay(quiet=quiet) as display,
        lazy_task(display, "profile", "read and kept") as tell,
    ):
        yield workspace, tell
    keep_small(workspace, quiet)
