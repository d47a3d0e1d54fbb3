"""Phones of a long night with a real adbd, each in namespaces of its own."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.adbd import AdbServer, AndroidRoot, running_adb_server, running_android
from tests.support.bundles import compile_program
from tests.support.farm_soak_phone import LOG, RealPhones, phone_log, save_phones

# Its store has the program once.
_SIZE_MIB = 32
# A shell that has lost its connection sees that at once, and ends what it had begun.
_QUIET_S = 20.0


@dataclass(frozen=True)
class RealPhone:
    """A phone with a real adbd.

    Attributes:
        identity: As it is offered.
        host: That it is plugged into.
        root: The test device.
    """

    identity: str
    host: str
    root: AndroidRoot

    def lines(self) -> list[str]:
        """What the programs on it have noted there."""
        log = self.root.path(LOG)
        return log.read_text().splitlines() if log.exists() else []

    def keep_log(self, folder: Path) -> None:
        """Copies its log to those of the other phones."""
        phone_log(folder, self.identity).write_text("".join(f"{x}\n" for x in self.lines()))

    def kill_program(self) -> bool:
        """Kills the program that runs there; whether there was one."""
        lines = self.lines()
        if not lines or not lines[-1].startswith("begin"):
            return False
        self.root.kill(int(lines[-1].split()[3]))
        return True

    def left(self) -> list[str]:
        """What goes on running there: all that does not end soon."""
        deadline = time.monotonic() + _QUIET_S
        while (found := self.root.processes()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return found


def with_real(phones: Mapping[str, Sequence[str]], count: int) -> dict[str, list[str]]:
    """The phones of each host, of which `count` get identities of phones with a real adbd."""
    found = {host: list(each) for host, each in phones.items()}
    hosts = list(found)
    for number in range(count):
        host, place = hosts[number % len(hosts)], number // len(hosts)
        found[host][place] = f"android-{found[host][place]}"
    return found


@contextmanager
def running_phones(folder: Path, phones: Mapping[str, Sequence[str]]) -> Iterator[list[RealPhone]]:
    """Those of `with_real` with a real adbd, and an adb server for each host that has any.

    Raises:
        RootUnavailable: This machine cannot have them.
    """
    wanted = [(h, each) for h, some in phones.items() for each in some if each[:8] == "android-"]
    with ExitStack() as stack:
        servers: dict[str, AdbServer] = {}
        found: list[RealPhone] = []
        for host, identity in wanted:
            if host not in servers:
                servers[host] = stack.enter_context(_server(folder / f"adb-{host}"))
            serial = identity.removeprefix("android-")
            root = stack.enter_context(running_android(size_mib=_SIZE_MIB, ro_serialno=serial))
            servers[host].connect(root)
            found.append(RealPhone(identity, host, root))
        if found:
            compile_program(folder, "gcc", "-static")
        save_phones(folder, {host: _of(host, servers[host], found) for host in servers})
        yield found


def _of(host: str, server: AdbServer, phones: Sequence[RealPhone]) -> RealPhones:
    keys = ("HOME", "ANDROID_ADB_SERVER_PORT")
    return RealPhones(
        {key: server.environment[key] for key in keys},
        {each.identity: each.root.spec for each in phones if each.host == host},
    )


@contextmanager
def _server(home: Path) -> Iterator[AdbServer]:
    home.mkdir()
    with running_adb_server(home) as server:
        try:
            yield server
        finally:
            # A step of recovery may have started another one, which is nobody's child.
            subprocess.run(
                ["adb", "-P", str(server.port), "kill-server"],
                env=server.environment, capture_output=True, check=False,
            )  # fmt: skip
