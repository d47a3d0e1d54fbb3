"""What the compiled payload of a delegate says."""

from __future__ import annotations

from dataclasses import dataclass

from etdeploy.core.values import Value


class CompiledFor(Value):
    """The SoC that a partition was compiled for, and the SDK that compiled it.

    Attributes:
        soc_id: The SDK's number of the SoC.
        soc: Its name, like SM8650; None for a number that is not known.
        htp_arch: Generation of its neural processor, like V75; None if none is named.
        sdk_version: As in the SDK's build id, like 2.37.0.250724175447; None if the payload does
            not show it.
        profiled: Whether it was compiled to report the times of its operators.
        settings: What else it says that it was compiled with, as `name=value`; the names are those
            of the recipe's `export.options` where there is one. Empty where it says nothing.
    """

    soc_id: int
    soc: str | None = None
    htp_arch: str | None = None
    sdk_version: str | None = None
    profiled: bool = False
    settings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Payload:
    """What a backend reads in the payload of one of its delegates.

    Attributes:
        nodes: The backend's own nodes; None if it does not show them.
        compiled_for: The SoC and the SDK, if it was compiled for one.
    """

    nodes: int | None = None
    compiled_for: CompiledFor | None = None
