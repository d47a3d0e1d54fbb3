"""`model.json`: what an app knows of the program that it carries.

The template for each platform reads it (docs/apps.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from etdeploy.core.values import Value
from etdeploy.program.generation import GenerationMethod
from etdeploy.program.task import ImagePreprocessing, SpeechPreprocessing
from etdeploy.recipe.load import LoadedRecipe
from etdeploy.runner.generation import Sampling
from etdeploy.targets.platforms import suggested_segment


def app_id(loaded: LoadedRecipe) -> str:
    """The application id on Android, the bundle id on iOS."""
    # Apple's ids know no underscore.
    return loaded.recipe.app.id or f"org.example.{suggested_segment(loaded.name).replace('_', '')}"


def app_name(loaded: LoadedRecipe) -> str:
    """The name below the icon."""
    return loaded.recipe.app.name or loaded.name


MODEL_FILE = "model.json"
AppScreen = Literal[
    "image-classification", "text-generation", "automatic-speech-recognition", "tensor"
]


class AppValue(Value):
    """An input or an expected output, of ExecuTorch's kind: Tensor, Int, Double, Bool, None.

    A tensor's bytes are at `path` in the payload; an output may be off by `atol`.
    """

    name: str = ""
    kind: str
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    path: str | None = None
    value: bool | int | float | None = None
    atol: float = 0.0


class AppSize(Value):
    """Inputs of one size; `name` is empty for a recipe without sizes."""

    name: str = ""
    inputs: tuple[AppValue, ...]
    expected: tuple[AppValue, ...]


class AppChat(Value):
    """The text of the model's chat template before and after the user's words.

    `between` goes from the end of an answer to the user's next words; None if a conversation
    cannot be continued so, and each question begins a new one.
    """

    before: str
    after: str
    between: str | None = None


class AppImage(Value):
    """How the app labels a photo; `labels` is the path of a list of names in the payload.

    Scores are a softmax of the logits, or sigmoids if an image may have `several` labels.
    """

    preprocessing: ImagePreprocessing
    labels: str
    several: bool = False


class AppSpeech(Value):
    """How the app writes down speech; `vocabulary` is the path of a list of texts in the payload.

    Of equal ids in a row one counts, `blank` separates them, and `space` stands between words.
    """

    preprocessing: SpeechPreprocessing
    vocabulary: str
    blank: int
    space: int | None
    silent: tuple[int, ...] = ()


class AppGeneration(Value):
    """How the app generates text, at most `new_tokens`; see `program/generation.py`.

    Without a `tokenizer`, the app takes and shows ids of tokens; `chat` goes around a prompt.
    """

    methods: tuple[GenerationMethod, ...]
    vocabulary: int
    context: int
    stop_ids: tuple[int, ...]
    bos_id: int | None
    rewind: int | None
    sampling: Sampling
    new_tokens: int
    tokenizer: str | None
    chat: AppChat | None


class AppModel(Value):
    """`model.json`.

    The program is in the payload if `bundled`, else it is put beside the app. A warm-up of -1 goes
    on until times have stopped falling; 0 `threads` leave their number to the runtime. An app for
    inferences has `sizes`, one for text has `generation`, and the tokens and logits of a first call
    as its only size if it tests them. `task` is that of the first screen, for
    which `image` or `speech` has more.
    """

    app_id: str
    name: str
    workload: Literal["inference", "generation"]
    program: str
    bundled: bool
    program_sha256: str
    program_bytes: int
    executorch_version: str
    backends: tuple[str, ...]
    quantization: str
    method: str
    warmup: int
    iterations: int
    threads: int
    sizes: tuple[AppSize, ...] = ()
    generation: AppGeneration | None = None
    task: AppScreen = "tensor"
    image: AppImage | None = None
    speech: AppSpeech | None = None


def recorded_paths(model: AppModel) -> frozenset[str]:
    """The files of inputs and expected outputs in a payload."""
    values = (value for size in model.sizes for value in (*size.inputs, *size.expected))
    return frozenset(value.path for value in values if value.path)


Payload = Mapping[str, "bytes | Path"]
