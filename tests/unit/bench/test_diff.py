"""The search for the first wrong node, with a chain of nodes in place of a program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from etdeploy.bench.diff import MOST_ROUNDS, ObservedRun, Search, SuggestedOverrides, stage_of
from etdeploy.export.diff import ModelNode, NodeError, ObservedGraph, Replay, RewriteError
from etdeploy.export.spec import NodeObservation


@dataclass
class Chain:
    """Nodes in a row, of which one is wrong.

    Attributes:
        hidden: Nodes that cannot be observed.
        vanishes: From so many observed nodes on, the fault is gone.
        fails: From so many on, there is no program.
        evenly: How many are observed if no names are given.
    """

    count: int
    wrong: int | None = None
    hidden: frozenset[int] = frozenset()
    vanishes: int | None = None
    fails: int | None = None
    evenly: int = 1000
    asked: list[NodeObservation] = field(default_factory=list)

    @property
    def nodes(self) -> tuple[ModelNode, ...]:
        places = [i for i in range(self.count) if i not in self.hidden]
        return tuple(ModelNode(name=f"n{i}", operator="aten.mul") for i in places)

    def observe(self, observation: NodeObservation) -> ObservedRun | str:
        self.asked.append(observation)
        own = [node for node in self.nodes if node.name != f"n{self.count - 1}"]
        if observation.nodes is None:
            most = min(self.evenly, observation.most)
            stride = -(-len(own) // most)
            chosen = own[stride - 1 :: stride]
        else:
            chosen = [node for node in own if node.name in observation.nodes]
        if self.fails is not None and len(chosen) >= self.fails:
            return "lowering failed"
        is_wrong = self.wrong is not None
        if self.vanishes is not None and len(chosen) >= self.vanishes:
            is_wrong = False
        end = ModelNode(name=f"n{self.count - 1}", operator="aten.mul")
        errors = self._errors([*chosen, end], is_wrong=is_wrong)
        graph = ObservedGraph(
            method="forward", nodes=self.nodes, outputs=(end, *chosen), added=len(chosen)
        )
        return ObservedRun(graph, Replay(errors=tuple(errors)), outputs_wrong=is_wrong)

    def _errors(self, seen: Sequence[ModelNode], *, is_wrong: bool) -> list[NodeError]:
        errors, begin = [], 0
        for node in seen:
            place = int(node.name[1:])
            inside = range(begin, place + 1)
            bad = is_wrong and self.wrong in inside
            errors.append(
                NodeError(
                    node=node,
                    segment=tuple(f"n{i}" for i in inside),
                    sources=(f"n{begin - 1}",) if begin else (),
                    local_error=1.0 if bad else 1e-7,
                    allowed_error=1e-5,
                    accumulated_error=1.0 if bad else 1e-7,
                    relative_error=1.0 if bad else 1e-7,
                    largest=1.0,
                )
            )
            begin = place + 1
        return errors

    def search(self, *, outputs_wrong: bool = True) -> Search:
        search = Search(self.observe, outputs_wrong)
        search.run()
        return search


@pytest.mark.parametrize("wrong", [0, 57, 199])
def test_all_nodes_at_once_take_one_program(wrong: int) -> None:
    search = Chain(200, wrong).search()
    assert search.culprit
    assert search.culprit.node.name == f"n{wrong}"
    assert len(search.rounds) == 1
    assert stage_of(search) == "backend"


@pytest.mark.parametrize("wrong", range(0, 200, 13))
def test_nodes_that_do_not_fit_are_observed_in_a_second_program(wrong: int) -> None:
    chain = Chain(200, wrong, evenly=10)
    search = chain.search()
    assert search.culprit
    assert search.culprit.node.name == f"n{wrong}"
    assert len(search.rounds) == 2 if wrong % 20 != 0 else len(search.rounds) <= 2


@pytest.mark.parametrize("wrong", range(0, 200, 13))
def test_a_fault_that_vanishes_with_many_outputs_is_bisected(wrong: int) -> None:
    chain = Chain(200, wrong, vanishes=10)
    search = chain.search()
    assert search.culprit
    assert search.culprit.node.name == f"n{wrong}"
    assert len(search.rounds) <= MOST_ROUNDS
    assert search.rounds[0].first_wrong is None


def test_a_program_that_does_not_lower_with_many_outputs_is_made_with_fewer() -> None:
    search = Chain(200, 57, fails=20).search()
    assert search.culprit
    assert search.culprit.node.name == "n57"
    assert search.rounds[0].failed == "lowering failed"


def test_a_program_that_never_lowers_ends_the_search() -> None:
    search = Chain(200, 57, fails=0).search()
    assert search.first is None
    assert search.failure == "lowering failed"
    assert len(search.rounds) <= MOST_ROUNDS


def test_nodes_that_cannot_be_observed_apart_are_a_region() -> None:
    search = Chain(200, 57, hidden=frozenset({56, 57})).search()
    assert search.culprit
    assert search.culprit.node.name == "n58"
    assert search.region == ("n56", "n57", "n58")


def test_a_fault_that_vanishes_with_any_output_is_told_from_none() -> None:
    search = Chain(20, 7, vanishes=1).search()
    assert search.culprit is None
    assert stage_of(search) == "vanished"
    right = Chain(20).search(outputs_wrong=False)
    assert right.culprit is None
    assert len(right.rounds) == 1
    assert stage_of(right) == "none"


def test_a_wrong_rewrite_comes_before_a_wrong_node() -> None:
    chain = Chain(20, 7)

    def observe(observation: NodeObservation) -> ObservedRun | str:
        run = chain.observe(observation)
        assert not isinstance(run, str)
        error = RewriteError(node=chain.nodes[3], error=1.0, allowed=0.1, rewrites=("sums",))
        return ObservedRun(
            run.graph.model_copy(update={"rewrite_error": error}), run.replay, run.outputs_wrong
        )

    search = Search(observe, outputs_wrong=True)
    search.run()
    assert stage_of(search) == "rewrite"


def test_values_that_are_undefined_on_one_side_are_wrong() -> None:
    error = Chain(3, 1).observe(NodeObservation())
    assert not isinstance(error, str)
    odd = error.replay.errors[0].model_copy(update={"odd_places": 1, "local_error": 0.0})
    assert odd.strain == float("inf")


def test_overrides_as_a_section_of_a_recipe() -> None:
    suggestion = SuggestedOverrides(
        modules=("blocks.0.fc1", "head"), scheme="none", before=0.1, after=0.04, weights_percent=3
    )
    assert suggestion.yaml == ('export:\n  overrides:\n    "blocks.0.fc1": none\n    "head": none')
