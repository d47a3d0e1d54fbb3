"""How a program that generates text is called: the contract of exporter and runner.

Every method takes token ids, int64 of shape (1, S), and the position of the first of them in the
sequence, int64 of shape (1,), and gives the logits of the last one, float32 of shape
(1, vocabulary). One that verifies takes, as its last input, which of its tokens' logits it gives:
their indexes, int64 of shape (K,); these are of shape (1, K, vocabulary). Those of other exporters
may take the position of each token, of shape (S,), and give the logits of each, of shape
(1, S, vocabulary). Keys and values of all tokens before that
position are in buffers that all methods share. A position may be set back: what is in the buffers
from there on does not count. To 0 that is always possible, else by `Generation.rewind` at most,
from the furthest end of a call since position 0: layers with a sliding window keep no more.

The attention of a method looks at as many positions as its capacity, whatever the position is; with
etdeploy's kernel, at those up to the position.

Where a program has a method `encoder`, it is called before, with the tensors of the model's
processor. Its outputs are further inputs of every other method, after the position.

A vision-language model has the methods of ExecuTorch's multimodal contract (extension/llm/runner/
constants.h): `vision_encoder` takes an image or a part of one and gives rows of embeddings, float32
of shape (1, N, d); `token_embedding` gives those of tokens, of shape (1, S, d). The other methods
take embeddings in place of tokens, and `text_decoder` is the one that has the most positions. They
may take further positions of each token after the first one's: see `GenerationEncoder`.

With a static cache, keys and values are inputs and outputs of methods: see `StaticCache`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from pydantic import Field

from etdeploy.backends.registry import backend_named
from etdeploy.core.values import Value
from etdeploy.recipe.model import Recipe
from etdeploy.recipe.sections.export import CacheChoice, ExportGeneration
from etdeploy.recipe.tasks import has_cross_attention, has_encoder

LoadMode = Literal["mmap", "file"]
"""Whether a program is mapped or read into memory, as ExecuTorch's `Module::LoadMode` has it."""
LINEAR_KERNELS = frozenset({"etdeploy::grouped_linear.out", "etdeploy::channelwise_linear.out"})


def load_mode(operators: Collection[str]) -> LoadMode:
    """How the runner loads a program with these operators.

    Kernels of linear layers read all weights for each token, which is faster in huge pages, and
    those of a file have none. A backend copies its weights, and embeddings are read row by row.
    """
    return "file" if LINEAR_KERNELS & {*operators} else "mmap"


class GenerationMethod(Value):
    """A method, as the runner chooses it.

    Attributes:
        name: Of the program's method.
        role: `prefill` takes several tokens at once, `decode` one.
        max_tokens: The most that a call takes; 1 for `decode`.
        dynamic: Whether it takes fewer, too. One token is for `decode`, where a method has that
            role.
        capacity: It serves calls for which position + S is at most this. Of several that serve a
            call, the one with the least capacity is the fastest.
        verify_tokens: The most tokens of a call whose logits it can give; 0 for the last one's
            alone.
    """

    name: str
    role: Literal["prefill", "decode"]
    max_tokens: int
    dynamic: bool
    capacity: int
    verify_tokens: int = 0


Layout = Literal["etdeploy", "executorch"]
ENCODER = "encoder"
VISION_ENCODER, TOKEN_EMBEDDING = "vision_encoder", "token_embedding"
TEXT_DECODER = "text_decoder"
ENCODED_ONCE = "keys and values of the encoder's output are computed once for all tokens"


class GenerationEncoder(Value):
    """How a program's encoder is called for the input that it was exported with.

    Attributes:
        method: Its name.
        calls: How often it is called for the input: its inputs in the program folder are those of
            all calls, one after the other.
        image_id: The token in place of which the decoder takes a row of the encoder; null where the
            encoder's outputs are further inputs.
        positions: For each token of the prompt, numbers that the methods take after the position,
            in rows, int64 of shape (rows, S); after the prompt, each goes on by one. Empty where
            they take none.
        prompt_ids: What the text begins with; it is not part of the answer.
        is_real: Whether the input is the user's, or a text; else it is random.
        audio_s: Length of the speech in seconds; null for text and images.
        preprocess_ms: Time of the model's processor to make tensors of the input, on the machine
            that exported it.
    """

    method: str = ENCODER
    calls: int = Field(default=1, ge=1)
    image_id: int | None = None
    positions: tuple[tuple[int, ...], ...] = ()
    prompt_ids: tuple[int, ...] = Field(min_length=1)
    is_real: bool
    audio_s: float | None
    preprocess_ms: float


class StaticCache(Value):
    """Keys and values as inputs and outputs of methods, for a backend that keeps no state.

    A method takes S token ids, int64 of shape (1, S); the position of each, int64 of shape (1, S);
    for each window a mask, float32 of shape (1, 1, S, places + S), which is added to the scores of
    earlier positions and of the call's own tokens; and of each layer the keys, (1, heads, d,
    places), and values, (1, heads, places, d), of the tokens before. It gives the logits of the
    last token, float32 of shape (1, vocabulary), and for each layer the new keys, (1, heads, d, S),
    and values, (1, heads, S, d). These have the dtype and quantization of the inputs, the same in
    all methods, and are written to the places of their positions before the next call.

    Fewer tokens than S are the last ones, after padding whose outputs count for nothing.

    Attributes:
        places: Positions of the inputs: one less than the context, since nothing looks back at the
            last.
        windows: For each mask, how many positions a token sees, itself the last; 0 for all.
        masked: What a mask has where a token does not see a position; 0 where it does.
        layers: Heads of keys, and their size d, of each layer.
    """

    places: int
    windows: tuple[int, ...]
    masked: float
    layers: tuple[tuple[int, int], ...]


class Generation(Value):
    """What the host and the runner know of a program that generates text.

    Attributes:
        methods: All of the program's methods that generate.
        vocabulary: Number of logits.
        context: Positions of the cache: a prompt with all new tokens but the last, which is not fed
            back, has to fit.
        stop_ids: Tokens that end a text.
        bos_id: What a text begins with; null where the tokenizer adds none.
        tokenizer: Folder with the model's own tokenizer, relative to the program folder; null where
            the model has none.
        model: Id or folder that the recipe names.
        revision: Commit of the model's repository; null for a folder.
        path: How it was exported: `fast`, or `plain` where the model does not fit the fast path;
            `static` with a static cache; `finished` where another exporter made it.
        path_reason: Why.
        attention: `kernel` where it is an operator of its own, else `stock`: etdeploy's, or that of
            ExecuTorch's runner (`llama::custom_sdpa`) in its layout.
        cache: How keys and values are kept; all but `float32` are for etdeploy's kernel.
        layout: Whose contract the methods follow: `etdeploy` has those for prompts and for single
            tokens, `executorch` a method `forward` for both, which ExecuTorch's own runner calls.
        expected: Texts that the program has to give; empty where the model gives none eagerly.
        evaluation: How well the model predicts the recipe's text; null where it names none.
        rewind: How far a position may be set back, unless to 0; null where there is no limit. 0 of
            models with a recurrent state, else at least `max_tokens` of any method.
        adapters: What the program has for each adapter, by name; `methods`, `expected` and
            `evaluation` are those of the model without one.
        encoder: Of a model with an encoder; null for others.
        static_cache: Where keys and values are inputs and outputs; null where they are buffers.
        load_mode: How the runner loads the program.
    """

    methods: tuple[GenerationMethod, ...]
    vocabulary: int
    context: int
    stop_ids: tuple[int, ...] = ()
    bos_id: int | None = None
    tokenizer: str | None = None
    model: str
    revision: str | None = None
    path: Literal["fast", "plain", "static", "finished"]
    path_reason: str
    attention: Literal["kernel", "stock"] = "stock"
    cache: CacheChoice = "float32"
    layout: Layout = "etdeploy"
    expected: tuple[ExpectedText, ...] = ()
    evaluation: Evaluation | None = None
    rewind: int | None = None
    adapters: dict[str, GenerationAdapter] = {}
    encoder: GenerationEncoder | None = None
    static_cache: StaticCache | None = None
    load_mode: LoadMode = "mmap"

    @property
    def verify_tokens(self) -> int:
        """The most tokens that one call verifies; 0 where none can, or rejected ones would stay."""
        most = max(method.verify_tokens for method in self.methods)
        reach = most if self.rewind is None else self.rewind + 1
        return most if reach >= most > 1 else 0

    def with_adapter(self, name: str | None) -> Generation:
        """How the program is called to generate with an adapter; without one for None."""
        if name is None:
            return self
        chosen = self.adapters[name]
        update = {"methods": chosen.methods, "expected": chosen.expected, "evaluation": None}
        return self.model_copy(update=update)

    def method_for(self, role: Literal["prefill", "decode"], end: int) -> GenerationMethod | None:
        """The method that serves a call which ends before position `end`; None where none does."""
        serving = (m for m in self.methods if m.role == role and m.capacity >= end)
        return min(serving, key=lambda m: m.capacity, default=None)


class Draft(Value):
    """A program whose most probable tokens another one verifies.

    Attributes:
        name: Of its folder, or of its file.
        sha256, size_bytes: Of the file.
        vocabulary: Number of its logits.
        context: Positions of its cache.
        methods: Those that generate.
        rewind, load_mode: As in `Generation`.
    """

    name: str
    sha256: str
    size_bytes: int
    vocabulary: int
    context: int
    methods: tuple[GenerationMethod, ...]
    rewind: int | None = None
    load_mode: LoadMode = "mmap"


class GenerationAdapter(Value):
    """An adapter of a program that has the model's weights once for all of them.

    Attributes:
        methods: Those that generate with it: one for each of the model's, with the same cache.
        expected: Texts that they have to give; empty where the model gives none eagerly.
    """

    methods: tuple[GenerationMethod, ...]
    expected: tuple[ExpectedText, ...] = ()


Attention = Literal["kernel", "stock"]
CACHE_BITS: Mapping[CacheChoice, int] = {"float32": 32, "float16": 16, "int8": 8}
# Below, the kernel saves less than it costs to leave the delegate.
_LEAST_CONTEXT = 512


def attention_of(recipe: Recipe) -> tuple[Attention, str] | None:
    """The attention that a recipe asks for, and why, as a clause; None for other models."""
    if not recipe.is_language_model:
        return None
    if has_cross_attention(recipe.model.task):
        return "stock", "a decoder also looks at all of what the encoder gave"
    return attention_for(recipe.export.generation or ExportGeneration(), recipe.export.backend)


def attention_for(asked: ExportGeneration, backend: str) -> tuple[Attention, str]:
    """The same for a section `export.generation`; a model may not fit it.

    Args:
        asked: The section.
        backend: `export.backend`.
    """
    if asked.path == "plain":
        return "stock", "export.generation.path is plain, which has the attention of transformers"
    if asked.attention != "auto":
        return asked.attention, f"export.generation.attention is {asked.attention}"
    if asked.cache != "float32":
        return "kernel", f"no other reads a cache of {asked.cache}"
    if not backend_named(backend).own_kernels:
        return "stock", f"etdeploy's kernel runs on the CPU, and {backend} computes elsewhere"
    if asked.context < _LEAST_CONTEXT:
        return "stock", f"the cache has fewer than {_LEAST_CONTEXT} positions"
    return "kernel", "it reads keys and values where they are, up to the position that is reached"


def fits_stock_runtimes(recipe: Recipe) -> bool:
    """Whether `auto` may become the layout `executorch`: at no loss of speed, and the user agrees.

    On a backend that does not compute on the CPU, a cache is copied for each token, and products of
    all lengths are not delegated.
    """
    asked, model = recipe.export.generation, recipe.model
    if asked is None or recipe.has_other_exporter or has_encoder(model.task) or not model.merge:
        return False
    if asked.cache != "float32":
        return False
    return asked.layout == "auto" and backend_named(recipe.export.backend).own_kernels


def layout_for(asked: ExportGeneration) -> Layout:
    """The layout that a section `export.generation` asks for.

    `auto` has become `executorch` before, where the program is for an app.
    """
    return "executorch" if asked.layout == "executorch" else "etdeploy"


def verify_tokens_for(asked: ExportGeneration, backend: str) -> int:
    """Of how many tokens a method for prompts can give the logits.

    Where a backend does not compute on the CPU, choosing them would part the graph.
    """
    return asked.verify_tokens if backend_named(backend).own_kernels else 0


# Enough to see whether logits are others, and few kilobytes of a program's description.
_SAMPLED = 64
# Quantized perplexity by the original's: what small models have with 4-bit weights is up to 1.2.
_LARGE_LOSS = 1.3
# A cosine of two numbers without their mean is 1 or -1.
_LEAST_FOR_COSINE = 8


class NextToken(Value):
    """The choice of one token: the most probable is taken.

    Attributes:
        ids: The most probable tokens, the first of which is taken.
        behind: How much smaller the logit of each is than the first's; 0 for the first.
        largest: The largest magnitude of any logit.
        best: The logit of the first.
        sample: The logits of the tokens that `sampled_ids` names.
    """

    ids: tuple[int, ...] = Field(min_length=1)
    behind: tuple[float, ...] = Field(min_length=1)
    largest: float
    best: float
    sample: tuple[float, ...] = Field(min_length=1)

    @property
    def top_logits(self) -> dict[int, float]:
        """Those of `ids`."""
        return {i: self.best - behind for i, behind in zip(self.ids, self.behind, strict=True)}

    def gap(self, token: int) -> tuple[float, bool]:
        """How much smaller a token's logit is than the first's, and whether that is exact.

        Of a token that is not among `ids`, the last one's is known to be no larger.
        """
        if token in self.ids:
            return self.behind[self.ids.index(token)], True
        return self.behind[-1], False


def logit_distance(choice: NextToken, logits: Mapping[int, float]) -> tuple[float, float]:
    """How far other logits of a position are from the model's.

    Args:
        choice: The model's, with its sampled logits.
        logits: The others: those of `sampled_ids` in their order, then further ones.

    Returns:
        The largest difference of a logit that both have, and the cosine of the sampled logits, each
        vector without its mean; 1 where there are too few, or the model's are all the same.
    """
    sample = tuple(logits.values())[: len(choice.sample)]
    errors = [abs(a - b) for a, b in zip(sample, choice.sample, strict=False)]
    errors += [abs(logits[i] - b) for i, b in choice.top_logits.items() if i in logits]
    if len(sample) < _LEAST_FOR_COSINE:
        return max(errors, default=0.0), 1.0
    a, b = (_without_mean(values) for values in (sample, choice.sample))
    size = math.hypot(*a) * math.hypot(*b)
    cosine = sum(x * y for x, y in zip(a, b, strict=True)) / size if size else 1.0
    return max(errors), cosine


def _without_mean(values: Sequence[float]) -> list[float]:
    mean = math.fsum(values) / len(values)
    return [value - mean for value in values]


def sampled_ids(vocabulary: int) -> tuple[int, ...]:
    """The tokens of a vocabulary whose logits are compared at every position, evenly spaced."""
    count = min(_SAMPLED, vocabulary)
    return tuple(i * vocabulary // count for i in range(count))


class GreedyText(Value):
    """A text of the most probable tokens; one that ends texts does not end it.

    Attributes:
        tokens: Each choice, in order.
    """

    tokens: tuple[NextToken, ...] = Field(min_length=1)

    @property
    def token_ids(self) -> tuple[int, ...]:
        """What was chosen."""
        return tuple(token.ids[0] for token in self.tokens)


class LogitNoise(Value):
    """How far rounding alone moves the logits of a quantized model.

    Activations that are quantized at run time amplify differences of rounding: a value that falls
    to the other side of a step moves by a whole step.

    Attributes:
        max_error: The largest difference of a logit.
        min_cosine: The least cosine of a position; see `logit_distance`.
    """

    max_error: float
    min_cosine: float


class ExpectedText(Value):
    """How the model continues a prompt.

    Attributes:
        prompt_ids: The prompt.
        original: As the model continues it in 32-bit floats, by its own forward.
        quantized: As the quantized model does; null for one that is not quantized.
        noise: Of the quantized model, over all texts; null where it is not known.
    """

    prompt_ids: tuple[int, ...] = Field(min_length=1)
    original: GreedyText
    quantized: GreedyText | None = None
    noise: LogitNoise | None = None

    @property
    def expected(self) -> GreedyText:
        """That of the model that was exported."""
        return self.quantized or self.original


class QuantizationCost(Value):
    """How far the quantized model is from the original on a text, position by position.

    The measures are those of llama.cpp's `llama-perplexity --kl-divergence`, with the difference of
    the logits. Divergences are in nats. A number is null where logits are NaN or infinite.

    Attributes:
        perplexity: Of the quantized model.
        mean_kl_divergence: From the original's distribution of the next token to the quantized
            model's; the mean over the positions.
        max_kl_divergence: At the position where it is largest.
        same_top_percent: Of the positions, where the most probable token is the same.
        logit_rms_error: Root of the mean square difference of the logits.
        logit_max_abs_error: Their largest difference.
    """

    perplexity: float | None
    mean_kl_divergence: float | None
    max_kl_divergence: float | None
    same_top_percent: float
    logit_rms_error: float | None
    logit_max_abs_error: float | None


class Evaluation(Value):
    """How well the model predicts a text.

    Attributes:
        file: Name of the text: the recipe's, or the one that comes with etdeploy.
        sha256: Of the text that was evaluated.
        tokens: How many were predicted.
        whole: Whether that was all of the file.
        perplexity: Of the model in 32-bit floats: exp of the mean of -ln(probability of the token).
            null where logits are NaN.
        quantized: Of the quantized model; null for one that is not quantized.
    """

    file: str
    sha256: str
    tokens: int
    whole: bool
    perplexity: float | None
    quantized: QuantizationCost | None = None

    @property
    def exported_perplexity(self) -> float | None:
        """That of the model that was exported."""
        return self.quantized.perplexity if self.quantized else self.perplexity

    @property
    def has_large_loss(self) -> bool:
        """Whether quantization makes the model so much worse that a user has to know."""
        before, after = self.perplexity, self.exported_perplexity
        return before is not None and (after is None or after >= _LARGE_LOSS * before)


def random_ids(
    lengths: Sequence[int],
    *,
    vocabulary: int,
    bos_id: int | None,
    stop_ids: Collection[int],
    seed: int,
) -> tuple[tuple[int, ...], ...]:
    """A prompt of each length; the shorter ones begin like the longer ones.

    Args:
        lengths: How many tokens each has.
        vocabulary: Number of tokens.
        bos_id: What each begins with; None for nothing.
        stop_ids: Tokens that end texts, which none has: after them, some models give nothing
            sensible.
        seed: The same prompts for the same seed and vocabulary, on every machine.
    """
    draw = random.Random(seed)  # noqa: S311 - no secret
    stop = set(stop_ids)
    ids = [] if bos_id is None else [bos_id]
    usable = [token for token in range(vocabulary) if token not in stop]
    while len(ids) < max(lengths):
        ids.append(usable[int(draw.random() * len(usable))])
    return tuple(tuple(ids[:length]) for length in lengths)
