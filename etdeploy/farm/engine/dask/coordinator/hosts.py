"""Which hosts are connected, what they offer, and where their Workers are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from etdeploy.farm.engine.dask.wire import About, Announcement, Hello, Welcome
from etdeploy.farm.model import Offer


@dataclass
class Host:
    """A host that was welcomed.

    Attributes:
        session: Of its process.
        worker: Address of the Worker that stands for it; it is connected as long as that is there.
        phones: Addresses of its phones' Workers by identity.
        offers: What it announced last.
    """

    session: str
    worker: str | None = None
    phones: dict[str, str] = field(default_factory=dict)
    offers: tuple[Offer, ...] = ()


class Hosts:
    """All hosts by name. Only the scheduler's thread uses it."""

    def __init__(self) -> None:
        self._hosts: dict[str, Host] = {}

    def welcome(self, hello: Hello) -> Welcome:
        """Takes a host in, unless another process has its name."""
        known = self._hosts.get(hello.host)
        if known and known.worker and known.session != hello.session:
            return Welcome(
                refused=f"another host is connected as {hello.host!r}",
                remedy="If it is this one, from before, wait until its connection has ended. "
                "Else: --name OTHER_NAME",
            )
        if known is None or known.session != hello.session:
            self._hosts[hello.host] = Host(hello.session)
        return Welcome()

    def is_welcome(self, about: About) -> bool:
        """Whether a Worker belongs to a host that was taken in."""
        return self.of(about.session, about.host) is not None

    def of(self, session: str, host: str) -> Host | None:
        """The host, if it is still that process."""
        known = self._hosts.get(host)
        return known if known and known.session == session else None

    def knows(self, session: str) -> bool:
        """Whether some host has that session."""
        return any(host.session == session for host in self._hosts.values())

    def session(self, host: str) -> str | None:
        """The session of a connected host."""
        known = self._hosts.get(host)
        return known.session if known and known.worker else None

    def came(self, about: About, address: str) -> None:
        """Notes a Worker."""
        host = self.of(about.session, about.host)
        if host and about.identity:
            host.phones[about.identity] = address
        elif host:
            host.worker = address

    def went(self, about: About, address: str) -> None:
        """Forgets a Worker, and the host with the one that stands for it."""
        host = self.of(about.session, about.host)
        if host is None:
            return
        if about.identity and host.phones.get(about.identity) == address:
            del host.phones[about.identity]
        elif host.worker == address:
            del self._hosts[about.host]

    def announced(self, announcement: Announcement) -> None:
        """Notes what a host offers."""
        for host in self._hosts.values():
            if host.session == announcement.session:
                host.offers = announcement.offers

    def offers(self) -> Sequence[Offer]:
        """What can be used now, or says why it cannot."""
        return [
            offer
            for host in self._hosts.values()
            if host.worker
            for offer in host.offers
            if offer.problem or offer.identity in host.phones
        ]

    def phone(self, host: str, identity: str) -> str | None:
        """The address of a phone's Worker."""
        known = self._hosts.get(host)
        return known.phones.get(identity) if known and known.worker else None

    def worker(self, host: str) -> str | None:
        """The address of the Worker that stands for a host."""
        known = self._hosts.get(host)
        return known.worker if known else None
