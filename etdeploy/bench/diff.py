"""Locates the first wrong node of a program by observing its nodes in rounds.

In the first round all nodes are observed that fit. If a node is wrong, those from which its value
is computed are observed next, until there is one. More outputs may keep a backend from fusing
operators, and a fault may vanish with that: then fewer nodes are observed at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from etdeploy.bench.records.outputs import OutputCheck
from etdeploy.core.values import Value
from etdeploy.export.diff import (
    ModelNode,
    NodeError,
    ObservedGraph,
    Replay,
    RewriteError,
    Sensitivity,
)
from etdeploy.export.spec import NodeObservation

MOST_ROUNDS = 12
# Nodes of the next attempt by those of one that failed, or in which the fault vanished.
_FEWER = 16
_FIRST_FEWER = 64

Stage = Literal["none", "random", "undefined", "rewrite", "backend", "accumulated", "vanished"]


class DiffRound(Value):
    """One program with observed nodes.

    Attributes:
        observed: How many nodes it returned.
        failed: Why it could not be made or run; None if it was.
        outputs_wrong: Whether the model's own outputs were wrong in it.
        first_wrong: The first wrong node; None if there was none.
    """

    observed: int
    failed: str | None = None
    outputs_wrong: bool = False
    first_wrong: str | None = None


class SuggestedOverrides(Value):
    """Modules with another scheme, and what that gains.

    Attributes:
        modules: Patterns of `export.overrides`.
        scheme: Theirs.
        before, after: Root mean square of the quantization's error by that of the output; the
            worst output's.
        weights_percent: Of the weights, how many have that scheme.
        exported: Whether both were measured by exports, or computed with the quantized weights of
            one.
    """

    modules: tuple[str, ...]
    scheme: str
    before: float
    after: float
    weights_percent: float
    exported: bool = True

    @property
    def yaml(self) -> str:
        """The section of a recipe."""
        lines = [f"    {_quoted(module)}: {self.scheme}" for module in self.modules]
        return "\n".join(["export:", "  overrides:", *lines])


def _quoted(module: str) -> str:
    return f'"{module}"'


class DiffReport(Value):
    """What comparing a program with eager found.

    Attributes:
        recipe, device, backend, quantization: Of the program.
        stage: Where the first fault is: `none` if all is as exact as the scheme, `random` if eager
            gives something else each time, `undefined` if eager gives NaN, `rewrite` of the graph,
            `backend` for lowering and runtime, `accumulated` if the outputs are wrong and no node
            alone is, `vanished` if they are right as soon as nodes are observed.
        outputs: The check of the program's own outputs, as a run makes it.
        culprit: The first wrong node; None unless the stage is `backend`.
        region: The nodes among which the fault is, if they could not be told apart.
        errors: Of every observed node, in the graph's order.
        rewrite_error: The first value that rewrites change; None if they change none.
        random: The nodes whose eager values differ between two evaluations.
        undefined: The first node whose eager value has NaN, and whose inputs have none.
        undefined_inputs: Inputs with NaN or infinite values.
        rounds: The programs that were made.
        sensitivity: Of a quantized model.
        overrides: The suggestion; None if there is none.
        notes: Sentences for the user.
    """

    recipe: str
    device: str
    backend: str
    quantization: str
    stage: Stage
    outputs: tuple[OutputCheck, ...]
    culprit: NodeError | None = None
    region: tuple[ModelNode, ...] = ()
    errors: tuple[NodeError, ...] = ()
    rewrite_error: RewriteError | None = None
    random: tuple[ModelNode, ...] = ()
    undefined: ModelNode | None = None
    undefined_inputs: tuple[str, ...] = ()
    rounds: tuple[DiffRound, ...] = ()
    sensitivity: Sensitivity | None = None
    overrides: SuggestedOverrides | None = None
    notes: tuple[str, ...] = ()

    @property
    def wrong_outputs(self) -> list[OutputCheck]:
        """The program's outputs that are not within tolerance."""
        return [check for check in self.outputs if check.within_tolerance is False]


@dataclass(frozen=True)
class ObservedRun:
    """A program with observed nodes after its run.

    Attributes:
        graph: What it observed.
        replay: The errors of the observed nodes.
        outputs_wrong: Whether the model's own outputs are not within tolerance.
    """

    graph: ObservedGraph
    replay: Replay
    outputs_wrong: bool


# Runs a program with these nodes observed; a text says why there is none.
Observe = Callable[[NodeObservation], ObservedRun | str]


@dataclass
class Search:
    """The search for the first wrong node.

    Attributes:
        observe: Makes and runs a program.
        outputs_wrong: Whether the outputs of the program without observed nodes are wrong.
        sensitivity: Whether the first program's export also measures what quantization costs.
    """

    observe: Observe
    outputs_wrong: bool
    sensitivity: bool = False
    rounds: list[DiffRound] = field(default_factory=list)
    first: ObservedRun | None = None
    culprit: NodeError | None = None
    region: tuple[str, ...] = ()
    failure: str | None = None

    def run(self) -> None:
        """Sets `first`, the run with most nodes, and if a node is wrong `culprit` and `region`."""
        most: int | None = None
        while True:
            run = self._observed(self._widest(most))
            count = len(self._nodes(run)) if run else most or NodeObservation().most
            if run and self.first is None:
                self.first = run
            wrong = first_wrong(run.replay.errors) if run else None
            if run and wrong:
                self._narrow(run, wrong, few=most is not None)
                return
            if run and (run.outputs_wrong or not self.outputs_wrong):
                return  # nothing is wrong, or no node alone
            if count <= 1 or len(self.rounds) >= MOST_ROUNDS:
                return
            most = min(_FIRST_FEWER, max(1, count // _FEWER))

    def _widest(self, most: int | None) -> NodeObservation:
        wanted = NodeObservation(sensitivity=self.sensitivity and self.first is None)
        return wanted if most is None else wanted.model_copy(update={"most": most})

    def _observed(self, observation: NodeObservation) -> ObservedRun | None:
        found = self.observe(observation)
        if isinstance(found, str):
            count = len(observation.nodes or ()) or observation.most
            self.rounds.append(DiffRound(observed=count, failed=found))
            self.failure = found
            return None
        wrong = first_wrong(found.replay.errors)
        self.rounds.append(
            DiffRound(
                observed=len(self._nodes(found)),
                outputs_wrong=found.outputs_wrong,
                first_wrong=wrong.node.name if wrong else None,
            )
        )
        return found

    @staticmethod
    def _nodes(run: ObservedRun) -> tuple[str, ...]:
        return run.graph.observed

    def _narrow(self, run: ObservedRun, wrong: NodeError, *, few: bool) -> None:
        """Observes what a wrong value is computed from, until only one node is left."""
        self.culprit, self.region = wrong, wrong.segment
        while len(self.rounds) < MOST_ROUNDS:
            names = {node.name for node in run.graph.nodes}
            inner = [name for name in wrong.segment if name in names and name != wrong.node.name]
            if not inner:
                return
            chosen = [inner[len(inner) // 2]] if few else inner
            ends = [wrong.node.name] if wrong.node.name in names else []
            nodes = (*(s for s in wrong.sources if s in names), *chosen, *ends)
            closer = self._observed(NodeObservation(nodes=nodes))
            found = self._again(closer, wrong, chosen) if closer else None
            if closer is None or found is None:
                if few or len(chosen) == 1:
                    return  # the region stays as it is
                few = True
                continue
            run, wrong = closer, found
            self.culprit, self.region = wrong, wrong.segment

    @staticmethod
    def _again(run: ObservedRun, wrong: NodeError, chosen: Sequence[str]) -> NodeError | None:
        """The first wrong node among those that were chosen and the one that was wrong before."""
        own = {*chosen, wrong.node.name}
        return first_wrong([e for e in run.replay.errors if e.node.name in own])


def first_wrong(errors: Sequence[NodeError]) -> NodeError | None:
    """The first node whose local error exceeds what is allowed."""
    return next((each for each in errors if each.strain > 1), None)


def stage_of(search: Search) -> Stage:
    """Where the first fault is."""
    run = search.first
    if run and run.replay.random:
        return "random"
    if run and (run.replay.undefined or run.replay.undefined_inputs) and not search.culprit:
        return "undefined"
    if run and run.graph.rewrite_error:
        return "rewrite"
    if search.culprit:
        return "backend"
    if not search.outputs_wrong:
        return "none"
    return "accumulated" if run and run.outputs_wrong else "vanished"
