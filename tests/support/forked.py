"""Python processes for tests that have PyTorch and ExecuTorch imported already.

Each is a fork of one server, which imports them once, and lowers a first model: that takes as much
processor time as what most tests do.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
import warnings
from pathlib import Path

_ROOT = Path(__file__).parents[2]


def run_forked(arguments: tuple[str, ...], output: Path) -> str:
    """What `python ARGUMENTS` prints, which are `-m MODULE ...` or `-c CODE ...`."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.forked_imports"])
    child = context.Process(target=_run, args=(arguments, output, dict(os.environ)))
    child.start()
    try:
        child.join()
    finally:
        child.kill()  # of a test that has timed out
    printed = output.read_text(errors="replace")
    assert not child.exitcode, f"exit {child.exitcode}\n{printed[-3000:]}"
    return printed


def _run(arguments: tuple[str, ...], output: Path, environment: dict[str, str]) -> None:
    with output.open("wb") as stream:
        for descriptor in (1, 2):
            os.dup2(stream.fileno(), descriptor)
    os.environ.clear()
    os.environ.update(environment)  # the server has that of the first test
    os.chdir(_ROOT)
    warnings.simplefilter("ignore")
    # Makes PyTorch's pool of threads in this fork: of several that meet there first, one fails.
    import torch

    torch.set_num_threads(torch.get_num_threads())
    kind, what, *rest = arguments
    sys.argv[:] = [what, *rest]
    if kind == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        code = output.with_name("code.py")
        code.write_text(what)
        runpy.run_path(str(code), run_name="__main__")
