"""The files of a language model: a folder, or what huggingface_hub has in its cache or gets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from etdeploy.core.commands import quoted
from etdeploy.core.console import count, listed, size
from etdeploy.core.errors import UsageError
from etdeploy.core.files.basic import require_room
from etdeploy.export.diagnostics import BARE_ID, HUB_FAILURES
from etdeploy.export.hf.check import (
    folder_here,
    has_text_files,
    is_whole,
    no_weights,
    timm_config_refusals,
    timm_weights_missing,
)
from etdeploy.export.hf.config import (
    FACTORY,
    ConfigProblem,
    config_refusals,
    foreign_code,
    read_config,
)
from etdeploy.export.hf.files import (
    ADAPTER_FILES,
    TIMM_PICKLE,
    TOKENIZER_CONFIG,
    TOKENIZER_FILES,
    WEIGHTS,
    WEIGHTS_INDEX,
    adapter_files,
    lists_tokenizer,
    loaded_patterns,
)
from etdeploy.export.hf.gguf import SUFFIX, split_problem
from etdeploy.export.protocol import ModelSources
from etdeploy.export.spec import ExportSpec, HfModel
from etdeploy.export.worker.failures import WorkerError, fail, first_line
from etdeploy.program.ptd import SUFFIX as PTD
from etdeploy.program.tokenizer import TEMPLATE_FILES, require_speech
from etdeploy.recipe.hub_cache import CONFIG, cache_folder, cached_commit, read_object, snapshot

Tell = Callable[[str, float], None]


@dataclass(frozen=True)
class Checkpoint:
    """A model's files on this machine, with the commit of the hub if they are from there.

    `folder` is a GGUF file for a model in one.
    """

    folder: Path
    commit: str | None = None
    is_timm: bool = False


def fetch(spec: ExportSpec, tell: Tell) -> Checkpoint:
    """The files of the spec's language model.

    What the hub's cache has of a revision is used as it is, without a network; only where the
    tokenizer is missing, the hub is asked for it.
    """
    model = spec.hf
    if model is None:
        raise ValueError("the spec names no language model")
    if model.path:
        return Checkpoint(model.path)
    if model.checkpoint and model.params:
        from etdeploy.export.worker.language.meta import converted  # which imports torch

        tell(f"reading {model.name}", 0.03)
        return Checkpoint(converted(Path(model.checkpoint), Path(model.params)))
    commit, here = cached_commit(str(model.id), model.revision), folder_here(model)
    whole = here is not None and is_whole(here, code=model.remote_code)
    if commit and here and whole and (model.timm or has_text_files(here)):
        return Checkpoint(here, commit)
    try:
        return _from_hub(spec, model, commit, tell)
    except WorkerError as error:
        if commit and here and whole and error.failure.kind == "hub":
            return Checkpoint(here, commit)  # perhaps the model has no tokenizer
        raise


def fetch_adapter(spec: ExportSpec, adapter: HfModel, tell: Tell) -> Checkpoint:
    """The files of an adapter; what the hub's cache has is used as it is."""
    if adapter.folder:
        return Checkpoint(Path(adapter.folder))
    from huggingface_hub import HfApi, snapshot_download

    name, here = str(adapter.id), folder_here(adapter)
    commit = cached_commit(name, adapter.revision)
    if commit and here and len(adapter_files(here)) == len(ADAPTER_FILES):
        return Checkpoint(here, commit)
    api, cache = HfApi(library_name="etdeploy"), cache_folder()
    with explained(spec, adapter, api.endpoint):
        tell(f"getting {name} from the Hugging Face hub", 0.12)
        if commit is None:
            commit = api.resolve_revision(name, revision=adapter.revision, cache_dir=cache).resolved
        folder = snapshot_download(
            name,
            allow_patterns=[*ADAPTER_FILES],
            revision=commit,
            endpoint=api.endpoint,
            cache_dir=cache,
        )
    return Checkpoint(Path(folder), commit)


def fetch_program(spec: ExportSpec, model: HfModel, tell: Tell) -> ModelSources:
    """A finished program of the hub, with the weights and the tokenizer that are beside it.

    What the hub's cache has is used where the hub cannot be reached.
    """
    from huggingface_hub import HfApi, snapshot_download

    name, cache = str(model.id), cache_folder()
    commit = cached_commit(name, model.revision)
    here = snapshot(name, commit) / model.pte if commit and model.pte else None
    api = HfApi(library_name="etdeploy")
    try:
        with explained(spec, model, api.endpoint):
            tell(f"asking the Hugging Face hub for {name}", 0.1)
            if commit is None:
                found = api.resolve_revision(name, revision=model.revision, cache_dir=cache)
                commit = found.resolved
            else:
                api.model_info(name, revision=commit)  # once: what lists the files tries it again
            listed = api.list_repo_tree(name, revision=commit, recursive=True)
            sizes = {f.path: f.size for f in listed if hasattr(f, "size")}
            file = _listed_program(sizes, spec, model)
            patterns = _beside_program(file)
            wanted = {n: b for n, b in sizes.items() if any(fnmatch(n, p) for p in patterns)}
            missing = _missing_bytes(wanted, snapshot(name, commit))
            require_room(_existing(cache), missing, least_files=len(wanted))
            tell(f"getting {name}/{file} from the Hugging Face hub, {size(missing)}", 0.2)
            folder = snapshot_download(
                name, allow_patterns=patterns, revision=commit, endpoint=api.endpoint,
                cache_dir=cache,
            )  # fmt: skip
    except WorkerError as error:
        if error.failure.kind == "hub" and here and here.is_file():
            return ModelSources(commit=commit, program=str(here))
        raise
    return ModelSources(commit=commit, program=str(Path(folder, file)))


def _beside_program(file: str) -> list[str]:
    """Patterns of a program with what belongs to it."""
    folder = file.rpartition("/")[0]
    names = (f"*{PTD}", *TOKENIZER_FILES)
    return [file, *(f"{folder}/{name}" if folder else name for name in names)]


def _listed_program(names: Mapping[str, int], spec: ExportSpec, model: HfModel) -> str:
    """The program in a repository that the spec names, or the only one."""
    programs = sorted(name for name in names if name.endswith(".pte"))
    chosen = [name for name in programs if name == model.pte or not model.pte]
    if len(chosen) == 1:
        return chosen[0]
    shown = listed(programs)
    what = f"has no file {model.pte}" if model.pte else f"has {count(len(programs), 'program')}"
    found = f"; it has {shown or 'no .pte'}" if model.pte else f": {shown}" if shown else ""
    first = f"--set model.program={model.id}/{programs[0]}" if programs else None
    raise fail(
        "hub",
        f"{model.id} {what}{found}",
        remedy=f"Name one of them: {first}" if first else "Name a repository with a .pte file.",
        file=spec.place("model", "program"),
    )


def checkpoint_failure(refusal: ConfigProblem, spec: ExportSpec) -> WorkerError:
    """The failure of an export whose model is refused."""
    place = refusal.place or spec.place(*refusal.key)
    return fail("checkpoint", refusal.message, remedy=refusal.remedy, file=place)


def require_tokenizer(spec: ExportSpec, folder: Path | None, why: str = "") -> None:
    """Refuses a model that cannot be talked with, where somebody wants to; see `require_speech`."""
    try:
        require_speech(folder, spec.speech, place=spec.place("model", "hf"), why=why)
    except UsageError as error:
        raise fail("speech", error.message, remedy=error.remedy, file=error.place) from error


def _from_hub(spec: ExportSpec, model: HfModel, commit: str | None, tell: Tell) -> Checkpoint:
    from huggingface_hub import HfApi, snapshot_download

    name, cache = str(model.id), cache_folder()
    api = HfApi(library_name="etdeploy")
    with explained(spec, model, api.endpoint):
        if commit is None:
            tell(f"asking the Hugging Face hub for {name}", 0.03)
            found = api.resolve_revision(name, revision=model.revision, cache_dir=cache)
            commit = found.resolved
        else:
            api.model_info(name, revision=commit)  # once: what lists the files tries it six times
        listed = api.list_repo_tree(name, revision=commit)
        sizes = {f.path: f.size for f in listed if hasattr(f, "size")}  # folders have none
        options = {"revision": commit, "endpoint": api.endpoint, "cache_dir": cache}
        patterns = (
            [_listed_gguf(sizes, spec, model)]
            if model.gguf
            else _loaded_patterns(sizes, spec, model, options)
        )
        wanted = {n: b for n, b in sizes.items() if any(fnmatch(n, p) for p in patterns)}
        missing = _missing_bytes(wanted, snapshot(name, commit))
        require_room(_existing(cache), missing, least_files=len(wanted))
        tell(f"getting {model.name} from the Hugging Face hub, {size(missing)}", 0.04)
        folder = snapshot_download(name, allow_patterns=patterns, **options)
    return Checkpoint(Path(folder, model.gguf or ""), commit)


def _listed_gguf(names: Mapping[str, int], spec: ExportSpec, model: HfModel) -> str:
    """The GGUF file of a repository, if it is there and whole."""
    file = str(model.gguf)
    if problem := split_problem(file):
        raise checkpoint_failure(ConfigProblem(problem.message, problem.remedy), spec)
    if file in names:
        return file
    others = sorted(name for name in names if name.endswith(SUFFIX))
    raise checkpoint_failure(
        ConfigProblem(
            f"{model.id} has no file {file}; it has {listed(others) or 'none in GGUF'}",
            f"--model {model.id}/{others[0]}" if others else f"--model {model.id}",
        ),
        spec,
    )


def _loaded_patterns(
    sizes: Mapping[str, int], spec: ExportSpec, model: HfModel, options: Mapping[str, Any]
) -> list[str]:
    """Patterns of the files that are loaded, if those that are small show nothing wrong."""
    from huggingface_hub import hf_hub_download

    name, commit = str(model.id), str(options["revision"])
    if model.timm:
        return _timm_patterns(sizes, spec, name, options)
    _require_weights(sizes, spec, name)
    if not lists_tokenizer(sizes):
        require_tokenizer(spec, None)
    if CONFIG in sizes:  # small, and shows whether the rest is of use
        _require_config(Path(hf_hub_download(name, CONFIG, **options)).parent, spec, name)
    if spec.speech == "chat":  # so are the files that may have its template
        small = [n for n in sizes if n in TEMPLATE_FILES]
        folders = [Path(hf_hub_download(name, n, **options)).parent for n in small]
        require_tokenizer(spec, folders[0] if folders else snapshot(name, commit))
    return loaded_patterns(code=model.remote_code)


def _timm_patterns(
    sizes: Mapping[str, int], spec: ExportSpec, name: str, options: Mapping[str, Any]
) -> list[str]:
    """Names of the files of a model of timm that are loaded, if its configuration is sound."""
    from huggingface_hub import hf_hub_download

    if refusal := timm_weights_missing(sizes, name):
        raise checkpoint_failure(refusal, spec)
    config: dict[str, Any] | ConfigProblem = {}
    if CONFIG in sizes:
        config = read_config(Path(hf_hub_download(name, CONFIG, **options)).parent)
    if isinstance(config, ConfigProblem):
        raise checkpoint_failure(config, spec)
    for refusal in timm_config_refusals(config, name, spec.task):
        raise checkpoint_failure(refusal, spec)
    return [CONFIG, WEIGHTS if WEIGHTS in sizes else TIMM_PICKLE]


def _require_weights(names: Mapping[str, int], spec: ExportSpec, model: str) -> None:
    if WEIGHTS not in names and WEIGHTS_INDEX not in names:
        raise checkpoint_failure(no_weights(list(names), model), spec)


def _require_config(folder: Path, spec: ExportSpec, model: str) -> None:
    config, asked = read_config(folder), spec.generation
    if isinstance(config, ConfigProblem):
        raise checkpoint_failure(config, spec)
    for refusal in config_refusals(config, model, asked.context if asked else 0, spec.task):
        raise checkpoint_failure(refusal, spec)
    if "auto_map" in config:
        require_code(spec, folder)


def _missing_bytes(sizes: Mapping[str, int], folder: Path) -> int:
    """What is still to be downloaded; a file's parts that are there already are not known here."""
    return sum(size for name, size in sizes.items() if not (folder / name).exists())


def _existing(folder: Path) -> Path:
    """The folder, or the nearest above it that exists."""
    return next(path for path in (folder, *folder.parents) if path.is_dir())


_FULL = (28, 122)  # ENOSPC and EDQUOT of Linux, which other kinds of OSError here never have


@contextmanager
def explained(spec: ExportSpec, model: HfModel, hub: str) -> Iterator[None]:
    """Explains what huggingface_hub raises in the block."""
    from httpx2 import HTTPError
    from huggingface_hub.errors import HfHubHTTPError, RevisionResolutionError

    try:
        yield
    except WorkerError:
        raise
    except (HfHubHTTPError, RevisionResolutionError, HTTPError, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in _FULL:
            raise
        raise _failure(error, spec, model, hub) from error


def _failure(error: Exception, spec: ExportSpec, model: HfModel, hub: str) -> WorkerError:
    from huggingface_hub.errors import HfHubHTTPError, RevisionNotFoundError

    response = error.response if isinstance(error, HfHubHTTPError) else None
    cause = error if response is not None else error.__cause__ or error
    status = f" {response.status_code}" if response is not None else ""
    name = str(model.id)
    found = HUB_FAILURES.diagnose(
        f"{type(cause).__name__}{status}: {cause}{'' if '/' in name else BARE_ID}",
        model=name,
        revision=repr(model.revision),
        hub=hub,
        name=quoted(name),
        folder=quoted(name.rpartition("/")[2]),
        reason=first_line(cause) or type(cause).__name__,
    )
    if found is None:
        raise ValueError(f"no row for {error!r}")
    own = "revision" if isinstance(error, RevisionNotFoundError) else "hf"
    key, remedy = own, found.remedy
    if model not in (spec.hf, spec.hub_program):
        key, remedy = "lora", remedy.replace("--model ", "--set model.lora=")
    return fail("hub", found.cause, remedy=remedy, file=spec.place("model", key))


def require_code(spec: ExportSpec, folder: Path) -> None:
    """Refuses a model that needs code which may not run, or which is not in its repository."""
    model = spec.hf
    if model is None:
        raise ValueError("the spec names no language model")
    if model.gguf:
        return  # has no code
    config = read_object(folder / CONFIG)
    if not model.remote_code:
        _require_known(spec, model, config)
        return
    for name in (CONFIG, TOKENIZER_CONFIG):
        other = foreign_code(_content(folder / name))
        if other:
            raise fail(
                "checkpoint",
                f"{name} names code of another repository, {other}, and only code of {model.name} "
                "may run",
                remedy="Download the model with that code beside it, and name the folder.",
                file=spec.place("model", "remote_code"),
            )


def _content(path: Path) -> dict[str, Any]:
    try:
        return read_object(path)
    except (OSError, ValueError):
        return {}  # a tokenizer that cannot be read has its own note


def _require_known(spec: ExportSpec, model: HfModel, config: Mapping[str, Any]) -> None:
    import transformers

    kind = config.get("model_type")
    if kind in transformers.CONFIG_MAPPING:
        return
    if "auto_map" in config:
        raise _own_code(spec, model, kind)
    raise fail(
        "checkpoint",
        f"the installed transformers {transformers.__version__} has no model of the type {kind!r}",
        remedy=FACTORY,
        file=spec.place("model", "hf"),
    )


def _own_code(spec: ExportSpec, model: HfModel, kind: object) -> WorkerError:
    named = str(model.folder or model.id)
    return fail(
        "checkpoint",
        f"transformers does not have {kind or 'this type of model'}; {model.name} brings its own "
        "code, which does not run unless the recipe says so",
        remedy=f"Read the .py files of {named}. If you trust them:\n"
        f"--set {quoted(f'model.remote_code={named}')}",
        file=spec.place("model", "hf"),
    )
