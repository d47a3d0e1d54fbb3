"""The deployment recipe as frozen, typed values.

The docstring below each field is its documentation: the JSON Schema and docs/recipes.md are made
from it.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from etdeploy.recipe.backends import BACKENDS

BackendName = Literal["portable", "xnnpack", "qnn", "vulkan", "coreml"]
Quantization = Literal["none", "fp16", "int8_static", "int8_dynamic", "8da4w", "16a4w"]
ExampleName = Literal["mlp", "convnet", "encoder", "transformer"]
ProviderName = Literal["auto", "wheel", "source"]
EXAMPLES: tuple[str, ...] = get_args(ExampleName)
MODEL_SOURCES = ("example", "python", "exported", "program")


def _misfit(key: str, message: str) -> PydanticCustomError:
    """A finding about one key of a section, seen only when the whole section is known."""
    return PydanticCustomError("misfit", "{message}", {"key": key, "message": message})


class Section(BaseModel):
    """A part of a recipe; unknown keys are refused."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, strict=True
    )


class Model(Section):
    """Where the model comes from: exactly one of `example`, `python`, `exported`, `program`."""

    example: ExampleName | None = None
    """A small bundled model with real layers and random weights."""

    python: str | None = None
    """A factory, as `package.module:factory` or `file.py:factory`.

    It returns `(module, example_inputs)` or `(module, example_inputs, dynamic_shapes)`, as
    torch.export takes them. The code is run: name only code that you trust.
    """

    exported: str | None = None
    """A `.pt2` file that torch.export.save wrote; it carries its example inputs."""

    program: str | None = None
    """A finished `.pte` file: nothing is exported, and there are no expected outputs."""

    weights: str | None = None
    """A state dict for the factory's module: `.pt` (loaded with weights_only) or `.safetensors`."""

    arguments: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for the factory or the example."""

    @model_validator(mode="after")
    def _one_source(self) -> Model:
        given = [name for name in MODEL_SOURCES if getattr(self, name)]
        if len(given) != 1:
            raise ValueError(
                "name one model source: example, python, exported or program"
                + (f"; here are {len(given)}: {', '.join(given)}" if given else "")
            )
        if self.weights and not self.python:
            raise _misfit("weights", "weights go with a `python` model source")
        if self.arguments and not (self.python or self.example):
            raise _misfit("arguments", "arguments go with a `python` or `example` source")
        return self


class Export(Section):
    """How the model becomes a program."""

    backend: BackendName = "xnnpack"
    """The backend that the model is lowered to; what it cannot take stays on portable kernels."""

    quantization: Quantization = "none"
    """How weights and activations are quantised; which schemes there are depends on the backend."""

    calibration: str | None = None
    """For static schemes: a function `file.py:function` or `package.module:function` that yields
    tuples of inputs. Without it the example inputs calibrate, which is enough to measure speed."""

    group_size: int = Field(default=32, ge=8, le=4096)
    """Weights that share a scale in grouped schemes (8da4w)."""

    soc: str = "auto"
    """qnn: the SoC that the program is compiled for, like `SM8650`; `auto` asks the device."""

    strict: bool = False
    """Whether torch.export traces with TorchDynamo (strict mode)."""

    seed: int = Field(default=0, ge=0)
    """Seed of random weights and inputs, set before the factory is called."""

    @model_validator(mode="after")
    def _backend_can_quantize(self) -> Export:
        known = BACKENDS[self.backend].quantizations
        if self.quantization not in known:
            raise _misfit(
                "quantization",
                f"the backend {self.backend} has no quantization {self.quantization!r}; "
                f"it has {', '.join(known)}",
            )
        if self.calibration and self.quantization not in ("int8_static", "16a4w"):
            raise _misfit(
                "calibration", f"quantization {self.quantization!r} uses no calibration inputs"
            )
        if self.soc != "auto" and self.backend != "qnn":
            raise _misfit("soc", "soc is read by the qnn backend only")
        return self


class Runtime(Section):
    """The C++ side: what the runner is linked against and how it runs."""

    provider: ProviderName = "auto"
    """`wheel`: prebuilt libraries of the ExecuTorch wheel; `source`: built from a checkout;
    `auto` takes the wheel when it has all that the program needs."""

    threads: int = Field(default=0, ge=0, le=256)
    """Threads of ExecuTorch's thread pool; 0 leaves its own choice."""


class Tolerance(Section):
    """How far the device's outputs may be from the model's; the defaults follow the data type and
    the quantisation.
    """

    max_abs_error: float | None = Field(default=None, ge=0)
    """Largest absolute difference of any element."""

    cosine_similarity: float | None = Field(default=None, ge=-1, le=1)
    """Least cosine of the angle between the outputs."""


class Benchmark(Section):
    """What is measured on the device."""

    method: str = "forward"
    """The program's method to run."""

    warmup: int = Field(default=5, ge=0, le=100_000)
    """Iterations before timing starts; the very first is reported on its own."""

    iterations: int = Field(default=50, ge=1, le=1_000_000)
    """Timed iterations; each is kept as a raw sample."""

    memory: bool = True
    """Measure the peak resident memory, in a process of its own."""

    profile: bool = True
    """Record an ETDump, in a process of its own since a tracer changes the times."""

    timeout_s: float = Field(default=300.0, gt=0, le=86_400)
    """A pass that takes longer is ended, in seconds."""

    tolerance: Tolerance = Tolerance()
    """When outputs count as equal."""


class Recipe(Section):
    """One deployment: model, export, runtime, benchmark."""

    name: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    """A name for folders and reports; by default that of the file."""

    description: str | None = None
    """A sentence for people."""

    extends: str | None = None
    """Another recipe that this one changes: a bundled name, or a path relative to this file."""

    model: Model
    """Where the model comes from."""

    export: Export = Export()
    """How the model becomes a program."""

    runtime: Runtime = Runtime()
    """What the runner is linked against."""

    benchmark: Benchmark = Benchmark()
    """What is measured."""
