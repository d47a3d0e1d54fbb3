"""etdeploy generate, and what it shares with chat: sampling options, the program on the device."""

from __future__ import annotations

import secrets
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from etdeploy.backends.schemes import LANGUAGE_RECIPE
from etdeploy.cli.options import JobOptions, job_options, options
from etdeploy.core import cancel, console
from etdeploy.core.errors import Interrupted, UsageError

if TYPE_CHECKING:
    from etdeploy.bench.text_generator import Answer, GenerationProtocol, TextGenerator
    from etdeploy.program.tokenizer import Tokenizer
    from etdeploy.recipe.model import Recipe
    from etdeploy.runner.generation import Sampling


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
# They have no effect at temperature 0.
_NEED_TEMPERATURE = ("top_k", "top_p", "min_p")


def sampling_options(function: F) -> F:
    """Give a command an option for each field of Sampling."""
    for name, kind, text in reversed(_SAMPLING):
        option = f"--{name.replace('_', '-')}"
        function = click.option(option, type=kind, metavar="N", help=text)(function)
    return function


@click.command()
@options(
    "language-recipe",
    "set",
    "model",
    "text",
    "image",
    "audio",
    "lora",
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
@sampling_options
@options("json", "quiet")
def generate(prompt: str | None, max_new_tokens: int, as_json: bool, **values: Any) -> None:
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
    sampling = take_sampling(values)
    named = replace(
        job_options(otherwise=LANGUAGE_RECIPE, **values),
        speech="text" if text is not None and parse_ids(text) is None else None,
    )
    with open_session(named, sampling, max_new_tokens, from_input=text is None) as session:
        ids = _first_ids(session, text)
        if session.tokenizer is None and not named.quiet:
            console.message("The model has no tokenizer: the text consists of token IDs.")
        if as_json:
            answer = session.answer(ids, show=lambda _: None)
            console.result_json(answer.model_dump(mode="json"))
            return
        answer = session.answer(ids, show=console.write_chunk)
        console.write_chunk("\n")
        if not named.quiet:
            console.message(f"\n{session.summary(answer)}")


def _first_ids(session: GenerationSession, prompt: str | None) -> tuple[int, ...]:
    encoder = session.generator.generation.encoder
    if prompt is not None:
        return prompt_ids(session.tokenizer, prompt)
    if encoder is None:
        raise _wrong_source(has_encoder=False)
    return encoder.prompt_ids


def _wrong_source(*, has_encoder: bool) -> UsageError:
    if has_encoder:
        return UsageError(
            "the model continues no prompt: it generates its text from an input",
            remedy="etdeploy generate, with --text TEXT, --audio FILE.wav, or --image FILE and "
            "--text QUESTION",
        )
    return UsageError("the model has no encoder: it continues a prompt", remedy="--prompt TEXT")


def prompt_ids(tokenizer: Tokenizer | None, text: str) -> tuple[int, ...]:
    """Return a prompt's token IDs; without a tokenizer, the prompt has to consist of them."""
    if tokenizer:
        return tokenizer.encode(text)
    ids = parse_ids(text)
    if ids is None:
        raise UsageError(
            f"the model has no tokenizer, so --prompt expects token IDs, not {text[:40]!r}",
            remedy="Pass numbers: --prompt '1 15 27'",
        )
    return ids


def parse_ids(text: str) -> tuple[int, ...] | None:
    """Return the numbers that a text consists of; None if it has anything else."""
    try:
        return tuple(int(word) for word in text.replace(",", " ").split())
    except ValueError:
        return None


def _read() -> str:
    with cancel.waiting_for_input():
        return console.read()


def take_sampling(values: dict[str, Any]) -> dict[str, float | int | None]:
    """Remove the values of the sampling options from those of a command."""
    return {name: values.pop(name) for name, _, _ in _SAMPLING}


@dataclass(frozen=True)
class GenerationSession:
    """A program on a device, ready to generate text.

    Attributes:
        generator: The program, started for each prompt.
        tokenizer: None for a model that has none.
        max_new_tokens: The most tokens of one text.
        is_seeded: Whether every text uses the seed of `sampling`; else each gets a new one.
        ends_repetition: Whether a text ends when it only repeats itself.
        persistent: The program that stays loaded; None if the device cannot do that.
    """

    generator: TextGenerator
    tokenizer: Tokenizer | None
    sampling: Sampling
    max_new_tokens: int
    is_seeded: bool = True
    ends_repetition: bool = False
    persistent: GenerationProtocol | None = None

    def answer(
        self, prompt: Sequence[int], show: Callable[[str], None], stop: cancel.Flag | None = None
    ) -> Answer:
        """Generate once, and show the text as it comes."""
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
        stop = stop or cancel.Flag(cancel.current())
        sampling = self.sampling
        if not self.is_seeded:  # short enough to be typed again
            sampling = sampling.model_copy(update={"seed": secrets.randbelow(2**32)})

        def take(token: int) -> None:
            streamed.take(token)
            if self.ends_repetition and find_repetition(streamed.tokens):
                stop.set()

        try:
            output = (self.persistent or self.generator).generate(
                prompt, min(remaining, self.max_new_tokens), sampling, take, stop
            )
        except Interrupted:
            cancel.checkpoint()
            if self.ends_repetition and (repeated := find_repetition(streamed.tokens)):
                raise RepetitionError(repeated) from None
            raise
        streamed.end()
        return make_answer(output, prompt, streamed.text, remaining, self.max_new_tokens, sampling)

    def summary(self, answer: Answer) -> str:
        """Return one line about an answer."""
        from etdeploy.bench.text_generator import summary

        return summary(answer, self.generator.generation, self.generator.simulated)


@contextmanager
def open_session(
    named: JobOptions,
    sampling_values: dict[str, float | int | None],
    max_new_tokens: int,
    *,
    from_input: bool = False,
) -> Iterator[GenerationSession]:
    """Export, build and push if needed, and open the program on the device.

    `from_input` says that the text is generated from an encoder's input instead of a prompt.
    """
    from etdeploy.cli.invocation import run_recipe
    from etdeploy.core.console import lazy_task
    from etdeploy.graph.job import StepName
    from etdeploy.program.tokenizer import load_tokenizer
    from etdeploy.recipe.load import load_recipe
    from etdeploy.recipe.tasks import has_encoder

    [name] = named.recipes
    loaded = load_recipe(name, named.overrides)
    recipe = loaded.recipe
    if not recipe.is_language_model and not recipe.has_other_exporter:
        raise _not_a_language_model(name, recipe.model.task)
    if has_encoder(recipe.model.task) != from_input and not recipe.has_other_exporter:
        raise _wrong_source(has_encoder=not from_input)
    if recipe.model.program:
        _require_contract(recipe.model.program)
    sampling, is_seeded = _sampling(recipe, sampling_values)
    with run_recipe(replace(named, measures=False), StepName.PUSH) as job:
        from etdeploy.bench.generation_workload import FOLDER, encoder_files
        from etdeploy.bench.passes import emulated_defaults
        from etdeploy.bench.text_generator import open_generator
        from etdeploy.graph.job import load_bundle, load_program
        from etdeploy.graph.on_device import device_lock
        from etdeploy.program.folder import load_provenance

        folder = Path(load_program(job)[0].folder)
        provenance = load_provenance(folder)
        generation = provenance.generation
        if generation is None or job.device is None:
            raise _not_a_language_model(name, recipe.model.task)
        wanted = recipe.benchmark.generation
        generation = generation.with_adapter(wanted.lora if wanted else None)
        tokenizer = load_tokenizer(generation, folder)
        # While this waits for the device, another run may replace the bundle.
        bundle = load_bundle(job)
        log = job.state / "text.stderr.txt"
        inputs = encoder_files(provenance, folder, job.state / FOLDER)
        if job.device.capabilities.emulated:
            recipe = emulated_defaults(loaded).recipe
        with ExitStack() as stack:
            with (
                console.TaskDisplay(quiet=named.quiet) as display,
                lazy_task(display, "wait", "the device is free") as tell,
            ):
                stack.enter_context(device_lock(job, tell))
            generator = stack.enter_context(
                open_generator(job.device, bundle, generation, recipe, log, inputs)
            )
            yield GenerationSession(generator, tokenizer, sampling, max_new_tokens, is_seeded)


@contextmanager
def keep_loaded(session: GenerationSession, *, quiet: bool) -> Iterator[GenerationSession]:
    """Load the program once for all prompts, if its device can do that."""
    from etdeploy.bench.chat_process import ChatProcess

    device = session.generator.device
    if not device.capabilities.converses:
        if not quiet:
            console.message(
                f"{device.name} cannot stream stdin to a running process; the model is reloaded "
                "for each answer."
            )
        yield replace(session, ends_repetition=True)
        return
    with ExitStack() as stack:
        with console.TaskDisplay(quiet=quiet) as display:
            display.start("load")
            started_s = time.monotonic()
            dialogue = stack.enter_context(ChatProcess(session.generator))
            display.end("load", "ready", time.monotonic() - started_s)
        yield replace(session, persistent=dialogue, ends_repetition=True)


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


def _sampling(recipe: Recipe, named: dict[str, float | int | None]) -> tuple[Sampling, bool]:
    """Return how tokens are chosen, and whether the recipe or an option names the seed."""
    from pydantic import ValidationError

    from etdeploy.runner.generation import Sampling

    own = recipe.benchmark.generation
    values: dict[str, Any] = {name: getattr(own, name) for name in Sampling.model_fields if own}
    values |= {name: value for name, value in named.items() if value is not None}
    is_seeded = named.get("seed") is not None or bool(own and "seed" in own.model_fields_set)
    try:
        sampling = Sampling(**values)
    except ValidationError as error:
        problem = error.errors()[0]
        option = str(problem["loc"][0]).replace("_", "-")
        raise UsageError(f"--{option}: {problem['msg']}") from error
    ignored = [f"--{n.replace('_', '-')}" for n in _NEED_TEMPERATURE if named.get(n) is not None]
    if ignored and not sampling.temperature:
        raise UsageError(
            f"{ignored[0]} has no effect at temperature 0, which always takes the most probable "
            "token",
            remedy="--temperature 0.8",
        )
    return sampling, is_seeded
