"""One search on one device: proposes, exports, measures and remembers, until the search ends."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import median

from etdeploy.backends.registry import backend_named
from etdeploy.bench.units import long_time
from etdeploy.compare.model import Comparison, Verdict
from etdeploy.core.commands import quoted
from etdeploy.core.console import count
from etdeploy.core.errors import ExportError, MismatchError, RunError, UsageError
from etdeploy.tune.journal import (
    Compared,
    Found,
    Journal,
    LayersFound,
    ProgramFailed,
    ProgramMade,
    TimeSpent,
)
from etdeploy.tune.metrics import (
    ERROR,
    LATENCY,
    METRICS,
    PERPLEXITY,
    SIZE,
    Figures,
    Limit,
    breaches,
)
from etdeploy.tune.search import (
    EndReason,
    Finished,
    Knowledge,
    Phase,
    Proposal,
    Ranking,
    SessionTimes,
    propose,
    rank,
)
from etdeploy.tune.space import (
    ATTENTION,
    CACHE,
    OVERRIDES,
    PREFILL,
    REWRITES,
    RUN_KEYS,
    Combination,
    Space,
    canonical,
)
from etdeploy.tune.workbench import STARTS, Workbench

# Importing PyTorch and ExecuTorch alone takes as long on a fast machine.
LEAST_EXPORT_S = 8.0
# Before anything was exported or measured.
_GUESSED_EXPORT_S, _GUESSED_MEASURE_S = 40.0, 8.0
# Pairs of the comparison at the end, as `etdeploy compare`; fewer if the budget has no room.
_PAIRS, _FEWEST_PAIRS = 10, 4
_RESERVED = 0.25
# A smaller difference is none where combinations are equally fast.
_NOTICEABLE = {ERROR: 0.1, PERPLEXITY: 0.005, SIZE: 0.05}
# Keys that hardly change error and perplexity: another cache moves the perplexity of
# SmolLM2-135M-Instruct by up to 0.4 %.
_QUALITY_NEUTRAL = frozenset({ATTENTION, CACHE, PREFILL, REWRITES, *RUN_KEYS})
_SURELY = 1.01
# A combination that may be slower by more is not taken for what is better in other numbers.
_MOST_SLOWER = 1.05
HIGH_LOSS = (
    "etdeploy warns of its quantization loss; a limit on error or perplexity decides otherwise"
)


@dataclass(frozen=True)
class Goal:
    """What is searched for.

    Attributes:
        minimize: Name of the metric.
        limits: What the result may not exceed.
        budget_s: For everything; infinite for none.
    """

    minimize: str
    limits: tuple[Limit, ...] = ()
    budget_s: float = math.inf

    @property
    def metrics(self) -> frozenset[str]:
        """Names of all that are used."""
        return frozenset((self.minimize, *(limit.metric for limit in self.limits)))

    @property
    def judges_quality(self) -> bool:
        """Whether the user says how exact the result has to be."""
        return bool(self.metrics & {ERROR, PERPLEXITY})


@dataclass
class Tuned:
    """What a search on one device ended with.

    Attributes:
        space: All combinations.
        found: Everything that was measured.
        goal: What was searched for.
        excluded: Combinations that cannot be the result, with the reason, by number.
        ranking: The others that were measured, the best first.
        reason: Why the search ended.
        best: The result; None if nothing meets the limits.
        comparisons: Of the result with others that were measured beside it, start by start.
        preference: Why the result was chosen among combinations that are equally fast.
    """

    space: Space
    found: Found
    goal: Goal
    excluded: dict[int, str]
    ranking: Ranking
    reason: EndReason
    best: int | None
    comparisons: list[tuple[int, Comparison]] = field(default_factory=list)
    preference: str = ""

    def figures(self, number: int) -> Figures:
        """All numbers of a combination, those that its export gave included."""
        candidate = self.space.candidates[number]
        made = self.found.programs.get(candidate.program)
        return {**(made.figures if made else {}), **self.found.figures.get(candidate.key, {})}


@dataclass
class Tuner:
    """The search on one device.

    Attributes:
        bench: Exports and measures.
        journal: What earlier processes found.
        goal: What is searched for.
        make_space: The space, given the layers that are known.
        tell: Shows a line.
    """

    bench: Workbench
    journal: Journal
    goal: Goal
    make_space: Callable[[tuple[str, ...]], Space]
    tell: Callable[[str], None]
    estimated_export_s: float | None = None

    def run(self) -> Tuned:
        """Search until the search ends or the budget is used up, then compare the best ones.

        Raises:
            UsageError: The budget is shorter than one export.
            MismatchError: The outputs of the recipe as it is are not the model's.
            DeviceError: The device is gone; what was measured is in the journal.
        """
        space = self.make_space(self.journal.found.layers or ())
        self._require_budget(space)
        base = Proposal((0,), Phase.BASE)
        if space.candidates[0].key not in self.journal.found.figures:
            self._make_programs(space, base)
            # Also if it breaks a limit: others are measured against it.
            self._measure(space, base)
            if self._finds_layers(space):
                space = self.make_space(self.journal.found.layers or ())
        while True:
            known, excluded = self._knowledge(space)
            step = propose(space.points, known)
            if isinstance(step, Finished):
                break
            if not self._make_programs(space, step):
                continue  # a new program breaks a limit: the proposal is another one
            self._measure(space, step)
        known, excluded = self._knowledge(space)
        ranking = rank(space.points, known)
        tuned = Tuned(
            space, self.journal.found, self.goal, excluded, ranking, step.reason, ranking.best
        )
        if ranking.best is not None:
            self._decide(tuned)
        return tuned

    @property
    def left_s(self) -> float:
        """The rest of the budget."""
        return self.goal.budget_s - self.journal.found.spent_s

    def _require_budget(self, space: Space) -> None:
        """Raise UsageError if a new search has no time for a single export."""
        if self.journal.found.spent_s or space.programs < 2:
            return
        takes_s = self.estimated_export_s
        if self.goal.budget_s < (takes_s or LEAST_EXPORT_S):
            takes = "takes about" if takes_s else "takes at least"
            raise _short_budget(self.goal.budget_s, takes_s or LEAST_EXPORT_S, takes)

    def _knowledge(self, space: Space) -> tuple[Knowledge, dict[int, str]]:
        found = self.journal.found
        known, excluded = knowledge_of(space, found, self.goal)
        known = replace(
            known,
            export_s=self.export_s,
            measure_s=self.measure_s,
            left_s=self.left_s - self._reserved_s(),
        )
        return known, excluded

    @property
    def export_s(self) -> float:
        """What an export takes, by those that were made."""
        found = self.journal.found.export_s
        return median(found) if found else self.estimated_export_s or _GUESSED_EXPORT_S

    @property
    def measure_s(self) -> float:
        """What a combination takes in a session, by the last ones."""
        known = self.journal.found.measure_s
        return median(known[-5:]) if known else _GUESSED_MEASURE_S

    def _reserved_s(self) -> float:
        """What two comparisons at the end take, at most a quarter of the budget."""
        if math.isinf(self.goal.budget_s) or self.goal.minimize != LATENCY:
            return 0.0
        return min(_RESERVED * self.goal.budget_s, self._pair_s() * _PAIRS * 2)

    def _pair_s(self) -> float:
        return 2 * self.measure_s / STARTS

    @contextmanager
    def _counted(self, what: str) -> Iterator[None]:
        """Count the time of a block that fails or is stopped; others are events of their own."""
        began_s = time.monotonic()
        try:
            yield
        except BaseException:
            self.journal.append(TimeSpent(what=what, seconds=time.monotonic() - began_s))
            raise

    def _make_programs(self, space: Space, step: Proposal) -> bool:
        """Export what a step needs; False if that excludes a combination of it."""
        found = self.journal.found
        candidates = [space.candidates[number] for number in step.points]
        missing = {c.program: c for c in candidates if c.program not in found.programs}
        for program, candidate in missing.items():
            self._say(space, f"exporting {candidate.label}")
            with self._counted("an export that did not end"):
                [event] = self.bench.make([program], candidate.label)
                if program == space.candidates[0].program:
                    self._require_base(event)
            self.journal.append(event)
            if self.left_s <= 0 and not found.sessions:
                raise _short_budget(self.goal.budget_s, event.seconds, "took")
        now = exclusions(space, found, self.goal)
        return not any(number in now for number in step.points)

    def _require_base(self, event: ProgramMade | ProgramFailed) -> None:
        """Raise ExportError if the recipe as it is gives no program; a later search tries again."""
        if isinstance(event, ProgramFailed):
            raise ExportError(
                f"the recipe as it is gives no program: {event.reason}",
                remedy=f"Build it alone for all details: {self._command('build')}",
            )

    def _measure(self, space: Space, step: Proposal) -> None:
        found = self.journal.found
        candidates = [space.candidates[number] for number in step.points]
        with self._counted("a session that did not end"):
            session = self.bench.measure(candidates, found.figures, str(step.phase), STARTS)
        self.journal.append(session)
        self._require_base_runs(space)
        self._say(space)

    def _command(self, verb: str) -> str:
        """A command line for the recipe as it is."""
        device = quoted(self.bench.device.device.name)
        return f"etdeploy {verb} --recipe {quoted(self.bench.base.path)} --device {device}"

    def _require_base_runs(self, space: Space) -> None:
        """Raise if the recipe as it is fails, or gives other outputs than the model."""
        found, base = self.journal.found, space.candidates[0].key
        if base in found.failures and base not in found.figures:
            raise RunError(
                f"the recipe as it is fails on {self.bench.device.device.name}: "
                f"{found.failures[base]}",
                remedy=f"Run it alone for all details: {self._command('run')}",
            )
        if wrong := found.wrong_outputs.get(base):
            raise MismatchError(
                f"the recipe as it is gives other outputs than the eager model ({wrong}), so no "
                "combination can be judged",
                remedy="If the model draws random numbers (dropout, torch.rand), switch that off, "
                "for example with module.eval().\n"
                f"Otherwise: {self._command('run')} explains the difference, and "
                "benchmark.tolerance widens the limits.\n"
                "Then search again from the beginning: --again",
            )

    def _finds_layers(self, space: Space) -> bool:
        """Look for the layers, once, where a scheme can leave some out; True if there are any."""
        found = self.journal.found
        recipe = self.bench.base.recipe
        if found.layers is not None or not found.sessions:
            return False
        offered = any(
            backend_named(str(value)).with_floats or backend_named(str(value)).overrides
            for knob in space.knobs
            if knob.key == "export.backend"
            for value in knob.values
        ) or bool(backend_named(recipe.export.backend).with_floats)
        wanted = any(out.key == OVERRIDES and "profile" in out.reason for out in space.left_out)
        if not offered or not wanted or space.candidates[0].key not in found.figures:
            return False
        began_s = time.monotonic()
        with self._counted("a profile that did not end"):
            layers = self.bench.profile_layers(space.candidates[0])
        self.journal.append(LayersFound(layers=layers, seconds=time.monotonic() - began_s))
        return bool(layers)

    def _say(self, space: Space, what: str = "") -> None:
        """One line: how much was measured, what is best, and how much time is left."""
        found = self.journal.found
        known, _ = self._knowledge(space)
        ranking = rank(space.points, known)
        metric = METRICS[self.goal.minimize]
        parts = [f"{len(known.measured)} of {len(space.candidates)} measured"]
        if ranking.best is not None:
            best = space.candidates[ranking.best]
            value = found.figures.get(best.key, {}).get(metric.name)
            shown = f"{metric.show(value)} " if value is not None else ""
            parts.append(f"best {shown}({best.label})")
        if not math.isinf(self.goal.budget_s):
            parts.append(f"{long_time(max(0.0, self.left_s))} left")
        self.tell("; ".join(parts + ([what] if what else [])))

    def _decide(self, tuned: Tuned) -> None:
        """Compare the best with the runner-up and with the recipe as it is, start by start.

        Of two that are equally fast, the more exact, the smaller, or the simpler one is the result.
        """
        if self.goal.minimize != LATENCY or tuned.best is None:
            return
        runner_up = next(iter(tuned.ranking.order[1:]), None)
        if runner_up is not None and (comparison := self._compare(tuned, tuned.best, runner_up)):
            if comparison.verdict == Verdict.FASTER:
                tuned.best = runner_up
                tuned.preference = "it was faster than the first of the search, start by start"
            elif comparison.verdict == Verdict.NO_DIFFERENCE:
                self._prefer(tuned, runner_up, comparison)
        if not tuned.best or runner_up == 0 or 0 not in tuned.ranking.order:
            return
        comparison = self._compare(tuned, tuned.best, 0)
        if comparison and comparison.verdict == Verdict.NO_DIFFERENCE:
            self._prefer(tuned, 0, comparison)

    def _pairs(self) -> int:
        """How many pairs of starts the rest of the budget has room for; 0 for too few."""
        if math.isinf(self.left_s):
            return _PAIRS
        pairs = min(_PAIRS, int(self.left_s / max(self._pair_s(), 0.1)))
        return pairs if pairs >= _FEWEST_PAIRS else 0

    def _compare(self, tuned: Tuned, a: int, b: int) -> Comparison | None:
        """B measured against A, now or before; None if the budget has no room for it."""
        first, second = tuned.space.candidates[a], tuned.space.candidates[b]
        known = self.journal.found.comparisons.get((first.key, second.key))
        if known is None:
            pairs = self._pairs()
            known = self._measure_pairs(first, second, pairs) if pairs else None
        if known is not None:
            tuned.comparisons.append((b, known))
        return known

    def _measure_pairs(self, a: Combination, b: Combination, pairs: int) -> Comparison:
        from etdeploy.compare.runs import compare_runs

        began_s = time.monotonic()
        self.tell(f"comparing {a.label} with {b.label}, {count(pairs, 'pair')} of starts")
        with self._counted("a comparison that did not end"):
            found = compare_runs(*self.bench.compare(a, b, pairs))
        named = {
            "a": found.a.model_copy(update={"name": a.label}),
            "b": found.b.model_copy(update={"name": b.label}),
        }
        found = found.model_copy(update=named)
        seconds = time.monotonic() - began_s
        self.journal.append(Compared(a=a.key, b=b.key, comparison=found, seconds=seconds))
        return found

    def _prefer(self, tuned: Tuned, other: int, comparison: Comparison) -> None:
        """Take the other one, which is as fast, if it is better in anything else."""
        if tuned.best is None or comparison.ratio is None:
            return
        if (comparison.ratio.high or math.inf) > _MOST_SLOWER:
            name = tuned.space.candidates[other].label
            tuned.preference = (
                f"the search estimates it to be faster; beside {name}, the device was too busy to "
                "tell"
            )
            return
        reason = preference(
            tuned.space.candidates[other], tuned.figures(other),
            tuned.space.candidates[tuned.best], tuned.figures(tuned.best),
        )  # fmt: skip
        label = tuned.space.candidates[tuned.best].label
        if reason:
            tuned.preference = f"{label} is not measurably faster, and this one {reason}"
            tuned.best = other
        else:
            name = tuned.space.candidates[other].label
            tuned.preference = f"{name} is not measurably slower, but not better in anything else"


def preference(a: Combination, a_figures: Figures, b: Combination, b_figures: Figures) -> str:
    """In what A is better than B, which is as fast; empty if in nothing."""
    for name, share in _NOTICEABLE.items():
        ours, theirs = a_figures.get(name), b_figures.get(name)
        if ours is None or theirs is None:
            continue
        if ours < theirs * (1 - share):
            return "is smaller" if name == SIZE else "is more exact"
        if ours > theirs * (1 + share):
            return ""
    return "changes less" if len(a.changes) < len(b.changes) else ""


def objective_values(
    series: Mapping[str, Sequence[float]], figures: Figures, metric: str
) -> tuple[float, ...]:
    """What the search minimizes: a value for each start, or the only one; empty without any."""
    values = tuple(series.get(metric, ())) or tuple(
        value for name, value in figures.items() if name == metric
    )
    return values if values and all(0 < value < math.inf for value in values) else ()


def knowledge_of(space: Space, found: Found, goal: Goal) -> tuple[Knowledge, dict[int, str]]:
    """What is known for a decision, without times and budget; what is excluded, and why."""
    excluded = exclusions(space, found, goal)
    place = {candidate.key: number for number, candidate in enumerate(space.candidates)}
    sessions = tuple(
        tuple(
            SessionTimes(place[each.candidate], values)
            for each in session.measured
            if each.candidate in place
            and (values := objective_values(each.series, each.figures, goal.minimize))
        )
        for session in found.sessions
    )
    known = Knowledge(
        sessions=tuple(filter(None, sessions)),
        excluded=frozenset(excluded),
        exported=frozenset(found.programs),
    )
    return known, excluded


def exclusions(space: Space, found: Found, goal: Goal) -> dict[int, str]:
    """The combinations that cannot be the result, by number, each with the reason."""
    figures = found.figures
    base = space.candidates[0]
    made = found.programs.get(base.program)
    reference = {**(made.figures if made else {}), **figures.get(base.key, {})}
    excluded = {}
    inexact = _inexact(space, found, goal, reference)
    for number, candidate in enumerate(space.candidates):
        reason = _exclusion(candidate, found, figures, goal, reference)
        if not reason and candidate.program not in found.programs:
            reason = inexact.get(_quality_key(candidate), "")
        if reason:
            excluded[number] = reason
    return excluded


def _inexact(space: Space, found: Found, goal: Goal, reference: Figures) -> dict[str, str]:
    """Reasons against programs that would be as inexact as one that is beyond a limit."""
    reasons: dict[str, str] = {}
    for candidate in space.candidates:
        if (made := found.programs.get(candidate.program)) is None:
            continue
        broken = breaches(goal.limits, made.figures, reference)
        far = [
            b
            for b in broken
            if b.limit.metric in (ERROR, PERPLEXITY) and b.value > _SURELY * b.bound
        ]
        if far:
            reason = f"{'; '.join(map(str, far))} ({candidate.label})"
            reasons.setdefault(_quality_key(candidate), reason)
    return reasons


def _quality_key(candidate: Combination) -> str:
    return canonical({k: v for k, v in candidate.changes if k not in _QUALITY_NEUTRAL})


def _exclusion(
    candidate: Combination,
    found: Found,
    figures: Mapping[str, Figures],
    goal: Goal,
    reference: Figures,
) -> str:
    if reason := found.program_failures.get(candidate.program):
        return f"it cannot be made: {reason}"
    if (reason := found.failures.get(candidate.key)) and candidate.key not in figures:
        return f"it fails on the device: {reason}"
    if reason := found.wrong_outputs.get(candidate.key):
        return reason
    made = found.programs.get(candidate.program)
    if made is None:
        return ""
    own = {**made.figures, **figures.get(candidate.key, {})}
    if broken := breaches(goal.limits, own, reference):
        return "; ".join(map(str, broken))
    return HIGH_LOSS if made.has_high_loss and not goal.judges_quality else ""


def _short_budget(budget_s: float, export_s: float, takes: str) -> UsageError:
    enough = long_time(max(60.0, 10 * math.ceil(export_s)))
    return UsageError(
        f"the budget of {long_time(budget_s)} is shorter than one export, which {takes} "
        f"{long_time(export_s)}",
        place="--budget",
        remedy=f"Ten exports would take {enough}: --budget {math.ceil(10 * export_s / 60)}min\n"
        "An export that was made stays in the cache.",
    )
