"""The key of an exported program in the cache.

Two levels, like the direct mode of ccache. The first is what is known before anything runs:
the spec, the content of the files that it names, and the versions of the tools. The second adds
the files that the user's code actually read, which only an export can show: each export records
them, and a later run compares that record with the files as they are now.
"""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from etdeploy.backends.registry import backend_named, code_of
from etdeploy.backends.values import Workstation
from etdeploy.cache.workspace import FileDigests, Workspace
from etdeploy.core.hashing import code_digest, digest_json
from etdeploy.core.values import Value
from etdeploy.export.hf.files import adapter_files, loaded_files, tokenizer_beside
from etdeploy.export.protocol import ModelSources
from etdeploy.export.spec import CodeReference, ExportSpec
from etdeploy.recipe.hub_cache import cached_commit

_REMEMBERED = 16
# Paths are named by their content, and a wanted version is only compared with the installed one. A
# revision stands for its commit.
_NOT_IN_KEY: dict[str, Any] = {
    **dict.fromkeys(
        ("python", "calibration", "calibration_text", "inputs", "custom_ops", "exported", "program",
         "weights", "llm_files", "wanted_versions", "places", "method", "speech", "references"),
        True,
    ),
    "hf": {"folder": True, "revision": True, "checkpoint": True, "params": True},
    "lora": {"__all__": {"folder": True, "revision": True}},
    "adapters": {"__all__": {"folder": True, "revision": True}},
    "hub_program": {"revision": True},
    "generation": {"evaluate": True},
}  # fmt: skip
# The roles of files that a language model is loaded from.
_OF_MODEL = ("model/", "lora/", "tokenizer/", "checkpoint", "params")
# The parts of etdeploy that make a program folder.
_MAKING = ("backends", "export", "program")


class ExportedProgram(Value):
    """A program folder in the cache.

    Attributes:
        folder: Its path.
        key: Its key in the cache.
        cached: Whether it was there before.
        sha256: Of the `.pte`.
    """

    folder: str
    key: str
    cached: bool
    sha256: str


class Remembered(Value):
    """A past export: what it read, and the key of the program that it made."""

    key: str
    sources: ModelSources


class RecentExports(Value):
    """The last exports of one spec, newest first."""

    exports: tuple[Remembered, ...] = ()


@dataclass(frozen=True)
class ExportContext:
    """Everything that is known about an export before it runs.

    Attributes:
        first: The first level: a digest that does not depend on where the files are.
        memory_path: What exports of just these files have read.
        commit: Of a language model from the Hugging Face hub, joined with those of its adapters;
            None where this machine has never asked for the revision of one.
    """

    spec: ExportSpec
    first: str
    memory_path: Path
    digests: FileDigests
    commit: str | None = None

    @classmethod
    def now(cls, spec: ExportSpec, workspace: Workspace) -> ExportContext:
        """Looks at the files and the installed tools."""
        state = workspace.state("export")
        digests = FileDigests(state / "digests.json")
        paths = _paths(spec)
        first = digest_json(
            {
                "spec": spec.model_dump(mode="json", exclude=_not_in_key(spec)),
                "functions": [str(r) for r in (spec.python, spec.calibration, spec.inputs) if r],
                "files": {role: digests.of(path) for role, path in paths.items()},
                "tools": tool_versions(spec),
                "exporter": code_digest(*_MAKING),
                **({"method": spec.method} if spec.method_counts else {}),
                **_plugged(spec),
            }
        )
        digests.save()
        # The same code in another folder may import another file beside it.
        here = digest_json({"first": first, "paths": paths})
        memory = state / "memory" / f"{here[:32]}.json"
        return cls(spec, first, memory, digests, _cached_commits(spec))

    def key(self, sources: ModelSources) -> str:
        """The cache key of a program that was made from `sources`.

        Without user code, the first level already covers every file.
        """
        if not self.spec.runs_user_code:
            sources = ModelSources(commit=sources.commit)
        files = sorted((Path(p).name, digest) for p, digest in sources.files.items())
        content = {
            "first": self.first,
            "files": files,
            "distributions": sources.distributions,
            **({"commit": sources.commit} if sources.commit else {}),
        }
        return digest_json(content)[:32]

    def references_key(self) -> str:
        """The key of what a language model gives before it is quantized.

        The commit of a model of the hub may not be known yet, and is not part of it.
        """
        model = {"hf", "lora", "task", "seed"}
        content = {
            "model": self.spec.model_dump(
                mode="json", include=model, exclude=_not_in_key(self.spec)
            ),
            "files": {role: self.digests.of(path) for role, path in self._model_paths.items()},
            "tools": _versions_of(_TOOLS + loading_tools(self.spec)),
            "exporter": code_digest(*_MAKING),
        }
        return digest_json(content)[:32]

    def known_key(self) -> str | None:
        """The cache key of the program that an export would make now.

        None when only an export can show it: the user's code was not exported before, or something
        that it read has changed. Or the hub has not been asked for the model.
        """
        if self.spec.hub_models and self.commit is None:
            return None
        found = next((e.key for e in self._memory().exports if self._holds(e.sources)), None)
        self.digests.save()
        if found is None and not self.spec.runs_user_code:
            return self.key(ModelSources(commit=self.commit))
        return found

    def named_digests(self) -> dict[str, str]:
        """SHA-256 of the files that are named before the export, by their paths."""
        return self._digests_of(_paths(self.spec).values())

    def model_digests(self) -> dict[str, str]:
        """SHA-256 of the files that a model of transformers or timm is loaded from."""
        return self._digests_of(self._model_paths.values())

    @property
    def _model_paths(self) -> dict[str, str]:
        return {r: p for r, p in _paths(self.spec).items() if r.startswith(_OF_MODEL)}

    def _digests_of(self, paths: Iterable[str]) -> dict[str, str]:
        found = {path: self.digests.of(path) for path in paths}
        return {path: digest for path, digest in found.items() if digest}

    def remember(self, key: str, sources: ModelSources) -> None:
        """Records what an export read, for the next run."""
        if not self.spec.runs_user_code:
            # Its key is known without; but it may have been that of an export with other rewrites.
            self.memory_path.unlink(missing_ok=True)
            return
        self.remember_other(key, sources)

    def remember_other(self, key: str, sources: ModelSources) -> None:
        """Records that an export of another spec, which read `sources`, made this program, too."""
        others = tuple(e for e in self._memory().exports if e.sources != sources)
        newest = Remembered(key=key, sources=sources)
        RecentExports(exports=(newest, *others)[:_REMEMBERED]).save(self.memory_path)

    def _memory(self) -> RecentExports:
        try:
            return RecentExports.load(self.memory_path)
        except (OSError, ValidationError):
            return RecentExports()

    def _holds(self, sources: ModelSources) -> bool:
        return (
            sources.commit == self.commit
            and all(
                installed_version(name) == version
                for name, version in sources.distributions.items()
            )
            and all(self.digests.of(path) == digest for path, digest in sources.files.items())
        )


def _cached_commits(spec: ExportSpec) -> str | None:
    commits = [cached_commit(str(each.id), each.revision) for each in spec.hub_models]
    known = [commit for commit in commits if commit]
    return joined_commits(known) if len(known) == len(commits) else None


def joined_commits(commits: Iterable[str | None]) -> str | None:
    """The commits of a model and its adapters as one text; None where there are none."""
    return "+".join(commit for commit in commits if commit) or None


def _not_in_key(spec: ExportSpec) -> dict[str, Any]:
    """Of a GGUF file on this machine its content counts, not its name; a commit has several."""
    names = {} if spec.hf and spec.hf.id else {"gguf": True}
    return {**_NOT_IN_KEY, "hf": {**_NOT_IN_KEY["hf"], **names}}


def _plugged(spec: ExportSpec) -> dict[str, str]:
    """The code of a backend that another package brings."""
    code = code_of(backend_named(spec.backend)) if spec.backend else None
    return {"backend": code} if code else {}


def _paths(spec: ExportSpec) -> dict[str, str]:
    """Every file that can be named before the export, by what it is for."""
    found = dict(spec.named_files())
    references = {"factory": spec.python, "calibration": spec.calibration, "inputs": spec.inputs}
    for role, reference in references.items():
        if path := _module_path(reference):
            found[role] = str(path)
    for named in filter(None, (spec.program, spec.hf.checkpoint if spec.hf else None)):
        files = tokenizer_beside(Path(named)) or tokenizer_beside(Path(named), "tokenizer.model")
        found |= {f"tokenizer/{n}": str(p) for n, p in files.items()}
    if spec.program:
        found |= {f"data/{p.name}": str(p) for p in sorted(Path(spec.program).parent.glob("*.ptd"))}
    if spec.hf and spec.hf.path:
        files = loaded_files(spec.hf.path, code=spec.hf.remote_code)
        one = "gguf" if spec.hf.gguf else ""
        found |= {f"model/{one or name}": str(path) for name, path in files.items()}
    for number, adapter in enumerate(spec.all_adapters):
        files = adapter_files(Path(adapter.folder)) if adapter.folder else {}
        found |= {f"lora/{number}/{name}": str(path) for name, path in files.items()}
    for place, text in _strings("arguments", spec.arguments):
        if Path(text).is_file():
            found[place] = str(Path(text).resolve())
    return found


def _module_path(reference: CodeReference | None) -> Path | None:
    return module_file(reference.module) if reference and reference.module else None


def _strings(place: str, value: Any) -> Iterator[tuple[str, str]]:
    """Each string in a JSON value, with its place; an argument may be the path of a file."""
    if isinstance(value, str) and value and "\n" not in value and len(value) < 1024:
        yield place, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(f"{place}.{key}", item)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _strings(f"{place}[{index}]", item)


_TOOLS = ("torch", "torchao", "executorch")


def loading_tools(spec: ExportSpec) -> tuple[str, ...]:
    """The packages that load a model of the hub or a folder."""
    if spec.hf is None:
        return ()
    return ("timm", "torchvision") if spec.hf.timm else ("transformers",)


def tool_versions(spec: ExportSpec) -> dict[str, str | None]:
    """Versions of the exporting tools; None for one that is not installed. Nothing is imported."""
    if spec.is_finished:
        return _versions_of(())
    return _versions_of(_TOOLS + loading_tools(spec)) | backend_versions(spec)


def _versions_of(distributions: Iterable[str]) -> dict[str, str | None]:
    return {
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "machine": platform.machine(),
        **{name: installed_version(name) for name in distributions},
    }


def backend_versions(spec: ExportSpec) -> dict[str, str | None]:
    """Versions of what the spec's backend compiles with; None for what is not installed."""
    backend = backend_named(str(spec.backend))
    wanted = [package.name for package in backend.packages_for(spec.quantization)]
    packages = {name: installed_version(name) for name in wanted}
    return {**packages, **backend.versions(spec.request, Workstation.this())}


def installed_version(distribution: str) -> str | None:
    """The version of an installed distribution."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def module_file(name: str) -> Path | None:
    """The source file of a module, found as an import would, but without running any code.

    Namespace packages and modules that an import hook provides are not found.
    """
    search: list[str] | None = None
    full = ""
    spec: importlib.machinery.ModuleSpec | None = None
    for part in name.split("."):
        full = f"{full}.{part}" if full else part
        spec = importlib.machinery.PathFinder.find_spec(full, search)
        if spec is None:
            return None
        search = list(spec.submodule_search_locations or ())
    return Path(spec.origin) if spec and spec.has_location and spec.origin else None
