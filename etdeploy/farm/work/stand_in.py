"""A device that is not here, as what exports and builds for it need to know it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import NamedTuple, NoReturn

from etdeploy.core.progress import Progress, silent
from etdeploy.devices.base import (
    Bundle,
    Capabilities,
    DeviceFacts,
    DeviceState,
    Leftover,
    PushReport,
    RunFolder,
)
from etdeploy.farm.model import Offer


class DeviceClass(NamedTuple):
    """What of a device decides what goes to it: equal for devices that share a parcel."""

    target: str
    soc: str | None
    launches: tuple[str, ...]
    is_here: bool

    @classmethod
    def of(cls, offer: Offer) -> DeviceClass:
        """That of a device that is offered."""
        can = offer.capabilities
        return cls(offer.facts.target, offer.facts.soc, can.launches, can.is_here)

    @property
    def label(self) -> str:
        """For people, and the same every night: the folder of its state has this name."""
        own = " here" if self.is_here else ""
        apps = "" if "process" in self.launches else " apps"
        return f"{self.target}{f' {self.soc}' if self.soc else ''}{own}{apps}"

    @property
    def needs_app(self) -> bool:
        """Whether only apps can be started there."""
        return "app" in self.launches and "process" not in self.launches


class StandIn:
    """Obeys the Device protocol up to what needs the device itself.

    Args:
        offer: One of the devices of its class.
    """

    def __init__(self, offer: Offer) -> None:
        self._offer = offer
        self._label = DeviceClass.of(offer).label

    @property
    def name(self) -> str:
        return self._label

    @property
    def identity(self) -> str:
        return self._label

    @property
    def capabilities(self) -> Capabilities:
        return self._offer.capabilities

    def facts(self) -> DeviceFacts:
        return self._offer.facts

    def state(self) -> DeviceState:
        self._refuse()

    def push(self, bundle: Bundle, progress: Progress = silent) -> PushReport:  # noqa: ARG002
        self._refuse()

    def end_leftovers(self) -> tuple[Leftover, ...]:
        self._refuse()

    def open_run(
        self,
        bundle: Bundle,  # noqa: ARG002
        run_id: str,  # noqa: ARG002
    ) -> AbstractContextManager[RunFolder]:
        self._refuse()

    def clean(self) -> Mapping[str, int]:
        self._refuse()

    def close(self) -> None:
        """Nothing is held open."""

    def _refuse(self) -> NoReturn:
        raise RuntimeError(f"{self._label} stands for devices that are not here")
