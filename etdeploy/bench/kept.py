"""What a run's folder keeps beside the results, so that it can be read on another machine."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from etdeploy.bench.passes import ETDUMP, PROFILE, RUNNER_LOG, PassResult, Results
from etdeploy.bench.records.record import TRACE, trace_role
from etdeploy.bench.records.stored import RECORD_FILE
from etdeploy.plan.model import RuntimePlan
from etdeploy.program.folder import ETRECORD_FILE, EXPORT_INFO, PROGRAM_INFO
from etdeploy.runner.generation import trace_of

PLAN_FILE = "plan.json"

# What the names in a record's `files` stand for; docs/records.md shows them.
DESCRIPTIONS = {
    "record": "`record.json` itself",
    "outputs": "folder with the outputs of the very first inference: `0.bin` and so on, raw "
    "little-endian contiguous bytes; data type and shape are in the timing pass's file; absent "
    "where text was generated",
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
    "export": "how the program was made: source, versions, times, what quantisation cost",
    "plan": "components and cmake options of the runner, each with its reason",
    "etdump": "the trace of the profile pass, for ExecuTorch's Inspector; absent where text was "
    "generated",
    "etdump.decode": "the same for the method `decode` of a program that generates text, and so on "
    "for every method that the pass called",
    "etrecord": "the model's graph and weights, with which the Inspector names what is in the "
    "trace; a hard link to the cache's file where the file system supports it, else a copy",
}


def keep_files(
    here: Path,
    results: Results,
    program_folder: Path,
    plan: RuntimePlan | None,
) -> dict[str, str]:
    """Collects the files that belong to a record.

    The program itself stays in the cache: its digest names it, and the result of its inspection is
    kept here. The ETRecord, which names the operators of a trace, is kept where there is a trace.

    Args:
        here: The run's folder, with the results of the passes.
        results: By key of the pass.
        program_folder: In the cache.
        plan: Of the runner.

    Returns:
        Paths relative to `here`, by their role.

    Raises:
        OSError: A file cannot be read or written.
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
    return {trace_role(method): trace_of(ETDUMP, method) for method in traced}


def _link_or_copy(source: Path, target: Path) -> None:
    """A hard link where the file system allows it: an ETRecord contains the model's weights.

    Nothing writes to the cache's file, and its digest shows when it was changed.
    """
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
