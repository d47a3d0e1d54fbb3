"""Where the process begins: imports little, so that Ctrl-C is heard before the rest is loaded."""

from __future__ import annotations

import os
import sys

EXIT_INTERRUPTED = 130

try:
    import signal
except KeyboardInterrupt:  # it takes longer than all that Python has done before
    os._exit(EXIT_INTERRUPTED)


def main() -> None:
    """Runs the command line and ends the process with its exit code."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        # Nothing has begun that would have to end tidily; a KeyboardInterrupt would be shown with
        # its traceback. The same holds once the command line has ended.
        signal.signal(signal.SIGINT, lambda *_: os._exit(EXIT_INTERRUPTED))
    _occupy_closed_streams()
    from etdeploy.cli.main import run_cli
    from etdeploy.core import console

    console.open_streams()
    sys.exit(run_cli(sys.argv[1:]))


def _occupy_closed_streams() -> None:
    """Keeps the numbers 0 to 2 from a file of ours, that what writes to them would damage.

    On 1 nothing can be written, as on a closed one, so that a lost result is noticed; what goes to
    2 is lost without harm.
    """
    for handle, flags in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(handle)
        except OSError:
            os.open(os.devnull, flags)  # the lowest number that is free
