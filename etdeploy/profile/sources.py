"""Lines of a model's code in what torch says of a node."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_INSTALLED = re.compile(r".*/(?:site|dist)-packages/(.+)")
_STANDARD_LIBRARY = re.compile(r"/python3(?:\.\d+)?/(?!(?:site|dist)-packages/)")
# Their frames are not the model's: `torch.nn.Linear.forward` is every model's.
_TOOLS = ("torch", "torchao", "executorch")


def model_line(stack: str) -> str:
    """`file:line` of the innermost frame that is the model's code; empty where there is none.

    Of an installed package the path begins with its name; of other files the name alone is given,
    since a profile goes wherever a record goes.

    Args:
        stack: A graph node's `stack_trace`, the innermost frame last.
    """
    for file, line in reversed(_FRAME.findall(stack)):
        installed = _INSTALLED.fullmatch(file)
        if installed and installed[1].split("/")[0] not in _TOOLS:
            return f"{installed[1]}:{line}"
        if not installed and not file.startswith("<") and not _STANDARD_LIBRARY.search(file):
            return f"{PurePosixPath(file).name}:{line}"
    return ""
