"""The sentence that names what an inference waits for most, with the remedy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from etdeploy.backends.schemes import OTHER_BACKEND
from etdeploy.profile.calls import (
    COPY,
    INDEX_PUT,
    MOVING,
    REST,
    RUNTIME,
    VIEWS,
    kind_of,
)
from etdeploy.profile.model import OperatorTime

# Below this share something is not worth a sentence of its own.
_MUCH = 0.25
# The runtime's own work for each call; above it, calls are what is expensive.
_MANY_CALLS = 10
_MOVED = {
    COPY: "copies into the model's state",
    INDEX_PUT: "writing into parts of tensors (index_put)",
    VIEWS: "copies that only change the layout of tensors",
}


@dataclass(frozen=True)
class Circumstances:
    """What remedies depend on.

    Attributes:
        backend: None for a finished program.
        cores: Of the device; None if unknown.
        threaded: Whether one of the backends uses the runner's threads.
        schemes: Quantizations with fewer bits that the backend supports.
        tracer: The tracer's share of the traced inference, most of it between operators.
        whole: What was traced: "an inference".
    """

    backend: str | None
    threads: int
    cores: int | None
    threaded: bool
    schemes: tuple[str, ...]
    tracer: float = 0.0
    whole: str = "an inference"


@dataclass(frozen=True)
class _Group:
    """Operators of one name."""

    name: str
    delegate: str
    share: float
    calls: int
    places: tuple[str, ...]
    reasons: tuple[str, ...]

    @property
    def where(self) -> str:
        """`in layers.0.norm`, or `in 9 modules`."""
        known = [place for place in self.places if place]
        if not known:
            return ""
        return f" in {known[0]}" if len(known) == 1 else f" in {len(known)} modules"

    @property
    def times(self) -> str:
        return "one call" if self.calls == 1 else f"{self.calls} calls"


def bottleneck_of(
    operators: Iterable[OperatorTime], shares: Mapping[str, float], about: Circumstances
) -> str:
    """The sentence."""
    tracer = min(about.tracer, shares[RUNTIME])
    groups = _groups(operators, 1.0 - tracer)
    if not groups:
        return "The trace has no operators."
    shares = {**shares, RUNTIME: shares[RUNTIME] - tracer}
    shares = {kind: share / (1.0 - tracer) for kind, share in shares.items()}
    sentence = _sentence(groups, shares, about)
    return f"Without the tracer's own work, {sentence}" if tracer else sentence


def _sentence(groups: list[_Group], shares: Mapping[str, float], about: Circumstances) -> str:
    moved = sum(shares.get(kind, 0.0) for kind in MOVING)
    if shares[RUNTIME] >= max(_MUCH, moved, shares[REST]):
        return _runtime(shares[RUNTIME], groups, about)
    if moved >= max(_MUCH, shares[REST]):
        return _moving(moved, shares, groups, about)
    if shares[REST] >= _MUCH:
        return _kernel(shares[REST], groups, about)
    return _delegate(groups, shares, about)


def _runtime(share: float, groups: list[_Group], about: Circumstances) -> str:
    calls = sum(group.calls for group in groups)
    text = f"{_percent(share)} of {about.whole} is in no operator: the runtime calls {calls}"
    if calls < _MANY_CALLS:
        return f"{text}, and the model is small for a measurement of its parts."
    return f"{text}, and each call costs time of its own. Larger partitions have fewer calls."


def _moving(
    share: float, shares: Mapping[str, float], groups: list[_Group], about: Circumstances
) -> str:
    kind = max(MOVING, key=lambda each: shares.get(each, 0.0))
    most = next(g for g in groups if not g.delegate and kind_of(g.name) == kind)
    text = (
        f"{_percent(share)} of {about.whole} moves values without computing: mostly "
        f"{_MOVED[kind]}, {most.name} ({most.times}{most.where})"
    )
    if about.backend == "portable":
        return f"{text}. {OTHER_BACKEND}"
    if kind == VIEWS:
        return f"{text}. {_outside(most)}Keep one layout in the model's code, where that is yours."
    return (
        f"{text}. {_outside(most)}Write less of the state in each inference: a shorter cache, or "
        "an operator of your own that writes in place (export.custom_ops)."
    )


def _kernel(share: float, groups: list[_Group], about: Circumstances) -> str:
    most = next(g for g in groups if not g.delegate and kind_of(g.name) == REST)
    text = (
        f"{_percent(most.share)} of {about.whole} is {most.name} on the CPU's kernels "
        f"({most.times}{most.where}); all kernels that compute there have {_percent(share)}"
    )
    if about.backend == "portable":
        return f"{text}. {OTHER_BACKEND}"
    return f"{text}. {_outside(most)}".rstrip()


def _delegate(groups: list[_Group], shares: Mapping[str, float], about: Circumstances) -> str:
    delegates = [g for g in groups if g.delegate]
    if not delegates:
        most = groups[0]
        return f"No kind of work stands out: {most.name} has {_percent(most.share)}."
    backend = max({g.delegate for g in delegates}, key=lambda each: shares.get(each, 0.0))
    most = next(g for g in delegates if g.delegate == backend)
    text = f"{_percent(shares[backend])} of {about.whole} is in {backend}"
    calls = [g for g in delegates if g.delegate == backend and g.name.startswith(backend)]
    around = sum(g.share for g in calls)
    if around >= _MUCH and len(calls) < len([g for g in delegates if g.delegate == backend]):
        count = sum(g.calls for g in calls)
        return (
            f"{text}, {_percent(around)} around its nodes: tensors go into and out of "
            f"{count} partitions. What separates them runs on the CPU's kernels."
        )
    if not most.name.startswith(backend):
        text += f", {_percent(most.share)} in {most.name} ({most.times}{most.where})"
    return f"{text}. {_faster(about)}".rstrip()


def _faster(about: Circumstances) -> str:
    if about.threaded and about.threads == 1 and (about.cores or 1) > 1:
        return f"One of {about.cores} cores works: --set runtime.threads=auto"
    if about.schemes:
        return f"Fewer bits may make it faster: export.quantization ({', '.join(about.schemes)})."
    return ""


def _outside(group: _Group) -> str:
    """Why the backend did not take it, if the export says so."""
    return f"No backend took it: {group.reasons[0]}. " if len(group.reasons) == 1 else ""


def _groups(operators: Iterable[OperatorTime], whole: float) -> list[_Group]:
    """By name and delegate, the most expensive first; shares are of `whole` of the inference."""
    found: dict[tuple[str, str], list[OperatorTime]] = {}
    for each in operators:
        found.setdefault((each.name, each.delegate), []).append(each)
    groups = [
        _Group(
            name=name,
            delegate=delegate,
            share=sum(each.share for each in same) / whole,
            calls=sum(each.calls for each in same),
            places=tuple(dict.fromkeys(each.module for each in same)),
            reasons=tuple({each.not_delegated: 0 for each in same if each.not_delegated}),
        )
        for (name, delegate), same in found.items()
    ]
    return sorted(groups, key=lambda group: -group.share)


def _percent(share: float) -> str:
    return f"{share:.0%}"
