"""A model of how settings change a time: a Gaussian process over the values of knobs.

The logarithm of a time is a sum of one effect for each knob's value, of an effect for each pair of
values, and of a rest that only one combination has. How much a knob matters is estimated from the
measurements. What the whole device does in one session (heat, other work) is an effect of that
session, so that combinations measured in different sessions can be compared through those that were
measured in both. Rasmussen and Williams, "Gaussian Processes for Machine Learning" (2006), 2.2 and
5.4, have the formulas; numpy alone computes them, since a grid has some hundred combinations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

# Standard deviations, of the logarithm, that a knob's effects may have.
_EFFECTS = (0.03, 0.07, 0.15, 0.3, 0.6, 1.2)
# Of the effect of a pair by those of its two knobs.
_PAIRS = (0.2, 0.4, 0.7)
_USUAL_EFFECT, _USUAL_PAIRS = 0.3, 0.5
# Of what only one combination has.
_RESTS = (0.04, 0.08)
# Of one session: a warm device is up to half slower, and the search must not depend on it.
_SESSION = 0.3
# Of the common level: nothing is known of it before the first measurement.
_LEVEL = 10.0
_ROUNDS = 2
# Before two starts of one process were seen: as usual on a device that is kept quiet.
USUAL_SPREAD = 0.02
LEAST_SPREAD = 0.004


@dataclass(frozen=True)
class SessionSample:
    """What one session measured of a combination.

    Attributes:
        point: Its number.
        session: The number of the session.
        log_ms: Logarithm of the time that stands for its starts.
        starts: How many starts that is of.
    """

    point: int
    session: int
    log_ms: float
    starts: int


@dataclass(frozen=True)
class KnobKernel:
    """The covariance of two combinations.

    Attributes:
        effects: Standard deviation of the effects of each knob.
        pairs: Of the effects of two knobs' pairs, by the geometric mean of their own.
        rest: Of what only one combination has.
    """

    effects: tuple[float, ...]
    pairs: float
    rest: float

    def __call__(self, same: Floats) -> Floats:
        """The covariances, of which `same` says which values agree."""
        import numpy as np

        effects = np.array(self.effects)
        single = np.tensordot(effects**2, same, 1)
        # The sum over pairs, by the square of a sum less the sum of squares.
        roots = np.tensordot(effects, same, 1)
        pairs = (roots**2 - single) / 2
        equal = same.min(axis=0) if len(self.effects) else np.ones(same.shape[1:])
        result: Floats = _LEVEL**2 + single + self.pairs**2 * pairs + self.rest**2 * equal
        return result


@dataclass(frozen=True)
class Posterior:
    """What is known of every combination, relative to no session.

    Attributes:
        mean: Of the logarithm of the time, by the combination's number.
        variance: The same of its uncertainty.
        across, kernel, codes: From which `difference` computes covariances.
    """

    mean: Floats
    variance: Floats
    across: Floats
    kernel: KnobKernel
    codes: NDArray[np.int64]

    def difference(self, a: int, b: int) -> tuple[float, float]:
        """Mean and standard deviation of B's logarithm less A's."""
        between = self.kernel(_same(self.codes[[a]], self.codes[[b]]))[0, 0]
        between -= self.across[:, a] @ self.across[:, b]
        variance = self.variance[a] + self.variance[b] - 2 * between
        return float(self.mean[b] - self.mean[a]), math.sqrt(max(float(variance), 0.0))


def spread_of_starts(starts: Sequence[Sequence[float]]) -> float:
    """The standard deviation of a start's logarithm, by the starts of many combinations.

    The median over them: a disturbed start must not count for all.

    Args:
        starts: The times of each combination's starts in one session.
    """
    from statistics import median, stdev

    known = [stdev(map(math.log, times)) for times in starts if len(times) > 1]
    return max(LEAST_SPREAD, median(known)) if known else USUAL_SPREAD


def fit(
    features: Sequence[Sequence[str]], samples: Sequence[SessionSample], spread: float
) -> Posterior:
    """Fit the model to what was measured, and predict every combination.

    Args:
        features: The values of the knobs of each combination, in the same order for all.
        samples: At least one.
        spread: Standard deviation of the logarithm of a start.
    """
    import numpy as np

    codes = _codes(features)
    measured = codes[[sample.point for sample in samples]]
    y = np.array([sample.log_ms for sample in samples])
    center = float(np.median(y))
    sessions = np.array([sample.session for sample in samples])
    noise = _SESSION**2 * (sessions[:, None] == sessions[None, :])
    # The fastest of a few values varies about as much as their median.
    noise = noise + np.diag([1.5 * spread**2 / sample.starts for sample in samples])
    inside = _same(measured, measured)
    kernel = _fitted_kernel(inside, y - center, noise)
    factor = np.linalg.cholesky(kernel(inside) + noise + 1e-9 * np.eye(len(samples)))
    across: Floats = np.asarray(
        np.linalg.solve(factor, kernel(_same(measured, codes))), dtype=np.float64
    )
    mean: Floats = across.T @ np.linalg.solve(factor, y - center) + center
    alone = float(kernel(np.ones((codes.shape[1], 1, 1)))[0, 0])
    variance: Floats = np.maximum(alone - (across**2).sum(axis=0), 0.0)
    return Posterior(mean, variance, across, kernel, codes)


def _codes(features: Sequence[Sequence[str]]) -> NDArray[np.int64]:
    """The values as numbers, a row for each combination."""
    import numpy as np

    columns = []
    for column in zip(*features, strict=True):
        places = {value: place for place, value in enumerate(dict.fromkeys(column))}
        columns.append([places[value] for value in column])
    codes: NDArray[np.int64] = np.array(columns, dtype=np.int64).reshape(-1, len(features)).T
    return codes


def _same(a: NDArray[np.int64], b: NDArray[np.int64]) -> Floats:
    """For each knob, whether combinations of A and B have the same value: 1 or 0."""
    same: Floats = (a.T[:, :, None] == b.T[:, None, :]).astype(float)
    return same


def _prior(kernel: KnobKernel) -> float:
    """How usual a kernel is: a few measurements say little, and would be trusted too much."""
    away = [math.log(effect / _USUAL_EFFECT) for effect in kernel.effects]
    away.append(math.log(kernel.pairs / _USUAL_PAIRS))
    return -0.5 * sum(x * x for x in away)


def _fitted_kernel(inside: Floats, y: Floats, noise: Floats) -> KnobKernel:
    """The kernel under which the measurements are most likely, one parameter after the other."""
    import numpy as np

    def likelihood(kernel: KnobKernel) -> float:
        matrix = kernel(inside) + noise + 1e-9 * np.eye(len(y))
        factor = np.linalg.cholesky(matrix)
        z = np.linalg.solve(factor, y)
        fitted = -0.5 * z @ z - np.log(np.diag(factor)).sum()
        return float(fitted + _prior(kernel))

    best = KnobKernel((_USUAL_EFFECT,) * len(inside), _USUAL_PAIRS, _RESTS[0])
    for _ in range(_ROUNDS):
        for index in range(len(inside)):
            tried = [
                KnobKernel(
                    (*best.effects[:index], e, *best.effects[index + 1 :]), best.pairs, best.rest
                )
                for e in _EFFECTS
            ]
            best = max(tried, key=likelihood)
        best = max((KnobKernel(best.effects, p, best.rest) for p in _PAIRS), key=likelihood)
        best = max((KnobKernel(best.effects, best.pairs, r) for r in _RESTS), key=likelihood)
    return best
