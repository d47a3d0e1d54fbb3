"""The section `benchmark` of a recipe."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from etdeploy.recipe.choice import Takes, all_different
from etdeploy.recipe.sections.base import MOST_TOKENS, Section

DRAFT = "model:"
# A draft's program comes after `model:`.
Speculation = Annotated[
    str,
    Field(pattern=rf"^(none|lookup|{DRAFT}\s*\S.*)$"),
    Takes(f"none, lookup, or {DRAFT}DRAFT with a program", words=("none", "lookup")),
]
Size = Annotated[int, Field(ge=1, lt=2**31)]
Warmup = Annotated[
    Annotated[int, Field(ge=0, le=100_000)] | Literal["auto"],
    Takes("a whole number from 0 to 100000, or auto"),
]
Tokens = Annotated[
    Annotated[
        tuple[Annotated[int, Field(ge=1, le=MOST_TOKENS)], ...],
        Field(strict=False, min_length=1, json_schema_extra={"uniqueItems": True}),
        AfterValidator(all_different),
    ],
    Takes(f"a list of different whole numbers from 1 to {MOST_TOKENS}", words=()),
]
Depths = Annotated[
    Annotated[
        tuple[Annotated[int, Field(ge=0, le=MOST_TOKENS)], ...],
        Field(strict=False, min_length=1, json_schema_extra={"uniqueItems": True}),
        AfterValidator(all_different),
    ],
    Takes(f"a list of different whole numbers from 0 to {MOST_TOKENS}", words=()),
]


class Tolerance(Section):
    """How far the device's outputs may be from the model's; the defaults follow the data type and
    the quantization, and count in steps where an output is quantized.
    """

    max_abs_error: float | None = Field(default=None, ge=0)
    """Largest absolute difference of any element."""

    cosine_similarity: float | None = Field(default=None, ge=-1, le=1)
    """Minimum cosine of the angle between the outputs. For quantized outputs it replaces
    the limit on the root mean square error. It is computed in 64-bit floats and applied exactly:
    1 requires outputs that are equal, or parallel to the last bit."""


class Cooldown(Section):
    """How cool the device has to be before a start, and how long to wait for it."""

    max_celsius: float = Field(default=37.0, gt=0, le=100)
    """The temperature to wait for: the battery's, or the processor's where there is no battery."""

    timeout_s: float = Field(default=300.0, gt=0, le=86_400)
    """After that many seconds the run starts anyway, and its record says so."""


class BenchmarkGeneration(Section):
    """What is generated on the device: every combination of `prompt_tokens`, `new_tokens` and
    `depth`.
    """

    prompt_tokens: Tokens = (128,)
    """Lengths of prompts, which are made of random tokens."""

    new_tokens: Tokens = (64,)
    """How many tokens are generated after a prompt."""

    depth: Depths = (0,)
    """How many tokens are in the cache before the prompt."""

    speculation: Speculation = "none"
    """Speculative decoding. `lookup` proposes what followed the end of the text when it was there
    before, in the prompt or the generated text, and one call verifies several tokens. The text
    stays the same; what is copied from the prompt is generated faster. `model:DRAFT` proposes what
    a smaller model with the same tokenizer generates: DRAFT is its program, a `.pte` or the folder
    that `etdeploy export --output` writes. It measures whether it pays, and is paused where it does
    not."""

    lora: str | None = None
    """The name of the adapter that generates, if those of `model.lora` are not merged; by default,
    the model generates without one."""

    prompt: str | None = Field(default=None, min_length=1)
    """A text in place of random tokens; `prompt_tokens` is ignored then."""

    temperature: float = Field(default=0, ge=0, le=100)
    """Logits are divided by this before a token is drawn; 0 takes the most probable token."""

    top_k: int = Field(default=0, ge=0, le=MOST_TOKENS)
    """Draw from that many of the most probable tokens; 0 for all."""

    top_p: float = Field(default=1, gt=0, le=1)
    """Draw from the most probable tokens whose probabilities add up to this."""

    seed: int = Field(default=0, ge=0, lt=2**63)
    """The seed for random prompts, and for the tokens that are drawn."""

    min_p: float = Field(default=0, ge=0, le=1)
    """Draw only tokens that have at least this share of the most probable one's probability."""

    repetition_penalty: float = Field(default=1, gt=0, le=100)
    """The logits of all tokens of the text, prompt included, are divided by this (multiplied if
    negative) before a token is chosen; 1 for no penalty."""

    @property
    def draft(self) -> str | None:
        """The program of the draft model; None without one."""
        named = self.speculation.startswith(DRAFT)
        return self.speculation.removeprefix(DRAFT) if named else None


class BenchmarkInput(Section):
    """The input of a model of `hf` or `timm`, from which its processor makes tensors."""

    text: str | None = Field(default=None, min_length=1)
    """A text. By default a sentence that etdeploy brings."""

    image: str | None = None
    """An image file. By default random pixels, with which a run measures time but hides errors."""

    audio: str | None = None
    """A sound file in WAV format. By default random samples."""

    language: str | None = Field(default=None, min_length=1, max_length=32)
    """Of speech, the language that is spoken; of a translation, the one to translate to: a code as
    the model has it, like `en` or `deu_Latn`. By default a speech model detects it."""


class Benchmark(Section):
    """What is measured on the device."""

    method: str | None = Field(default=None, min_length=1)
    """The program's method to run. By default `forward`; without one, the first that the factory
    returned, or the only one of a finished program."""

    runs: int = Field(default=3, ge=1, le=1000)
    """How often the runner is started for the timing. The spread between starts is what a
    comparison with another run has to exceed."""

    warmup: Warmup = "auto"
    """Iterations before timing starts; the very first is reported separately. `auto` warms
    up until the times stop falling, for at most 10 seconds, or three iterations if these take
    longer."""

    iterations: int = Field(default=50, ge=1, le=1_000_000)
    """Timed iterations; the record has each as a raw sample."""

    sizes: dict[str, dict[str, Size]] = Field(default_factory=dict)
    """For a dynamic model: sizes to measure at, each with its own name, like
    `{short: {tokens: 16}, long: {tokens: 128}}`. A dimension is named like its torch.export.Dim,
    or by its input and number: `x.0`. Dimensions that are not named keep the example's size."""

    inputs: str | None = None
    """A function `file.py:function` or `package.module:function` that makes the inputs for one of
    `sizes`. It is called with the sizes by name, `make(tokens=16)`, and returns inputs as the model
    takes them. Without it, the inputs are random, drawn from the values of the example inputs."""

    input: BenchmarkInput | None = None
    """The input of a model of `hf` or `timm` as text or a file; the model's own processor makes
    tensors of it."""

    cooldown: Cooldown | None = None
    """Waits before each start until the device is cool."""

    sustained_s: float = Field(default=0, ge=0, le=86_400)
    """Seconds of back-to-back inferences in a separate pass, from a cool start: how much of the
    speed remains, and when it drops. 0 for none."""

    memory: bool = True
    """Measure the memory in a separate process: its peak, its course, and how the weights are
    loaded."""

    profile: bool = True
    """Record an ETDump, in a separate process because a tracer changes the times. Some
    backends also compile the program for it."""

    timeout_s: float = Field(default=300.0, gt=0, le=86_400)
    """Time limit of each pass, in seconds; for the sustained pass, on top of `sustained_s`."""

    tolerance: Tolerance = Tolerance()
    """When outputs count as equal."""

    generation: BenchmarkGeneration | None = None
    """For a program that generates text; of a model of `hf`, it has these defaults."""
