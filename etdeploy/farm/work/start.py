"""Starts the child, importing nothing from the working folder; see `export/worker/start.py`."""

import sys


def main() -> int:
    """Returns the child's exit code."""
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # the folder of this file, whose modules are no top-level ones
    # The package that this file belongs to, whichever other one may be installed.
    sys.path.insert(0, __file__.rsplit("/", 4)[0])
    import etdeploy  # noqa: F401

    del sys.path[0]
    from etdeploy.farm.work.child import main as child

    return child()


if __name__ == "__main__":
    sys.exit(main())
