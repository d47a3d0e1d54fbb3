"""The folder of one run's results: new, this run's alone, and gone when the run fails."""

from __future__ import annotations

import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from etdeploy.bench.passes import RUNNER_LOG
from etdeploy.bench.records.find import RUN_ID
from etdeploy.cache.folder import CacheKind
from etdeploy.core.errors import Interrupted, UsageError
from etdeploy.core.files.basic import write_atomic
from etdeploy.core.files.delivery import require_writable
from etdeploy.core.files.disk import naming, no_room_in
from etdeploy.core.files.leftovers import claimed, sweep_empty

# Random bytes at the end of an id. Two runs of one recipe may start in the same second, here or on
# another machine that has the same device.
_RANDOM_BYTES = 4
_ATTEMPTS = 10
_CHOOSE = "Name a folder that can be written to: --output FOLDER"


@contextmanager
def results_folder(output: Path, started: datetime, recipe: str, device: str) -> Iterator[Path]:
    """A new folder in `output`, named by the run's id.

    When the block fails, only the runner's log stays in it; after an interruption nothing does.

    Args:
        output: Created when it does not exist; git ignores one that was.
        started: In UTC; ids sort by it.
        recipe: Name of the recipe.
        device: Name of the device.

    Raises:
        UsageError: `output` cannot be written to.
        OSError: The disk is full; its filename is in the folder.
    """
    sweep_empty(output, RUN_ID)
    folder = _new_folder(output, started, recipe, device)
    try:
        with claimed(folder), naming(folder):
            yield folder
    except OSError as error:
        _keep_log(folder, error)
        if not no_room_in(error) and _is_about(error, folder):
            raise _unwritable(error, folder) from error
        raise
    except BaseException as error:
        _keep_log(folder, error)
        raise


def require_output(output: Path, cache: Path) -> None:
    """Checks before the work what would keep its results from being written after it.

    Args:
        output: The folder for run records, absolute.
        cache: The cache folder.

    Raises:
        UsageError: `output` cannot be written to, or etdeploy would tidy it away.
        OSError: The disk is full.
    """
    # The cache folder itself may be one in which the user keeps more.
    if any(output.is_relative_to(cache / kind) for kind in CacheKind):
        raise UsageError(
            "results cannot be written: the folder is in the cache, which etdeploy tidies",
            place=str(output),
            remedy=_CHOOSE,
        )
    try:
        require_writable(output)
    except OSError as error:
        if no_room_in(error):
            raise
        raise _unwritable(error, output) from error


def _new_folder(output: Path, started: datetime, recipe: str, device: str) -> Path:
    """Always a new one: a folder that exists belongs to another run and is left alone."""
    try:
        if not output.is_dir():
            output.mkdir(parents=True, exist_ok=True)
            # Else the recipe's commit would count as changed from the second run on.
            write_atomic(output / ".gitignore", "*\n")
        for _ in range(_ATTEMPTS):
            folder = output / run_id(started, recipe, device)
            try:
                folder.mkdir()
            except FileExistsError:
                continue
            return folder
    except OSError as error:
        if no_room_in(error):
            raise
        raise _unwritable(error, output) from error
    raise RuntimeError(f"{_ATTEMPTS} ids of runs in {output} were all taken")


def run_id(started: datetime, recipe: str, device: str) -> str:
    """An id that sorts by time and says what ran where."""
    words = [re.sub(r"[^A-Za-z0-9._-]+", "_", word)[:48] for word in (recipe, device)]
    time = started.strftime("%Y%m%dT%H%M%SZ")
    return "-".join([time, *words, secrets.token_hex(_RANDOM_BYTES)])


def _keep_log(folder: Path, error: BaseException) -> None:
    """Empties the folder except for the runner's log, and removes it where there is none."""
    log = folder / RUNNER_LOG
    said = log.is_file() and log.stat().st_size and not isinstance(error, Interrupted)
    for path in folder.iterdir() if said else ():
        if path == log:
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    if not said:
        shutil.rmtree(folder, ignore_errors=True)


def _is_about(error: OSError, folder: Path) -> bool:
    """Whether writing the results failed, rather than reading or reaching something else."""
    names = [Path(str(name)) for name in (error.filename, error.filename2) if name is not None]
    return any(name.is_relative_to(folder) for name in names)


def _unwritable(error: OSError, place: Path) -> UsageError:
    return UsageError(
        f"results cannot be written: {error.strerror or error}",
        place=str(error.filename or place),
        remedy=_CHOOSE,
    )
