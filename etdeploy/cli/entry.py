"""The entry point: imports little, so that Ctrl-C and SIGTERM work before the rest is loaded."""

from __future__ import annotations

import os
import sys

EXIT_INTERRUPTED = 130

try:
    import signal
except KeyboardInterrupt:  # importing it takes longer than Python's own start
    os._exit(EXIT_INTERRUPTED)


def main() -> None:
    """Runs the command line and ends the process with its exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            # Nothing that needs an orderly end has started, and a KeyboardInterrupt would print a
            # traceback. The same is true once the command line has ended.
            signal.signal(number, lambda *_: os._exit(EXIT_INTERRUPTED))
    _occupy_closed_streams()
    from etdeploy.cli.main import run_cli
    from etdeploy.core import console

    console.open_streams()
    sys.exit(run_cli(sys.argv[1:]))


def _occupy_closed_streams() -> None:
    """Keeps file descriptors 0 to 2 away from our files, which output to them would damage.

    Writes to 1 fail, as on a closed stream, so that a lost result is noticed; writes to 2 are
    discarded.
    """
    for handle, flags in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(handle)
        except OSError:
            os.open(os.devnull, flags)  # the lowest free descriptor
