"""The folder with a run's results, which is removed if the run fails."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from etdeploy.bench.passes import PROFILE
from etdeploy.bench.records.record import TRACE, trace_role
from etdeploy.bench.records.stored import RECORD_FILE, RUN_ID
from etdeploy.bench.run_pass import ETDUMP, RUNNER_LOG, PassResult, Results
from etdeploy.cache.folder import CacheKind
from etdeploy.core.errors import Interrupted, UsageError
from etdeploy.core.files.basic import (
    annotate_oserror,
    claimed,
    find_disk_full,
    sweep_empty,
    write_atomic,
)
from etdeploy.core.files.delivery import require_writable
from etdeploy.plan.model import RuntimePlan
from etdeploy.program.folder import ETRECORD_FILE, EXPORT_INFO, PROGRAM_INFO
from etdeploy.runner.generation import trace_path

# Random bytes at the end of an id. Two runs of one recipe may start in the same second, here or on
# another machine that has the same device.
_RANDOM_BYTES = 4
_ATTEMPTS = 10
_CHOOSE = "Name a folder that can be written to: --output FOLDER"


@contextmanager
def results_folder(output: Path, started: datetime, recipe: str, device: str) -> Iterator[Path]:
    """Create a folder in `output`, named by the run's id.

    If the block fails, only the runner's log stays in it; after an interruption, nothing does.
    """
    sweep_empty(output, RUN_ID)
    folder = _new_folder(output, started, recipe, device)
    try:
        with claimed(folder), annotate_oserror(folder):
            yield folder
    except OSError as error:
        _keep_log(folder, error)
        if not find_disk_full(error) and _is_about(error, folder):
            raise _unwritable(error, folder) from error
        raise
    except BaseException as error:
        _keep_log(folder, error)
        raise


def require_output(output: Path, cache: Path) -> None:
    """Raises UsageError if results cannot be written to `output`, or OSError on a full disk."""
    # Only its subfolders: users may have other files in the cache folder itself.
    if any(output.is_relative_to(cache / kind) for kind in CacheKind):
        raise UsageError(
            "results cannot be written: the folder is in the cache, which etdeploy cleans",
            place=str(output),
            remedy=_CHOOSE,
        )
    try:
        require_writable(output)
    except OSError as error:
        if find_disk_full(error):
            raise
        raise _unwritable(error, output) from error


def _new_folder(output: Path, started: datetime, recipe: str, device: str) -> Path:
    try:
        if not output.is_dir():
            output.mkdir(parents=True, exist_ok=True)
            # Otherwise, git would report changes from the second run on.
            write_atomic(output / ".gitignore", "*\n")
        for _ in range(_ATTEMPTS):
            folder = output / run_id(started, recipe, device)
            try:
                folder.mkdir()
            except FileExistsError:
                continue
            return folder
    except OSError as error:
        if find_disk_full(error):
            raise
        raise _unwritable(error, output) from error
    raise RuntimeError(f"{_ATTEMPTS} run ids in {output} exist already")


def run_id(started: datetime, recipe: str, device: str) -> str:
    """An id that sorts by time and says what ran where."""
    words = [re.sub(r"[^A-Za-z0-9._-]+", "_", word)[:48] for word in (recipe, device)]
    time = started.strftime("%Y%m%dT%H%M%SZ")
    return "-".join([time, *words, secrets.token_hex(_RANDOM_BYTES)])


def _keep_log(folder: Path, error: BaseException) -> None:
    """Removes everything but the runner's log."""
    log = folder / RUNNER_LOG
    has_log = log.is_file() and log.stat().st_size and not isinstance(error, Interrupted)
    for path in folder.iterdir() if has_log else ():
        if path == log:
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    if not has_log:
        shutil.rmtree(folder, ignore_errors=True)


def _is_about(error: OSError, folder: Path) -> bool:
    """Whether the error is about writing the results."""
    names = [Path(str(name)) for name in (error.filename, error.filename2) if name is not None]
    return any(name.is_relative_to(folder) for name in names)


def _unwritable(error: OSError, place: Path) -> UsageError:
    return UsageError(
        f"results cannot be written: {error.strerror or error}",
        place=str(error.filename or place),
        remedy=_CHOOSE,
    )


PLAN_FILE = "plan.json"

# The roles in a record's `files`, for docs/records.md.
DESCRIPTIONS = {
    "record": "`record.json` itself",
    "outputs": "folder with the outputs of the very first inference: `0.bin` and so on, raw "
    "little-endian contiguous bytes; data type and shape are in the timing pass's file; absent "
    "where text was generated",
    "result": "image or WAV file that belongs to the result of a task; absent for others",
    "log": "the runner's output in each pass, and how it ended",
    "timing": "what the runner wrote in the first start of the timing pass: raw samples, load "
    "times, outputs",
    "timing.2": "the same for the second start, `timing.3` for the third, and so on; absent where "
    "`benchmark.runs` is 1",
    "text": "what the runner generated of the texts that are compared with the model's; absent for "
    "inferences",
    "memory": "the same for the memory pass; absent where `benchmark.memory` is off",
    "profile": "the same for the profile pass; absent where `benchmark.profile` is off",
    "sustained": "the same for the sustained pass; absent where `benchmark.sustained_s` is 0",
    "program_info": "methods of the program with inputs, outputs, operators and delegates",
    "export": "how the program was made: source, versions, times, what quantization cost",
    "plan": "components and cmake options of the runner, each with its reason",
    "etdump": "the trace of the profile pass, for ExecuTorch's Inspector; absent where text was "
    "generated",
    "etdump.decode": "the same for the method `decode` of a program that generates text, and so on "
    "for every method that the pass called",
    "etrecord": "the model's graph, except for language models with its weights, with which the "
    "Inspector names what is in the trace; a hard link to the cache's file where the file system "
    "supports it, else a copy",
}


def keep_files(
    here: Path,
    results: Results,
    program_folder: Path,
    plan: RuntimePlan | None,
) -> dict[str, str]:
    """Copy the files that belong to a record, and return their paths by role.

    The program itself stays in the cache, and the ETRecord is only copied if there is a trace.
    """
    files = {"record": RECORD_FILE}
    files |= {result.outputs: result.outputs for result in results.values() if result.outputs}
    files |= {"log": RUNNER_LOG}
    files |= {name: result.file for name, result in results.items()}
    for name, file in (("program_info", PROGRAM_INFO), ("export", EXPORT_INFO)):
        if (program_folder / file).is_file():
            shutil.copyfile(program_folder / file, here / file)
            files[name] = file
    if plan:
        plan.save(here / PLAN_FILE)
        files["plan"] = PLAN_FILE
    if PROFILE in results:
        files |= _traces(results[PROFILE])
        if (program_folder / ETRECORD_FILE).is_file():
            _link_or_copy(program_folder / ETRECORD_FILE, here / ETRECORD_FILE)
            files["etrecord"] = ETRECORD_FILE
    return files


def _traces(result: PassResult) -> dict[str, str]:
    if result.generated is None:
        return {TRACE: ETDUMP}
    traced = result.generated.generation.traced
    return {trace_role(method): trace_path(ETDUMP, method) for method in traced}


def _link_or_copy(source: Path, target: Path) -> None:
    """Makes a hard link if possible, because an ETRecord contains the model's weights."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
