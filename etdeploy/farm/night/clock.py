"""The time of a real night."""

from __future__ import annotations

import time
from datetime import datetime, timezone

from etdeploy.core import cancel

_SLICE_S = 0.2


class SystemClock:
    """This machine's clock."""

    def now(self) -> datetime:
        """Date and time, in UTC."""
        return datetime.now(timezone.utc)

    def seconds(self) -> float:
        """Seconds that pass evenly, whoever sets the date."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Waits; not once the run is asked to stop."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not cancel.requested():
            time.sleep(min(left, _SLICE_S))
