"""What an export needs that may be missing; checked before anything starts."""

from __future__ import annotations

import ast
import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from etdeploy.backends.registry import backend_named
from etdeploy.backends.values import Package, Workstation
from etdeploy.core.commands import pip_command, python_command
from etdeploy.core.console import listed
from etdeploy.core.errors import ExportError
from etdeploy.core.files.basic import not_regular
from etdeploy.core.plugins import module_path
from etdeploy.export.cache import installed_version
from etdeploy.export.hf.adapter import read_adapter
from etdeploy.export.hf.check import (
    checkpoint_refusals,
    folder_here,
    has_text_files,
    is_whole,
    timm_refusals,
)
from etdeploy.export.hf.config import ConfigProblem, config_refusals
from etdeploy.export.hf.files import adapter_files, has_template, has_tokenizer
from etdeploy.export.hf.memory import memory_forecast, memory_refusal
from etdeploy.export.hf.meta import read_params
from etdeploy.export.hf.named_texts import NamedText, named_texts, no_tokenizer, read_excerpt
from etdeploy.export.llm_config import check_llm_config
from etdeploy.export.spec import CodeReference, ExportSpec
from etdeploy.program.pte import FILE_IDENTIFIER
from etdeploy.program.tokenizer import require_speech

# Pillow reads images, and SciPy resamples audio.
TASK_PACKAGES = ("pillow", "scipy")
# What the extra `timm` has.
TIMM_PACKAGES = ("timm", "torchvision", "huggingface_hub", "safetensors", "pillow")
# What the extra `llm` has.
LLM_PACKAGES = ("transformers", "huggingface_hub", "safetensors", "tokenizers")
# What ExecuTorch's own exporter imports.
LLM_CONFIG_PACKAGES = ("torchao", "omegaconf")
# Those with which transformers reads a GGUF file.
GGUF_PACKAGES = ("gguf", "accelerate")


def check_needs(spec: ExportSpec, environment: Mapping[str, str] = os.environ) -> None:
    """Refuses an export that cannot work on this machine.

    Raises:
        ExportError: A file, a package or an SDK is missing; the remedy says how to get it. Or the
            user's file does not have the function.
        UsageError: A language model that is to be talked with has no tokenizer or chat template.
    """
    _check_files(spec)
    if spec.hub_program:
        _check_installed(["huggingface_hub"], "a program of the hub needs huggingface_hub", "llm")
    if spec.is_finished:
        return
    _check_packages(spec)
    if spec.llm_config is not None:
        check_llm_config(spec)
    check_language_model(spec)
    for text in named_texts(spec):
        _check_text(spec, text)
    for key, reference in spec.functions().items():
        check_function(reference, key)
    _check_backend(spec, environment)


def _check_files(spec: ExportSpec) -> None:
    for role, path in spec.named_files().items():
        if not Path(path).is_file():
            exists = Path(path).exists()
            what = f"is {not_regular(Path(path))}, not a file" if exists else "does not exist"
            raise ExportError(f"the file {what}", place=f"{_key(role)} {path}")
        if mistaken := _MISTAKEN.get((role, _kind_of(Path(path)))):
            what, remedy = mistaken
            raise ExportError(
                f"the file is {what}",
                place=f"{_key(role)} {path}",
                remedy=remedy.format(path=path, convert=python_command(_CONVERT, path=path)),
            )


def _kind_of(path: Path) -> str | None:
    """Return the kind of a file by its first bytes and its entries; None for any other."""
    try:
        with path.open("rb") as stream:
            head = stream.read(8)
        if head[4:] == FILE_IDENTIFIER:
            return "program"
        if head.startswith(_PICKLE):
            return "state dict"
        with ZipFile(path) as archive:
            entries = {name.partition("/")[2] for name in archive.namelist()}
    except (OSError, BadZipFile):
        return "state dict" if path.suffix == ".safetensors" else None
    if "archive_format" in entries:
        return "exported"
    if "constants.pkl" in entries:
        return "torchscript"
    return "state dict" if "data.pkl" in entries else None


_CONVERT = 'import torch; torch.save(torch.jit.load({path}).state_dict(), "weights.pt")'
# torch.save wrote no archive before PyTorch 1.6.
_PICKLE = b"\x80"
_TORCHSCRIPT = "a TorchScript archive, which etdeploy does not read"
# What is wrong with a file of a kind in a role, and what to do.
_MISTAKEN: dict[tuple[str, str | None], tuple[str, str]] = {
    ("exported", "program"): (
        "an ExecuTorch program (.pte), which is exported already",
        "Name it as model.program instead: model: {{program: {path}}}",
    ),
    ("exported", "state dict"): (
        "a state dict or another checkpoint, and not an exported program",
        "Name a factory for the module, and the file as its weights:\n"
        "model: {{python: my_model.py:make, weights: {path}}}",
    ),
    ("exported", "torchscript"): (
        _TORCHSCRIPT,
        "Name a factory for the module (model.python), and save the weights alone for "
        "model.weights:\n{convert}",
    ),
    ("weights", "torchscript"): (
        _TORCHSCRIPT,
        "Save the weights alone, and name the new file as model.weights:\n{convert}",
    ),
    ("weights", "exported"): (
        "an exported program, and not a state dict",
        "Name it as model.exported, without model.python: model: {{exported: {path}}}",
    ),
    ("weights", "program"): (
        "an ExecuTorch program (.pte), which has its weights already",
        "Name it as model.program, without model.python: model: {{program: {path}}}",
    ),
}


_KEYS = {
    "factory": "model.python",
    "calibration": "export.calibration",
    "calibration_text": "export.calibration",
    "inputs": "benchmark.inputs",
    "exported": "model.exported",
    "program": "model.program",
    "weights": "model.weights",
    "checkpoint": "model.checkpoint",
    "params": "model.params",
    "custom_ops": "export.custom_ops",
    "evaluated": "export.generation.evaluate",
}


def _key(role: str) -> str:
    return _KEYS.get(role, f"export.{role}")


def check_language_model(spec: ExportSpec) -> str | None:
    """Refuse a language model on this machine that cannot be exported.

    Returns a sentence about a model that is still to be downloaded, which is checked then.
    """
    if spec.hf is None:
        return None
    _check_adapters(spec)
    if spec.hf.checkpoint and spec.hf.params:
        _check_params(spec, Path(spec.hf.checkpoint), Path(spec.hf.params))
        return None
    folder = folder_here(spec.hf)
    if folder is None or (spec.hf.id and not is_whole(folder, code=spec.hf.remote_code)):
        return (
            f"{spec.hf.id} is not on this machine, so it was not checked: the export gets it from "
            "the Hugging Face hub, if there is such a model."
        )
    context = spec.generation.context if spec.generation else 0
    refusals = (
        timm_refusals(folder, spec.task)
        if spec.hf.timm
        else checkpoint_refusals(folder, context, spec.task)
    )
    if refusal := next(refusals, None) or memory_refusal(memory_forecast(spec, folder), folder):
        place = refusal.place or spec.place(*refusal.key)
        raise ExportError(refusal.message, place=place, remedy=refusal.remedy)
    if spec.generation and (spec.hf.folder or has_text_files(folder)):
        require_speech(
            folder if has_tokenizer(folder) else None,
            spec.speech,
            place=str(folder),
            has_template=has_template(folder),
        )
    return None


def _check_params(spec: ExportSpec, checkpoint: Path, params: Path) -> None:
    """Refuses params that are not of a Llama, or a context that is longer than they allow."""
    config = read_params(params)
    asked = spec.generation.context if spec.generation else 0
    refusals: Iterator[ConfigProblem]
    if isinstance(config, ConfigProblem):
        refusals = iter([config])
    else:
        refusals = config_refusals(config, str(params), asked)
    for refusal in refusals:
        place = refusal.place or spec.place(*refusal.key)
        raise ExportError(refusal.message, place=place, remedy=refusal.remedy)
    if not has_tokenizer(checkpoint.parent):
        require_speech(None, spec.speech, place=str(checkpoint))


def _check_adapters(spec: ExportSpec) -> None:
    """Refuses adapters on this machine that cannot be used."""
    for adapter in spec.all_adapters:
        folder = folder_here(adapter)
        if folder is None or (adapter.id and not adapter_files(folder)):
            continue  # the export gets it from the hub
        if isinstance(found := read_adapter(folder), ConfigProblem):
            raise ExportError(found.message, place=found.place, remedy=found.remedy)


def _check_text(spec: ExportSpec, text: NamedText) -> None:
    found = read_excerpt(text)
    path = spec.hf.path if spec.hf else None
    if not isinstance(found, ConfigProblem) and path and not has_tokenizer(path):
        if text.is_bundled:
            return
        found = no_tokenizer(text, "the model comes without a tokenizer")
    if isinstance(found, ConfigProblem):
        raise ExportError(found.message, place=spec.place(*found.key), remedy=found.remedy)


def _check_packages(spec: ExportSpec) -> None:
    wanted = ["torch", "executorch"]
    if spec.quantization not in (None, "none") or spec.embeddings:
        wanted.append("torchao")
    what, extras = "exporting a model needs PyTorch and ExecuTorch", "export"
    if spec.hf and spec.hf.timm:
        wanted += TIMM_PACKAGES
        what = "exporting a model of timm needs PyTorch, ExecuTorch and timm"
        extras = "export,timm"
    elif spec.hf:
        wanted += (*LLM_PACKAGES, *(GGUF_PACKAGES if spec.hf.gguf else ()))
        wanted += TASK_PACKAGES if spec.generation is None else ()
        what = "exporting a model of transformers needs PyTorch, ExecuTorch and transformers"
        extras = "export,llm"
    if spec.llm_config is not None:
        wanted += LLM_CONFIG_PACKAGES
        what = "ExecuTorch's own exporter needs PyTorch and ExecuTorch with torchao and omegaconf"
    _check_installed(wanted, what, extras)
    for package in backend_named(str(spec.backend)).packages_for(spec.quantization):
        _check_package(package)


def _check_installed(wanted: Iterable[str], what: str, extras: str) -> None:
    missing = [name for name in wanted if installed_version(name) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise ExportError(
            f"{what}; {' and '.join(missing)} {verb} not installed for {sys.executable}",
            remedy=pip_command(f"etdeploy[{extras}]"),
        )


def _check_package(package: Package) -> None:
    installed = installed_version(package.name)
    if installed is None:
        found = f"which is not installed for {sys.executable}"
    elif not package.fits(installed):
        found = f"and {sys.executable} has {installed}"
    else:
        return
    raise ExportError(
        f"{package.purpose} needs {package.name}{package.specifier}, {found}",
        remedy=pip_command(package.install),
    )


def _check_backend(spec: ExportSpec, environment: Mapping[str, str]) -> None:
    backend = backend_named(str(spec.backend))
    if module_path(str(backend.lowering)) is None:
        raise ExportError(
            f"the backend {backend.name} names the module {backend.lowering}, which is not "
            f"installed for {sys.executable}",
            remedy="Install the package that brings the backend again, with all of its modules.",
        )
    station = Workstation(environment, Path.home())
    for blocker in backend.export_blockers(spec.request, station):
        raise ExportError(blocker.why, remedy=blocker.remedy)


def short_path(path: str) -> str:
    """Relative to the working folder where the file is below it."""
    try:
        relative = os.path.relpath(path)
    except ValueError:  # another drive
        return path
    return path if relative.startswith("..") else relative


_SHOWN = 12
# With one of these in a file, its text does not show which names it will define.
_UNSURE = {
    "__dict__", "__getattr__", "eval", "exec", "globals", "locals", "modules", "setattr", "vars",
}  # fmt: skip


def check_function(reference: CodeReference, key: str) -> None:
    """Refuses a function that its file does not define."""
    if reference.file is None:
        return
    path = Path(reference.file)
    tree = _parsed(path)
    names = _bound(tree) if tree else None
    if tree is None or names is None or reference.name in names:
        return
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    raise ExportError(missing_function(reference, key, functions), place=short_path(str(path)))


def missing_function(reference: CodeReference, key: str, functions: list[str]) -> str:
    """The message for a function that is not there."""
    public = [name for name in functions if not name.startswith("_")]
    there = f"; it has {listed(public, _SHOWN)}" if public else ""
    return f"{key} names {reference}, but there is no {reference.name!r} there{there}"


def install_remedy(module: str) -> str:
    """What to do when a module is not installed."""
    return f"Install the package that has {module} for {sys.executable}"


def _parsed(path: Path) -> ast.Module | None:
    """The file as a syntax tree; None when only running it can show what it holds."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they are shown when the file is run
            return ast.parse(path.read_bytes(), str(path))
    except SyntaxError as error:
        code, shown = (error.text or "").strip(), short_path(str(path))
        raise ExportError(
            f"{path.name} is not Python {sys.version_info.major}.{sys.version_info.minor}: "
            f"{error.msg}" + (f"\n    {code}" if code else ""),
            place=f"{shown}:{error.lineno}" if error.lineno else shown,
        ) from error
    except (OSError, ValueError, RecursionError, MemoryError):
        return None


def _bound(tree: ast.Module) -> set[str] | None:
    """Every name that the file binds, at any depth; None when it may bind others."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            name = node.id if isinstance(node, ast.Name) else node.attr
            if name in _UNSURE:
                return None
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
        else:  # functions, classes, handlers of exceptions, patterns of match
            names |= {str(getattr(node, field, None)) for field in ("name", "rest")}
    return None if names & {"*", *_UNSURE} else names


# ExecuTorch 1.5.1 takes every 0.18.
_TORCHAO = {"torchao": "0.18.0"}


def may_replace_parts(spec: ExportSpec) -> bool:
    """Whether lowering may replace parts of these packages, to do with less work.

    Another release may have other parts, or rely on what they do in another way. That would not
    always fail, but could give another program.
    """
    return not _others(spec.wanted_versions | _TORCHAO)


def release_notes(spec: ExportSpec, *, shortens: bool) -> Iterator[str]:
    """Sentences about releases that are not those that are tested."""
    for name, (installed, tested) in _others(spec.wanted_versions).items():
        yield f"Exported with {name} {installed}; {tested} is the version that is tested."
    others = _others(spec.wanted_versions | _TORCHAO)
    if shortens and others:
        listed = " and ".join(f"{name} {tested}" for name, (_, tested) in others.items())
        yield (
            f"Lowering took longer than with {listed}: what ExecuTorch repeats is left out with "
            "tested releases only."
        )


def _others(wanted: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """The installed and the wanted version where they differ; builds of one version do not."""
    found = {name: (installed_version(name) or "").partition("+")[0] for name in wanted}
    return {name: (found[name], wanted[name]) for name in wanted if found[name] != wanted[name]}
