"""What is deployed in addition to a runner and its own libraries."""

from __future__ import annotations

from etdeploy.core.values import Value


class ExtraFile(Value):
    """A third-party file: its path here, and its name beside the runner."""

    source: str
    name: str


class Extras(Value):
    """Files that a backend loads by name on the device.

    Attributes:
        files: Deployed into the runner's folder.
        folder_variables: Environment variables that are set to that folder alone.
    """

    files: tuple[ExtraFile, ...] = ()
    folder_variables: tuple[str, ...] = ()
