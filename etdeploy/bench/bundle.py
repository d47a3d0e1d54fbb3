"""What goes to a device: the runner with its libraries, the program and its inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from etdeploy.backends.values import Extras, Simulated
from etdeploy.core.cancel import checkpoint
from etdeploy.core.files.basic import inside, write_if_changed
from etdeploy.core.hashing import sha256_file
from etdeploy.devices.base import Bundle, BundleFile, ProcessLaunch
from etdeploy.program.folder import PROGRAM_FILE, Provenance, Stored, TensorFile
from etdeploy.runner.model import BuiltRunner
from etdeploy.runner.protocol import inputs_list

if TYPE_CHECKING:
    from etdeploy.export.finished import DraftProgram

_RUNNER_FOLDER, _DRAFT_FOLDER = "runner", "draft"
_NOTHING = Extras()


def make_bundle(
    runner: BuiltRunner,
    program_folder: Path,
    provenance: Provenance,
    list_path: Path,
    extras: Extras = _NOTHING,
    simulated: Simulated | None = None,
    request: Mapping[str, Path] | None = None,
    draft: DraftProgram | None = None,
    program_sha256: str | None = None,
) -> Bundle:
    """List the files for one program and one runner, with their digests.

    The runner's list of inputs is written to `list_path`, with the lists for the recipe's sizes
    beside it; they must exist as long as the bundle is used. `extras` are third-party libraries
    beside the runner's own. `request` has files that say what to generate, by their paths in the
    bundle, instead of inputs. `draft` proposes tokens to the program. The program is not read if
    `program_sha256` is known. Raises OSError for a missing file, and ValueError for a file outside
    its folder, for equal paths, and for a variable that names none of the files.
    """
    files = [
        *_runner_files(runner),
        *_extra_files(extras),
        bundle_file(program_folder / PROGRAM_FILE, PROGRAM_FILE, sha256=program_sha256),
        *(bundle_file(inside(program_folder, name), name) for name in provenance.data),
        *(
            _inputs(provenance, program_folder, list_path)
            if request is None
            else (bundle_file(path, name) for name, path in request.items())
        ),
        *(bundle_file(path, name) for name, path in _draft_files(draft)),
    ]
    paths = [file.path for file in files]
    if len(set(paths)) != len(paths):
        raise ValueError(f"a path occurs twice in the bundle: {sorted(paths)}")
    folder = f"{{bundle}}/{_RUNNER_FOLDER}"
    return Bundle(
        files=tuple(files),
        launch=ProcessLaunch(
            argv=(*_command(runner), *_data_options(provenance), *_draft_options(draft)),
            environment=_environment(extras, folder),
        ),
        simulated=simulated,
        draft=draft.draft if draft else None,
    )


def _inputs(provenance: Provenance, program_folder: Path, list_path: Path) -> Iterator[BundleFile]:
    """The list of the inputs of each size, which are written, and the inputs."""
    for name, each in provenance.measured.items():
        path = list_path.with_name(list_name(name)) if name else list_path
        write_if_changed(path, inputs_list(each.inputs))
        yield bundle_file(path, list_name(name))
    for each in provenance.measured.values():
        yield from _input_files(program_folder, each.inputs)


def _environment(extras: Extras, folder: str) -> dict[str, str]:
    """The variables of the runner's process; `folder` is where its files will be."""
    for name in extras.file_variables.values():
        if name not in {file.name for file in extras.files}:
            raise ValueError(f"a variable names {name!r}, which is not in the bundle")
    return {
        **extras.environment,
        **dict.fromkeys(extras.folder_variables, folder),
        **{variable: f"{folder}/{name}" for variable, name in extras.file_variables.items()},
    }


def list_name(size: str) -> str:
    """The name of the runner's list of inputs in a bundle; `size` is empty without sizes."""
    return f"inputs-{size}.txt" if size else "inputs.txt"


def _runner_files(runner: BuiltRunner) -> Iterator[BundleFile]:
    started = [runner.executable, *([runner.loader] if runner.loader else [])]
    for name in (*started, *runner.libraries):
        source = inside(Path(runner.path), name)
        yield bundle_file(source, f"{_RUNNER_FOLDER}/{name}", executable=name in started)


def _input_files(program_folder: Path, inputs: Sequence[Stored]) -> Iterator[BundleFile]:
    for tensor in inputs:
        if isinstance(tensor, TensorFile):
            yield bundle_file(inside(program_folder, tensor.path), tensor.path)


def _extra_files(extras: Extras) -> Iterator[BundleFile]:
    for extra in extras.files:
        if extra.name in ("", "..") or PurePosixPath(extra.name).name != extra.name:
            raise ValueError(f"{extra.name!r} is not a file name")
        yield bundle_file(Path(extra.source), f"{_RUNNER_FOLDER}/{extra.name}")


def _command(runner: BuiltRunner) -> tuple[str, ...]:
    """The command that starts the runner; a portable one is started by its own loader."""
    # The loader's usual path, written in the executable, does not exist on the device.
    if runner.loader is None:
        return (f"{_RUNNER_FOLDER}/{runner.executable}",)
    return (
        f"{_RUNNER_FOLDER}/{runner.loader}",
        "--library-path",
        f"{{bundle}}/{_RUNNER_FOLDER}",
        f"{{bundle}}/{_RUNNER_FOLDER}/{runner.executable}",
    )


def _data_options(provenance: Provenance) -> Iterator[str]:
    for name in provenance.data:
        yield from ("--data", f"{{bundle}}/{name}")


def _draft_files(draft: DraftProgram | None) -> Iterator[tuple[str, Path]]:
    if draft:
        yield f"{_DRAFT_FOLDER}/{PROGRAM_FILE}", draft.path
        for path in draft.data:
            yield f"{_DRAFT_FOLDER}/{path.name}", path


def _draft_options(draft: DraftProgram | None) -> Iterator[str]:
    for name, _ in _draft_files(draft):
        option = "--draft" if PurePosixPath(name).name == PROGRAM_FILE else "--draft-data"
        yield from (option, f"{{bundle}}/{name}")


def bundle_file(
    source: Path, path: str, executable: bool = False, sha256: str | None = None
) -> BundleFile:
    """A file of a bundle, whose digest is computed unless `sha256` gives it."""
    checkpoint()
    return BundleFile(
        source=str(source),
        path=path,
        sha256=sha256 or sha256_file(source),
        size_bytes=source.stat().st_size,
        executable=executable,
    )
