"""Prompts of a program that generates text, and the points of a record that its results give."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Literal

from etdeploy.bench.generation_limits import (
    GENERATION_SECTION,
    place_of,
    require_room,
    require_speculation,
    require_supported,
)
from etdeploy.bench.records.generation import EncodedInput, GenerationPoint, speculated
from etdeploy.bench.statistics import percentile, summarize
from etdeploy.core.errors import UsageError
from etdeploy.program.generation import Draft, Generation, GenerationEncoder
from etdeploy.program.generation import random_ids as draw_ids
from etdeploy.program.tokenizer import load_tokenizer
from etdeploy.recipe.load import LoadedRecipe
from etdeploy.recipe.sections.benchmark import Benchmark, BenchmarkGeneration, Speculation
from etdeploy.runner.generation import GenerationResults, GenerationRun, Sampling, tokens_per_s


@dataclass(frozen=True)
class WorkPoint:
    """A prompt with the text to generate after it.

    `depth` tokens are in the cache before the prompt. `warmup` generations come before the
    `repetitions` that count.
    """

    prompt: tuple[int, ...]
    new_tokens: int
    depth: int
    warmup: int
    repetitions: int

    @property
    def positions(self) -> int:
        """How many positions the cache needs: the last token is not fed back."""
        return self.depth + len(self.prompt) + self.new_tokens - 1


@dataclass(frozen=True)
class GenerationWorkload:
    """All that a start of the runner generates.

    The first of the `points` represents the run. Random prompts, for which `prompt` is None, have
    no stop tokens.
    """

    generation: Generation
    sampling: Sampling
    stop_ids: tuple[int, ...]
    points: tuple[WorkPoint, ...]
    prompt: str | None
    speculation: Speculation = "none"
    draft: Draft | None = None

    @property
    def traced(self) -> tuple[int, ...]:
        """Indexes of the points that the profile pass generates.

        The first one, and those with the fewest and the most positions: as methods differ in their
        positions, these call all methods that the others call.
        """
        order = sorted(range(len(self.points)), key=lambda i: self.points[i].positions)
        return tuple(dict.fromkeys((0, order[0], order[-1])))

    @property
    def method(self) -> str:
        """The method that decodes the first point's tokens, or else takes its prompt."""
        first = self.points[0]
        role: Literal["prefill", "decode"] = "decode" if first.new_tokens > 1 else "prefill"
        end = min(first.positions, self.generation.context)
        chosen = self.generation.method_for(role, end) or self.generation.methods[0]
        return chosen.name


def make_workload(
    loaded: LoadedRecipe,
    generation: Generation,
    program_folder: Path,
    *,
    simulated: bool = False,
    draft: Draft | None = None,
) -> GenerationWorkload:
    """Return what a recipe generates with a program, which is always the same.

    A simulated one generates each point once: its times count for nothing. `draft` is the one that
    the recipe names.

    Raises UsageError if it does not fit the program's context, if the recipe requests something
    that text generation does not support, or if its prompt cannot be tokenized.
    """
    benchmark = loaded.recipe.benchmark
    require_supported(loaded)
    grid = benchmark.generation or BenchmarkGeneration()
    require_speculation(loaded, generation)
    if generation.encoder:
        work = _encoded_workload(benchmark, grid, generation, generation.encoder)
    else:
        work = _prompted_workload(loaded, grid, generation.with_adapter(grid.lora), program_folder)
        work = replace(work, draft=draft)
    if not simulated:
        return work
    once = tuple(replace(point, warmup=0, repetitions=1) for point in work.points)
    return replace(work, points=once)


def _prompted_workload(
    loaded: LoadedRecipe, grid: BenchmarkGeneration, generation: Generation, program_folder: Path
) -> GenerationWorkload:
    benchmark = loaded.recipe.benchmark
    if grid.prompt is None:
        rows = random_ids(grid.prompt_tokens, generation, grid.seed)
    else:
        place = place_of(loaded, *GENERATION_SECTION, "prompt")
        rows = (tokenize_prompt(grid.prompt, generation, program_folder, place),)
    points = tuple(
        WorkPoint(row, new_tokens, depth, *_repetitions(benchmark, row, new_tokens))
        for row, new_tokens, depth in product(rows, grid.new_tokens, grid.depth)
    )
    largest = max(points, key=lambda point: point.positions)
    numbers = len(largest.prompt), largest.new_tokens, largest.depth
    require_room(loaded, generation.context, *numbers)
    return GenerationWorkload(
        generation=generation,
        sampling=Sampling.model_validate(grid, from_attributes=True),
        stop_ids=generation.stop_ids if grid.prompt is not None else (),
        points=points,
        prompt=grid.prompt,
        speculation=grid.speculation,
    )


def _encoded_workload(
    benchmark: Benchmark,
    grid: BenchmarkGeneration,
    generation: Generation,
    encoder: GenerationEncoder,
) -> GenerationWorkload:
    """What a model generates from its encoder's input: no more than there is room for."""
    room = generation.context - len(encoder.prompt_ids) + 1
    lengths = dict.fromkeys(min(new, room) for new in grid.new_tokens)
    return GenerationWorkload(
        generation=generation,
        sampling=Sampling.model_validate(grid, from_attributes=True),
        stop_ids=generation.stop_ids if encoder.is_real else (),
        points=tuple(
            WorkPoint(encoder.prompt_ids, new, 0, *_repetitions(benchmark, encoder.prompt_ids, new))
            for new in lengths
        ),
        prompt=None,
    )


def _repetitions(benchmark: Benchmark, prompt: Sequence[int], new_tokens: int) -> tuple[int, int]:
    """Numbers of warm-up generations and of those that count.

    `iterations` and `warmup` count inferences: one for each token after the first, or one for each
    token of the prompt if there is only a first token.
    """
    inferences = new_tokens - 1 or len(prompt)
    warmup = inferences if benchmark.warmup == "auto" else benchmark.warmup
    return math.ceil(warmup / inferences), math.ceil(benchmark.iterations / inferences)


def random_ids(
    lengths: Sequence[int], generation: Generation, seed: int
) -> tuple[tuple[int, ...], ...]:
    """A random prompt of each length, the same on every machine for a seed and vocabulary.

    Shorter ones are prefixes of longer ones. Each begins with the model's first token, if it has
    one, and has no stop token, after which some models generate nonsense.
    """
    return draw_ids(
        lengths,
        vocabulary=generation.vocabulary,
        bos_id=generation.bos_id,
        stop_ids=generation.stop_ids,
        seed=seed,
    )


def tokenize_prompt(
    text: str, generation: Generation, program_folder: Path, place: str
) -> tuple[int, ...]:
    """A text as tokens of the model's tokenizer, with the tokens that it adds.

    Raises UsageError, with `place`, without a tokenizer or for an empty text.
    """
    try:
        tokenizer = load_tokenizer(generation, program_folder)
    except UsageError as error:
        raise UsageError(error.message, place=error.place or place, remedy=error.remedy) from error
    if tokenizer is None:
        raise UsageError(
            "the program has no tokenizer for the prompt",
            place=place,
            remedy="Leave out benchmark.generation.prompt to use random tokens",
        )
    ids = tokenizer.encode(text)
    if not ids:
        raise UsageError("the prompt is empty", place=place)
    return ids


def decode_ids(ids: Sequence[int], generation: Generation, program_folder: Path) -> str | None:
    """Token ids as text; None without a readable tokenizer."""
    try:
        tokenizer = load_tokenizer(generation, program_folder)
    except UsageError:
        return None
    return tokenizer.decode(ids) if tokenizer else None


def point_name(index: int) -> str:
    """The name of a point in the runner's results."""
    return f"point-{index}"


def counted_runs(results: GenerationResults, index: int) -> Sequence[GenerationRun]:
    """The generations of a point without its warm-up."""
    return [run for run in results.generation.runs if run.point == point_name(index)]


def make_points(
    work: GenerationWorkload, starts: Sequence[GenerationResults], program_folder: Path
) -> tuple[GenerationPoint, ...]:
    """Every point of a measurement."""
    return tuple(
        _generation_point(
            point, [run for start in starts for run in counted_runs(start, i)], work, program_folder
        )
        for i, point in enumerate(work.points)
    )


def encoded_input(
    work: GenerationWorkload, starts: Sequence[GenerationResults], point: GenerationPoint
) -> EncodedInput | None:
    """What the encoder took for the text of the first point; None without an encoder."""
    encoder = work.generation.encoder
    if encoder is None:
        return None
    encode = summarize(
        [ms for start in starts for ms in start.generation.encode_ms[1:]]
        or [ms for start in starts for ms in start.generation.encode_ms]
    )
    tokens_ms = point.token_ms.median * (len(point.token_ids) - 1) if point.token_ms else 0.0
    taken_s = (encode.median + point.ttft_ms + tokens_ms) / 1000
    return EncodedInput(
        is_real=encoder.is_real,
        preprocess_ms=encoder.preprocess_ms,
        encode_ms=encode,
        audio_s=encoder.audio_s,
        real_time_factor=taken_s / encoder.audio_s if encoder.audio_s else None,
    )


def _generation_point(
    point: WorkPoint, runs: Sequence[GenerationRun], work: GenerationWorkload, program_folder: Path
) -> GenerationPoint:
    first, tokens_ms = runs[0], [ms for run in runs for ms in run.token_ms]
    first_token = summarize([run.first_token_ms for run in runs])
    return GenerationPoint(
        prompt_tokens=len(point.prompt),
        new_tokens=point.new_tokens,
        depth=point.depth,
        ttft_ms=first_token.median,
        prefill_tokens_per_s=tokens_per_s(len(point.prompt), first_token.median),
        decode_tokens_per_s=_decode_rate(runs),
        first_token_ms=first_token,
        token_ms=summarize(tokens_ms) if tokens_ms else None,
        token_ids=first.token_ids,
        text=decode_ids(first.token_ids, work.generation, program_folder),
        stopped=first.stopped,
        generations=len(runs),
        distinct=len({run.token_ids for run in runs}),
        speculation=None
        if work.speculation == "none"
        else speculated(runs, len(tokens_ms), has_draft=work.draft is not None),
    )


def _decode_rate(runs: Sequence[GenerationRun]) -> float | None:
    """The median over the generations that have more than a first token."""
    rates = [tokens_per_s(len(run.token_ms), sum(run.token_ms)) for run in runs if run.token_ms]
    return percentile(rates, 50) if rates else None
