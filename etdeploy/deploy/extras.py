"""What goes to a device beside a runner and its own libraries."""

from __future__ import annotations

from etdeploy.core.values import Value


class ExtraFile(Value):
    """A file of another maker: where it is here, and its name beside the runner."""

    source: str
    name: str


class Extras(Value):
    """Files that a backend loads on the device by their names.

    Attributes:
        files: Put into the runner's folder.
        folder_variables: Environment variables that lead to that folder, and to no other.
    """

    files: tuple[ExtraFile, ...] = ()
    folder_variables: tuple[str, ...] = ()
