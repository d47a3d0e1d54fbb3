"""What is refused before a text is generated: settings, lengths, speculation, drafts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from etdeploy.core.commands import quoted
from etdeploy.core.console import count
from etdeploy.core.errors import UsageError
from etdeploy.core.hashing import sha256_file
from etdeploy.export.spec import ExportSpec
from etdeploy.program.folder import PROGRAM_FILE
from etdeploy.program.generation import Generation, layout_for, verify_tokens_for
from etdeploy.program.tokenizer import TOKENIZER_FILE, tokenizer_folder
from etdeploy.recipe.load import LoadedRecipe
from etdeploy.recipe.model import Recipe
from etdeploy.recipe.sections.benchmark import BenchmarkGeneration
from etdeploy.recipe.sections.export import ExportGeneration
from etdeploy.recipe.tasks import has_encoder

if TYPE_CHECKING:
    from etdeploy.export.finished import DraftProgram


GENERATION_SECTION = ("benchmark", "generation")


def require_measurable(loaded: LoadedRecipe, context: int) -> None:
    """Raises UsageError, before the export, where `make_workload` would.

    The recipe's own prompt is not checked: its tokens cannot be counted without the tokenizer.
    `context` is the program's, which may be shorter than the recipe's.
    """
    require_supported(loaded)
    require_speculation(loaded, None)
    grid = loaded.recipe.benchmark.generation or BenchmarkGeneration()
    if grid.prompt is None and not has_encoder(loaded.recipe.model.task):
        largest = (max(grid.prompt_tokens), max(grid.new_tokens), max(grid.depth))
        require_room(loaded, context, *largest)


_NO_SPECULATION = "Leave the recipe without speculation, or --speculate none"


def require_speculation(loaded: LoadedRecipe, generation: Generation | None) -> None:
    """Raises UsageError if a recipe speculates and the program cannot verify.

    Without the program, what the recipe says of it counts; it may turn out to be unable later.
    """
    grid = loaded.recipe.benchmark.generation or BenchmarkGeneration()
    if grid.speculation == "none" or (generation is not None and generation.verify_tokens):
        return
    reason = _unverifiable(loaded.recipe)
    if generation is not None:
        last_only = ("its methods give the logits of the last token alone", _NO_SPECULATION)
        state = "its layers have a recurrent state, which cannot go back from a token that is wrong"
        reason = (state, _NO_SPECULATION) if generation.rewind == 0 else reason or last_only
    if reason:
        raise UsageError(
            f"speculation needs a program that verifies several tokens in one call: {reason[0]}",
            place=place_of(loaded, *GENERATION_SECTION, "speculation"),
            remedy=reason[1],
        )


def require_fitting_draft(
    draft: DraftProgram,
    spec: ExportSpec,
    generation: Generation | None,
    program_folder: Path | None,
) -> None:
    """Raises UsageError unless a draft has the tokens and the context of the program.

    Before the export, the model's own files say what is known.
    """
    from etdeploy.export.finished import tokens_by_id
    from etdeploy.export.hf.check import folder_here
    from etdeploy.export.hf.config import read_config, vocabulary_of

    model = folder_here(spec.hf) if spec.hf else None
    if generation is None:
        config = read_config(model) if model else None
        vocabulary = vocabulary_of(config) if isinstance(config, dict) else None
        context = spec.generation.context if spec.generation else None
        tokenizer = model / TOKENIZER_FILE if model else None
    else:
        vocabulary, context = generation.vocabulary, generation.context
        folder = tokenizer_folder(generation, program_folder) if program_folder else None
        tokenizer = folder / TOKENIZER_FILE if folder else None
    own = draft.draft
    if context is not None and own.context < context:
        raise draft.refused(
            f"it has a context of {own.context:,} tokens, and the program one of {context:,}",
            f"Export the draft with --context {context}, or this program with a shorter one: "
            f"--context {own.context}",
        )
    if vocabulary is not None and own.vocabulary != vocabulary:
        raise draft.refused(
            f"it has a vocabulary of {own.vocabulary:,} tokens, and the program one of "
            f"{vocabulary:,}",
            _SAME_TOKENIZER,
        )
    if tokenizer and tokenizer.is_file() and draft.tokenizer:
        mine, theirs = tokens_by_id(tokenizer), tokens_by_id(draft.tokenizer)
        other = sorted(i for i in {*mine, *theirs} if mine.get(i) != theirs.get(i))
        if other:
            raise draft.refused(
                f"its tokenizer is another one: {count(len(other), 'token')} differ, the first of "
                f"which is {other[0]:,}, {theirs.get(other[0])!r} in place of "
                f"{mine.get(other[0])!r}",
                _SAME_TOKENIZER,
            )
    program = program_folder / PROGRAM_FILE if program_folder else None
    same_size = program and program.is_file() and program.stat().st_size == own.size_bytes
    if program and same_size and sha256_file(program) == own.sha256:
        raise draft.refused("it is the program itself, so it is not faster", _SAME_TOKENIZER)


_SAME_TOKENIZER = (
    "Name the program of a smaller model of the same family, whose tokenizer is the same; or "
    f"{_NO_SPECULATION[0].lower()}{_NO_SPECULATION[1:]}"
)


def _unverifiable(recipe: Recipe) -> tuple[str, str] | None:
    """Why the program of a recipe cannot verify, and what to do; None where it may be able to."""
    asked = recipe.export.generation or ExportGeneration()
    if recipe.has_other_exporter:
        return None
    if has_encoder(recipe.model.task):
        return "models with an encoder have no method for it", _NO_SPECULATION
    if not asked.verify_tokens:
        return "export.generation.verify_tokens is 0", "--set export.generation.verify_tokens=16"
    if not verify_tokens_for(asked, recipe.export.backend):
        where = f"the backend {recipe.export.backend} computes elsewhere than on the CPU"
        return where, _NO_SPECULATION
    if layout_for(asked) == "executorch":
        last_only = "the method of ExecuTorch's contract gives the logits of the last token alone"
        return last_only, "--set export.generation.layout=etdeploy"
    return None


def require_supported(loaded: LoadedRecipe) -> None:
    """Raises UsageError for settings that text generation does not support.

    Sizes, inputs and a method are refused when the recipe is read.
    """
    benchmark, threads = loaded.recipe.benchmark, loaded.recipe.runtime.threads
    unsupported = (
        (bool(benchmark.sustained_s), ("benchmark", "sustained_s"), "a sustained pass",
         "Leave it out: --set benchmark.sustained_s=0"),
        (benchmark.tolerance.cosine_similarity is not None,
         ("benchmark", "tolerance", "cosine_similarity"), "a cosine of outputs",
         "Limit the error of logits: benchmark.tolerance.max_abs_error"),
        (not isinstance(threads, int | str), ("runtime", "threads"), "a sweep of threads",
         "Set one number: --set runtime.threads=auto"),
    )  # fmt: skip
    for is_set, keys, what, remedy in unsupported:
        if is_set:
            raise UsageError(
                f"the program generates text, which does not support {what}",
                place=place_of(loaded, *keys),
                remedy=remedy,
            )


def require_room(
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
        place=place_of(loaded, *GENERATION_SECTION, max(keys, key=lambda key: keys[key])),
        remedy=_request_fewer(context, depth)
        if context < (loaded.recipe.export.generation or ExportGeneration()).context
        else f"Request fewer, or export for more: --set export.generation.context={positions}",
    )


def _request_fewer(context: int, depth: int) -> str:
    """The remedy if the model has no more positions: a third of them for new tokens."""
    new = max(context // 3, 1)
    fewer = {"prompt_tokens": context - new, "new_tokens": new, **({"depth": 0} if depth else {})}
    settings = (quoted(f"benchmark.generation.{key}=[{number}]") for key, number in fewer.items())
    return "The model has no more positions. Request fewer:\n" + " ".join(
        f"--set {setting}" for setting in settings
    )


def place_of(loaded: LoadedRecipe, *keys: str) -> str:
    """The place of a key in the recipe, or that of its section, or the file."""
    for end in range(len(keys), 0, -1):
        if place := loaded.places.get(keys[:end]):
            return str(place)
    return str(loaded.path)
