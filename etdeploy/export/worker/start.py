"""Starts the worker, importing nothing from the working folder.

`python start.py SPEC FOLDER` exports what the spec says. `python start.py --serve NEEDS DESCRIPTOR`
imports what several exports need, and forks itself for each.

`python -m` puts the working folder before everything that is installed, and even before Python's
own library, while it looks for the module; its switch against that, `-P`, came with Python 3.11.
"""

import sys


def main() -> int:
    """Returns the worker's exit code."""
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # the folder of this file, whose modules are no top-level ones
    # The package that this file belongs to, whichever other one may be installed.
    sys.path.insert(0, __file__.rsplit("/", 4)[0])
    import etdeploy  # noqa: F401

    del sys.path[0]
    import etdeploy.export.worker.__main__ as worker

    if sys.argv[1] == "--serve":
        before = frozenset(sys.modules)
        from etdeploy.export.worker.serve import serve

        return serve(worker.main, before, *sys.argv[2:])
    return worker.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
