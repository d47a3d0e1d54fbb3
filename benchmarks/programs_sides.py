"""The sides that `programs.py` measures: who makes a program of a model, and what runs it."""

from __future__ import annotations

import hashlib
import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from etdeploy.runner.etdump import read_summary

HERE = Path(__file__).parent
WORKER, ENGINES = HERE / "programs_worker.py", HERE / "programs_engines.py"
# What a recipe calls a scheme, where that is another word.
QUANTIZATION = {"fp32": "none"}
ONNX_SIDES = ("onnxruntime", "openvino")
SCHEMES = ("fp32", "int8_static", "int8_dynamic", "8da4w")
# What the worker's artifacts depend on.
_SOURCES = ("programs_models.py", "programs_further.py", "programs_yolo.py", "programs_worker.py")
_PACKAGES = ("torch", "executorch", "torchao", "torchvision", "transformers", "onnxscript")
_EVERY = {"quantization": "8da4w", "embeddings": "8w"}


class FailedError(Exception):
    """A side cannot export, load or run a model; the text is the reason."""


@dataclass(frozen=True)
class Eager:
    """What the module itself computes, in 32-bit floats.

    Attributes:
        inputs: Path, dtype and shape of each.
        output: The values, flat.
    """

    inputs: tuple[dict[str, Any], ...]
    output: np.ndarray


@dataclass(frozen=True)
class Agreement:
    """How far an output is from the eager one."""

    max_abs_error: float
    cosine: float


@dataclass(frozen=True)
class Started:
    """One start of a program.

    Attributes:
        samples_ms: Of each inference, by the clock.
        processor_ms: Processor time of an inference, of all threads: the mean from the first of the
            warm-up to the last timed one.
        output: The first one, flat.
    """

    samples_ms: Sequence[float]
    processor_ms: float
    output: np.ndarray


class Program(Protocol):
    """A model that a side has made ready to run."""

    def start(self, threads: int, warmup: int, iterations: int) -> Started:
        """Runs it in a new process.

        Raises:
            FailedError: It cannot be loaded or run.
        """

    def outside(self) -> float | None:
        """Share of the time outside of delegates, from 0 to 1; None where there are none."""


class Side(Protocol):
    """Who makes programs.

    Attributes:
        name: In tables and on the command line.
        schemes: Those that it has.
    """

    name: str
    schemes: tuple[str, ...]

    def program(self, model: str, scheme: str) -> Program:
        """Makes the program of a model.

        Raises:
            FailedError: It cannot be made.
        """


@dataclass(frozen=True)
class Workshop:
    """Where artifacts are made and kept for the next run.

    Attributes:
        folder: Of all models. What failed is kept, too.
    """

    folder: Path

    def made(self, model: str, artifact: str, file: str) -> Path:
        """The worker's file, made in a child where it is not there.

        Raises:
            FailedError: The worker could not make it, now or in an earlier run.
        """
        folder = self.folder / f"{model}-{_sources_digest()}"
        path, failure = folder / file, folder / f"{artifact}.error"
        if not path.is_file() and not failure.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            done = called([str(WORKER), model, str(folder), artifact])
            (folder / f"{artifact}.log").write_text(done.stdout + done.stderr)
            if done.returncode:
                failure.write_text(f"the process ended with {done.returncode}")
        if failure.is_file():
            raise FailedError(first_line(failure.read_text()))
        return path

    def eager(self, model: str) -> Eager:
        """What the module itself gives."""
        path = self.made(model, "eager", "eager.json")
        tensors = [
            {**each, "path": str(path.parent / each["path"])}
            for each in json.loads(path.read_text())
        ]
        *inputs, output = tensors
        return Eager(tuple(inputs), np.fromfile(output["path"], output["dtype"]))


@dataclass(frozen=True)
class ExecutorchProgram:
    """A `.pte` in etdeploy's runner."""

    path: Path
    runner: Path
    inputs: tuple[dict[str, Any], ...]

    def start(self, threads: int, warmup: int, iterations: int) -> Started:
        with tempfile.TemporaryDirectory() as folder:
            words = ["--warmup", str(warmup), "--iterations", str(iterations)]
            results = self._run(Path(folder), [*words, "--threads", str(threads)])
            first = results["outputs"][0]
            output = np.fromfile(Path(folder) / first["path"], first["dtype"])
        processor_s = results["processors"]["own_s"]
        return Started(results["samples_ms"], 1000 * processor_s / (warmup + iterations), output)

    def outside(self) -> float | None:
        """Of traces of their own, since the tracer changes times; on one thread.

        The median of three: a trace has the clock's times, which other work disturbs.
        """
        return statistics.median(self._traced() for _ in range(3))

    def _traced(self) -> float:
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder) / "trace.etdp"
            words = ["--etdump", str(trace), "--warmup", "2", "--iterations", "5"]
            self._run(Path(folder), [*words, "--threads", "1"])
            return read_summary(trace.read_bytes()).outside

    def _run(self, folder: Path, words: Sequence[str]) -> dict[str, Any]:
        inputs, results = folder / "inputs.txt", folder / "results.json"
        inputs.write_text("".join(f"{_line(each)}\n" for each in self.inputs))
        files = ["--program", self.path, "--inputs", inputs, "--results", results]
        argv = [self.runner, *files, "--outputs", folder, *words]
        done = subprocess.run([str(word) for word in argv], capture_output=True, text=True)
        if done.returncode:
            raise FailedError(first_line(done.stderr) or f"the runner ended with {done.returncode}")
        found: dict[str, Any] = json.loads(results.read_text())
        return found


def _line(tensor: Mapping[str, Any]) -> str:
    """A line of the runner's --inputs, as `etdeploy.runner.protocol.inputs_list` writes them."""
    return " ".join(
        [tensor["dtype"], str(len(tensor["shape"])), *map(str, tensor["shape"]), tensor["path"]]
    )


@dataclass(frozen=True)
class OnnxProgram:
    """A model in ONNX's format, in onnxruntime or OpenVINO."""

    path: Path
    engine: str
    inputs: tuple[dict[str, Any], ...]

    def start(self, threads: int, warmup: int, iterations: int) -> Started:
        with tempfile.TemporaryDirectory() as folder:
            request, output = Path(folder) / "request.json", Path(folder) / "output.bin"
            wish = {
                "engine": self.engine, "model": str(self.path), "inputs": self.inputs,
                "threads": threads, "warmup": warmup, "iterations": iterations,
                "output": str(output),
            }  # fmt: skip
            request.write_text(json.dumps(wish))
            done = called([str(ENGINES), str(request)])
            if done.returncode:
                raise FailedError(done.stderr.strip().rpartition("\n")[2])
            result = json.loads(request.with_suffix(".result").read_text())
            return Started(**result, output=np.fromfile(output, np.float32))

    def outside(self) -> float | None:
        return None


@dataclass(frozen=True)
class Official:
    """ExecuTorch's own export, as its documentation writes it."""

    workshop: Workshop
    runner: Path
    name: str = "official"
    schemes: tuple[str, ...] = SCHEMES

    def program(self, model: str, scheme: str) -> Program:
        artifact = f"official-{scheme}"
        path = self.workshop.made(model, artifact, f"{artifact}.pte")
        return ExecutorchProgram(path, self.runner, self.workshop.eager(model).inputs)


@dataclass(frozen=True)
class Etdeploy:
    """etdeploy's export, with values of the recipe that differ from the default."""

    workshop: Workshop
    runner: Path
    name: str = "etdeploy"
    sets: tuple[str, ...] = ()
    schemes: tuple[str, ...] = SCHEMES

    def program(self, model: str, scheme: str) -> Program:
        export = {"quantization": QUANTIZATION.get(scheme, scheme)}
        answer = etdeploy_json("export", model, export, self.sets)
        path = Path(str(answer["folder"])) / "program.pte"
        return ExecutorchProgram(path, self.runner, self.workshop.eager(model).inputs)


@dataclass(frozen=True)
class Onnx:
    """onnxruntime or OpenVINO, on the CPU, with what torch.onnx exports."""

    workshop: Workshop
    name: str
    schemes: tuple[str, ...] = ("fp32",)

    def program(self, model: str, scheme: str) -> Program:  # noqa: ARG002
        path = self.workshop.made(model, "onnx", "model.onnx")
        return OnnxProgram(path, self.name, self.workshop.eager(model).inputs)


def build_runner(folder: Path) -> Path:
    """One runner for all programs: it has XNNPACK and the kernels that the wheel brings."""
    answer = etdeploy_json("build", "every_component", _EVERY, (), "--output", str(folder))
    return Path(str(answer["path"])) / str(answer["executable"])


def etdeploy_json(
    verb: str, model: str, export: Mapping[str, str], sets: Iterable[str], *words: str
) -> dict[str, Any]:
    """What etdeploy's command line answers for a recipe of a model.

    Raises:
        FailedError: It ended with an error.
    """
    recipe = {"model": {"python": factory(model)}, "export": {"backend": "xnnpack", **export}}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{model}.yaml"
        path.write_text(json.dumps(recipe))  # JSON is YAML
        given = [word for each in sets for word in ("--set", each)]
        argv = ["-m", "etdeploy", verb, "--recipe", str(path), *given, *words]
        done = called([*argv, "--json", "--quiet"])
    if done.returncode:
        raise FailedError(first_line(done.stderr) or f"etdeploy ended with {done.returncode}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def factory(model: str) -> str:
    """A recipe's `model.python`; models that are not measured are in programs_models.py."""
    from programs_further import FURTHER

    home = "programs_further.py" if model in FURTHER else "programs_models.py"
    return f"{HERE / home}:{model}"


def called(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """A child of this interpreter."""
    return subprocess.run([sys.executable, *words], capture_output=True, text=True)


def agreement(output: np.ndarray, expected: np.ndarray) -> Agreement:
    """How far an output is from the eager one; with another size, infinitely.

    A cosine of 0 where one of them is zero or not finite.
    """
    if output.size != expected.size:
        return Agreement(math.inf, 0.0)
    a, b = output.astype(np.float64), expected.astype(np.float64)
    norms = float(np.linalg.norm(a) * np.linalg.norm(b))
    cosine = float(a @ b) / norms if norms and math.isfinite(norms) else 0.0
    return Agreement(float(np.max(np.abs(a - b))), cosine)


def first_line(text: str) -> str:
    """The first line that says something; ExecuTorch's `I 00:00:00...` only tells what it does."""
    lines = (line.strip() for line in text.splitlines())
    return next((line for line in lines if line and not line.startswith("I 0")), "")


def versions(names: Iterable[str] = (*_PACKAGES, *ONNX_SIDES)) -> dict[str, str]:
    """Installed packages; one that is missing is left out."""
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _sources_digest() -> str:
    digest = hashlib.sha256(json.dumps(versions(_PACKAGES)).encode())
    for name in _SOURCES:
        digest.update((HERE / name).read_bytes())
    return digest.hexdigest()[:12]
