"""Runs a language model eagerly, as it was loaded and again when it is quantised.

The weights are quantised in place, so what the original gives is computed first, and only token ids
and logits of it are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from etdeploy.backends.registry import backend_named
from etdeploy.backends.schemes import FLOAT_SCHEMES
from etdeploy.export.hf.named_texts import evaluated_text
from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.expected.forward import (
    Forward,
    MethodsForward,
    Original,
    OwnForward,
    caches_restored,
    compare,
    evaluate,
    own_attention,
)
from etdeploy.export.worker.expected.text import (
    Prompt,
    TokenizedText,
    evaluation_parts,
    prompts_for,
)
from etdeploy.export.worker.failures import describe_errors, exception_text, is_memory
from etdeploy.export.worker.loading.hf.load import LoadedModel
from etdeploy.program.generation import (
    Evaluation,
    ExpectedText,
    GenerationMethod,
    GreedyText,
    LogitNoise,
    NextToken,
    logit_distance,
    sampled_ids,
)

Begin = Callable[[], Forward]
_FINEST = "8da8w"
_NOT_EVALUATED = "The quantised model was not evaluated: it has no tokenizer that can read {file}."
_NO_TEXTS = "What a device generates is not compared with the model's text"


@dataclass(frozen=True)
class Eager:
    """What the original model gave.

    Attributes:
        attention: transformers' name of its own attention.
        prompts: That it continued.
        texts: What it made of them; none where it gave none.
        evaluated: The text on which the model is evaluated; None for none.
        original: Of that text.
        notes: Sentences for the user.
    """

    attention: str
    prompts: tuple[Prompt, ...]
    texts: tuple[GreedyText, ...]
    evaluated: TokenizedText | None
    original: Original | None
    notes: tuple[str, ...]


def run_original(
    spec: ExportSpec, loaded: LoadedModel, methods: Sequence[GenerationMethod]
) -> Eager:
    """Runs a model as it was loaded."""
    if spec.generation is None:
        raise ValueError("the spec names no language model")
    evaluated = evaluation_parts(spec, loaded)
    prompts = prompts_for(loaded, methods, spec.generation.context)
    texts, notes = _texts(lambda: OwnForward(loaded.model), prompts)
    if evaluated and evaluated.cut_note:
        notes = (*notes, evaluated.cut_note)
    if not evaluated and (text := evaluated_text(spec)):
        notes = (*notes, _NOT_EVALUATED.format(file=text.path.name))
    return Eager(
        attention=loaded.model.config._attn_implementation,
        prompts=prompts,
        texts=texts,
        evaluated=evaluated,
        original=_evaluated(spec, loaded.model, evaluated) if evaluated else None,
        notes=notes,
    )


@dataclass(frozen=True)
class Found:
    """What the host has to know of texts.

    Attributes:
        texts: That a device has to give.
        evaluation: Of the evaluated text; None for none.
        notes: Sentences for the user.
    """

    texts: tuple[ExpectedText, ...]
    evaluation: Evaluation | None
    notes: tuple[str, ...]


def run_quantized(
    spec: ExportSpec,
    eager: Eager,
    model: Any,
    methods: Sequence[GenerationMethod],
    modules: Mapping[str, torch.nn.Module],
    *,
    in_place: bool,
) -> Found:
    """Runs the model that is exported, if it is another one than the original."""
    if not _quantizes(spec):
        return _found(eager, [(text, None) for text in eager.texts])
    with _exported(eager, model, methods, modules, in_place=in_place) as begin:
        texts, notes = _texts(begin, eager.prompts) if eager.texts else ((), ())
        owners = (model,) if in_place else tuple(modules.values())
        noise = logit_noise(begin, eager.prompts, texts, _vectors(owners)) if texts else None
        found = _found(eager, [*zip(eager.texts, texts, strict=False)], noise)
        if not (eager.evaluated and eager.original and found.evaluation):
            return Found(found.texts, None, (*found.notes, *notes))
        with describe_errors("evaluation", "the quantised model raised"):
            cost = compare(begin, eager.evaluated.parts, eager.original)
    evaluation = found.evaluation.model_copy(update={"quantized": cost})
    return Found(
        found.texts, evaluation, (*found.notes, *notes, *perplexity_notes(spec, evaluation))
    )


def perplexity_notes(spec: ExportSpec, evaluation: Evaluation) -> Iterator[str]:
    """A warning where quantisation makes the model much worse, with what to do."""
    if not evaluation.has_large_loss:
        return
    finer = _FINEST in backend_named(str(spec.backend)).quantizations
    remedy = (
        f"Weights in 8 bits lose less: --set export.quantization={_FINEST}"
        if finer and spec.quantization != _FINEST
        else "Without quantisation, it stays as it is: --set export.quantization=none"
    )
    before, after = evaluation.perplexity, evaluation.exported_perplexity
    much = "an undefined value" if after is None else f"{after:.4g}"
    yield (
        f"Quantisation raises the perplexity on {evaluation.file} from {before:.4g} to {much}. "
        f"{remedy}"
    )


@contextmanager
def _exported(
    eager: Eager,
    model: Any,
    methods: Sequence[GenerationMethod],
    modules: Mapping[str, torch.nn.Module],
    *,
    in_place: bool,
) -> Iterator[Begin]:
    """Begins texts with the quantised model, in the block."""
    if in_place:
        with own_attention(model, eager.attention), dequantized_once():
            yield lambda: OwnForward(model)
        return
    with caches_restored(modules):
        yield lambda: MethodsForward(methods, modules)


def _vectors(owners: Iterable[torch.nn.Module]) -> list[torch.Tensor]:
    """Weights of norms and biases, which quantisation leaves in floats."""
    found = {
        id(weight): weight
        for owner in owners
        for weight in owner.parameters()
        if weight.ndim == 1 and weight.dtype == torch.float32
    }
    return list(found.values())


def _quantizes(spec: ExportSpec) -> bool:
    """Whether the model is quantised before it is lowered."""
    return bool(spec.embeddings) or spec.quantization not in (None, *FLOAT_SCHEMES)


def _texts(
    begin: Begin, prompts: Sequence[Prompt]
) -> tuple[tuple[GreedyText, ...], tuple[str, ...]]:
    """The continuation of each prompt, or a note why there is none."""
    try:
        return tuple(greedy_text(begin(), prompt) for prompt in prompts), ()
    except UndefinedLogitsError:
        return (), (f"{_NO_TEXTS}: run eagerly, the model gives logits that are NaN or infinite.",)
    except Exception as error:  # the model's code, called with a cache
        if is_memory(error):
            raise
        return (), (f"{_NO_TEXTS}: run eagerly, the model raised {exception_text(error)}.",)


def _evaluated(spec: ExportSpec, model: Any, text: TokenizedText) -> Original:
    with describe_errors("evaluation", f"the model raised, when it was evaluated on {text.file}:"):
        return evaluate(lambda: OwnForward(model), text.parts, keep=_quantizes(spec))


def _found(
    eager: Eager,
    texts: Sequence[tuple[GreedyText, GreedyText | None]],
    noise: LogitNoise | None = None,
) -> Found:
    """With the texts of the original and of the quantised model, in the prompts' order."""
    text, original = eager.evaluated, eager.original
    evaluation = None
    if text and original:
        evaluation = Evaluation(
            file=text.file,
            sha256=text.sha256,
            tokens=text.predicted,
            whole=text.whole,
            perplexity=original.perplexity,
        )
    expected = tuple(
        ExpectedText(prompt_ids=prompt.ids, original=own, quantized=other, noise=noise)
        for prompt, (own, other) in zip(eager.prompts, texts, strict=False)
    )
    return Found(expected, evaluation, eager.notes)


@contextmanager
def dequantized_once() -> Iterator[None]:
    """While the block runs, a quantised weight that is used keeps its values as floats.

    torchao computes them anew in each call of a layer: that was nearly all of the time in which a
    model with 4-bit weights gives a token. They take four bytes for each weight, as those of the
    original did.
    """
    from torchao.quantization import IntxUnpackedToInt8Tensor

    compute = IntxUnpackedToInt8Tensor.dequantize
    # The weight itself is kept, too: another one cannot have its id then.
    known: dict[int, tuple[Any, torch.Tensor]] = {}

    def dequantize(weight: Any) -> torch.Tensor:
        if id(weight) not in known:
            known[id(weight)] = weight, compute(weight)
        return known[id(weight)][1]

    IntxUnpackedToInt8Tensor.dequantize = dequantize
    try:
        yield
    finally:
        IntxUnpackedToInt8Tensor.dequantize = compute


_KEPT = 8
# A few units in the last place, as kernels that sum in another order differ by.
_ROUNDING = 2.0**-20
_DRAWS = 2


class UndefinedLogitsError(Exception):
    """No token is the most probable: a logit is NaN, or infinite."""


def greedy_text(forward: Forward, prompt: Prompt) -> GreedyText:
    """A model's text."""
    tokens = [next_token(forward.last(prompt.ids))]
    while len(tokens) < prompt.new_tokens:
        tokens.append(next_token(forward.last([tokens[-1].ids[0]])))
    return GreedyText(tokens=tuple(tokens))


def logit_noise(
    begin: Callable[[], Forward],
    prompts: Sequence[Prompt],
    texts: Sequence[GreedyText],
    weights: Sequence[torch.Tensor],
) -> LogitNoise | None:
    """How far the logits along a model's texts move if some weights change by rounding errors."""
    distances: list[tuple[float, float]] = []
    for draw in range(_DRAWS):
        with _rounded_otherwise(weights, draw):
            for prompt, text in zip(prompts, texts, strict=True):
                distances += _moved(begin(), prompt, text)
    if not weights or not distances:
        return None
    errors, cosines = zip(*distances, strict=True)
    return LogitNoise(max_error=max(errors), min_cosine=min(cosines))


def _moved(forward: Forward, prompt: Prompt, text: GreedyText) -> Iterator[tuple[float, float]]:
    first = forward.last(prompt.ids)
    fed = [token.ids[0] for token in text.tokens[:-1]]
    # All tokens at once: one call costs about as much as one token.
    for token, logits in zip(
        text.tokens, (first, *(forward.each(fed) if fed else ())), strict=True
    ):
        ids = (*sampled_ids(logits.shape[0]), *token.ids)
        yield logit_distance(token, {i: float(logits[i]) for i in ids})


@contextmanager
def _rounded_otherwise(weights: Sequence[torch.Tensor], draw: int) -> Iterator[None]:
    before = [weight.detach().clone() for weight in weights]
    generator = torch.Generator().manual_seed(draw)
    with torch.no_grad():
        for weight in weights:
            weight *= 1 + _ROUNDING * torch.randn(weight.shape, generator=generator)
    try:
        yield
    finally:
        with torch.no_grad():
            for weight, old in zip(weights, before, strict=True):
                weight.copy_(old)


def next_token(logits: torch.Tensor) -> NextToken:
    """The choice of a token."""
    finite = logits[torch.isfinite(logits)]
    if torch.isnan(logits).any() or torch.isposinf(logits).any() or not finite.numel():
        raise UndefinedLogitsError
    values, ids = logits.topk(min(_KEPT, finite.numel()))
    first = int(logits.argmax())  # of equal ones the first, which topk does not promise
    others = [(int(i), float(v)) for i, v in zip(ids, values, strict=True) if int(i) != first]
    best = float(logits[first])
    return NextToken(
        ids=(first, *(i for i, _ in others)),
        behind=(0.0, *(best - value for _, value in others)),
        largest=float(finite.abs().max()),
        best=best,
        sample=tuple(_rounded(logits[list(sampled_ids(logits.shape[0]))])),
    )


def _rounded(logits: torch.Tensor) -> Iterator[float]:
    """In as many digits as matter, and without infinity, which JSON does not have."""
    most = torch.finfo(torch.float32).max
    return (float(f"{value:.7g}") for value in logits.clamp(-most, most).tolist())
