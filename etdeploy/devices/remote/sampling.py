"""The loop on a device that reads its state while a program runs; all pure.

Everything in it is built into shells but `sleep`, so a reading starts one process. It takes part in
the program's group, and is killed with it: a shell that has to end by itself would first wait.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from shlex import quote

from etdeploy.devices import sampling
from etdeploy.devices.base import DeviceState

FILE = ".states"
"""In the run's folder."""
_SLOWLY = 10
# As sampling.CHOSEN_ZONES says it; 0 stands for a device with few zones.
_CHOSEN_ZONES = "0*|*[Cc][Pp][Uu]*|*[Ss][Oo][Cc]*|*[Ss]kin*|*[Bb]att*|*pkg*"


@dataclass(frozen=True)
class Sampling:
    """What a kind of device is asked while a program runs.

    Attributes:
        parse: Reads the state in the lines of a reading.
        rarely: A command that takes longer than reading files, such as a request to a service of
            the system; it runs about every ten seconds, and never in the first ten.
    """

    parse: Callable[[str], DeviceState] = sampling.sampled_state
    rarely: str = ""


def _periods() -> str:
    """Makes the period longer, as `sampling.period_s` says."""
    return "; ".join(f"[ $n != {n} ] || every={s}" for n, s in sampling.PERIODS.items() if n)


def loop_lines(chosen: Sampling) -> tuple[str, ...]:
    """Starts the loop; `$sampler` is its process id. The working folder is the run's."""
    policy, zones, supplies = (
        f"/sys/{pattern}" for pattern in (sampling.POLICIES, sampling.ZONES, sampling.SUPPLIES)
    )
    return (
        # Emptied here, since the loop may be killed before it has begun.
        f": >{FILE}",
        "(",
        # Prints a file's first line where it can be read.
        'show() { read -r x <"$1" && echo "$1:$x"; }',
        # Keeps files that can be read now.
        'keep() { read -r x <"$1" && files="$files $1"; }',
        f"files=; set -- {policy}; every=$(( ($# + {sampling.MOST - 1}) / {sampling.MOST} )); n=0",
        "for p; do n=$((n + 1)); [ $((n % every)) = 0 ] || continue",
        f"for f in {' '.join(sampling.CONSTANT_OF_POLICY)}; do show $p/$f; done",
        f"for f in {' '.join(sampling.OF_POLICY)}; do keep $p/$f; done; done",
        f"set -- {zones}; all=$#; n=0",
        f"for z; do [ $n -lt {sampling.MOST} ] || break; read -r x <$z/type || continue",
        f"case $(({sampling.MOST} < all))$x in {_CHOSEN_ZONES})",
        "show $z/type; n=$((n + 1)); keep $z/temp;; esac; done",
        f"for s in {supplies}; do read -r x <$s/type && [ $x = Battery ] || continue",
        f"show $s/type; show $s/scope; for f in {' '.join(sampling.OF_BATTERY)}; do keep $s/$f",
        "done; done",
        f"keep {quote('/sys/' + sampling.FIRMWARE)}",
        "n=0; s=0; every=1; at() { read -r t _ </proc/uptime; echo @$t; }; at",
        # Never longer, so that nothing is left for longer when the loop is ended.
        "while sleep 1; do s=$((s + 1)); [ $((s % every)) = 0 ] || continue",
        f"n=$((n + 1)); {_periods()}; at; for f in $files; do show $f; done",
        f"[ $((n % {_SLOWLY})) != 0 ] || {{ {chosen.rarely or ':'}; }}; echo '#end'",
        f"done ) </dev/null 3<&- >{FILE} 2>/dev/null &",
        "sampler=$!",
    )
