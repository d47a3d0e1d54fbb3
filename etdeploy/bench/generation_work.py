"""What a recipe wants of a program that generates text, and the files that ask a runner for it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Literal

from etdeploy.core.commands import quoted
from etdeploy.core.console import count
from etdeploy.core.errors import UsageError
from etdeploy.core.files.basic import write_atomic
from etdeploy.program.generation import Generation, sampled_ids
from etdeploy.program.generation import random_ids as draw_ids
from etdeploy.program.tokenizer import load_tokenizer
from etdeploy.recipe.load import LoadedRecipe
from etdeploy.recipe.model import Benchmark, BenchmarkGeneration, ExportGeneration
from etdeploy.runner.generation import PromptRun, Sampling, prompt_bytes, request_lines

_GRID = ("benchmark", "generation")


@dataclass(frozen=True)
class WorkPoint:
    """A prompt, with what is generated after it.

    Attributes:
        prompt: Its token ids.
        new_tokens: The most that are generated.
        depth: Tokens in the cache before it.
        warmup: Generations before those that count.
        repetitions: Generations that count.
    """

    prompt: tuple[int, ...]
    new_tokens: int
    depth: int
    warmup: int
    repetitions: int

    @property
    def positions(self) -> int:
        """How many the cache needs: the last token is not fed back."""
        return self.depth + len(self.prompt) + self.new_tokens - 1


@dataclass(frozen=True)
class GenerationWorkload:
    """All that a start of the runner generates.

    Attributes:
        generation: Of the program.
        sampling: How the next token is chosen.
        stop_ids: Tokens that end a text; none with random prompts, whose texts have no end.
        points: At least one. The first one stands for the run.
        prompt: The recipe's own; None where prompts are random.
    """

    generation: Generation
    sampling: Sampling
    stop_ids: tuple[int, ...]
    points: tuple[WorkPoint, ...]
    prompt: str | None

    @property
    def traced(self) -> tuple[int, ...]:
        """Numbers of the points that the profile pass generates.

        The first one, and those with the fewest and the most positions: a method serves up to a
        position, so these call what the others do.
        """
        order = sorted(range(len(self.points)), key=lambda i: self.points[i].positions)
        return tuple(dict.fromkeys((0, order[0], order[-1])))

    @property
    def method(self) -> str:
        """The method that decodes the first point's tokens, or the one that takes its prompt."""
        first = self.points[0]
        role: Literal["prefill", "decode"] = "decode" if first.new_tokens > 1 else "prefill"
        end = min(first.positions, self.generation.context)
        chosen = self.generation.method_for(role, end) or self.generation.methods[0]
        return chosen.name


def work_of(
    loaded: LoadedRecipe, generation: Generation, program_folder: Path
) -> GenerationWorkload:
    """What a recipe wants of a program; the same each time.

    Args:
        loaded: The recipe.
        generation: How the program is called.
        program_folder: With its tokenizer.

    Raises:
        UsageError: It does not fit the program's context, the recipe asks for something that
            generating text does not have, or its prompt cannot be tokenised.
    """
    wanted = loaded.recipe.benchmark
    _refuse(loaded)
    grid = wanted.generation or BenchmarkGeneration()
    if grid.prompt is None:
        rows = random_ids(grid.prompt_tokens, generation, grid.seed)
    else:
        place = _place(loaded, *_GRID, "prompt")
        rows = (tokenised(grid.prompt, generation, program_folder, place),)
    points = tuple(
        WorkPoint(row, new_tokens, depth, *_repeated(wanted, row, new_tokens))
        for row, new_tokens, depth in product(rows, grid.new_tokens, grid.depth)
    )
    largest = max(points, key=lambda point: point.positions)
    numbers = len(largest.prompt), largest.new_tokens, largest.depth
    _require_room(loaded, generation.context, *numbers)
    return GenerationWorkload(
        generation=generation,
        sampling=Sampling.model_validate(grid, from_attributes=True),
        stop_ids=generation.stop_ids if grid.prompt is not None else (),
        points=points,
        prompt=grid.prompt,
    )


def refuse_early(loaded: LoadedRecipe, context: int) -> None:
    """Refuses what a recipe of a language model cannot be measured by, before it is exported.

    Args:
        loaded: The recipe.
        context: Of the program; a model may have fewer positions than its recipe's.

    Raises:
        UsageError: As for `work_of`; not for the recipe's own prompt, which only the tokenizer can
            count.
    """
    _refuse(loaded)
    wanted = loaded.recipe.benchmark.generation or BenchmarkGeneration()
    if wanted.prompt is None:
        largest = (max(wanted.prompt_tokens), max(wanted.new_tokens), max(wanted.depth))
        _require_room(loaded, context, *largest)


def _repeated(wanted: Benchmark, prompt: Sequence[int], new_tokens: int) -> tuple[int, int]:
    """Generations before those that count, and those.

    `iterations` and `warmup` count inferences: one for each token after the first, or one for each
    of the prompt's where there is no other.
    """
    inferences = new_tokens - 1 or len(prompt)
    warmup = inferences if wanted.warmup == "auto" else wanted.warmup
    return math.ceil(warmup / inferences), math.ceil(wanted.iterations / inferences)


def _refuse(loaded: LoadedRecipe) -> None:
    """Raises UsageError for what a recipe wants and generating text does not have."""
    for keys, what, remedy in _unknown(loaded):
        raise UsageError(
            f"the program generates text, for which there is no {what}",
            place=_place(loaded, *keys),
            remedy=remedy,
        )


def _unknown(loaded: LoadedRecipe) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """Keys that cannot count, with what there is not, and the remedy.

    Sizes, inputs and a method are refused with the recipe.
    """
    if loaded.recipe.benchmark.sustained_s:
        yield (
            ("benchmark", "sustained_s"),
            "sustained pass yet",
            "Leave it out: --set benchmark.sustained_s=0",
        )
    if loaded.recipe.benchmark.tolerance.cosine_similarity is not None:
        yield (
            ("benchmark", "tolerance", "cosine_similarity"),
            "cosine of outputs",
            "Say how far logits may be off: benchmark.tolerance.max_abs_error",
        )
    if not isinstance(loaded.recipe.runtime.threads, int | str):
        yield (
            ("runtime", "threads"),
            "sweep of threads yet",
            "Name one number: --set runtime.threads=auto",
        )


def _require_room(
    loaded: LoadedRecipe, context: int, prompt_tokens: int, new_tokens: int, depth: int
) -> None:
    """Raises UsageError unless the largest point fits the cache."""
    positions = depth + prompt_tokens + new_tokens - 1
    if positions <= context:
        return
    parts = [
        f"a prompt of {count(prompt_tokens, 'token')}",
        f"{count(new_tokens, 'new token')}",
        *([f"{count(depth, 'token')} before them"] if depth else []),
    ]
    keys = {"prompt_tokens": prompt_tokens, "new_tokens": new_tokens, "depth": depth}
    raise UsageError(
        f"{', '.join(parts[:-1])} and {parts[-1]} do not fit the program's context of "
        f"{context:,} tokens",
        place=_place(loaded, *_GRID, max(keys, key=lambda key: keys[key])),
        remedy=_ask_for_fewer(context, depth)
        if context < _context_of(loaded)  # the model has no more positions
        else f"Ask for fewer, or export for more: --set export.generation.context={positions}",
    )


def _context_of(loaded: LoadedRecipe) -> int:
    return (loaded.recipe.export.generation or ExportGeneration()).context


def _ask_for_fewer(context: int, depth: int) -> str:
    """The remedy where a model has no more positions: a third of them for new tokens."""
    new = max(context // 3, 1)
    fewer = {"prompt_tokens": context - new, "new_tokens": new, **({"depth": 0} if depth else {})}
    settings = (quoted(f"benchmark.generation.{key}=[{number}]") for key, number in fewer.items())
    return "The model has no more positions. Ask for fewer:\n" + " ".join(
        f"--set {setting}" for setting in settings
    )


def _place(loaded: LoadedRecipe, *keys: str) -> str:
    """Where a key is in the recipe; its section, or the file, where it is not written there."""
    for end in range(len(keys), 0, -1):
        if place := loaded.places.get(keys[:end]):
            return str(place)
    return str(loaded.path)


def random_ids(
    lengths: Sequence[int], generation: Generation, seed: int
) -> tuple[tuple[int, ...], ...]:
    """A prompt of each length; the shorter ones begin like the longer ones.

    Each begins with the model's own first token, where it has one. None has a token that ends
    texts, after which some models give nothing sensible.

    Args:
        lengths: How many tokens each has.
        generation: Of the program.
        seed: The same prompts for the same seed and vocabulary, on every machine.
    """
    return draw_ids(
        lengths,
        vocabulary=generation.vocabulary,
        bos_id=generation.bos_id,
        stop_ids=generation.stop_ids,
        seed=seed,
    )


def tokenised(
    text: str, generation: Generation, program_folder: Path, place: str
) -> tuple[int, ...]:
    """A text as the model's own tokenizer splits it, with the tokens that it adds.

    Args:
        text: The prompt.
        generation: Of the program.
        program_folder: With the tokenizer.
        place: Of the text, for messages.

    Raises:
        UsageError: There is no tokenizer, nothing to read it, or nothing in the text.
    """
    try:
        tokenizer = load_tokenizer(generation, program_folder)
    except UsageError as error:
        raise UsageError(error.message, place=error.place or place, remedy=error.remedy) from error
    if tokenizer is None:
        raise UsageError(
            "the program has no tokenizer for the prompt",
            place=place,
            remedy="Leave benchmark.generation.prompt out: prompts are random tokens then",
        )
    ids = tokenizer.encode(text)
    if not ids:
        raise UsageError("the prompt has no token", place=place)
    return ids


def text_of(ids: Sequence[int], generation: Generation, program_folder: Path) -> str | None:
    """Token ids as text; None without a tokenizer that can be read."""
    try:
        tokenizer = load_tokenizer(generation, program_folder)
    except UsageError:
        return None
    return tokenizer.decode(ids) if tokenizer else None


FOLDER = "generation"
TIMING_REQUEST = f"{FOLDER}/timing.txt"
MEMORY_REQUEST = f"{FOLDER}/memory.txt"
TEXT_REQUEST = f"{FOLDER}/text.txt"
PROFILE_REQUEST = f"{FOLDER}/profile.txt"
# Tokens of a warm-up before traced calls: most of these have a text of their own before them.
_WARMUP_TOKENS = 4


def point_name(index: int) -> str:
    """Names a point in the runner's results."""
    return f"point-{index}"


def warmup_name(index: int) -> str:
    """Names the same point in the generations before those that count."""
    return f"warmup-{index}"


def write_request(work: GenerationWorkload, folder: Path) -> Mapping[str, Path]:
    """Writes what the runner is told, and the prompts.

    Args:
        work: What is generated.
        folder: Gets the files; they must remain as long as the bundle is used.

    Returns:
        The files by their paths in the bundle.
    """
    # A text that ends early would leave methods untraced.
    endless = replace(work, stop_ids=())
    files = {TIMING_REQUEST: _requested(work, _timed(work.points)),
             MEMORY_REQUEST: _requested(work, _short(work.points)),
             PROFILE_REQUEST: _requested(endless, _traced(work))}  # fmt: skip
    files |= {
        f"{FOLDER}/{_prompt_file(i)}": prompt_bytes(point.prompt)
        for i, point in enumerate(work.points)
    }
    files |= _expected(work)
    found = {}
    for name, content in files.items():
        found[name] = folder / Path(name).name
        write_atomic(found[name], content)
    return found


def _expected(work: GenerationWorkload) -> dict[str, bytes]:
    """The texts of the model, which the program follows: a token that differs changes no other."""
    texts = work.generation.expected
    if not texts:
        return {}
    ids = compared_ids(work.generation)
    points = [
        PromptRun(
            name=point_name(i), new_tokens=len(text.expected.tokens),
            path=_expected_prompt_file(i), follows=True,
        )
        for i, text in enumerate(texts)
    ]  # fmt: skip
    greedy = replace(work, sampling=Sampling(), stop_ids=())
    return {TEXT_REQUEST: _requested(greedy, iter(points), ids)} | {
        f"{FOLDER}/{_expected_prompt_file(i)}": prompt_bytes(
            (*text.prompt_ids, *text.expected.token_ids[:-1])
        )
        for i, text in enumerate(texts)
    }


def compared_ids(generation: Generation) -> tuple[int, ...]:
    """The tokens whose logits are compared with the model's at every position."""
    choices = [token for text in generation.expected for token in text.expected.tokens]
    top = (identity for token in choices for identity in token.ids)
    return tuple(dict.fromkeys((*sampled_ids(generation.vocabulary), *top)))


def _expected_prompt_file(index: int) -> str:
    return f"text-prompt-{index}.bin"


def _timed(points: Sequence[WorkPoint]) -> Iterator[PromptRun]:
    """Each point, after its own warm-up: points differ in the methods that they call."""
    for i, point in enumerate(points):
        names = ((warmup_name(i), point.warmup), (point_name(i), point.repetitions))
        yield from (_point(name, i, point, number) for name, number in names if number)


def _short(points: Sequence[WorkPoint]) -> Iterator[PromptRun]:
    """The first point, once."""
    yield _point(point_name(0), 0, points[0], 1)


def _traced(work: GenerationWorkload) -> Iterator[PromptRun]:
    """Once each, the first point last: a trace is of the last generation that calls a method."""
    for i in reversed(work.traced):
        point = work.points[i]
        short = replace(point, new_tokens=min(point.new_tokens, _WARMUP_TOKENS))
        yield _point(warmup_name(i), i, short, 1)
        yield _point(point_name(i), i, point, 1)


def _point(name: str, index: int, point: WorkPoint, repetitions: int) -> PromptRun:
    return PromptRun(
        name=name,
        depth=point.depth,
        new_tokens=point.new_tokens,
        repetitions=repetitions,
        path=_prompt_file(index),
    )


def _prompt_file(index: int) -> str:
    return f"prompt-{index}.bin"


def _requested(
    work: GenerationWorkload, points: Iterator[PromptRun], logit_ids: Sequence[int] = ()
) -> bytes:
    made = work.generation
    lines = request_lines(
        made.methods, work.sampling, work.stop_ids, list(points), made.rewind, logit_ids
    )
    return lines.encode()
