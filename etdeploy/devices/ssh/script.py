r"""A script as words that every login shell leaves alone; all pure.

sshd hands a command to the user's login shell, which may be bash, fish, csh or another. Single
quotes mean the same to all of them if there is no quote, `!`, newline or pair of backslashes
between them: csh expands `!` and ends a word at a newline, fish reads `\\` as one backslash. So
those go as octal numbers, which `printf %b` of POSIX turns back.
"""

from __future__ import annotations

import re

LONGEST = 100_000
"""Bytes of a script that goes as an argument; Linux allows 128 KiB (MAX_ARG_STRLEN)."""
_UNSAFE = re.compile(rb"[^ -~]|[!'\\]")
_RUN = r'eval "$(printf %b "$1")"'
_READ = r'read -r s; eval "$(printf %b "$s")"'


def encoded(script: str) -> str:
    """The script without quotes, `!`, backslashes before anything but 0, and newlines."""
    data = _UNSAFE.sub(lambda match: b"\\0%03o" % match[0][0], script.encode())
    return data.decode("ascii")


def as_argument(script: str) -> str:
    """What sshd is asked to run."""
    return f"exec sh -c '{_RUN}' etdeploy '{encoded(script)}'"


def as_input() -> str:
    """What sshd is asked to run where the script comes as the first line of its input."""
    return f"exec sh -c '{_READ}'"
