"""The worker: reads a trace with ExecuTorch's Inspector; `start.py` begins it."""

from __future__ import annotations

import sys
import traceback
import warnings
from pathlib import Path

from etdeploy.profile.protocol import (
    FAILURE_FILE,
    REQUEST_FILE,
    Trace,
    TraceFailure,
    TraceRequest,
    TraceRequests,
    trace_file,
)
from etdeploy.profile.worker.record import MethodRecord, UnreadableRecordError, read_record


def main(arguments: list[str]) -> int:
    """Reads the files that `request.json` names; a failure is described in `failure.json`."""
    folder = Path(arguments[0])
    # Warnings of the libraries are not about the user's files; they belong in the log.
    warnings.simplefilter("default")
    requests = TraceRequests.load(folder / REQUEST_FILE).requests
    try:
        # Before the seconds that the Inspector's imports take.
        records = [_record(each) for each in requests]
        for number, (request, record) in enumerate(zip(requests, records, strict=True)):
            _read(request, record).save(folder / trace_file(number))
    except UnreadableRecordError as error:
        traceback.print_exc()
        TraceFailure(file=str(error.file), message=str(error)).save(folder / FAILURE_FILE)
        return 1
    return 0


def _record(request: TraceRequest) -> MethodRecord | None:
    return read_record(Path(request.etrecord), request.method) if request.etrecord else None


def _read(request: TraceRequest, record: MethodRecord | None) -> Trace:
    from etdeploy.profile.worker.inspect import read_trace

    return read_trace(Path(request.etdump), record)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
