"""Libraries of a device's maker in an app: those that a bundle would have beside the runner."""

from __future__ import annotations

from pathlib import Path

from etdeploy.apps.android.app import NATIVE
from etdeploy.backends.values import Extras

# An app's libraries are found without it: Android looks into the app's own folder.
_BY_ITSELF = frozenset({"LD_LIBRARY_PATH"})


def vendor_files(extras: Extras, abi: str) -> dict[str, Path]:
    """The files of the project, by their paths there.

    Args:
        extras: What the backends of the program want for the device: the libraries of its SoC
            alone, and not those of every SoC that a library on Maven has.
        abi: As Android names it.
    """
    return {f"{NATIVE}/{abi}/{file.name}": Path(file.source) for file in extras.files}


def folder_variables(extras: Extras) -> tuple[str, ...]:
    """Environment variables that the app sets to the folder of its native libraries.

    It has to do so before it loads ExecuTorch's library, and the libraries have to be files there:
    what reads the variables opens them by their paths.
    """
    return tuple(name for name in extras.folder_variables if name not in _BY_ITSELF)


def needs_files(extras: Extras) -> bool:
    """Whether the installer has to write the native libraries to files."""
    return bool(folder_variables(extras))
