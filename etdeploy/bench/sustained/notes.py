"""What a reader of a sustained pass has to know."""

from __future__ import annotations

from collections.abc import Iterator

from etdeploy.bench.records.sustained import Sustained
from etdeploy.bench.sustained.rate import FEWEST
from etdeploy.bench.units import long_time, rate
from etdeploy.core.console import count

# Within this, what remains is what another run of the same pass may show, too.
_KEPT_PERCENT = 90.0
# Nothing throttles so soon; what differs within it is noise.
_SHORT_S = 60.0


def sustained_notes(sustained: Sustained) -> Iterator[str]:
    """Sentences about a sustained pass: what was lost, and what weakens it.

    Args:
        sustained: The pass.
    """
    if sustained.ended_early:
        yield (
            f"The sustained pass ended after {long_time(sustained.seconds)}: "
            f"{sustained.ended_early}. Its figures are those until then."
        )
    if sustained.cooldown and not sustained.cooldown.reached:
        yield (
            f"The sustained pass did not begin cool: {sustained.cooldown.sensor} was at "
            f"{sustained.cooldown.to_celsius:.0f} °C. A device that begins warm shows less of what "
            "it loses."
        )
    for disturbance in sustained.disturbances:
        yield f"The sustained pass shows more than heat. {disturbance.text}"
    if len(sustained.points) < FEWEST or sustained.seconds < _SHORT_S:
        yield (
            f"The sustained pass has {count(sustained.inferences, 'inference')} in "
            f"{long_time(sustained.seconds)}, too little to see what heat does. Let it last for "
            "minutes: --set benchmark.sustained_s=600"
        )
    elif sustained.retained_percent < _KEPT_PERCENT:
        yield (
            f"Work without a pause keeps {sustained.retained_percent:.0f} % of its rate"
            f"{_since(sustained)}: plan with {rate(sustained.end_per_s)} inferences per second "
            "where an application works for that long."
        )


def _since(sustained: Sustained) -> str:
    length = f" after {long_time(sustained.seconds)}"
    drop_s = sustained.to_minus_10_percent_s
    return f"{length}, and loses the first 10 % after {long_time(drop_s)}" if drop_s else length
