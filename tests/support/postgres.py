"""A real PostgreSQL server on loopback, a child of the test with its own data.

    from tests.support.postgres import postgres

    def test_something(postgres):
        place = require_location(postgres.url())

The fixture skips the test, with the reason, where the machine cannot have it.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import pytest

# Of the server on loopback that a test starts; in a URL, these characters are written otherwise.
_SECRET = "p/ss:w@rd"  # noqa: S105
_START_S = 30.0
_USER = "postgres"
_PLACES = ("/usr/lib/postgresql", "/usr/local/lib/postgresql")


@dataclass(frozen=True)
class Postgres:
    """A running server; its users have to give a password."""

    port: int
    folder: Path

    def url(self, database: str = "postgres", password: str | None = None) -> str:
        """As `--store` takes it."""
        password = quote(_SECRET if password is None else password, safe="")
        return f"postgresql://{_USER}:{password}@127.0.0.1:{self.port}/{database}"

    def new_database(self, name: str) -> str:
        """The URL of a new, empty database."""
        self.sql(f'CREATE DATABASE "{name}"')
        return self.url(name)

    def sql(self, *statements: str, database: str = "postgres") -> None:
        """Executes statements outside a transaction."""
        import psycopg

        with psycopg.connect(self.url(database), autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())


def _program(name: str) -> str:
    """Debian keeps them away from the PATH, by version."""
    found = [p for place in _PLACES for p in sorted(Path(place).glob(f"*/bin/{name}"))]
    program = shutil.which(name) or (str(found[-1]) if found else None)
    if program is None:
        pytest.skip(f"there is no {name}; on Debian or Ubuntu: apt-get install postgresql")
    return program


@dataclass(frozen=True)
class Restartable(Postgres):
    """The same, and a test may stop it for a while; for a server that no other test uses."""

    argv: tuple[str, ...]
    user: dict[str, str | list[str]]
    children: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            child = subprocess.Popen(
                self.argv, cwd=self.folder, stdout=log, stderr=log, **self.user
            )  # type: ignore[call-overload]
        self.children.append(child)
        _await(self, child)

    def stop(self) -> None:
        while self.children:
            child = self.children.pop()
            child.send_signal(signal.SIGQUIT)  # at once, and its children too
            child.wait()


@contextmanager
def running() -> Iterator[Restartable]:
    """Starts a server; it ends with the block."""
    programs = {name: _program(name) for name in ("initdb", "postgres")}
    # Not pytest's folder, which another user may not enter: PostgreSQL refuses to run as root.
    folder = Path(tempfile.mkdtemp(prefix="etdeploy-pg-"))
    user = _as_user(folder)
    try:
        _initialize(programs["initdb"], folder, user)
        with _serving(programs["postgres"], folder, user) as server:
            yield server
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _as_user(folder: Path) -> dict[str, str | list[str]]:
    if os.geteuid() != 0:
        return {}
    for name in (_USER, "nobody"):
        try:
            shutil.chown(folder, name)
        except LookupError:
            continue
        return {"user": name, "extra_groups": []}
    pytest.skip("PostgreSQL does not run as root, and there is no other user")


def _initialize(initdb: str, folder: Path, user: dict[str, str | list[str]]) -> None:
    secret = folder / "password"
    secret.write_text(_SECRET)
    secret.chmod(0o644)
    argv = [initdb, "-D", str(folder / "data"), "-U", _USER, "-A", "scram-sha-256", "--no-sync",
            "--pwfile", str(secret), "-E", "UTF8", "--locale", "C"]  # fmt: skip
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False, **user)  # type: ignore[call-overload]
    if done.returncode:
        pytest.skip(f"initdb failed: {done.stderr.strip()}")


@contextmanager
def _serving(program: str, folder: Path, user: dict[str, str | list[str]]) -> Iterator[Restartable]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = {
        "listen_addresses": "127.0.0.1", "port": port, "unix_socket_directories": folder,
        "fsync": "off", "max_connections": 20, "shared_buffers": "16MB",
    }  # fmt: skip
    settings = [f"-c{name}={value}" for name, value in options.items()]
    argv = [program, "-D", str(folder / "data"), *settings]
    server = Restartable(port, folder, tuple(argv), user)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def _await(server: Postgres, child: subprocess.Popen[bytes]) -> None:
    import psycopg

    until = time.monotonic() + _START_S
    while True:
        try:
            server.sql("SELECT 1")
        except psycopg.OperationalError:
            if child.poll() is not None or time.monotonic() > until:
                log = (server.folder / "log").read_text(errors="replace")
                pytest.skip(f"PostgreSQL does not start: {log[-500:]}")
            time.sleep(0.05)
        else:
            return


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One server for the session; a test makes databases of its own."""
    pytest.importorskip("psycopg", reason="the extra postgres is not installed")
    with running() as server:
        yield server
