"""What is found of a night, as values."""

from __future__ import annotations

from etdeploy.compare.model import Ratio
from etdeploy.core.values import Kind, Value


class VerdictKind(Kind):
    """What was found of a number, or of a recipe on a device."""

    REGRESSED = "regressed"
    SUSPECTED = "suspected"
    """Worse than single nights usually are, but so would be some of as many pairs by chance. It
    has regressed if the next night finds the same."""
    IMPROVED = "improved"
    NO_DIFFERENCE = "no difference found"
    NOT_JUDGED = "not judged"


# The worst first.
ORDER = tuple(VerdictKind)


class NightFinding(Value):
    """One number of a night's repeats, judged.

    Attributes:
        metric: Its name; `outputs` for whether the outputs are right.
        kind: What was found.
        values: Of the repeats that count.
        value: Their median.
        expected: Median over the earlier nights.
        ratio: Value by expected, with bounds that contain 1 for 95 of 100 nights in which nothing
            changed; null where it was not judged.
        z: The distance in standard deviations between nights; positive where it is worse.
        chance: That an unchanged night is as much worse; null where it was not judged.
        nights: How many earlier nights it was judged by.
        within_percent: Standard deviation between repeats of one night; null with too few.
        reason: In a sentence.
        disturbed: Whether something disturbed all the runs, so that the value says little.
    """

    metric: str
    kind: VerdictKind
    values: tuple[float, ...] = ()
    value: float | None = None
    expected: float | None = None
    ratio: Ratio | None = None
    z: float | None = None
    chance: float | None = None
    nights: int = 0
    within_percent: float | None = None
    reason: str = ""
    disturbed: bool = False


class Since(Value):
    """When a number became worse, and between which commits.

    Attributes:
        metric: Name of the metric.
        run_id: The first run of the new level.
        started_at: When it started, in UTC.
        before_run_id: The last run of the level before.
        before: Level before.
        after: Level since.
        old_revision: Commit of the recipe's folder in the last run before; null outside a
            repository.
        new_revision: The same in the first run after.
        differs: What else is different between these two runs.
        dated: Whether earlier nights show it, too. If not, it lies between the last night and this
            one.
    """

    metric: str
    run_id: str
    started_at: str
    before_run_id: str
    before: float
    after: float
    old_revision: str | None
    new_revision: str | None
    differs: tuple[str, ...] = ()
    dated: bool = False

    @property
    def commits(self) -> str:
        """`OLD..NEW` for git; empty where they are unknown or the same."""
        if not self.old_revision or not self.new_revision:
            return ""
        same = self.old_revision == self.new_revision
        return "" if same else f"{self.old_revision[:12]}..{self.new_revision[:12]}"


class PairVerdict(Value):
    """One recipe on one device, judged by the repeats of a night.

    Attributes:
        recipe: The label of the recipe.
        identity: Of the device.
        device: As a person tells devices apart.
        series: Key of the series in the history; empty where the history has no record.
        run_ids: Of the night, in the order of their start.
        kind: The worst of the findings.
        findings: One for each number.
        reason: Why, in a sentence.
        since: When it became worse; null where nothing did.
        remedy: What to do, if possible a command to copy.
        blocked: Whether it is not judged for a reason that more nights do not remove: every run was
            disturbed, the baseline has too few nights, or the records are missing. False for one
            that is new, and for simulated runs, which have no times.
    """

    recipe: str
    identity: str
    device: str
    series: str
    run_ids: tuple[str, ...]
    kind: VerdictKind
    findings: tuple[NightFinding, ...] = ()
    reason: str = ""
    since: Since | None = None
    remedy: str = ""
    blocked: bool = False

    def finding(self, metric: str) -> NightFinding | None:
        """What was found of one number."""
        return next((each for each in self.findings if each.metric == metric), None)
