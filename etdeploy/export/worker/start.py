"""Starts the worker, importing nothing from the working folder.

`python start.py SPEC FOLDER` exports what the spec says. `python start.py --serve NEEDS DESCRIPTOR`
imports what several exports need, and forks itself for each. `python start.py --task REQUEST
ANSWER` reads a result from the outputs of a task's program, and `--replay REQUEST ANSWER` evaluates
a graph with the values that a device computed.

`python -m` puts the working folder before everything that is installed, and even before Python's
own library, while it looks for the module; its switch against that, `-P`, came with Python 3.11.
"""

import atexit
import os
import sys
import threading


def main() -> int:
    """Returns the worker's exit code."""
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # the folder of this file, whose modules are not top-level ones
    # The package that this file belongs to, whichever other one may be installed.
    sys.path.insert(0, __file__.rsplit("/", 4)[0])
    import etdeploy  # noqa: F401

    del sys.path[0]
    import etdeploy.export.worker.__main__ as worker

    if sys.argv[1] == "--serve":
        before = frozenset(sys.modules)
        from etdeploy.export.worker.serve import serve

        return serve(worker.main, before, *sys.argv[2:])
    if sys.argv[1] == "--task":
        from etdeploy.export.worker.tasks.results import answer

        return answer(*sys.argv[2:])
    if sys.argv[1] == "--replay":
        from etdeploy.export.worker.diff.answer import answer as replay

        return replay(*sys.argv[2:])
    return worker.main(sys.argv[1:])


def leave(code: int) -> None:
    """Ends the process as Python's own children of multiprocessing end.

    Threads of the user's code are waited for and its exit functions run, but nothing is taken
    apart: for what torch and ExecuTorch hold that takes a second.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    os._exit(code)  # the output is not buffered: see PYTHONUNBUFFERED in `export/preload.py`


if __name__ == "__main__":
    leave(main())
