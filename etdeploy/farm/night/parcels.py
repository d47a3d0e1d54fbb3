"""What is exported and built in a running night, for which devices, and what could not be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from etdeploy.farm.model import AttemptFailure, Offer, Parcel, VisitState
from etdeploy.farm.night.background import Background
from etdeploy.farm.night.parts import Prepare, PreparedLike

Pair = tuple[str, str]
"""Label of a recipe, identity of a device."""


class Made:
    """What `prepare` made.

    Attributes:
        of: A parcel for each pair.
        failures: Why there is none.
    """

    def __init__(self, pairs: Sequence[Pair], prepared: PreparedLike) -> None:
        self.pairs, self.of, self.failures = pairs, prepared.parcels, prepared.failures


class Parcels:
    """Parcels by recipe and device; changed by one thread.

    Attributes:
        of: Those that are made.
        failures: Why others cannot be.
        pending: Pairs that are being made.
    """

    def __init__(self, prepare: Prepare, background: Background) -> None:
        self._prepare, self._background = prepare, background
        self.of: dict[Pair, Parcel] = {}
        self.failures: dict[Pair, AttemptFailure] = {}
        self.pending: set[Pair] = set()

    def make_now(self, wanted: Mapping[str, Sequence[Offer]]) -> None:
        """Makes what is wanted, and waits for it.

        Raises:
            EtdeployError: Nothing can be made.
        """
        wanted = self.missing(wanted)
        if wanted:
            self.take(Made(_pairs(wanted), self._prepare(wanted)))

    def begin(self, wanted: Mapping[str, Sequence[Offer]]) -> list[str]:
        """Begins to make what is wanted and missing, if nothing else is being made.

        Returns:
            Names of devices that it is made for.
        """
        wanted = {} if self.pending else self.missing(wanted)
        if wanted:
            pairs = _pairs(wanted)
            self.pending.update(pairs)
            self._background.start(lambda: _made(pairs, self._prepare, wanted))
        return sorted({offer.name for offers in wanted.values() for offer in offers})

    def missing(self, wanted: Mapping[str, Sequence[Offer]]) -> dict[str, Sequence[Offer]]:
        """The part of it that is neither made nor known to fail."""
        found = {
            recipe: [o for o in offers if not self._is_known((recipe, o.identity))]
            for recipe, offers in wanted.items()
        }
        return {recipe: offers for recipe, offers in found.items() if offers}

    def take(self, made: Made) -> None:
        """What was begun is made."""
        self.pending.difference_update(made.pairs)
        self.of.update(made.of)
        self.failures.update(made.failures)
        for pair in made.pairs:
            if not self._is_known(pair):
                self.failures[pair] = AttemptFailure(
                    kind="bug", exit_code=9, message="nothing was made for it, and nothing failed"
                )

    def why_not(self, state: VisitState) -> tuple[str, AttemptFailure] | None:
        """A device that a visit may go to and why not there; None while one is possible."""
        visit = state.visit
        devices = visit.among if visit.device is None else (visit.device,)
        why = [(each, self.failures.get((visit.recipe, each))) for each in devices]
        known = [(each, failure) for each, failure in why if failure]
        return known[0] if known and len(known) == len(why) else None

    def _is_known(self, pair: Pair) -> bool:
        return pair in self.of or pair in self.failures


def _made(pairs: Sequence[Pair], prepare: Prepare, wanted: Mapping[str, Sequence[Offer]]) -> Made:
    """What was made in the background; an error there is that of every pair."""
    from etdeploy.core.errors import EtdeployError

    try:
        return Made(pairs, prepare(wanted))
    except EtdeployError as error:
        kind, code, message = error.kind, error.exit_code, error.message
    except Exception as error:
        kind, code, message = "bug", EtdeployError.exit_code, f"{type(error).__name__}: {error}"
    failure = AttemptFailure(kind=kind, exit_code=code, message=message)
    return Made(pairs, _Failed(dict.fromkeys(pairs, failure)))


class _Failed:
    def __init__(self, failures: Mapping[Pair, AttemptFailure]) -> None:
        self.parcels: Mapping[Pair, Parcel] = {}
        self.failures = failures


def _pairs(wanted: Mapping[str, Iterable[Offer]]) -> list[Pair]:
    return [(recipe, offer.identity) for recipe, offers in wanted.items() for offer in offers]
