"""Who is told how a night ended, and what is said where that fails."""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from etdeploy.farm.report import end as telling
from etdeploy.farm.report.end import notify
from etdeploy.farm.report.model import FailureGroup, NightReport
from etdeploy.farm.spec.model import Notify
from tests.support.processes import eventually


def program(folder: Path, script: str) -> str:
    path = folder / "teller"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_a_command_gets_the_summary_at_its_input(report: NightReport, tmp_path: Path) -> None:
    command = program(tmp_path, 'cat > "$1"')
    out = tmp_path / "a b; touch hurt"
    assert notify(report, [Notify(command=(command, str(out)))]) == []
    assert json.loads(out.read_text())["night"] == report.night.id
    assert not (tmp_path / "hurt").exists()


def test_a_command_that_fails_is_told(report: NightReport, tmp_path: Path) -> None:
    command = program(tmp_path, "echo no such channel >&2; exit 3")
    [told] = notify(report, [Notify(command=(command,))])
    assert told.endswith("could not be notified of the night: exit code 3: no such channel")
    [missing] = notify(report, [Notify(command=(str(tmp_path / "none"),))])
    assert "it cannot be started: No such file" in missing


def test_a_good_night_is_told_only_to_who_always_wants_it(
    report: NightReport, tmp_path: Path
) -> None:
    good = report.model_copy(update={"verdicts": (), "failures": ()})
    command = (program(tmp_path, "exit 3"),)
    assert notify(good, [Notify(command=command)]) == []
    assert len(notify(good, [Notify(command=command, when="always")])) == 1


class _Server(HTTPServer):
    answers: list[int]
    bodies: list[bytes]


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        self.server.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(self.server.answers.pop(0))
        self.send_header("Location", "https://127.0.0.1:1/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@contextmanager
def webhook(folder: Path, *answers: int) -> Iterator[tuple[str, _Server, ssl.SSLContext]]:
    certificate = _certificate(folder)
    secure = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    secure.load_cert_chain(certificate)
    server = _Server(("127.0.0.1", 0), _Handler)
    server.answers, server.bodies = list(answers), []
    server.socket = secure.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        trusted = ssl.create_default_context(cafile=str(certificate))
        yield f"https://127.0.0.1:{server.server_port}/secret", server, trusted
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _certificate(folder: Path) -> Path:
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = datetime.now(timezone.utc)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = folder / "server.pem"
    form = serialization.PrivateFormat.PKCS8
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
        + made.public_bytes(serialization.Encoding.PEM)
    )
    return path


def test_a_webhook_gets_a_post(report: NightReport, tmp_path: Path) -> None:
    with webhook(tmp_path, 200) as (url, server, trusted):
        assert notify(report, [Notify(webhook=url)], context=trusted) == []
        assert json.loads(server.bodies[0])["exit_code"] == 1


def test_a_busy_server_is_asked_again_and_in_bounds(report: NightReport, tmp_path: Path) -> None:
    waits: list[float] = []
    with webhook(tmp_path, 503, 429, 200) as (url, server, trusted):
        assert notify(report, [Notify(webhook=url)], waits.append, trusted) == []
        assert len(server.bodies) == 3
    assert waits == [1.0, 4.0]
    with webhook(tmp_path, 503, 503, 503, 200) as (url, server, trusted):
        [told] = notify(report, [Notify(webhook=url)], waits.append, trusted)
        assert told == "127.0.0.1 could not be notified of the night: it answered 503"
        assert len(server.bodies) == 3


def test_a_refusal_and_a_redirect_are_not_followed(report: NightReport, tmp_path: Path) -> None:
    with webhook(tmp_path, 403, 302) as (url, server, trusted):
        for answer in ("403", "302, and redirects are not followed"):
            [told] = notify(report, [Notify(webhook=url)], lambda _: None, trusted)
            assert told.endswith(f"it answered {answer}")
            assert "secret" not in told
        assert len(server.bodies) == 2


def test_an_unknown_certificate_and_http_are_refused(report: NightReport, tmp_path: Path) -> None:
    with webhook(tmp_path) as (url, server, _):
        waits: list[float] = []
        [told] = notify(report, [Notify(webhook=url)], waits.append)
        assert "its certificate is not trusted: self-signed certificate (SSL_CERT_FILE" in told
        assert waits == []
    [plain] = notify(report, [Notify(webhook="http://127.0.0.1:1/x")])
    assert plain.endswith("a webhook needs an https URL")
    assert server.bodies == []


@pytest.mark.parametrize("url", ["https://h/a secret", "https://ann:secret@h:x/"])
def test_what_is_no_url_is_not_repeated(report: NightReport, url: str) -> None:
    [told] = notify(report, [Notify(webhook=url)], lambda _: None)
    assert told.endswith("this is not a URL")
    assert "secret" not in told


def _drips(server: _Handler) -> None:
    """A header that never ends: each letter comes in time."""
    with contextlib.suppress(OSError):
        server.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
        for _ in range(25):
            server.wfile.write(b"x")
            time.sleep(0.05)


def _floods(server: _Handler) -> None:
    """A gigabyte, of which nobody wants to know."""
    with contextlib.suppress(OSError):
        server.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
        for _ in range(1000):
            server.wfile.write(bytes(1_000_000))


def _talks(server: _Handler) -> None:
    server.wfile.write(b"secret words, and no HTTP\r\n")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (_drips, "it did not answer within 0 s"),
        (_floods, None),
        (_talks, "it did not answer in HTTP (BadStatusLine)"),
    ],
)
def test_a_strange_server_holds_nobody_up(
    report: NightReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    answer: Callable[[_Handler], None], why: str | None,
) -> None:  # fmt: skip
    monkeypatch.setattr(telling, "_WEBHOOK_S", 0.4)
    monkeypatch.setattr(_Handler, "do_POST", answer)
    with webhook(tmp_path) as (url, _, trusted):
        told = notify(report, [Notify(webhook=url)], lambda _: None, trusted)
    assert told == ([f"127.0.0.1 could not be notified of the night: {why}"] if why else [])


def test_a_command_that_hangs_is_ended_with_its_children(
    report: NightReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telling, "_COMMAND_S", 0.3)
    command = program(tmp_path, 'sleep 600 & echo $! > "$1"; wait')
    [told] = notify(report, [Notify(command=(command, str(tmp_path / "pid")))])
    assert told.endswith("it did not end within 0 s")
    child = int((tmp_path / "pid").read_text())
    assert eventually(lambda: not Path(f"/proc/{child}").exists() or _is_dead(child))


def _is_dead(process: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


def test_what_no_encoding_has_is_told_nevertheless(report: NightReport, tmp_path: Path) -> None:
    odd = report.model_copy(update={"failures": (_odd(report),)})
    out = tmp_path / "told"
    assert notify(odd, [Notify(command=(program(tmp_path, 'cat > "$1"'), str(out)))]) == []
    assert json.loads(out.read_text())["failures"][0]["message"] == "half \ud83d"


def _odd(report: NightReport) -> FailureGroup:
    return report.failures[0].model_copy(update={"message": "half \ud83d"})


def test_who_wants_bad_nights_hears_of_one_in_which_nothing_was_measured(
    report: NightReport, tmp_path: Path
) -> None:
    totals = report.totals.model_copy(update={"done": 0, "regressed": 0, "suspected": 0})
    empty = report.model_copy(update={"verdicts": (), "failures": (), "totals": totals})
    assert (empty.exit_code, empty.headline.startswith("nothing was measured")) == (6, True)
    assert len(notify(empty, [Notify(command=(program(tmp_path, "exit 3"),))])) == 1
