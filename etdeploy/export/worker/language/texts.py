"""The texts of a recipe as tokens: what the model is evaluated on, and what calibrates it."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from etdeploy.backends.schemes import AUTO_SCALED, AWQ, GPTQ, NEAREST, UNSCALED
from etdeploy.core.console import count
from etdeploy.core.files.basic import write_atomic
from etdeploy.export.hf.config import ConfigProblem
from etdeploy.export.hf.named_texts import (
    MOST_READ,
    NamedText,
    calibration_text,
    evaluated_text,
    no_tokenizer,
    read_excerpt,
)
from etdeploy.export.protocol import FailureKind
from etdeploy.export.spec import BUNDLED_TEXTS, ExportSpec
from etdeploy.export.worker.failures import WorkerError, describe_errors, exception_text, fail
from etdeploy.export.worker.language.experts import experts_routed
from etdeploy.export.worker.language.forward import Forward, OwnForward, own_attention, windows
from etdeploy.export.worker.language.load import LoadedModel
from etdeploy.export.worker.language.methods import takes_last_only
from etdeploy.export.worker.language.own_states import own_state
from etdeploy.export.worker.language.tokenizer import stop_ids
from etdeploy.export.worker.lowering.scales import FEWEST_TOKENS, Activations, Seen, SeenGradients
from etdeploy.program.generation import GenerationMethod, random_ids
from etdeploy.recipe.paths import CALIBRATION

# Tokens of the calibration text that are read at once.
_CALIBRATION_WINDOW = 512
# Tokens whose logits tell whether a model computes as before.
_TRIED_TOKENS = 8
# Whose gradients tell how much each layer counts.
_DIFFERENTIATED_TOKENS = 1024
# Tokens that are read together, each from an empty cache.
Parts = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class References:
    """What a model gave before it was quantized, kept in files for its other exports.

    Attributes:
        folder: None where nothing is kept.
    """

    folder: Path | None = None

    def of(self, name: str, depends: object, compute: Callable[[], Any]) -> Any:
        """What `compute` gave before, of the same `depends`, or gives now.

        Numbers, strings and tensors in tuples, lists and dicts, or None, which is not kept.
        """
        if self.folder is None:
            return compute()
        # Sums of floats are in another order with another number of threads.
        content = repr((depends, torch.get_num_threads()))
        path = self.folder / f"{name}-{hashlib.sha256(content.encode()).hexdigest()[:32]}.pt"
        # Damaged, or of another release: computed again.
        with suppress(OSError, RuntimeError, EOFError, UnpicklingError):
            return torch.load(path, weights_only=True, mmap=True)
        found = compute()
        if found is not None:
            stream = io.BytesIO()
            torch.save(found, stream)
            with suppress(OSError):  # an export does not need them
                write_atomic(path, stream.getvalue())
        return found


@dataclass(frozen=True)
class TokenizedText:
    """A text, ready to be read by the model: its tokens, in parts that the cache has room for.

    `sha256` is of what is read; `whole` if that is all of the file.
    """

    file: str
    sha256: str
    parts: Parts
    whole: bool

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return sum(map(len, self.parts))

    @property
    def predicted(self) -> int:
        """How many tokens are predicted: of each part all but the first."""
        return sum(len(part) - 1 for part in self.parts)

    @property
    def cut_note(self) -> str | None:
        """A sentence where an evaluated text was cut."""
        if self.whole:
            return None
        return (
            f"Of {self.file}, the first {count(self.predicted, 'token')} were evaluated; more with "
            "--set export.generation.evaluate_tokens=NUMBER"
        )


def evaluation_parts(spec: ExportSpec, loaded: LoadedModel) -> TokenizedText | None:
    """The text on which the model is evaluated; None for none."""
    context = spec.generation.context if spec.generation else 0
    return _readable(spec, loaded, evaluated_text(spec), context, "evaluation")


def calibration_parts(spec: ExportSpec, loaded: LoadedModel) -> TokenizedText | None:
    """The text and the prompts that calibrate the model; None for none."""
    context = spec.generation.context if spec.generation else 0
    asked = spec.calibration_prompts
    if isinstance(asked, int) and spec.generation:
        room = min(context, spec.generation.prefill_tokens)
        text = _readable(spec, loaded, calibration_text(spec), room, "calibration")
        return text and _sections(text, asked, room)
    room = min(context, _CALIBRATION_WINDOW)
    text = _readable(spec, loaded, calibration_text(spec), room, "calibration")
    if not isinstance(asked, tuple):
        return text
    return _with_prompts(text, _prompt_parts(spec, loaded, asked, context))


def _sections(text: TokenizedText, asked: int, length: int) -> TokenizedText:
    """The first parts of a text; says so where it has fewer."""
    if (found := len(text.parts)) >= asked:
        return replace(text, parts=text.parts[:asked])
    few = f"{count(found, 'section')} of up to {length} tokens, not the {asked} of "
    return replace(text, file=f"{text.file} ({few}export.calibration.prompts)")


def _with_prompts(text: TokenizedText | None, prompts: Parts) -> TokenizedText:
    named = count(len(prompts), "prompt")
    if text is None:
        return TokenizedText(named, _digest(prompts), prompts, whole=True)
    parts = (*text.parts, *prompts)
    return TokenizedText(f"{text.file} and {named}", _digest(parts), parts, text.whole)


def _prompt_parts(
    spec: ExportSpec, loaded: LoadedModel, prompts: Sequence[str], context: int
) -> Parts:
    """The tokens of each prompt, which the cache has room for."""
    place = spec.place(*CALIBRATION)
    if loaded.tokenizer.loaded is None:
        raise fail(
            "calibration",
            "the prompts of export.calibration cannot be split into tokens: the model has no "
            "tokenizer that can be loaded",
            remedy="Put the model's tokenizer into its folder, or leave export.calibration out.",
            file=place,
        )
    found = []
    for number, prompt in enumerate(prompts):
        name = f"prompt {number} of export.calibration (the first is 0)"
        ids = _tokens(loaded, prompt, name, place, "calibration")
        if not 0 < len(ids) <= context:
            raise fail(
                "calibration",
                f"{name} has {count(len(ids), 'token')}, and export.generation.context has room "
                f"for 1 to {context:,}",
                remedy="Shorten it, or name a file with a long text as export.calibration.text.",
                file=place,
            )
        found.append(ids)
    return tuple(found)


def _readable(
    spec: ExportSpec, loaded: LoadedModel, named: NamedText | None, room: int, kind: FailureKind
) -> TokenizedText | None:
    """The text; None where it is none, or one of etdeploy's that the model cannot read."""
    if named is None:
        return None
    try:
        return _tokenized(spec, loaded, named, room, kind)
    except WorkerError:
        if named.is_bundled:
            return None
        raise


def _tokenized(
    spec: ExportSpec, loaded: LoadedModel, named: NamedText, room: int, kind: FailureKind
) -> TokenizedText:
    place, name = spec.place(*named.key), named.path.name
    excerpt = (
        no_tokenizer(named, "the model has no tokenizer that can be loaded")
        if loaded.tokenizer.loaded is None
        else read_excerpt(named)
    )
    if isinstance(excerpt, ConfigProblem):
        raise fail(kind, excerpt.message, remedy=excerpt.remedy, file=place)
    ids = _tokens(loaded, excerpt.text, name, place, kind)
    kept = ids[: named.tokens]
    parts = windows(kept, room, loaded.tokenizer.bos_id)
    if not parts:
        raise fail(
            kind,
            f"{name} has a single token, and a token is predicted from those before it",
            remedy="Name a file with some hundred words.",
            file=place,
        )
    return TokenizedText(name, _digest(parts), parts, excerpt.whole and len(kept) == len(ids))


def _digest(parts: Parts) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _tokens(
    loaded: LoadedModel, text: str, name: str, place: str, kind: FailureKind
) -> tuple[int, ...]:
    try:
        ids = tuple(int(i) for i in loaded.tokenizer.loaded(text)["input_ids"])
    except Exception as error:  # of the tokenizer's code
        raise fail(
            kind,
            f"the model's tokenizer does not take {name}: {exception_text(error)}",
            file=place,
        ) from error
    beyond = [i for i in ids if i >= loaded.vocabulary]
    if beyond:
        raise fail(
            kind,
            f"the model's tokenizer gives the token {beyond[0]} for {name}, and the model has only "
            f"{loaded.vocabulary:,}",
            remedy="Use the model's own tokenizer, as it was published.",
            file=place,
        )
    return ids


# Something that most models know: what comes next is seldom a close choice.
_TEXT = "The capital of France is"
_NEW = 16
# Of the long prompt, whose every token costs: enough to decode with what the prompt has filled.
_LONG_NEW = 8
_BEYOND = 8
# Positions that an eager forward computes in some seconds, of a model with 10^9 parameters too.
_LONGEST = 320
_SEED = 0


@dataclass(frozen=True)
class Prompt:
    """The tokens of a prompt, how many are to follow, and which of them end the text."""

    ids: tuple[int, ...]
    new_tokens: int
    stop_ids: tuple[int, ...] = ()


def prompts_for(
    loaded: LoadedModel, methods: Sequence[GenerationMethod], context: int
) -> tuple[Prompt, ...]:
    """A short prompt, and where the program has further methods or parts, one that needs them."""
    return tuple(_prompts(loaded, methods, context))


def _prompts(
    loaded: LoadedModel, methods: Sequence[GenerationMethod], context: int
) -> Iterator[Prompt]:
    short = (_told(loaded) or _random(loaded, context // 2))[: context // 2]
    yield Prompt(short, min(_NEW, context - len(short) + 1))
    long = long_prompt_length(methods, context)
    if long:
        yield Prompt(_random(loaded, long), _LONG_NEW)


def long_prompt_length(methods: Sequence[GenerationMethod], context: int) -> int | None:
    """Tokens of a prompt that is taken in parts, and is beyond what a shorter method looks at."""
    ends = {m.capacity for m in methods if m.capacity < context}
    ends |= {m.max_tokens for m in methods if m.role == "prefill"}
    largest = min(_LONGEST, context) - _LONG_NEW + 1
    return max((end + _BEYOND for end in ends if end + _BEYOND <= largest), default=None)


def _told(loaded: LoadedModel) -> tuple[int, ...] | None:
    """The sentence; None without a tokenizer, or with one that knows more than the model."""
    if loaded.tokenizer.loaded is None:
        return None
    ids = tuple(int(i) for i in loaded.tokenizer.loaded(_TEXT)["input_ids"])
    return ids if ids and max(ids) < loaded.vocabulary else None


def random_parts(loaded: LoadedModel, context: int) -> tuple[tuple[int, ...], ...]:
    """Tokens in place of a text that calibrates."""
    return (_random(loaded, min(context, _CALIBRATION_WINDOW)),)


def _random(loaded: LoadedModel, length: int) -> tuple[int, ...]:
    stop = stop_ids(loaded.model, loaded.tokenizer, loaded.vocabulary)
    [ids] = random_ids(
        (length,),
        vocabulary=loaded.vocabulary,
        bos_id=loaded.tokenizer.bos_id,
        stop_ids=stop,
        seed=_SEED,
    )
    return ids


_UNREADABLE = "the model has no tokenizer that reads the calibration text"


def activations(spec: ExportSpec, loaded: LoadedModel, attention: str) -> Activations:
    """Mean squared inputs of the linear layers, on the text that calibrates the model."""
    if not spec.reads_calibration:
        return Activations(origin="export.calibration is none")
    text = calibration_parts(spec, loaded)
    found = _read(spec, loaded, attention, text)
    if spec.target_bits is None:
        return found
    text = _enough(spec, text, "target_bits", "target_bits", "null")
    text = replace(text, parts=_at_once(loaded.model, text.parts, _DIFFERENTIATED_TOKENS))
    return replace(found, gradients=partial(read_for_gradients, loaded.model, attention, text))


def _read(
    spec: ExportSpec, loaded: LoadedModel, attention: str, text: TokenizedText | None
) -> Activations:
    """What searching scales, AWQ and GPTQ need of the text."""
    if _scales(spec, loaded, text):
        text = _enough(spec, text, "scaling", AWQ, UNSCALED)
        found = _measured(spec, loaded, attention, text)
        if not found.mean_squares:
            return found
        found = replace(found, logits=partial(_logits, loaded.model, attention, text))
        if spec.rounding != GPTQ:
            return found
        later = _read_later(spec, loaded, attention, text)
        return replace(later, mean_squares=found.mean_squares, logits=found.logits)
    if spec.rounding == GPTQ:
        return _read_later(spec, loaded, attention, text)
    if text is None:
        return Activations(origin=_UNREADABLE)
    return _measured(spec, loaded, attention, text)


def _scales(spec: ExportSpec, loaded: LoadedModel, text: TokenizedText | None) -> bool:
    """Whether inputs are scaled; `auto` scales them unless that raises an error or memory use."""
    if spec.scaling != AUTO_SCALED:
        return spec.scaling == AWQ
    readable = text is not None and text.tokens >= FEWEST_TOKENS
    # Weights that are read again are scaled in memory.
    read_again = spec.rounding == GPTQ or spec.target_bits is not None
    return readable and not ((loaded.files and read_again) or loaded.apart)


def _measured(
    spec: ExportSpec, loaded: LoadedModel, attention: str, text: TokenizedText
) -> Activations:
    linears = [n for n, m in loaded.model.named_modules() if isinstance(m, torch.nn.Linear)]
    layers = {n: loaded.model.get_submodule(n) for n in linears}

    def computed() -> dict[str, torch.Tensor]:
        found = mean_squares(loaded.model, attention, text)
        return {name: found[id(layer)] for name, layer in layers.items() if id(layer) in found}

    depends = (text.parts, attention, linears)
    try:
        known = references(spec, loaded).of("activations", depends, computed)
        squares = {id(layers[name]): each for name, each in known.items()}
    except WorkerError as error:
        if spec.calibration_text not in BUNDLED_TEXTS:
            raise
        return Activations(origin=error.failure.message)
    return Activations(squares, f"{count(text.tokens, 'token')} of {text.file}")


def _read_later(
    spec: ExportSpec, loaded: LoadedModel, attention: str, text: TokenizedText | None
) -> Activations:
    """What reads the text when the layers are quantized, for GPTQ."""
    text = _enough(spec, text, "rounding", GPTQ, NEAREST)
    text = replace(text, parts=_at_once(loaded.model, text.parts))
    read = partial(read_at_once, loaded.model, attention, text)
    return Activations(origin=f"{count(text.tokens, 'token')} of {text.file}", read=read)


def _enough(
    spec: ExportSpec, text: TokenizedText | None, key: str, method: str, other: str
) -> TokenizedText:
    """The text; raises WorkerError if there is none, or if it is too short for a method."""
    if text and text.tokens >= FEWEST_TOKENS:
        return text
    problem = f"{method} needs a text, and {_UNREADABLE}"
    remedy = "Put the model's tokenizer into its folder"
    if text and (named := calibration_text(spec)):
        few = f"{count(text.tokens, 'token')} of {text.file} are too few for {method}"
        problem = f"{few}, which needs at least {FEWEST_TOKENS}, better {named.tokens:,}"
        remedy = "Name a longer text with export.calibration"
    raise fail(
        "calibration",
        problem,
        remedy=f"{remedy}, or --set export.{key}={other}",
        file=spec.place("export", key),
    )


@contextmanager
def _reading(
    model: Any, attention: str, text: TokenizedText, *, gradients: bool = False
) -> Iterator[None]:
    """For one call of the model with tokens of a text, whose states are dropped afterwards."""
    raised = describe_errors("calibration", f"the model raised when it read {text.file}:")
    try:
        with torch.set_grad_enabled(gradients), own_attention(model, attention), raised:
            yield
    finally:
        if (own := own_state(model)) and own.kinds:
            own.after(model, None)  # takes its states out of the model's attributes


def _logits(model: Any, attention: str, text: TokenizedText) -> torch.Tensor:
    """The logits at the beginning of a text."""
    ids = torch.tensor([text.parts[0][:_TRIED_TOKENS]])
    with _reading(model, attention, text):
        logits: torch.Tensor = model(input_ids=ids, use_cache=False).logits
    return logits


def _at_once(model: Any, parts: Parts, most: int = MOST_READ) -> Parts:
    """What of a text is read in one call; in one part by a model with the states of one text."""
    if own_state(model):
        return (tuple(token for part in parts for token in part)[:most],)
    return parts[: max(1, most // max(map(len, parts)))]


class _AllSeen(Exception):  # noqa: N818 - it ends a call that has done its work
    """No further layer is wanted."""


def read_at_once(
    model: Any,
    attention: str,
    text: TokenizedText,
    wanted: Collection[torch.nn.Linear],
    seen: Seen,
) -> None:
    """Has a model read all parts of a text in one call, as far as the last of the wanted layers.

    `seen` is called once for each layer, with its inputs for all tokens, and may change the layer
    before it computes: later layers then get the outputs of the changed one. Shorter parts are
    padded with their own tokens, which are left out of those inputs.
    """
    length = max(map(len, text.parts))
    ids = torch.tensor([[part[i % len(part)] for i in range(length)] for part in text.parts])
    filled = torch.arange(length) < torch.tensor([[len(part)] for part in text.parts])
    waiting, last = {id(layer) for layer in wanted}, (torch.empty(0), torch.empty(0))

    def hook(layer: torch.nn.Linear, inputs: tuple[torch.Tensor, ...]) -> None:
        nonlocal last
        if id(layer) not in waiting:
            return
        waiting.remove(id(layer))
        if inputs[0] is not last[0]:
            rows = inputs[0].detach().float().reshape(-1, layer.in_features)
            last = inputs[0], rows[filled.flatten()] if len(rows) == ids.numel() else rows
        seen(layer, last[1])
        if not waiting:
            raise _AllSeen

    # Where a layer is never called, the call goes on to the end.
    options: dict[str, Any] = {}
    if model.get_output_embeddings() not in wanted and takes_last_only(model):
        options = {"logits_to_keep": 1}
    hooks = [layer.register_forward_pre_hook(hook) for layer in wanted]
    try:
        with _reading(model, attention, text), experts_routed(model), suppress(_AllSeen):
            model(input_ids=ids, use_cache=False, **options)
    finally:
        for each in hooks:
            each.remove()


def read_for_gradients(
    model: Any,
    attention: str,
    text: TokenizedText,
    wanted: Collection[torch.nn.Linear],
    seen: SeenGradients,
) -> int:
    """Differentiates what a model predicts of a text; returns the number of its tokens.

    `seen` is called for each call of the wanted layers that changes the logits, with the inputs,
    and the gradients of its outputs: of the sum of -ln(probability) of tokens drawn from the
    model's own distributions.
    """
    roots: list[torch.Tensor] = []
    hooks = [_root_of_gradients(model.get_input_embeddings(), roots)]

    def hook(
        layer: torch.nn.Linear, inputs: tuple[torch.Tensor, ...], output: torch.Tensor
    ) -> None:
        if output.requires_grad:
            output.register_hook(
                lambda gradient: seen(
                    layer,
                    inputs[0].detach().float().reshape(-1, layer.in_features),
                    gradient.float().reshape(-1, layer.out_features),
                )
            )

    hooks += [layer.register_forward_hook(hook) for layer in wanted]
    generator = torch.Generator().manual_seed(_SEED)
    try:
        for part in text.parts:
            with _reading(model, attention, text, gradients=True), experts_routed(model):
                logits = model(input_ids=torch.tensor([part]), use_cache=False).logits[0].float()
                drawn = logits.detach().softmax(-1).multinomial(1, generator=generator).flatten()
                loss = torch.nn.functional.cross_entropy(logits, drawn, reduction="sum")
                torch.autograd.grad(loss, roots, allow_unused=True)
            roots.clear()
    finally:
        for each in hooks:
            each.remove()
    return text.tokens


def _root_of_gradients(table: torch.nn.Module, roots: list[torch.Tensor]) -> Any:
    """Make what a table returns require gradients, whether or not its weight does."""

    def hook(_: torch.nn.Module, __: object, output: torch.Tensor) -> torch.Tensor:
        roots.append(output.detach().requires_grad_())
        return roots[-1].clone()  # which may be changed in place

    return table.register_forward_hook(hook)


def references(spec: ExportSpec, loaded: LoadedModel) -> References:
    """Where what the model gives is kept; a model that does not fit in memory has no room there."""
    if spec.references is None or loaded.files or loaded.processor:
        return References()
    return References(Path(spec.references, loaded.commit or "files"))


def mean_squares(
    model: Any,
    attention: str,
    text: TokenizedText,
    begin: Callable[[Any], Forward] = OwnForward,
) -> dict[int, torch.Tensor]:
    """The mean squared inputs of each linear layer that is called, by its `id()`."""
    raised = describe_errors("calibration", f"the model raised when it read {text.file}:")
    with _summing(model) as sums, own_attention(model, attention), raised:
        for part in text.parts:
            begin(model).last(part)
    return {layer: each.squares / each.count for layer, each in sums.items()}


@dataclass
class _Sum:
    squares: torch.Tensor
    count: int = 0


@contextmanager
def _summing(model: Any) -> Iterator[dict[int, _Sum]]:
    """Sums the squared inputs of each linear layer that is called in the block, by its `id()`."""
    sums: dict[int, _Sum] = {}

    def add(layer: torch.nn.Linear, inputs: tuple[torch.Tensor, ...]) -> None:
        rows = inputs[0].detach().float().reshape(-1, layer.in_features)
        each = sums.setdefault(id(layer), _Sum(torch.zeros(layer.in_features)))
        each.squares += rows.square().sum(0)
        each.count += len(rows)

    linears = [layer for layer in model.modules() if isinstance(layer, torch.nn.Linear)]
    hooks = [layer.register_forward_pre_hook(add) for layer in linears]
    try:
        yield sums
    finally:
        for hook in hooks:
            hook.remove()
