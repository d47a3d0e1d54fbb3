"""The program folder: a `.pte` with its inputs, expected outputs and provenance.

    program.pte   program.json   export.json   etrecord.bin
    inputs/0.x.bin ...   expected/0.logits.bin ...
    inputs/long/0.x.bin ...   expected/long/0.logits.bin ...

The last line is for a recipe that names sizes. In a program with several methods, each has folders
of its own: `inputs/prefill/0.x.bin`, `inputs/prefill/long/0.x.bin`. Tensors are stored as their raw
little-endian contiguous bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from etdeploy.core.values import Value
from etdeploy.program.generation import Generation
from etdeploy.program.model import PlainValue
from etdeploy.program.quality import OutputLoss
from etdeploy.program.task import TaskProgram

PROGRAM_FILE = "program.pte"
PROGRAM_INFO = "program.json"
EXPORT_INFO = "export.json"
ETRECORD_FILE = "etrecord.bin"
# The method that torch.export traces of a module, and that ExecuTorch runs by default.
FORWARD = "forward"
# In a provenance's details: notes that torch.export's other mode was used.
RETRACED = "retraced"
# There, too: what rewrites of the graph did (docs/rewrites.md).
REWRITES = "rewrites"
# There, too, of a language model: the peak of the export, and what was expected.
MEMORY = "memory"
# There, too: the names of the images that a method takes by pixel (NHWC).
BY_PIXEL = "by_pixel"
# What the worker puts there beside what a record has.
IDLE = "idle"


class TensorFile(Value):
    """A tensor on disk.

    Attributes:
        path: Relative to the program folder.
        dtype: torch's name.
        shape: Of the contiguous tensor.
        name: As in the model's code, `logits` or `hidden.0`; empty if it is unknown.
    """

    path: str
    dtype: str
    shape: tuple[int, ...]
    name: str = ""


# An input or output; plain values are in `export.json` itself.
Stored = TensorFile | PlainValue


class OutputQuantization(Value):
    """How an output's values are quantized: each is `(integer - zero_point) * scale`.

    `dtype` is that of the integers, by torch's name.
    """

    scale: float
    zero_point: int
    dtype: str


class InputSet(Value):
    """Inputs of one size, and the eager model's outputs for them.

    Attributes:
        name: Of the size, as in the recipe; empty for the example inputs of a recipe without sizes.
        sizes: Dimensions with their sizes, as in the recipe.
    """

    name: str = ""
    sizes: dict[str, int] = {}
    inputs: tuple[Stored, ...]
    expected: tuple[Stored, ...] = ()


class MethodValues(Value):
    """What is known of one method of a program with several; see the same names in `Provenance`."""

    inputs: tuple[Stored, ...] = ()
    expected: tuple[Stored, ...] = ()
    output_quantization: tuple[OutputQuantization | None, ...] = ()
    quantization_loss: tuple[OutputLoss, ...] = ()
    sets: tuple[InputSet, ...] = ()
    details: dict[str, Any] = {}


class Provenance(Value):
    """How the program was made.

    Attributes:
        source: The model source in readable form: `example mlp`, `file.py:factory`.
        backend: The backend that it was lowered to; None for a finished program.
        quantization: The scheme; None for a finished program.
        method: The method that inputs, outputs and sets are of, and that is run unless a recipe
            names another.
        inputs: Inputs of the method, in order.
        expected: The eager model's outputs for those inputs, in order; empty for a finished
            program. Of a language model's methods, the first alone has them, and
            `quantization_loss`.
        output_quantization: For each expected output; None for one that no dequantization gives
            directly. Empty where it is not known.
        quantization_loss: How far each expected tensor is from the unquantized model's; empty for a
            model that is not quantized before it is lowered.
        sets: Inputs of the sizes that the recipe names; if there are any, they are measured and not
            `inputs`.
        methods: What is known of each method, where there are several; `inputs`, `expected`,
            `output_quantization`, `quantization_loss` and `sets` are empty then, until `of`
            chooses one.
        etrecord: Whether `etrecord.bin` is there.
        versions: Of Python, torch, executorch and torchao at export; `qnn` is that of the QNN SDK
            that compiled the program.
        code_files: Digest of each file that the model's code and weights came from.
        seconds: Time of each step: load, export, quantize, lower, write.
        details: Delegated and undelegated nodes by operator, and the like.
        data: Files beside the program with weights that it names (`.ptd`).
        generation: How the program generates text; null for another program.
        task: What the model of a task is given and gives; null for another program.
        notes: Sentences for the user, such as that the example inputs were used for calibration.
    """

    source: str
    backend: str | None = None
    quantization: str | None = None
    method: str = FORWARD
    inputs: tuple[Stored, ...] = ()
    expected: tuple[Stored, ...] = ()
    output_quantization: tuple[OutputQuantization | None, ...] = ()
    quantization_loss: tuple[OutputLoss, ...] = ()
    sets: tuple[InputSet, ...] = ()
    methods: dict[str, MethodValues] = {}
    etrecord: bool = False
    versions: dict[str, str] = {}
    code_files: dict[str, str] = {}
    seconds: dict[str, float] = {}
    details: dict[str, Any] = {}
    data: tuple[str, ...] = ()
    generation: Generation | None = None
    task: TaskProgram | None = None
    notes: tuple[str, ...] = ()

    @property
    def measured(self) -> dict[str, InputSet]:
        """The input sets of a measurement, by the name of their size."""
        example = InputSet(inputs=self.inputs, expected=self.expected)
        return {each.name: each for each in self.sets or (example,)}

    @property
    def quantization_losses(self) -> dict[str, tuple[OutputLoss, ...]]:
        """How far quantization moves the outputs of each method; empty for generated text."""
        found = {name: values.quantization_loss for name, values in self.methods.items()}
        found = found or {self.method: self.quantization_loss}
        return {} if self.generation else {name: each for name, each in found.items() if each}

    def of(self, method: str) -> Provenance:
        """The same with the values of one method; as it is if there is only one."""
        if not self.methods:
            return self
        chosen = self.methods[method]
        own = {name: getattr(chosen, name) for name in MethodValues.model_fields}
        details = {**self.details, **chosen.details}
        return self.model_copy(update={**own, "details": details, "method": method, "methods": {}})


def load_provenance(folder: Path) -> Provenance:
    """Reads `export.json` of a program folder."""
    return Provenance.load(folder / EXPORT_INFO)
