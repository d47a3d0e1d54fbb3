"""The worker: exports what a spec says into a folder; `start.py` begins it."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Collection
from pathlib import Path

from etdeploy.export.protocol import FAILURE_FILE, SOURCES_FILE, progress_line
from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.loading.paths import add_user_folder, pin_installed
from etdeploy.export.worker.loading.random_seeds import seed_at_import
from etdeploy.export.worker.loading.recorder import FileRecorder
from etdeploy.export.worker.loading.user_code import run_user_files


def main(arguments: list[str], preloaded: Collection[str] = ()) -> int:
    """Runs the export; a failure is described in `failure.json` beside the spec."""
    spec_path, folder = Path(arguments[0]), Path(arguments[1])
    # Warnings of the libraries are not about the user's recipe; they belong in the log.
    warnings.simplefilter("default")
    add_user_folder(Path.cwd())
    pin_installed()
    try:
        spec, recorder = ExportSpec.load(spec_path), FileRecorder(preloaded)
        seed_at_import(spec.seed, recorder.ignoring)
        _tell(f"loading {spec.source}", 0.02)
        with recorder.recording():
            run_user_files(spec)  # before the seconds that the imports below take
        if spec.hf:  # so that a hub which does not give the model is told at once
            from etdeploy.export.worker.loading.hf.fetch import fetch

            fetch(spec, _tell)
        from etdeploy.export.worker.pipeline import run

        sources = run(spec, folder, _tell, recorder)
        sources.save(spec_path.with_name(SOURCES_FILE))
    except BaseException as error:  # a factory may even raise SystemExit
        traceback.print_exc()
        from etdeploy.export.worker.failures import failure_of

        failure_of(error).save(spec_path.with_name(FAILURE_FILE))
        return 1
    return 0


def _tell(text: str, fraction: float) -> None:
    # One write of one line, so that output of other threads and of C++ cannot split it.
    os.write(1, f"{progress_line(text, fraction)}\n".encode())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
